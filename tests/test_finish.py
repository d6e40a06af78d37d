"""The exact finish against enumeration: whatever the seeds, the draws are the posterior's."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ncp.clustering.cluster import cluster, cluster_many
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import Likelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, MixtureOfFiniteMixtures, PitmanYor, Poisson, Prior
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference import exact
from ncp.inference import finish as finishing
from ncp.inference.finish import ExactDraws, Finish, Goal, finish, stays
from ncp.partitions import enumerate_partitions
from ncp.posterior import Partitions
from ncp.sampling.constraints import constrain
from ncp.summary.similarity import similarity
from tests.small_models import gaussian, small

MIXTURE = Mixture(CRP(0.7), GaussianKnownVariance(dim=1), sizes=(5, 100))
PRIORS: list[Prior] = [CRP(2.0), PitmanYor(0.5, 0.3), MixtureOfFiniteMixtures(1.5, Poisson(2.0))]
LIKELIHOODS: list[Likelihood] = [
    GaussianKnownVariance(1, prior_sd=3.0),
    NormalInverseWishart(2, kappa=0.2, dof=4.5, scale_matrix=1.5),
    LaplaceNoise(1, prior_sd=2.0, noise_scale=0.8),
]


def data(mixture: Mixture, n_points: int, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return np.asarray(mixture.sample(1, n_points, generator=generator).x[0].numpy())


def truth(x: np.ndarray, mixture: Mixture) -> np.ndarray:
    """The similarity matrix by enumeration."""
    found = exact.posterior(x, mixture)
    return similarity(found.labels, np.exp(found.log_prob))


def one_cluster(n_points: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((1, n_points), dtype=np.int64), np.ones(1)


# --- the draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("likelihood", LIKELIHOODS[:2], ids=lambda x: type(x).__name__)
def test_chains_are_exact(
    likelihood: Likelihood, prior: Prior, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From seeds that are as wrong as can be."""
    monkeypatch.setattr(finishing, "FEW_POINTS", 0)
    mixture = Mixture(prior, likelihood)
    x = data(mixture, 8, seed)
    draws = finish(x, mixture, *one_cluster(8), n_samples=4000, seed=seed)
    assert draws.finish.method == "chains"
    assert draws.finish.converged
    assert draws.counts.sum() == 18 * 100 * 2 ** int(np.log2(draws.finish.n_sweeps / 18 / 110))
    error = np.abs(similarity(draws.labels, draws.counts) - truth(x, mixture)).max()
    assert error < 4.5 * 0.5 / np.sqrt(draws.finish.ess)


def test_few_points_are_enumerated(seed: int) -> None:
    x = data(MIXTURE, 6, seed)
    draws = finish(x, MIXTURE, *one_cluster(6), n_samples=1000, seed=seed)
    known = exact.posterior(x, MIXTURE)
    assert draws.finish == Finish(
        "enumeration", True, 1000.0, seconds=draws.finish.seconds, log_evidence=known.log_evidence
    )
    found = similarity(draws.labels, draws.counts)
    np.testing.assert_allclose(found, truth(x, MIXTURE), atol=0.02)


def test_who_asks_for_many_samples_gets_more_than_a_few(seed: int) -> None:
    """Chains stopped at 400 effective draws, however many were asked for."""
    x = data(MIXTURE, 20, seed)
    draws = finish(x, MIXTURE, *one_cluster(20), n_samples=5000, goal=Goal.of(5000, 60.0))
    assert draws.finish.converged
    assert draws.finish.ess >= 2000
    assert draws.counts.sum() >= 2000
    asked = cluster(x, gaussian(1), n_samples=3000, orders=1, seed=0, time_limit=60.0)
    assert asked.posterior.finish is not None
    assert asked.posterior.finish.ess >= 1200


NOTHING = ExactDraws(np.empty((0, 12), int), np.empty(0, int), Finish("chains", True, 0.0))


