"""Likelihoods: densities, samples and marginals that agree with one another and with scipy."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float64, Int64
from scipy import integrate, stats
from torch import Tensor

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.labelled import LabelledArrays
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import (
    ConjugateLikelihood,
    DensityLikelihood,
    Likelihood,
    likelihood_from_dict,
)
from ncp.generative.priors import CRP
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.partitions import canonical, enumerate_partitions

PSI = ((2.0, 0.6), (0.6, 1.0))
CONJUGATE: list[ConjugateLikelihood] = [
    GaussianKnownVariance(dim=1, prior_sd=3.0, noise_sd=0.8),
    GaussianKnownVariance(),
    GaussianKnownVariance(dim=5, prior_sd=2, noise_sd=1),
    NormalInverseWishart(dim=1, mean=0.5, kappa=0.3, dof=3.5, scale_matrix=1.5),
    NormalInverseWishart(dim=2, mean=(1.0, -1.0), kappa=0.2, dof=4.0, scale_matrix=PSI),
    NormalInverseWishart(dim=4),
]
DENSITY: list[DensityLikelihood] = [
    GaussianKnownVariance(),
    NormalInverseWishart(dim=1),
    NormalInverseWishart(dim=3, kappa=0.5),
    LaplaceNoise(),
    LaplaceNoise(dim=1, prior_sd=2, noise_scale=0.5),
    Ring(),
    Ring(prior_sd=1, radius=[0, 2], noise_sd=0.5),
]
ARRAYS = LabelledArrays(
    np.arange(24, dtype=np.uint8).reshape(6, 2, 2), [7, 3, 3, 9, 7, 7], source="six squares"
)
ALL: list[Likelihood] = [*CONJUGATE, *DENSITY[3:], ARRAYS]
each_conjugate = pytest.mark.parametrize("likelihood", CONJUGATE, ids=str)
each_density = pytest.mark.parametrize("likelihood", DENSITY, ids=str)
each_likelihood = pytest.mark.parametrize("likelihood", ALL, ids=str)


def draw(likelihood: Likelihood, n: int, generator: torch.Generator, k: int = 2) -> Tensor:
    """One data set of n points in k clusters, (n, *event)."""
    parameters = likelihood.sample_parameters((1, k), generator)
    labels = torch.arange(n)[None] % k
    return likelihood.sample_observations(parameters, labels, generator)[0]


# --- marginal likelihoods ------------------------------------------------------------------------


@pytest.mark.parametrize("points", [[0.3], [0.3, -1.2], [1.0, 2.5, 2.0, -0.4]])
def test_gaussian_marginal_by_integration(points: list[float]) -> None:
    likelihood = GaussianKnownVariance(dim=1, prior_sd=2.0, noise_sd=0.7)

    def joint(mu: float) -> float:
        return float(stats.norm.pdf(mu, 0, 2.0) * np.prod(stats.norm.pdf(points, mu, 0.7)))

    exact, _ = integrate.quad(joint, -12, 12, epsabs=0, epsrel=1e-11, points=[0, 1])
    x = np.array(points)[:, None]
    marginal = float(likelihood.log_marginal(x, np.zeros(len(points), dtype=int)))
    assert marginal == pytest.approx(math.log(exact), abs=1e-8)


def test_gaussian_marginal_in_two_dimensions_by_integration() -> None:
    likelihood = GaussianKnownVariance(dim=2, prior_sd=1.5, noise_sd=0.9)
    x = np.array([[0.2, -1.0], [1.1, 0.4]])

    def joint(b: float, a: float) -> float:
        squares = ((x - [a, b]) ** 2).sum() / 0.81 + (a * a + b * b) / 2.25
        return math.exp(-squares / 2) / (2 * math.pi) ** 3 / 0.81**2 / 2.25

    exact, _ = integrate.dblquad(joint, -9, 9, -9, 9, epsabs=1e-14, epsrel=1e-10)
    assert float(likelihood.log_marginal(x, [0, 0])) == pytest.approx(math.log(exact), abs=1e-8)


@pytest.mark.parametrize("points", [[0.3], [0.3, -1.2], [1.0, 2.5, 2.0, -0.4]])
def test_normal_inverse_gamma_marginal_by_integration(points: list[float]) -> None:
    m, kappa, dof, psi = 0.5, 0.7, 3.0, 1.4
    x = np.array(points)

    nodes, weights = np.polynomial.legendre.leggauss(60)

    def over_mean(log_v: float) -> float:
        v = math.exp(log_v)
        log_prior = (
            dof / 2 * math.log(psi / 2) - math.lgamma(dof / 2) - dof / 2 * log_v - psi / 2 / v
        )
        # the posterior of mu given v, ten standard deviations either way
        width = 10 * math.sqrt(v / (kappa + len(x)))
        mu = (kappa * m + x.sum()) / (kappa + len(x)) + width * nodes
        squares = kappa * (mu - m) ** 2 + ((x[:, None] - mu) ** 2).sum(axis=0)
        density = np.exp(-squares / (2 * v)) * (2 * math.pi * v) ** (-(len(x) + 1) / 2)
        return float(math.exp(log_prior) * math.sqrt(kappa) * width * (weights @ density))

    exact, _ = integrate.quad(over_mean, -6, 16, epsabs=0, epsrel=1e-10, limit=200)
    likelihood = NormalInverseWishart(dim=1, mean=m, kappa=kappa, dof=dof, scale_matrix=psi)
    marginal = float(likelihood.log_marginal(x[:, None], np.zeros(len(x), dtype=int)))
    assert marginal == pytest.approx(math.log(exact), abs=1e-8)


def test_normal_inverse_wishart_marginal_by_integration() -> None:
    """Two dimensions: integrate over Sigma = L L^T, the mean by the normal formula."""
    m, kappa, dof, psi = np.array([0.5, -0.2]), 0.8, 6.0, np.array(PSI)
    x = np.array([[0.1, 0.4], [-0.6, 0.9]])
    # L11 = exp(a), L22 = exp(c), L21 = L22 sinh(b): smooth, and negligible at the ends
    a, b = np.linspace(-2.2, 5.2, 64), np.linspace(-5.0, 5.0, 64)
    volume = (a[1] - a[0]) ** 2 * (b[1] - b[0])
    l11, l22, b = (axis.ravel() for axis in np.meshgrid(np.exp(a), np.exp(a), b, indexing="ij"))
    l21 = l22 * np.sinh(b)
    sigma = np.array([[l11**2, l11 * l21], [l11 * l21, l21**2 + l22**2]])
    # dSigma = 4 L11^2 L22 dL11 dL21 dL22, dL11 = L11 da, dL22 = L22 dc, dL21 = L22 cosh(b) db
    jacobian = 4 * l11**3 * l22**3 * np.cosh(b)
    inverse = np.linalg.inv(np.moveaxis(sigma, -1, 0))
    log_det = 2 * np.log(l11 * l22)
    trace = np.einsum("ij,gji->g", psi, inverse)
    log_prior = (
        0.5 * dof * np.linalg.slogdet(psi)[1] - dof * math.log(2)
        - (math.log(math.pi) / 2 + math.lgamma(dof / 2) + math.lgamma((dof - 1) / 2))
        - 0.5 * (dof + 3) * log_det - 0.5 * trace
    )  # fmt: skip
    mean, n = x.mean(axis=0), len(x)
    scatter = (x - mean).T @ (x - mean) + kappa * n / (kappa + n) * np.outer(mean - m, mean - m)
    log_likelihood = (
        -n * math.log(2 * math.pi) - 0.5 * n * log_det + math.log(kappa / (kappa + n))
        - 0.5 * np.einsum("ij,gji->g", scatter, inverse)
    )  # fmt: skip
    exact = math.log(float((np.exp(log_prior + log_likelihood) * jacobian).sum() * volume))
    likelihood = NormalInverseWishart(dim=2, mean=m, kappa=kappa, dof=dof, scale_matrix=psi)
    assert float(likelihood.log_marginal(x, [0, 0])) == pytest.approx(exact, abs=1e-8)


def predictive(likelihood: ConjugateLikelihood, x: np.ndarray, new: np.ndarray) -> float:
    """log p(new | x), from the textbook's posterior, not from a ratio of marginals."""
    n, d = len(x), new.shape[-1]
    if isinstance(likelihood, GaussianKnownVariance):
        precision = 1 / likelihood.prior_sd**2 + n / likelihood.noise_sd**2
        mean = x.sum(axis=0) / likelihood.noise_sd**2 / precision
        sd = math.sqrt(1 / precision + likelihood.noise_sd**2)
        return float(stats.norm.logpdf(new, mean, sd).sum())
    assert isinstance(likelihood, NormalInverseWishart)
    assert likelihood.dof is not None
    m = np.broadcast_to(np.asarray(likelihood.mean), d)
    psi = np.asarray(likelihood.scale_matrix) * (np.eye(d) if likelihood.scale_matrix == 1 else 1)
    psi = psi.reshape(d, d)
    kappa, dof = likelihood.kappa + n, likelihood.dof + n
    total = likelihood.kappa * m + x.sum(axis=0)
    psi = psi + x.T @ x + likelihood.kappa * np.outer(m, m) - np.outer(total, total) / kappa
    df = dof - d + 1
    shape = psi * (kappa + 1) / (kappa * df)
    return float(stats.multivariate_t.logpdf(new, total / kappa, shape, df=df))


