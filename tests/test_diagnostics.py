"""Each diagnostic passes an exact posterior and fails a too-wide, a too-narrow and a biased one.

The posteriors on trial are made from the exact one (all partitions of at most 6 points) in the
way in which a network would err: by its conditionals. With p(c_n | c_{1:n-1}, x) exact,

    q(c_n | c_{1:n-1}, x)  proportional to  p(c_n | c_{1:n-1}, x)^power  e^(bias [c_n is new]),

so power < 1 is too wide, power > 1 too narrow, and bias > 0 finds too many clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.checks.accuracy import (
    agreement,
    efficiency,
    k_mode_accuracy,
    nll_per_point,
    point_estimate_ari,
    reweighted,
)
from ncp.checks.calibration import _rank, sbc
from ncp.checks.exact import exact_comparison, last_point_tv
from ncp.checks.geweke import geweke
from ncp.checks.orders import order_dependence
from ncp.checks.plan import CheckPlan, Targets
from ncp.checks.ranks import ecdf_band, ecdf_p_value, rank_test
from ncp.checks.reliability import reliability
from ncp.checks.runner import run_checks
from ncp.checks.simulation import LEVEL, Draws, Simulation, as_draws, seeds_of, simulate
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.labelled import LabelledArrays
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import ConjugateLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.partitions import enumerate_partitions
from ncp.posterior import Partitions

# a prior hardly wider than the noise: clusters overlap, so there is something to be unsure about
MIXTURE = Mixture(CRP(1.0), GaussianKnownVariance(dim=1, prior_sd=2.0, noise_sd=1.0), sizes=(4, 6))


@lru_cache
def tree(n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each step: the child of each partition, the parent of each child, which are new."""
    rows = enumerate_partitions(n).numpy()
    steps = []
    for i in range(1, n):
        parents, parent_of_row = np.unique(rows[:, :i], axis=0, return_inverse=True)
        children, first, child_of_row = np.unique(
            rows[:, : i + 1], axis=0, return_index=True, return_inverse=True
        )
        parent_of_child = parent_of_row.ravel()[first]
        fresh = children[:, -1] > parents[parent_of_child].max(1)
        steps.append((child_of_row.ravel(), parent_of_child, fresh))
    return steps


def exact_log_posterior(x: Tensor, mixture: Mixture) -> np.ndarray:
    """log p(c | x) of all partitions for many data sets (B, N, dim) at once, (B, Bell(N))."""
    n = x.shape[1]
    likelihood = mixture.likelihood
    assert isinstance(likelihood, ConjugateLikelihood)
    rows = enumerate_partitions(n)
    subsets = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).double()
    table = likelihood.log_marginal_statistics(subsets @ likelihood.statistics(x))  # (B, 2^N)
    clusters = torch.stack([((rows == k) * 2 ** torch.arange(n)).sum(1) for k in range(n)])
    log_joint = mixture.prior.log_prob(rows) + table[:, clusters].sum(1)
    return log_joint.log_softmax(1).numpy()