@pytest.mark.parametrize("method", ["enumeration", "chains"])
def test_draws_that_obey_are_exact_given_what_is_known(
    method: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "chains":
        monkeypatch.setattr(finishing, "FEW_POINTS", 0)
    x, known = np.array([[0.0], [1.0], [2.5], [4.0], [5.0], [0.4]]), constrain(6, apart=[(0, 3)])
    draws = finish(x, MIXTURE, *one_cluster(6), n_samples=4000, seed=seed, allow=known.allow)
    assert draws.finish.method == method
    every = exact.posterior(x, MIXTURE)
    p = np.exp(every.log_prob) * known.allow(every.labels)
    assert known.allow(draws.labels).all()
    error = similarity(draws.labels, draws.counts) - similarity(every.labels, p / p.sum())
    assert np.abs(error).max() < 4.5 * 0.5 / np.sqrt(draws.finish.ess)
    if method == "enumeration":
        known_of = every.log_evidence + np.log(p.sum())
        assert draws.finish.log_evidence == pytest.approx(known_of)


def test_chains_of_which_few_obey_give_nothing(seed: int) -> None:
    x, known = np.linspace(0.0, 3.0, 12)[:, None], constrain(12, n_clusters=12)
    draws = finish(x, MIXTURE, *one_cluster(12), seed=seed, allow=known.allow)
    assert len(draws.labels) == len(draws.counts) == 0


def test_chains_go_on_until_enough_obey(seed: int) -> None:
    """They stopped at 400 draws of which few obeyed, and were called converged."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(0.0, 1.0, 6), rng.normal(3.0, 1.0, 6)])[:, None]
    free = finish(x, MIXTURE, *one_cluster(12), n_samples=2000, seed=seed)
    k = free.labels.max(1) + 1
    rare = min(set(k.tolist()), key=lambda one: abs(free.counts[k == one].sum() / 2000 - 0.2))
    known = constrain(12, n_clusters=rare)
    how = finish(x, MIXTURE, *one_cluster(12), seed=seed, allow=known.allow).finish
    assert how.converged == (how.ess >= Goal().min_ess)
    assert how.ess >= Goal().min_ess
    goal = Goal(time_limit=1e-6)
    short = finish(x, MIXTURE, *one_cluster(12), goal=goal, seed=seed, allow=known.allow)
    assert not short.finish.converged


def test_weights_that_are_usable_stay_where_chains_do_not_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ncp.posterior.finish", lambda *_, **__: NOTHING)
    monkeypatch.setattr("ncp.inference.importance.Report.verdict", "usable")
    x, known = data(MIXTURE, 12, 0), constrain(12, together=[(0, 1)])
    none = np.zeros(2)
    monkeypatch.setattr("ncp.posterior.WORTH", 2.0)  # weights are never enough
    drawn = Partitions(np.eye(2, 12, 11, dtype=int), np.array([90, 9]), none, none, x=x)
    goal = Goal(min_ess=1e9)
    found = drawn.exact(MIXTURE, goal=goal, allow=known.allow)
    assert found.log_weights is not None


def test_a_density_is_enough(seed: int) -> None:
    mixture = Mixture(CRP(1.0), LIKELIHOODS[2])
    x = data(mixture, 12, seed)
    draws = finish(x, mixture, *one_cluster(12), seed=seed)
    assert draws.finish.converged
    again = finish(x, mixture, np.arange(12)[None], [1.0], seed=seed + 1)
    gap = similarity(draws.labels, draws.counts) - similarity(again.labels, again.counts)
    assert np.abs(gap).max() < 5 * 0.5 * np.sqrt(2 / 400)


def test_same_seed_same_draws() -> None:
    x = data(MIXTURE, 30, 1)
    one, two = (finish(x, MIXTURE, *one_cluster(30), seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.counts, two.counts)


def test_time_runs_out(seed: int) -> None:
    """Two modes that nothing crosses: half of the chains are in each, and that is said."""
    wide = Mixture(CRP(1e-4), NormalInverseWishart(2, kappa=0.001, dof=40.0, scale_matrix=40.0))
    x = data(wide, 200, seed)
    goal = Goal(time_limit=0.2, min_ess=1e6)
    started = time.thread_time()
    draws = finish(x, wide, *one_cluster(200), n_samples=500, goal=goal, seed=seed)
    assert not draws.finish.converged
    assert draws.counts.sum() == 500
    assert 0.2 <= draws.finish.seconds <= time.thread_time() - started < 20.0


def test_chains_that_disagree_have_not_converged() -> None:
    """Without jumps nothing crosses between one cluster and two."""
    shift = np.array([1.6, 0.0])
    half = 0.3 * np.random.default_rng(0).normal(size=(10, 2))
    x = np.concatenate([half - shift, half + shift])
    mixture = Mixture(CRP(0.02), GaussianKnownVariance(2, prior_sd=20.0))
    seeds = np.stack([np.zeros(20, int), np.repeat([0, 1], 10)])
    for n_jumps in (0, 1):
        goal = Goal(n_jumps=n_jumps, time_limit=0.5)
        found = finish(x, mixture, seeds, [1.0, 1.0], goal=goal, seed=1).finish
        assert found.converged == (n_jumps == 1)


@pytest.mark.parametrize(
    "wrong", [{"time_limit": 0.0}, {"n_chains": 2}, {"min_ess": 0.0}, {"max_r_hat": 0.9}]
)
def test_goals_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"Expected {next(iter(wrong))}"):
        replace(Goal(), **wrong)  # type: ignore[arg-type]


def test_seeds_are_checked() -> None:
    x = data(MIXTURE, 10, 0)
    with pytest.raises(ValueError, match="Expected 1 weights"):
        finish(x, MIXTURE, np.zeros((1, 10), int), [1.0, 2.0])


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda x: type(x).__name__)
def test_draws_of_the_posterior_stay(likelihood: Likelihood, seed: int) -> None:
    mixture = Mixture(CRP(1.0), likelihood)
    x = data(mixture, 12, seed)
    draws = finish(x, mixture, *one_cluster(12), n_samples=2000, seed=seed)
    assert stays(x, mixture, draws.labels, draws.counts, seed=seed)
    few = draws.labels.max(1) == draws.labels.max(1).min()
    assert not stays(x, mixture, draws.labels[few], draws.counts[few], seed=seed)


def test_a_mode_that_no_weight_tells_of_is_found(seed: int) -> None:
    """q is the posterior of two clusters only, so that all of its weights are equal."""
    x = np.array([[0.0], [0.3], [2.6], [2.9], [0.1], [2.7], [1.4], [1.3], [1.6]])
    known = exact.posterior(x, MIXTURE)
    two = known.labels.max(1) == 1
    assert 0.1 < np.exp(known.log_prob[two]).sum() < 0.9
    log_q = known.log_prob[two] - np.logaddexp.reduce(known.log_prob[two])
    counts = np.random.default_rng(seed).multinomial(1000, np.exp(log_q))
    draws = Partitions(known.labels[two][counts > 0], counts[counts > 0], log_q[counts > 0], x=x)
    assert draws.reweight(MIXTURE).report.verdict == "good"
    found = draws.exact(MIXTURE, seed=seed)
    assert found.report.verdict == "converged"
    assert np.abs(found.similarity_matrix() - truth(x, MIXTURE)).max() < 0.1


# --- partitions, and tables -----------------------------------------------------------------------


def drawn_from_prior(x: np.ndarray, seed: int, n_samples: int = 1000) -> Partitions:
    """Draws of p(c): they know nothing of the data."""
    generator = torch.Generator().manual_seed(seed)
    rows = MIXTURE.prior.sample(n_samples, len(x), generator).numpy()
    labels, counts = np.unique(rows, axis=0, return_counts=True)
    return Partitions(labels, counts, MIXTURE.prior.log_prob(labels).numpy(), x=x)


def test_good_weights_are_enough(seed: int) -> None:
    x = data(MIXTURE, 6, seed)
    known = exact.posterior(x, MIXTURE)
    counts = np.random.default_rng(seed).multinomial(1000, np.exp(known.log_prob))
    some = counts > 0
    draws = Partitions(known.labels[some], counts[some], known.log_prob[some], x=x)
    weighted = draws.exact(MIXTURE)
    assert weighted.finish is None
    assert weighted.report.verdict == "good"
    unlike = replace(draws, in_range=False).exact(MIXTURE)
    assert unlike.report.verdict == "exact"


def test_samples_without_weights_say_so(seed: int) -> None:
    draws = drawn_from_prior(data(MIXTURE, 6, seed), seed)
    report = draws.report
    assert report.verdict == "no weights"
    assert not report.trusted
    assert np.isnan(report.log_evidence.value)
    assert "no weights" in repr(report)
    assert "Weights: none" in draws.summary()


@pytest.mark.parametrize("n_points", [6, 9])
def test_bad_weights_are_replaced(n_points: int, seed: int) -> None:
    x = data(MIXTURE, n_points, seed) + 40.0
    draws = drawn_from_prior(x, seed)
    known = exact.posterior(x, MIXTURE)
    found = draws.exact(MIXTURE, seed=seed)
    assert found.n_samples == 1000
    assert found.report.trusted
    error = np.abs(found.similarity_matrix() - truth(x, MIXTURE)).max()
    assert error < 4.5 * 0.5 / np.sqrt(400)
    if found.finish is not None and found.finish.method == "enumeration":
        assert found.report.log_evidence.value == pytest.approx(known.log_evidence)
        number = {row.tobytes(): p for row, p in zip(known.labels, known.log_prob, strict=True)}
        expected = [number[row.tobytes()] for row in found.labels]
        np.testing.assert_allclose(found.log_q, expected)


def off_without_a_word(n_datasets: int, sizes: tuple[int, ...], seed: int) -> int:
    """Data sets of which some pair's probability is wrong by more than 0.1 and nothing says so.

    The network is not trained at all: most of its weights are bad, some by luck are not.
    """
    model = small(MIXTURE, seed=4)
    wrong = 0
    for n in sizes:
        batch = MIXTURE.sample(n_datasets, n, generator=torch.Generator().manual_seed(seed + n))
        xs = list(batch.x.numpy())
        answers = cluster_many(xs, model, n_samples=500, estimate="map", seed=seed)
        for x, found in zip(xs, answers, strict=True):
            gap = np.abs(found.posterior.similarity_matrix() - truth(x, MIXTURE)).max()
            wrong += bool(gap > 0.1 and not found.warnings)
    return wrong


def test_no_table_is_off_without_a_word(seed: int) -> None:
    assert off_without_a_word(40, (5, 6, 7, 9), seed) == 0


@pytest.mark.slow
def test_no_table_of_three_thousand_is_off_without_a_word(seed: int) -> None:
    assert off_without_a_word(600, (5, 6, 7, 8, 9), seed) <= 3


def test_a_table_says_how_it_became_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gaussian(1)
    x = data(MIXTURE, 20, seed)
    found = cluster(x, model, n_samples=200, seed=0)
    assert found.posterior.report.method == "chains"
    assert found.to_dict()["exact"]["converged"]
    assert "exact chains" in found.trust()
    plain = cluster(x, model, n_samples=200, reweight=False, seed=0)
    assert plain.to_dict()["exact"] is None
    monkeypatch.setattr(finishing, "LOOK", 0.0)
    rushed = cluster(x, model, n_samples=200, time_limit=1e-9, seed=0)
    assert any("did not agree in time" in warning for warning in rushed.warnings)


def test_all_partitions_of_few_points_fit() -> None:
    assert len(enumerate_partitions(finishing.FEW_POINTS)) < 5000
