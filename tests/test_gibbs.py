"""Chains against enumeration.

Many short independent chains give every posterior probability with a standard error that assumes
nothing about mixing: `assert_agrees` compares with enumeration in those units, and the test with
a planted bug shows that it notices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import DensityLikelihood, Likelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, GammaCRP, MixtureOfFiniteMixtures, PitmanYor, Poisson, Prior
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference import exact
from ncp.inference.exact import ExactPosterior
from ncp.inference.mcmc import collapsed, density
from ncp.inference.mcmc.chains import Chains, ess_of_chains, split_r_hat
from ncp.inference.mcmc.collapsed import StatisticsSweeper
from ncp.inference.mcmc.density import DensitySweeper
from ncp.inference.mcmc.gibbs import gibbs, neal8
from ncp.inference.mcmc.metropolis import independence_mh
from ncp.inference.mcmc.prior_tables import PriorTables, prior_tables
from ncp.inference.mcmc.sweeper import Sweeper
from ncp.partitions import bell_number
from tests.small_models import PRIORS

CONJUGATE: list[Likelihood] = [
    GaussianKnownVariance(1, prior_sd=2.0),
    GaussianKnownVariance(3, prior_sd=1.5),
    NormalInverseWishart(1, mean=0.5, kappa=0.2, dof=3.0, scale_matrix=1.5),
    NormalInverseWishart(2, (0.0, 1.0), 0.3, 4.5, ((1.0, 0.4), (0.4, 2.0))),
]
LAPLACE = LaplaceNoise(1, prior_sd=2.0, noise_scale=0.8)
RING = Ring(prior_sd=1.0, radius=(0.5, 2.0), noise_sd=0.4)


def data(mixture: Mixture, n_points: int, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return np.asarray(mixture.sample(1, n_points, generator=generator).x[0].numpy())


def co_clustering(labels: np.ndarray) -> np.ndarray:
    """Pairs together or not: (..., N) -> (..., N (N - 1) / 2)."""
    i, j = np.triu_indices(labels.shape[-1], 1)
    return np.asarray(labels[..., i] == labels[..., j], dtype=float)


def n_clusters(labels: np.ndarray) -> np.ndarray:
    """One-hot K: (..., N) -> (..., N)."""
    k = np.arange(1, labels.shape[-1] + 1)
    return np.asarray(labels.max(-1)[..., None] + 1 == k, dtype=float)


@pytest.mark.parametrize("likelihood", CONJUGATE, ids=repr)
def test_moves_of_many_rows_are_sweeps_of_each(likelihood: Likelihood, seed: int) -> None:
    mixture = Mixture(CRP(1.0), likelihood)
    x = data(mixture, 15, seed)
    sweeper = collapsed.collapsed_sweeper(x, mixture, n_jumps=3)
    before = np.stack([np.zeros(15, int), np.arange(15), np.arange(15) // 4])
    kept, rng, same = before.copy(), np.random.default_rng(seed), np.random.default_rng(seed)
    after = sweeper.move(before, rng)
    assert np.array_equal(before, kept)
    assert np.array_equal(after, Sweeper.move(sweeper, before, same))
    assert not np.array_equal(after, before)


def largest_z(chains: Chains, truth: ExactPosterior) -> float:
    """The largest error of P(K = k) and P(i with j), and of the two total variations, in units
    of their standard errors over chains."""
    p = np.exp(truth.log_prob)
    n_chains, n_draws = chains.log_joint.shape
    scores = []
    for statistic in (n_clusters, co_clustering):
        expected = p @ statistic(truth.labels)
        per_chain = statistic(chains.labels).mean(axis=1)  # (chains, entries)
        error = np.abs(per_chain.mean(0) - expected)
        # events too rare to have been seen have an empirical error of zero
        independent = expected * (1 - expected) / (n_chains * n_draws)
        deviation = np.sqrt(per_chain.var(0, ddof=1) / n_chains + independent) + 1e-12
        scores += [
            float((error / deviation).max(initial=0.0)),
            float(error.sum() / (deviation.sum() + 1e-12)),
        ]
    return max(scores)


def assert_agrees(chains: Chains, truth: ExactPosterior) -> None:
    assert largest_z(chains, truth) < 4.0


# --- algorithm 3 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", CONJUGATE, ids=lambda x: f"{type(x).__name__}-{x.dim}")
@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_collapsed_gibbs_is_exact(prior: Prior, likelihood: Likelihood, seed: int) -> None:
    mixture = Mixture(prior, likelihood)
    x = data(mixture, 7, seed)
    chains = gibbs(x, mixture, 1000, burn_in=50, n_chains=32, seed=seed)
    assert_agrees(chains, exact.posterior(x, mixture))
    rows = chains.labels[:, -1]
    np.testing.assert_allclose(
        chains.log_joint[:, -1], mixture.log_joint(x, rows).numpy(), atol=1e-9
    )


@pytest.mark.parametrize(
    "bug", ["no sizes", "no new-cluster weight"], ids=lambda bug: bug.replace(" ", "-")
)
@pytest.mark.parametrize("run", [gibbs, neal8])
def test_planted_bugs_are_noticed(
    run: Callable[..., Chains], bug: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(1, prior_sd=2.0))
    x = data(mixture, 7, seed)
    truth = exact.posterior(x, mixture)

    def planted(prior: Prior, n_points: int) -> PriorTables:
        tables = prior_tables(prior, n_points)
        if bug == "no sizes":
            return tables._replace(join=np.zeros_like(tables.join))
        return tables._replace(open=np.zeros_like(tables.open))

    assert largest_z(run(x, mixture, 1000, burn_in=50, n_chains=32, seed=seed), truth) < 4.0
    for module in (collapsed, density):
        monkeypatch.setattr(module, "prior_tables", planted)
    assert largest_z(run(x, mixture, 1000, burn_in=50, n_chains=32, seed=seed), truth) > 8.0


@dataclass(frozen=True)
class Inherited(GaussianKnownVariance):
    """A user's own conjugate likelihood, as far as the kernels know."""