@dataclass(frozen=True)
class Trial:
    """A posterior by enumeration, wrong on purpose unless power = 1 and bias = 0."""

    power: float = 1.0
    bias: float = 0.0
    mixture: Mixture = MIXTURE

    def log_q(self, x: Tensor) -> np.ndarray:
        log_p = exact_log_posterior(x, self.mixture)
        p = np.exp(log_p)
        log_q = np.zeros_like(log_p)
        mass = np.ones((len(p), 1))
        for child, parent, fresh in tree(x.shape[1]):
            after = p @ np.eye(len(parent))[child]
            tempered = (after / mass[:, parent]) ** self.power * np.exp(self.bias * fresh)
            total = tempered @ np.eye(mass.shape[1])[parent]
            log_q += np.log(tempered / total[:, parent])[:, child]
            mass = after
        return log_q

    def log_prob(self, x: Tensor, labels: Tensor) -> Tensor:
        n = labels.shape[1]
        powers = n ** np.arange(n)[::-1]
        all_codes = enumerate_partitions(n).numpy() @ powers
        index = np.searchsorted(all_codes, labels.numpy() @ powers)
        if x.ndim == 2:
            return torch.as_tensor(self.log_q(x[None])[0, index])
        return torch.as_tensor(self.log_q(x)[np.arange(len(x)), index])

    def sample_many(
        self, xs: Sequence[Any], /, *, n_samples: int, seed: int
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(seed)
        log_q = self.log_q(torch.stack(list(xs)))
        q = np.exp(log_q)
        drawn = rng.multinomial(n_samples, q / q.sum(1, keepdims=True))
        rows = enumerate_partitions(len(xs[0])).numpy()
        return [(rows[n > 0], n[n > 0], log[n > 0]) for n, log in zip(drawn, log_q, strict=True)]


EXACT = Trial()
WRONG = {"wide": Trial(power=0.4), "narrow": Trial(power=2.5), "biased": Trial(bias=1.0)}
wrong = pytest.mark.parametrize("trial", WRONG.values(), ids=WRONG.keys())


def simulation(trial: Trial, seed: int, n_datasets: int = 1000) -> Simulation:
    return simulate(trial.sample_many, MIXTURE, n_datasets=n_datasets, seed=seed)


# -- right, too wide, too narrow, biased -----------------------------------------------------------


def test_sbc_passes_the_exact_posterior(seed: int) -> None:
    result = sbc(simulation(EXACT, seed, 500), MIXTURE, seed=seed)
    assert [t.name for t in result.tests] == ["K", "largest cluster", "random pair", "log joint"]
    assert result.passed


@wrong
def test_sbc_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    assert not sbc(simulation(trial, seed, 500), MIXTURE, seed=seed).passed


@pytest.mark.parametrize(("trial", "kept"), [(EXACT, 0), (WRONG["wide"], 1), (WRONG["narrow"], -1)])
def test_the_right_posterior_keeps_what_it_promises(trial: Trial, kept: int, seed: int) -> None:
    """A narrow one promises too much agreement with the truth, a wide one too little."""
    promised, measured = agreement(simulation(trial, seed, 600)).T
    error = (measured - promised).std() / np.sqrt(600)
    z = (measured - promised).mean() / error
    assert abs(z) < 3.5 if kept == 0 else kept * z > 3.5


def test_sbc_of_log_joint_fails_a_posterior_that_forgot_the_data(seed: int) -> None:
    """K and sizes cannot see it: the prior is calibrated for them."""

    def prior(xs: Sequence[Any], /, *, n_samples: int, seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        draws = [MIXTURE.prior.sample(n_samples, len(x), generator).numpy() for x in xs]
        return [(rows, np.ones(len(rows))) for rows in draws]

    forgot = simulate(prior, MIXTURE, n_datasets=400, seed=seed)
    result = sbc(forgot, MIXTURE, seed=seed)
    assert result["K"].passed  # the prior is calibrated for it
    assert not result["log joint"].passed


def test_reliability_passes_the_exact_posterior(seed: int) -> None:
    result = reliability(simulation(EXACT, seed), seed=seed)
    assert result.passed
    assert result.p_value > LEVEL
    inside = (result.lower <= result.observed) & (result.observed <= result.upper)
    assert inside.sum() >= 7  # of 10, each with probability 0.95


@wrong
def test_reliability_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    result = reliability(simulation(trial, seed), seed=seed)
    assert not result.passed
    assert result.p_value < LEVEL


def test_geweke_passes_the_exact_posterior(seed: int) -> None:
    assert geweke(EXACT.sample_many, MIXTURE, n_points=6, seed=seed).passed


@wrong
def test_geweke_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    assert not geweke(trial.sample_many, MIXTURE, n_points=6, seed=seed).passed


def test_enumeration_passes_the_exact_posterior(seed: int) -> None:
    result = exact_comparison(EXACT.log_prob, MIXTURE, n_points=6, n_datasets=20, seed=seed)
    assert result.passed
    assert result.kl.mean == pytest.approx(0, abs=1e-12)
    assert result.tv.mean == pytest.approx(0, abs=1e-12)
    assert result.normalisation_error < 1e-12


@wrong
def test_enumeration_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    result = exact_comparison(trial.log_prob, MIXTURE, n_points=6, n_datasets=20, seed=seed)
    assert not result.kl.passed
    assert not result.tv.passed
    assert result.normalisation_error < 1e-12


def test_last_point_passes_the_exact_posterior(seed: int) -> None:
    result = last_point_tv(EXACT.log_prob, MIXTURE, n_points=6, n_datasets=200, seed=seed)
    assert result.passed
    assert result.values.max() < 1e-12


@wrong
def test_last_point_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    result = last_point_tv(trial.log_prob, MIXTURE, n_points=6, n_datasets=200, seed=seed)
    assert not result.passed


def test_permutations_pass_the_exact_posterior(seed: int) -> None:
    result = order_dependence(EXACT.log_prob, MIXTURE, n_points=6, n_datasets=50, seed=seed)
    assert result.passed
    assert result.relative.max() < 1e-9
    assert result.variance.max() < 1e-18


@wrong
def test_permutations_fail_a_wrong_posterior(trial: Trial, seed: int) -> None:
    result = order_dependence(trial.log_prob, MIXTURE, n_points=6, n_datasets=50, seed=seed)
    assert not result.passed


def test_efficiency_passes_the_exact_posterior(seed: int) -> None:
    result = efficiency(simulation(EXACT, seed, 50), MIXTURE, min_median=0.9)
    assert result.passed
    np.testing.assert_allclose(result.fractions, 1.0)


@wrong
def test_efficiency_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    result = efficiency(simulation(trial, seed, 100), MIXTURE, min_median=0.9)
    assert not result.passed
    assert result.lowest_decile <= result.median < 0.9


# -- the parts -------------------------------------------------------------------------------------


def test_ranks_of_ties_are_uniform_for_any_number_of_draws(seed: int) -> None:
    """The truth is one more draw of a coin: u must be uniform although T takes two values."""
    rng = np.random.default_rng(seed)
    values = rng.random((5000, 4)) < 0.3
    u = np.array([_rank(v, np.full(3, 1 / 3), 3, rng.random()) for v in values * 1.0])
    assert rank_test("coin", u).passed
    assert u.min() > 0
    assert u.max() < 1


def test_ecdf_band_holds_the_whole_curve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n in (50, 500):
        band = ecdf_band(n, coverage=0.9)
        u = np.sort(rng.random((1000, n)))
        curve = np.array([np.searchsorted(row, band.grid, side="right") for row in u]) / n
        inside = ((band.lower <= curve) & (curve <= band.upper)).all(1).mean()
        # binomial standard error 0.0095; the discrete band is never narrower than asked for
        assert 0.9 - 4 * 0.0095 < inside < 0.97


def test_ecdf_p_values_are_uniform_under_the_null(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.array([ecdf_p_value(rng.random(200)) for _ in range(500)])
    assert (p <= 0.1).mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / 500))
    assert (p <= 0.5).mean() == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 500))