@each_conjugate
def test_marginal_is_the_product_of_predictives(
    likelihood: ConjugateLikelihood, generator: torch.Generator
) -> None:
    x = draw(likelihood, 6, generator).numpy()
    log_marginal = sum(predictive(likelihood, x[:n], x[n]) for n in range(6))
    marginal = float(likelihood.log_marginal(x, np.zeros(6, dtype=int)))
    assert marginal == pytest.approx(log_marginal, rel=1e-10, abs=1e-10)
    apart = sum(predictive(likelihood, x[:0], x[n]) for n in range(6))
    assert float(likelihood.log_marginal(x, np.arange(6))) == pytest.approx(apart, rel=1e-10)


@each_conjugate
def test_marginal_over_all_partitions(
    likelihood: ConjugateLikelihood, generator: torch.Generator
) -> None:
    """Against one cluster at a time, in any order of the points, in any blocks."""
    x = draw(likelihood, 5, generator)
    labels = enumerate_partitions(5)
    marginal = likelihood.log_marginal(x, labels)
    for row, value in zip(labels[::7], marginal[::7], strict=True):
        clusters = [x[row == k] for k in range(int(row.max()) + 1)]
        parts = [likelihood.log_marginal(c, np.zeros(len(c), dtype=int)) for c in clusters]
        assert float(value) == pytest.approx(float(sum(parts)), rel=1e-12)
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled = likelihood.log_marginal(x[order], canonical(labels[:, order]))
    torch.testing.assert_close(shuffled, marginal, rtol=1e-12, atol=1e-12)
    assert likelihood.log_marginal(x, labels[:50].reshape(5, 10, 5)).shape == (5, 10)
    assert likelihood.log_marginal(x, labels[:0]).shape == (0,)