def test_a_users_conjugate_likelihood(seed: int) -> None:
    mixture = Mixture(PitmanYor(0.5, 0.3), Inherited(1, prior_sd=2.0))
    x = data(mixture, 5, seed)
    assert isinstance(collapsed.collapsed_sweeper(x, mixture), StatisticsSweeper)
    chains = gibbs(x, mixture, 50, burn_in=5, n_chains=64, seed=seed)
    assert_agrees(chains, exact.posterior(x, mixture))
    np.testing.assert_allclose(
        chains.log_joint, mixture.log_joint(x, chains.labels).numpy(), atol=1e-9
    )


@pytest.mark.parametrize("likelihood", CONJUGATE[1:], ids=lambda x: f"{type(x).__name__}-{x.dim}")
def test_statistics_do_not_drift(likelihood: Likelihood, seed: int) -> None:
    """Outliers and a far origin, thousands of points in and out: the log joint stays exact."""
    mixture = Mixture(CRP(2.0), likelihood)
    x = data(mixture, 30, seed)
    x[:3] *= 1e4
    x[3:10] += 300.0
    chains = gibbs(x, mixture, 4000, thin=400, seed=seed)
    expected = mixture.log_joint(x, chains.labels).numpy()
    np.testing.assert_allclose(chains.log_joint, expected, rtol=1e-9, atol=1e-6)


# --- algorithm 8 ----------------------------------------------------------------------------------


def quadrature(mixture: Mixture, x: np.ndarray, grid: Tensor) -> ExactPosterior:
    """The exact posterior with m(S) summed over equally spaced parameters, (G, P)."""
    likelihood = mixture.likelihood
    assert isinstance(likelihood, DensityLikelihood)
    log_density = likelihood.log_density(torch.as_tensor(x)[None], grid[None])[0]  # (N, G)
    log_prior = likelihood.log_prior(grid)
    log_cell = -log_prior.logsumexp(0)  # the base measure sums to one

    def log_marginal(subsets: np.ndarray) -> np.ndarray:
        rows = [log_density[torch.as_tensor(subset)].sum(0) + log_prior for subset in subsets]
        return np.array([float(row.logsumexp(0) + log_cell) for row in rows])

    return exact.posterior(x, mixture, log_marginal)