def test_ecdf_sees_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for u in (rng.beta(2, 2, 500), rng.beta(0.5, 0.5, 500), rng.beta(1, 1.5, 500)):
        assert ecdf_p_value(u) < 0.001


def test_kl_by_hand() -> None:
    """Two points: p = (a, 1 - a), and q says one half."""

    def log_half(x: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(labels),), -np.log(2.0), dtype=torch.float64)

    result = exact_comparison(log_half, MIXTURE, n_points=2, n_datasets=3, seed=5)
    generator = torch.Generator().manual_seed(seeds_of(5, 1)[0])
    p = np.exp(exact_log_posterior(MIXTURE.sample(3, 2, generator=generator).x, MIXTURE))
    np.testing.assert_allclose(result.kl.values, (p * np.log(2 * p)).sum(1))
    np.testing.assert_allclose(result.tv.values, np.abs(p[:, 0] - 0.5))


def test_efficiency_by_hand() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    rows = np.array([[0, 0], [0, 1]])
    log_joint = MIXTURE.log_joint(x, rows).numpy()
    draws = Draws(rows, np.array([0.75, 0.25]), log_joint - np.log([1.0, 2.0]))
    result = efficiency(Simulation((x,), (rows[0],), (draws,), 4), MIXTURE)
    # weights 1, 1, 1, 2
    assert result.fractions[0] == pytest.approx(5**2 / 7 / 4)
    (weighted,) = reweighted(Simulation((x,), (rows[0],), (draws,), 4), MIXTURE).draws
    np.testing.assert_allclose(weighted.weights, [3 / 5, 2 / 5])
    with pytest.raises(ValueError, match="log q"):
        efficiency(Simulation((x,), (rows[0],), (draws._replace(log_q=None),), 4), MIXTURE)