@each_conjugate
def test_marginal_in_blocks(
    likelihood: ConjugateLikelihood, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = draw(likelihood, 8, generator), CRP(1.0).sample(300, 8, generator)
    whole = likelihood.log_marginal(x, labels)
    monkeypatch.setattr("ncp.generative.priors.BLOCK", 100)
    torch.testing.assert_close(likelihood.log_marginal(x, labels), whole, rtol=1e-13, atol=1e-13)


@each_conjugate
def test_statistics_add_up(likelihood: ConjugateLikelihood, generator: torch.Generator) -> None:
    x = draw(likelihood, 7, generator)
    statistics = likelihood.statistics(x)
    assert statistics[:, 0].tolist() == [1.0] * 7
    summed = likelihood.log_marginal_statistics(statistics.sum(dim=0))
    whole = likelihood.log_marginal(x, np.zeros(7, dtype=int))
    torch.testing.assert_close(summed, whole, rtol=1e-10, atol=1e-10)
    empty = likelihood.log_marginal_statistics(torch.zeros_like(statistics))
    assert empty.tolist() == [0.0] * 7


def test_normal_inverse_wishart_is_stable_far_from_its_mean() -> None:
    near = NormalInverseWishart(dim=2, kappa=0.1)
    far = NormalInverseWishart(dim=2, kappa=0.1, mean=1e7)
    x = np.array([[0.25, -0.5], [1.0, 0.75], [0.5, 0.5], [-1.0, 2.0]])
    labels = [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]]
    expected = near.log_marginal(x, labels)
    torch.testing.assert_close(far.log_marginal(x + 1e7, labels), expected, rtol=1e-9, atol=1e-9)
    # two tight groups a long way apart: the distance must not eat the digits of the scatter
    apart = np.concatenate([x, x + 1e7])
    together = near.log_marginal(apart, [0, 0, 0, 0, 1, 1, 1, 1]) - near.log_marginal(x, [0] * 4)
    alone = near.log_marginal(x + 1e7, [0] * 4)
    assert float(together) == pytest.approx(float(alone), rel=1e-12)
    statistics = near.statistics(torch.from_numpy(x + 1e9)).sum(dim=0)
    assert math.isfinite(float(near.log_marginal_statistics(statistics)))


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_normal_inverse_wishart_obeys_bayes(dim: int, generator: torch.Generator) -> None:
    """log m(x) = log p(theta) + log p(x | theta) - log p(theta | x), whatever theta is."""
    mean = np.linspace(-1, 1, dim)
    prior = NormalInverseWishart(dim=dim, mean=mean, kappa=0.4, dof=dim + 1.5)
    x = draw(prior, 4, generator)
    theta = prior.sample_parameters((1, 3), generator)
    points = x.numpy()
    total = 0.4 * mean + points.sum(axis=0)
    psi = (
        np.eye(dim) + points.T @ points + 0.4 * np.outer(mean, mean) - np.outer(total, total) / 4.4
    )
    posterior = NormalInverseWishart(
        dim=dim, mean=total / 4.4, kappa=4.4, dof=dim + 5.5, scale_matrix=(psi + psi.T) / 2
    )
    candidates = (
        prior.log_prior(theta)[0]
        + prior.log_density(x[None], theta)[0].sum(dim=0)
        - posterior.log_prior(theta)[0]
    )
    marginal = prior.log_marginal(x, [0, 0, 0, 0]).expand(3)
    torch.testing.assert_close(candidates, marginal, rtol=1e-9, atol=1e-9)


