"""Estimated joint densities are unbiased, and weights made of them exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.generative import ring as ring_module
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import DensityLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, PitmanYor
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference import exact
from ncp.inference.pseudo_marginal import PseudoMarginal, log_marginals
from ncp.posterior import Partitions
from ncp.summary.similarity import similarity
from tests.test_comparison import RING, integrals


def points(likelihood: DensityLikelihood, n: int, seed: int) -> Tensor:
    """Of one cluster."""
    batch = Mixture(CRP(1e-9), likelihood).sample(
        1, n, generator=torch.Generator().manual_seed(seed)
    )
    return batch.x[0].double()


def estimates(likelihood: DensityLikelihood, x: Tensor, seed: int, n_draws: int = 200) -> Tensor:
    """Two hundred independent estimates of log m of all points."""
    generator = torch.Generator().manual_seed(seed)
    members = np.ones((200, len(x)), dtype=bool)
    return log_marginals(likelihood, x, members, n_draws, generator).value


def assert_unbiased(log_m: Tensor, expected: float, slack: float = 0.0) -> None:
    """The mean of m_hat / m is 1, within four standard errors."""
    ratio = (log_m - expected).exp()
    error = 4 * float(ratio.std()) / np.sqrt(len(ratio)) + slack
    assert abs(float(ratio.mean()) - 1) < error
    assert float(ratio.std()) < 0.35


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 12])
def test_the_marginal_of_a_ring_is_its_integral(n: int, seed: int) -> None:
    x = points(RING, n, seed)
    expected = integrals(RING, x.numpy(), np.ones((1, n), dtype=bool))[0]
    assert_unbiased(estimates(RING, x, seed), expected, slack=0.01)  # of the grid


@pytest.mark.parametrize(("grid", "near"), [(1.0, 0.1), (0.3, 0.015)])
def test_marginals_of_all_sets_of_points(
    grid: float, near: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finer the grid, the closer."""
    monkeypatch.setattr(ring_module, "EDGE", grid * ring_module.EDGE)
    monkeypatch.setattr(ring_module, "RADII", grid * ring_module.RADII)
    generator = torch.Generator().manual_seed(seed)
    x = Mixture(CRP(0.5), RING).sample(3, 6, generator=generator).x.double()
    n_points = torch.tensor([6, 4, 1])
    found = RING.log_subset_marginals(x, n_points)
    assert found.shape == (3, 64)
    assert bool((found[:, 0] == 0).all())
    for points, n, row in zip(x, n_points.tolist(), found, strict=True):
        sets = torch.arange(1, 2**n)
        members = (sets[:, None] >> torch.arange(n)) % 2 == 1
        expected = torch.as_tensor(integrals(RING, points[:n].numpy(), members.numpy()))
        apart = members.double() @ expected[members.sum(1) == 1]  # each on a ring of its own
        likely = expected > apart - 5
        assert int(likely.sum()) >= n
        torch.testing.assert_close(row[sets][likely], expected[likely], atol=near, rtol=0)


def test_points_on_a_short_arc_have_rings_on_both_sides(seed: int) -> None:
    ring = Ring(prior_sd=1.0, radius=(1.0, 2.0), noise_sd=0.2)
    x = np.stack([np.linspace(-0.6, 0.6, 5), 0.02 * np.arange(5) % 0.03], 1)
    expected = integrals(ring, x, np.ones((1, 5), dtype=bool))[0]
    assert_unbiased(estimates(ring, torch.as_tensor(x), seed), expected, slack=0.01)


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize(
    "likelihood",
    [GaussianKnownVariance(1), GaussianKnownVariance(4), NormalInverseWishart(2, kappa=0.1)],
    ids=["one", "four", "covariance"],
)
def test_conjugate_marginals(likelihood: GaussianKnownVariance, n: int, seed: int) -> None:
    """Parameters up to five, posteriors from wider than a cluster to a thousandth of the prior."""
    x = points(likelihood, n, seed)
    expected = float(likelihood.log_marginal(x, np.zeros(n, dtype=np.int64)))
    ratio = (estimates(likelihood, x, seed, 400) - expected).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / np.sqrt(len(ratio))
    assert float(ratio.std()) < 0.6


def test_the_standard_error_is_the_spread(seed: int) -> None:
    x = points(RING, 5, seed)
    generator = torch.Generator().manual_seed(seed)
    found = log_marginals(RING, x, np.ones((200, 5), dtype=bool), 400, generator)
    assert float(found.standard_error.median()) == pytest.approx(float(found.value.std()), rel=0.4)


@dataclass(frozen=True)
class DrawsOnly(LaplaceNoise):
    """Its prior can be sampled only."""

    log_prior = DensityLikelihood.log_prior


def test_without_the_density_of_the_prior(seed: int) -> None:
    own, known = DrawsOnly(1, 2.0, 0.8), LaplaceNoise(1, 2.0, 0.8)
    x = points(known, 4, seed)
    expected = float(estimates(known, x, seed, 2000).exp().mean().log())
    ratio = (estimates(own, x, seed, 2000) - expected).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / np.sqrt(200) + 0.01


def test_every_cluster_is_integrated_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(
        likelihood: DensityLikelihood, x: Tensor, members: np.ndarray, *rest: object
    ) -> object:
        asked.append(len(members))
        return log_marginals(likelihood, x, members)

    monkeypatch.setattr("ncp.inference.pseudo_marginal.log_marginals", counted)
    joint = PseudoMarginal(Mixture(CRP(0.7), RING))
    x = points(RING, 4, seed)
    first = joint.log_joint(x, [[0, 0, 1, 1], [0, 0, 1, 2]])
    again = joint.log_joint(x, [[0, 0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 1]])
    np.testing.assert_array_equal(first[::-1], again[:2])
    assert asked == [4, 1]
    joint.log_joint(x + 1.0, [0, 0, 1, 1])  # other data: nothing is known
    assert asked == [4, 1, 2]


@pytest.mark.parametrize("prior", [CRP(0.7), PitmanYor(0.5, 0.3)], ids=repr)
def test_weights_of_rings_are_exact(prior: CRP, seed: int) -> None:
    """Draws of the prior of partitions with estimated weights, at N = 6 by integrals on a grid."""
    mixture = Mixture(prior, RING)
    generator = torch.Generator().manual_seed(seed)
    x = mixture.sample(1, 6, generator=generator).x[0].double().numpy()
    known = exact.posterior(x, mixture, lambda subsets: integrals(RING, x, subsets))
    rows = prior.sample(4000, 6, generator).numpy()
    labels, counts = np.unique(rows, axis=0, return_counts=True)
    draws = Partitions(labels, counts, prior.log_prob(labels).numpy(), x=x)
    weighted = draws.reweight(mixture)
    report = weighted.report
    error = 4 * report.log_evidence.standard_error + 0.1  # that of a hundred integrals
    assert abs(float(report.log_evidence.value) - known.log_evidence) < error
    gap = weighted.similarity_matrix() - similarity(known.labels, np.exp(known.log_prob))
    assert np.abs(gap).max() < 4 * 0.5 / np.sqrt(report.ess) + 0.05


def test_a_density_is_needed() -> None:
    from ncp.generative.labelled import LabelledArrays

    digits = LabelledArrays(np.zeros((4, 2)), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="Expected a likelihood with a density"):
        PseudoMarginal(Mixture(CRP(0.7), digits))