def test_calibration_error_by_hand() -> None:
    draws = Draws(np.array([[0, 0], [0, 1]]), np.array([0.8, 0.2]))
    truths = tuple(np.array(c) for c in ([0, 0], [0, 0], [0, 1], [0, 1]))
    data = (torch.zeros(2, 1),) * 4
    result = reliability(Simulation(data, truths, (draws,) * 4, 10), n_bins=5)
    assert result.error == pytest.approx(0.3)
    assert result.counts.tolist() == [0, 0, 0, 0, 4]
    assert result.predicted[4] == pytest.approx(0.8)
    assert result.observed[4] == pytest.approx(0.5)


def test_k_mode_and_point_estimate_of_certain_draws() -> None:
    truths = (np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))
    draws = (
        Draws(truths[0][None], np.ones(1)),
        Draws(np.array([[0, 0, 0, 0]]), np.ones(1)),
    )
    known = Simulation((torch.zeros(4, 1),) * 2, truths, draws, 1)
    assert k_mode_accuracy(known) == 0.5
    np.testing.assert_allclose(point_estimate_ari(known), [1.0, 0.0])


def test_nll_per_point_of_a_uniform_q(seed: int) -> None:
    def log_half(x: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(labels),), -np.log(2.0) * labels.shape[1])

    nll = nll_per_point(log_half, MIXTURE, n_datasets=7, n_points=5, seed=seed)
    np.testing.assert_allclose(nll, np.full(7, np.log(2.0)))


def test_samplers_may_return_partitions_or_tuples() -> None:
    labels, n = np.array([[0, 0], [0, 1]]), np.array([3, 1])
    from_class = as_draws(Partitions(labels, n, np.log([0.7, 0.3])))
    from_tuple = as_draws((labels, n, np.log([0.7, 0.3])))
    for a, b in zip(from_class, from_tuple, strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float))
    with pytest.raises(ValueError, match="weights of shape"):
        as_draws((labels, np.ones(3)))


def test_data_and_sampler_are_seeded_differently_and_reproducibly(seed: int) -> None:
    seen: list[int] = []

    def spy(xs: Sequence[Any], /, *, n_samples: int, seed: int) -> list[Any]:
        seen.append(seed)
        return EXACT.sample_many(xs, n_samples=n_samples, seed=seed)

    runs = [simulate(spy, MIXTURE, n_datasets=6, batch_size=3, seed=seed) for _ in range(2)]
    assert seen[:2] == seen[2:]
    assert len({seed, *seen[:2]}) == 3
    for a, b in zip(runs[0].x, runs[1].x, strict=True):
        assert torch.equal(a, b)


# -- the whole check -------------------------------------------------------------------------------