# --- densities and samples -----------------------------------------------------------------------


@each_density
def test_density_is_normalised_and_sampled(
    likelihood: DensityLikelihood, generator: torch.Generator
) -> None:
    """E[p'(x) / p(x)] = 1 under x ~ p(. | theta) for another normalised density p'."""
    n = 40_000
    theta = likelihood.sample_parameters((1, 1), generator)
    x = likelihood.sample_observations(theta, torch.zeros((1, n), dtype=torch.long), generator)
    log_p = likelihood.log_density(x, theta)[0, :, 0].numpy()
    points = x[0].numpy()
    # a narrower density inside the first: the ratio has a small variance
    centre, width = points.mean(axis=0), 0.5 * points.std(axis=0)
    if isinstance(likelihood, Ring):
        centre = points[0]
        width = np.full(2, 0.5 * likelihood.noise_sd)
    log_other = stats.norm.logpdf(points, centre, width).sum(axis=1)
    ratio = np.exp(log_other - log_p)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(n)


@each_density
def test_log_density_shapes(likelihood: DensityLikelihood, generator: torch.Generator) -> None:
    theta = likelihood.sample_parameters((3, 4), generator)
    labels = torch.randint(0, 4, (3, 6), generator=generator)
    x = likelihood.sample_observations(theta, labels, generator)
    assert x.shape == (3, 6, *likelihood.event_shape)
    table = likelihood.log_density(x, theta)
    assert table.shape == (3, 6, 4)
    assert table.dtype == torch.float64
    alone = likelihood.log_density(x[1:2, 2:3], theta[1:2, 3:4])
    torch.testing.assert_close(alone[0, 0, 0], table[1, 2, 3])
    assert likelihood.log_prior(theta).shape == (3, 4)
    assert bool(torch.isfinite(likelihood.log_prior(theta)).all())