def laplace_grid(sd: float) -> Tensor:
    return torch.linspace(-8 * sd, 8 * sd, 20_001, dtype=torch.float64)[:, None]


def ring_grid(ring: Ring) -> Tensor:
    centre = torch.linspace(-4.5 * ring.prior_sd, 4.5 * ring.prior_sd, 73, dtype=torch.float64)
    low, high = ring.radius
    radius = low + (high - low) * (torch.arange(24, dtype=torch.float64) + 0.5) / 24
    return torch.cartesian_prod(centre, centre, radius)


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_algorithm_8_is_exact_for_laplace_noise(prior: Prior, seed: int) -> None:
    mixture = Mixture(prior, LAPLACE)
    x = data(mixture, 7, seed)
    chains = neal8(x, mixture, 1000, burn_in=50, n_chains=32, seed=seed)
    assert chains.acceptance is None
    assert_agrees(chains, quadrature(mixture, x, laplace_grid(2.0)))


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_algorithm_8_is_exact_for_rings(prior: Prior, seed: int) -> None:
    mixture = Mixture(prior, RING)
    x = data(mixture, 4, seed)
    chains = neal8(x, mixture, 1000, burn_in=50, n_chains=32, seed=seed)
    assert_agrees(chains, quadrature(mixture, x, ring_grid(RING)))


@pytest.mark.parametrize("likelihood", CONJUGATE, ids=lambda x: f"{type(x).__name__}-{x.dim}")
@pytest.mark.parametrize("n_auxiliary", [1, 4])
def test_algorithm_8_is_exact_for_conjugate_likelihoods(
    likelihood: Likelihood, n_auxiliary: int, seed: int
) -> None:
    mixture = Mixture(PRIORS[n_auxiliary], likelihood)
    x = data(mixture, 7, seed)
    chains = neal8(x, mixture, 1000, burn_in=50, n_chains=32, n_auxiliary=n_auxiliary, seed=seed)
    assert_agrees(chains, exact.posterior(x, mixture))


@dataclass(frozen=True)
class Own(LaplaceNoise):
    """A user's own likelihood: nothing but torch."""


@dataclass(frozen=True)
class WithoutPrior(LaplaceNoise):
    """The same, with the density of its base measure unknown."""

    log_prior = DensityLikelihood.log_prior


@pytest.mark.parametrize("kind", [Own, WithoutPrior])
def test_a_users_density_likelihood(kind: type[LaplaceNoise], seed: int) -> None:
    own = Mixture(MixtureOfFiniteMixtures(1.5, Poisson(2.0)), kind(1, 2.0, 0.8))
    x = data(own, 5, seed)
    sweeper = density.density_sweeper(x, own, n_auxiliary=2, n_moves=3)
    assert isinstance(sweeper, DensitySweeper)
    chains = neal8(
        x, own, 80, burn_in=15, n_chains=64, n_auxiliary=2, n_moves=3, start="one", seed=seed
    )
    assert_agrees(chains, quadrature(Mixture(own.prior, LAPLACE), x, laplace_grid(2.0)))
    assert chains.acceptance is not None
    assert ((chains.acceptance > 0.1) & (chains.acceptance < 0.95)).all()