SMALL = replace(
    CheckPlan.of(MIXTURE).tenth(),
    tv_sizes=(5,),
    kl_points=5,
    ess_points=6,
    permutation_points=6,
    geweke_points=6,
    nll_sizes=(6,),
    ari_sizes=(6,),
    chain_points=6,
    chain_samples=20,
)


def test_run_checks_passes_the_exact_posterior(seed: int) -> None:
    heard: list[tuple[str, int, int]] = []
    # a point estimate of six overlapping points is not near the truth: no target for it
    plan = replace(SMALL, targets=replace(SMALL.targets, ari=None))
    report = run_checks(
        EXACT.log_prob,
        EXACT.sample_many,
        MIXTURE,
        plan=plan,
        seed=seed,
        progress=lambda *step: heard.append(step),
    )
    assert report.passed, str(report)
    assert {done <= total for _, done, total in heard} == {True}
    assert {"sbc", "reliability", "ess", "geweke", "exact", "permutation"} <= set(report.results)
    names = [row.name for row in report.rows]
    assert len(set(names)) == len(names)
    assert str(report).count("\n") == len(names) + 1
    assert report.to_dicts()[0]["passed"] is True


@wrong
def test_run_checks_fails_a_wrong_posterior(trial: Trial, seed: int) -> None:
    report = run_checks(trial.log_prob, trial.sample_many, MIXTURE, plan=SMALL, seed=seed)
    assert not report.passed
    assert "KL(p || q), N = 5" in report.failed
    assert "FAIL" in report.table()


def test_no_targets_no_verdict(seed: int) -> None:
    plan = replace(SMALL, targets=Targets.none())
    report = run_checks(
        WRONG["wide"].log_prob, WRONG["wide"].sample_many, MIXTURE, plan=plan, seed=seed
    )
    assert {row.passed for row in report.rows} == {None}


@pytest.mark.parametrize("kind", ["density", "implicit"])
def test_run_checks_does_what_applies_to_other_models(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixture = {
        "density": Mixture(CRP(0.7), LaplaceNoise(dim=1, prior_sd=5.0, noise_scale=1.0)),
        "implicit": Mixture(CRP(0.7), LabelledArrays(rng.random((40, 3, 3)), np.arange(40) % 4)),
    }[kind]

    def log_prior(x: Tensor, labels: Tensor) -> Tensor:
        return mixture.prior.log_prob(labels)

    def prior(xs: Sequence[Any], /, *, n_samples: int, seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        draws = [mixture.prior.sample(n_samples, len(x), generator).numpy() for x in xs]
        return [(rows, np.ones(len(rows))) for rows in draws]

    plan = replace(SMALL, sbc_datasets=20, sbc_samples=10, geweke_chains=20, ari_datasets=5)
    names = [row.name for row in run_checks(log_prior, prior, mixture, plan=plan).rows]
    assert "SBC, K" in names
    assert "SBC, log joint" not in names
    assert "ARI, N = 6" in names
    assert ("Geweke, K" in names) == (kind == "density")
    assert ("beside algorithm 8, ARI" in names) == (kind == "density")
    assert not any(name.startswith(("KL", "last-point", "importance")) for name in names)


def test_plans_fit_the_model() -> None:
    two = CheckPlan.of(Mixture(CRP(0.7), GaussianKnownVariance(dim=2)))
    assert (two.targets.ess_median, two.targets.ari, two.ari_sizes) == (0.85, 0.945, (300,))
    laplace = CheckPlan.of(Mixture(CRP(0.7), LaplaceNoise(dim=2, prior_sd=5.0, noise_scale=1.0)))
    assert laplace.targets.ari is None
    images = Mixture(CRP(0.7), LabelledArrays(np.zeros((4, 2, 2)), np.arange(4)))
    assert CheckPlan.of(images, quick=True).ari_datasets == 20
    assert CheckPlan.of(images).targets.ari == 0.99
    assert CheckPlan.of(images, targets=Targets.none()).targets.ari is None