def test_ring_density_integrates_to_one() -> None:
    ring = Ring(noise_sd=0.4)
    theta = torch.tensor([[[0.3, -0.2, 2.0]]], dtype=torch.float64)
    axis = torch.linspace(-6, 6, 301, dtype=torch.float64)
    x = torch.cartesian_prod(axis, axis)[None]
    total = ring.log_density(x, theta).exp().sum() * (12 / 300) ** 2
    assert float(total) == pytest.approx(1, abs=1e-10)


def test_ring_prior_has_bounds() -> None:
    ring = Ring(radius=(1.0, 2.0))
    theta = torch.tensor([[0.0, 0.0, 0.5], [0.0, 0.0, 1.5]], dtype=torch.float64)
    assert ring.log_prior(theta).isinf().tolist() == [True, False]
    wishart = NormalInverseWishart(dim=1)
    theta = torch.tensor([[0.0, -1.0], [0.0, 1.0]], dtype=torch.float64)
    assert wishart.log_prior(theta).isinf().tolist() == [True, False]


def test_laplace_samples(generator: torch.Generator) -> None:
    theta = torch.full((1, 1, 1), 3.0, dtype=torch.float64)
    labels = torch.zeros((1, 20_000), dtype=torch.long)
    x = LaplaceNoise(dim=1, noise_scale=0.5).sample_observations(theta, labels, generator)
    assert stats.kstest(x.flatten().numpy(), stats.laplace(3.0, 0.5).cdf).pvalue > 1e-4


def test_ring_samples(generator: torch.Generator) -> None:
    theta = torch.tensor([[[0.0, 0.0, 2.0]]], dtype=torch.float64)
    labels = torch.zeros((1, 20_000), dtype=torch.long)
    x = Ring(noise_sd=0.5).sample_observations(theta, labels, generator)[0].numpy()
    rho = np.hypot(*x.T)
    assert stats.kstest(rho / 0.5, stats.rice(2.0 / 0.5).cdf).pvalue > 1e-4
    assert stats.kstest(np.arctan2(*x.T) / (2 * np.pi) + 0.5, stats.uniform.cdf).pvalue > 1e-4


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_normal_inverse_wishart_samples(dim: int, generator: torch.Generator) -> None:
    psi = np.eye(dim) + 0.5 * np.ones((dim, dim))
    likelihood = NormalInverseWishart(dim=dim, mean=2, kappa=0.5, dof=dim + 3, scale_matrix=psi)
    n = 20_000
    theta = likelihood.sample_parameters((n, 1), generator)
    x = likelihood.sample_observations(theta, torch.zeros((n, 1), dtype=torch.long), generator)
    residual = x[:, 0].numpy() - 2
    df = dim + 3 - dim + 1
    shape = psi * 1.5 / (0.5 * df)  # of the prior predictive, Student's t
    square = np.einsum("ni,ij,nj->n", residual, np.linalg.inv(shape), residual)
    assert stats.kstest(square / dim, stats.f(dim, df).cdf).pvalue > 1e-4
    factor = np.zeros((n, dim, dim))
    rows, columns = np.tril_indices(dim)
    factor[:, rows, columns] = theta[:, 0, dim:].numpy()
    inverse = np.linalg.inv(factor @ factor.transpose(0, 2, 1))  # Wishart with mean dof / Psi
    error = inverse.std(axis=0) / math.sqrt(n)
    assert (abs(inverse.mean(axis=0) - (dim + 3) * np.linalg.inv(psi)) < 5 * error).all()