def test_kernels_and_likelihoods_agree_on_densities(seed: int) -> None:
    from ncp.inference.mcmc import kernels as kernels

    generator = torch.Generator().manual_seed(seed)
    for likelihood in (*CONJUGATE, LAPLACE, RING, Ring(3.0, (0.0, 4.0), 2.0)):
        assert isinstance(likelihood, DensityLikelihood)
        dim = likelihood.event_shape[0]
        theta = likelihood.sample_parameters((20,), generator)
        x = 3.0 * torch.randn((10, dim), dtype=torch.float64, generator=generator)
        built_in = density._built_in(likelihood)
        assert built_in is not None
        work = np.zeros((dim, dim))
        log_density = [
            [kernels.log_density(*built_in, point, t, work) for t in theta.numpy()]
            for point in x.numpy()
        ]
        log_prior = [kernels.log_prior(*built_in, t, work) for t in theta.numpy()]
        expected = likelihood.log_density(x[None], theta[None])[0]
        np.testing.assert_allclose(log_density, expected.numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(log_prior, likelihood.log_prior(theta).numpy(), atol=1e-10)


# --- independence Metropolis-Hastings -------------------------------------------------------------


class Table:
    """A proposal with given probabilities on all partitions of N points."""

    def __init__(self, labels: np.ndarray, log_q: np.ndarray):
        self.labels, self.q = labels, np.exp(log_q - np.logaddexp.reduce(log_q))
        with np.errstate(divide="ignore"):
            logs = np.log(self.q)
        self.known = dict(zip(map(bytes, labels), logs.tolist(), strict=True))

    def propose(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        rows = np.sort(rng.choice(len(self.q), size=n, p=self.q))  # grouped, as a tree sampler's
        return self.labels[rows], np.log(self.q[rows])

    def log_q(self, labels: np.ndarray) -> np.ndarray:
        return np.array([self.known[bytes(row)] for row in labels])


def table(kind: str, truth: ExactPosterior, rng: np.random.Generator) -> Table:
    if kind == "trained":
        return Table(truth.labels, truth.log_prob + 0.5 * rng.normal(size=len(truth.log_prob)))
    if kind == "untrained":
        return Table(truth.labels, rng.normal(size=len(truth.log_prob)))
    log_q = np.full(len(truth.log_prob), -14.0 if kind == "nearly a point mass" else -np.inf)
    log_q[len(log_q) // 2] = 0.0
    return Table(truth.labels, log_q)


@pytest.mark.parametrize(
    ("kind", "gibbs_sweeps"),
    [
        ("trained", 1),
        ("untrained", 1),
        ("untrained", 3),
        ("nearly a point mass", 1),
        ("point mass", 1),
    ],
)
def test_independence_mh_is_exact(kind: str, gibbs_sweeps: int, seed: int) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(2, prior_sd=1.5))
    x = data(mixture, 6, seed)
    truth = exact.posterior(x, mixture)
    proposal = table(kind, truth, np.random.default_rng(seed))
    chains = independence_mh(
        x,
        mixture,
        proposal.propose,
        100,
        log_q=proposal.log_q,
        n_chains=32,
        gibbs_sweeps=gibbs_sweeps,
        burn_in=10,
        seed=seed,
    )
    assert_agrees(chains, truth)
    np.testing.assert_allclose(
        chains.log_joint, mixture.log_joint(x, chains.labels).numpy(), atol=1e-9
    )
    assert chains.acceptance is not None
    if kind == "trained":
        assert chains.acceptance.mean() > 0.5
    if kind == "untrained":
        assert 0.0 < chains.acceptance.mean() < 0.5


def test_independence_mh_without_sweeps(seed: int) -> None:
    mixture = Mixture(GammaCRP(2.0, 1.5), GaussianKnownVariance(1, prior_sd=2.0))
    x = data(mixture, 5, seed)
    truth = exact.posterior(x, mixture)
    propose = table("untrained", truth, np.random.default_rng(seed)).propose
    chains = independence_mh(
        x, mixture, propose, 500, n_chains=48, gibbs_sweeps=0, burn_in=50, thin=5, seed=seed
    )
    assert chains.labels.shape == (48, 100, 5)
    assert_agrees(chains, truth)


def test_independence_mh_refuses_a_density_that_is_not_the_proposals(seed: int) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(1))
    x = data(mixture, 5, seed)
    truth = exact.posterior(x, mixture)
    rng = np.random.default_rng(seed)
    proposal, other = table("untrained", truth, rng), table("untrained", truth, rng)
    with pytest.raises(ValueError, match="density of propose"):
        independence_mh(x, mixture, proposal.propose, 10, log_q=other.log_q, seed=seed)
    with pytest.raises(ValueError, match="Expected log_q"):
        independence_mh(x, mixture, proposal.propose, 10, seed=seed)
    with pytest.raises(ValueError, match="to return labels of shape"):
        independence_mh(x, mixture, lambda n, rng: proposal.propose(n + 1, rng), 10, gibbs_sweeps=0)
    with pytest.raises(ValueError, match="conjugate"):
        independence_mh(x, Mixture(CRP(0.7), LAPLACE), proposal.propose, 10, gibbs_sweeps=0)


# --- running --------------------------------------------------------------------------------------


@pytest.fixture
def mixture() -> Mixture:
    return Mixture(CRP(0.7), GaussianKnownVariance(1))


@pytest.mark.parametrize("run", [gibbs, neal8])
def test_a_seed_reproduces_a_run(run: Callable[..., Chains], mixture: Mixture, seed: int) -> None:
    x = data(mixture, 20, seed)
    first = run(x, mixture, 350, burn_in=30, n_chains=3, seed=seed)
    calls: list[tuple[int, int]] = []
    again = run(
        x,
        mixture,
        350,
        burn_in=30,
        n_chains=3,
        seed=seed,
        n_jobs=2,
        progress=lambda done, total: calls.append((done, total)),
    )
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.log_joint, again.log_joint)
    assert calls == sorted(calls)
    assert calls[-1] == (380, 380)
    other = run(x, mixture, 350, burn_in=30, n_chains=3, seed=seed + 1)
    assert (first.labels != other.labels).any()
    assert (first.labels[0] != first.labels[1]).any()


def test_burn_in_and_thinning_drop_sweeps_and_nothing_else(mixture: Mixture, seed: int) -> None:
    x = data(mixture, 20, seed)
    every = gibbs(x, mixture, 90, seed=seed)
    some = gibbs(x, mixture, 62, burn_in=30, thin=4, seed=seed)
    assert some.labels.shape == (1, 15, 20)
    np.testing.assert_array_equal(some.labels, every.labels[:, 33:90:4])


@pytest.mark.parametrize("run", [gibbs, neal8])
@pytest.mark.parametrize("start", ["sequential", "one", "singletons", "prior", "labels"])
def test_any_start(run: Callable[..., Chains], start: str, mixture: Mixture, seed: int) -> None:
    x = np.array([[-20.0], [-19.0], [-20.5], [20.0], [19.0], [20.5]])
    given = [0, 0, 0, 1, 1, 1] if start == "labels" else start
    chains = run(x, mixture, 100, burn_in=100, n_chains=2, start=given, seed=seed)
    labels, counts = chains.unique()
    assert labels[counts.argmax()].tolist() == [0, 0, 0, 1, 1, 1]
    if start == "labels":
        rows = np.array([given, given])
        assert run(x, mixture, 5, n_chains=2, start=rows).labels.shape == (2, 5, 6)


@pytest.mark.parametrize("run", [gibbs, neal8])
@pytest.mark.parametrize("n_points", [1, 2])
def test_smallest_data_sets(
    run: Callable[..., Chains], n_points: int, mixture: Mixture, seed: int
) -> None:
    x = data(mixture, n_points, seed)
    chains = run(x, mixture, 2000, n_chains=32, seed=seed)
    assert_agrees(chains, exact.posterior(x, mixture))
    assert len(chains.unique()[0]) <= bell_number(n_points)