@pytest.mark.parametrize("likelihood", ALL[:-1], ids=str)  # images are left as they are
def test_scale_brings_points_to_order_one(
    likelihood: Likelihood, generator: torch.Generator
) -> None:
    theta = likelihood.sample_parameters((3000, 1), generator)
    x = likelihood.sample_observations(theta, torch.zeros((3000, 2), dtype=torch.long), generator)
    scaled = (x - torch.as_tensor(likelihood.location)) / torch.as_tensor(likelihood.scale)
    assert 0.05 < float(scaled.abs().median()) < 2


# --- labelled arrays -----------------------------------------------------------------------------


def test_labelled_arrays_draw_from_their_label(generator: torch.Generator) -> None:
    theta = ARRAYS.sample_parameters((500, 3), generator)
    assert theta.shape == (500, 3, 1)
    assert (theta.sort(dim=1).values[..., 0] == torch.arange(3)).all()  # distinct
    labels = torch.randint(0, 3, (500, 8), generator=generator)
    x = ARRAYS.sample_observations(theta, labels, generator)
    assert x.dtype == torch.float32
    assert x.shape == (500, 8, 2, 2)
    item = torch.round(x[..., 0, 0] * 255 / 4).long()  # which of the six arrays
    label_of_item = torch.tensor([1, 0, 0, 2, 1, 1])  # positions in the sorted labels 3, 7, 9
    assert torch.equal(label_of_item[item], theta[..., 0].long().gather(1, labels))
    frequencies = item.flatten().bincount()
    assert len(frequencies) == 6
    assert stats.chisquare(frequencies[[0, 4, 5]].numpy()).pvalue > 1e-4
    assert stats.chisquare(frequencies[[1, 2]].numpy()).pvalue > 1e-4


def test_labelled_arrays_with_independent_labels(generator: torch.Generator) -> None:
    likelihood = LabelledArrays(np.zeros((4, 3)), [0, 1, 1, 2], distinct=False)
    theta = likelihood.sample_parameters((3000, 5), generator)
    assert likelihood.max_clusters is None
    assert stats.chisquare(theta.long().flatten().bincount().numpy()).pvalue > 1e-4
    assert bool((theta[:, 0] == theta[:, 1]).any())


def test_labelled_arrays_without_their_arrays(generator: torch.Generator) -> None:
    spec = json.loads(json.dumps(ARRAYS.to_dict()))
    restored = likelihood_from_dict(spec)
    assert isinstance(restored, LabelledArrays)
    assert restored == ARRAYS
    assert "arrays absent" in repr(restored)
    assert restored.event_shape == (2, 2)
    theta = restored.sample_parameters((2, 2), generator)
    labels = torch.zeros((2, 3), dtype=torch.long)
    with pytest.raises(ValueError, match=r"'six squares'.*likelihood\.attach\(arrays, labels\)"):
        restored.sample_observations(theta, labels, generator)
    with pytest.raises(ValueError, match=r"shape \(2, 2\) with 3 labels but got shape \(3, 3\)"):
        restored.attach(np.zeros((3, 3, 3)), [0, 1, 2])
    with pytest.raises(ValueError, match="with 3 labels but got"):
        restored.attach(np.zeros((3, 2, 2)), [0, 1, 1])
    restored.attach(np.zeros((3, 2, 2), dtype=np.uint8), [0, 1, 2])
    assert restored.sample_observations(theta, labels, generator).shape == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("arrays", "labels", "message"),
    [
        (np.zeros((3, 2)), [0, 1], "labels of shape"),
        (np.zeros(3), [0, 1, 2], "arrays of shape"),
        (np.zeros((0, 2)), [], "M > 0"),
        (np.full((2, 2), np.nan), [0, 1], "finite arrays"),
        (np.zeros((2, 2)), [0.5, 1.0], "integer labels"),
        (np.zeros((2, 2)), None, "both arrays and labels"),
        (None, None, "shape and n_labels"),
    ],
)
def test_bad_labelled_arrays(arrays: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelledArrays(arrays, labels)


def test_too_many_distinct_clusters(generator: torch.Generator) -> None:
    with pytest.raises(ValueError, match="at most 3 clusters"):
        ARRAYS.sample_parameters((2, 4), generator)


# --- specs, own classes, bad input ---------------------------------------------------------------


@each_likelihood
def test_spec_round_trip(likelihood: Likelihood) -> None:
    spec = json.loads(json.dumps(likelihood.to_dict()))
    assert spec == likelihood.to_dict()
    assert likelihood_from_dict(spec) == likelihood
    with pytest.raises(ValueError, match="arguments of"):
        likelihood_from_dict(spec | {"surprise": 1})


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match=r"one of .*Ring.* but got 'Cauchy'"):
        likelihood_from_dict({"kind": "Cauchy"})