def test_bad_arguments_are_refused(mixture: Mixture) -> None:
    x = np.zeros((4, 1))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"n_sweeps": 0}, "number of sweeps"),
        ({"burn_in": -1}, "burn_in"),
        ({"thin": 0}, "thin"),
        ({"n_chains": 0}, "n_chains"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"start": "random"}, "start to be labels or one of"),
        ({"start": [0, 0, 2, 1]}, "order of appearance"),
        ({"start": [0, 0, 1]}, "labels of 4 points"),
        ({"start": [[0, 0, 1, 1]] * 3}, "start of shape"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            gibbs(x, mixture, **({"n_sweeps": 10} | arguments))
    with pytest.raises(ValueError, match="n_auxiliary"):
        neal8(x, mixture, 10, n_auxiliary=0)
    for bad, message in [
        (np.zeros((4, 2)), "shape"),
        (np.zeros((0, 1)), "at least one point"),
        (np.array([[0.0], [np.inf]]), "infinity"),
        (np.zeros((2, 4, 1)), "one data set"),
    ]:
        with pytest.raises(ValueError, match=message):
            gibbs(bad, mixture, 10)
    with pytest.raises(ValueError, match="conjugate likelihood but got LaplaceNoise"):
        gibbs(x, Mixture(CRP(0.7), LAPLACE), 10)


def test_transposed_and_single_precision_data(mixture: Mixture, seed: int) -> None:
    plane = Mixture(CRP(0.7), GaussianKnownVariance(2))
    x = np.random.default_rng(seed).normal(size=(2, 9)).astype(np.float32)
    turned = gibbs(x.T, plane, 20, seed=seed)
    straight = gibbs(torch.as_tensor(x.T.copy()), plane, 20, seed=seed)
    np.testing.assert_array_equal(turned.labels, straight.labels)


# --- diagnostics ----------------------------------------------------------------------------------


def autoregression(rho: float, n_chains: int, n_draws: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_draws, n_chains))
    for t in range(1, n_draws):
        values[t] = rho * values[t - 1] + np.sqrt(1 - rho**2) * values[t]
    return values.T


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.9])
@pytest.mark.parametrize("n_chains", [1, 4])
def test_diagnostics_agree_with_arviz(rho: float, n_chains: int, seed: int) -> None:
    arviz = pytest.importorskip("arviz")
    values = autoregression(rho, n_chains, 1001, seed)
    r_hat = float(arviz.rhat(values, method="split")) if n_chains > 1 else split_r_hat(values)
    assert split_r_hat(values) == pytest.approx(r_hat, abs=1e-8)
    ess = float(arviz.ess(values, method="mean"))
    assert ess_of_chains(values) == pytest.approx(ess, rel=1e-8)


def test_ess_of_chains_of_known_autocorrelation(seed: int) -> None:
    values = autoregression(0.8, 8, 20_000, seed)
    assert ess_of_chains(values) == pytest.approx(160_000 * 0.2 / 1.8, rel=0.1)


def test_diagnostics_of_chains(mixture: Mixture, seed: int) -> None:
    x = data(mixture, 20, seed)
    chains = gibbs(x, mixture, 2000, burn_in=200, n_chains=4, seed=seed)
    found = chains.diagnostics()
    assert found.r_hat_k < 1.02
    assert found.r_hat_log_joint < 1.02
    assert found.ess_log_joint > 500
    assert found.chain_ess_k.shape == found.chain_r_hat_k.shape == (4,)
    stuck = Chains(np.repeat([[[0, 0]], [[0, 1]]], 10, axis=1), np.zeros((2, 10)))
    assert stuck.diagnostics().r_hat_k == np.inf
    assert stuck.diagnostics().r_hat_log_joint == 1.0
    with pytest.raises(ValueError, match="draws >= 4"):
        split_r_hat(np.zeros((2, 3)))


# --- splits and merges ----------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", CONJUGATE, ids=lambda x: f"{type(x).__name__}-{x.dim}")
@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_jumps_leave_the_posterior_alone(prior: Prior, likelihood: Likelihood, seed: int) -> None:
    mixture = Mixture(prior, likelihood)
    x = data(mixture, 7, seed)
    chains = gibbs(x, mixture, 500, burn_in=20, n_chains=32, n_jumps=3, seed=seed)
    assert_agrees(chains, exact.posterior(x, mixture))
    rows = chains.labels[:, -1]
    np.testing.assert_allclose(
        chains.log_joint[:, -1], mixture.log_joint(x, rows).numpy(), atol=1e-9
    )


@pytest.mark.parametrize("n_jumps", [0, 1])
def test_jumps_cross_where_sweeps_do_not(n_jumps: int, seed: int) -> None:
    """Twenty points that are one cluster or two, about as probable, and nothing between."""
    shift = np.array([1.6, 0.0])
    half = 0.3 * np.random.default_rng(seed).normal(size=(10, 2))
    mixture = Mixture(CRP(0.02), GaussianKnownVariance(2, prior_sd=20.0))
    x = np.concatenate([half - shift, half + shift])
    starts = np.stack([np.zeros(20, int), np.repeat([0, 1], 10)]).repeat(4, 0)
    chains = gibbs(x, mixture, 400, n_chains=8, start=starts, n_jumps=n_jumps, seed=seed)
    assert (split_r_hat(chains.n_clusters) < 1.1) == (n_jumps == 1)