@dataclass(frozen=True)
class Splinters(Likelihood):
    """A user's own: points on sticks of random ends."""

    spread: float = 5.0

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (2,)

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        return self.spread * torch.randn((*shape, 4), dtype=torch.float64, generator=generator)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        ends = parameters.gather(1, labels[..., None].expand(-1, -1, 4))
        u = torch.rand((*labels.shape, 1), dtype=torch.float64, generator=generator)
        return ends[..., :2] * u + ends[..., 2:] * (1 - u)


def test_a_likelihood_of_ones_own(generator: torch.Generator) -> None:
    assert likelihood_from_dict(Splinters(2.0).to_dict()) == Splinters(2.0)
    assert draw(Splinters(), 5, generator).shape == (5, 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((3, 3)), r"points of shape \(2,\).* but got an array of shape \(3, 3\)"),
        (np.zeros(3), "points of shape"),
        (np.zeros((0, 2)), "at least one point"),
        (np.array([[0.0, np.nan]]), "finite points"),
        (np.array([[0.0, np.inf]]), "finite points"),
        (np.zeros((2, 3, 2)), "one data set"),
    ],
)
def test_bad_points(x: np.ndarray, message: str) -> None:
    for likelihood in (GaussianKnownVariance(), NormalInverseWishart()):
        with pytest.raises(ValueError, match=message):
            likelihood.log_marginal(x, np.zeros(len(x) or 1, dtype=int))


def test_bad_labels() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(ValueError, match="labels of 3 points"):
        GaussianKnownVariance().log_marginal(x, [0, 0])
    with pytest.raises(ValueError, match="order of appearance"):
        GaussianKnownVariance().log_marginal(x, [0, 2, 1])


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_bad_parameters(value: float) -> None:
    for make in (
        lambda v: GaussianKnownVariance(prior_sd=v),
        lambda v: GaussianKnownVariance(noise_sd=v),
        lambda v: NormalInverseWishart(kappa=v),
        lambda v: NormalInverseWishart(scale_matrix=v),
        lambda v: NormalInverseWishart(dof=v),
        lambda v: LaplaceNoise(noise_scale=v),
        lambda v: Ring(prior_sd=v),
        lambda v: Ring(noise_sd=v),
        lambda v: Ring(radius=(2.0, v)),
    ):
        with pytest.raises(ValueError, match="Expected"):
            make(value)


def test_more_bad_parameters() -> None:
    for dim in (0, -1, True):
        with pytest.raises(ValueError, match="dim to be an integer >= 1"):
            GaussianKnownVariance(dim=dim)
    with pytest.raises(ValueError, match=r"mean to be .* shape \(2,\)"):
        NormalInverseWishart(dim=2, mean=(1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="positive definite"):
        NormalInverseWishart(dim=2, scale_matrix=((1.0, 2.0), (2.0, 1.0)))
    with pytest.raises(ValueError, match="positive definite"):
        NormalInverseWishart(dim=2, scale_matrix=((1.0, 0.5), (0.0, 1.0)))
