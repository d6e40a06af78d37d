"""Importance sampling against enumeration at N = 8, and against ArviZ."""

import importlib
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.inference.importance import (
    Report,
    average_log_q,
    diagnose,
    effective_sample_size,
    expectation,
    influence,
    log_evidence,
    pareto_smooth,
    pooled_ess,
    resample_counts,
    some_pairs,
)
from ncp.partitions import canonical, enumerate_partitions
from ncp.posterior import Partitions, resample, reweight

X = np.array([-3.0, -2.2, -1.0, 0.2, 0.9, 2.0, 3.1, 4.5])
GOOD_NORMAL = 1.959964


def log_joint(x: np.ndarray, labels: np.ndarray, alpha: float = 0.7) -> np.ndarray:
    """log p(c, x) of a Dirichlet process mixture of N(mu, 1) with mu ~ N(0, 100), by hand."""
    member = labels[..., None] == np.arange(labels.max() + 1)  # (U, N, K)
    n = member.sum(axis=1)
    total = (member * x[None, :, None]).sum(axis=1)
    variance = 1.0 / (1.0 / 100.0 + n)
    crp = (n > 0).sum(axis=1) * np.log(alpha) - np.log(alpha + np.arange(len(x))).sum()
    crp = crp + np.where(n > 0, gammaln(np.maximum(n, 1)), 0.0).sum(axis=1)
    clusters = (0.5 * np.log(variance / 100.0) + 0.5 * variance * total**2).sum(axis=1)
    noise = -0.5 * (x**2).sum() - 0.5 * len(x) * np.log(2 * np.pi)
    return np.asarray(crp + clusters + noise)


class Model:
    """A stand-in for a mixture."""

    def log_joint(self, x: Any, labels: Any) -> np.ndarray:
        return log_joint(np.ravel(x), np.asarray(labels))


class Exact(NamedTuple):
    labels: np.ndarray
    log_joint: np.ndarray
    evidence: float
    p: np.ndarray
    k: np.ndarray
    similarity: np.ndarray


@pytest.fixture(scope="module")
def exact() -> Exact:
    labels = enumerate_partitions(8).numpy()
    joint = log_joint(X, labels)
    evidence = float(np.logaddexp.reduce(joint))
    similarity = (labels[:, :, None] == labels[:, None, :]).astype(np.float64)
    return Exact(
        labels, joint, evidence, np.exp(joint - evidence), labels.max(axis=1) + 1.0, similarity
    )


def proposal(name: str, p: np.ndarray) -> np.ndarray:
    """Proposals from exact to deliberately bad."""
    noise = np.random.default_rng(7).normal(size=len(p))
    q = {
        "exact": p,
        "rough": p * np.exp(0.5 * noise),
        "wide": p**0.5,
        "narrow": p**1.2,
        "bad": p**0.3 * np.exp(0.7 * noise),
    }[name]
    return np.asarray(q / q.sum())


def draw(
    rng: np.random.Generator, exact: Exact, q: np.ndarray, n_samples: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drawn rows, their log weights and counts."""
    counts = rng.multinomial(n_samples, q)
    rows = np.flatnonzero(counts)
    return rows, exact.log_joint[rows] - np.log(q[rows]), counts[rows]


@pytest.mark.parametrize("name", ["exact", "rough", "wide", "narrow", "bad"])
def test_expectations_match_enumeration(exact: Exact, seed: int, name: str) -> None:
    q = proposal(name, exact.p)
    rows, lw, n = draw(np.random.default_rng(seed), exact, q, 20_000)
    k = expectation(exact.k[rows], lw, n)
    assert abs(k.value - exact.p @ exact.k) <= 4 * k.standard_error
    s = expectation(exact.similarity[rows], lw, n, bounds=(0.0, 1.0))
    truth = np.tensordot(exact.p, exact.similarity, axes=1)
    # Too narrow a q hardly ever proposes rare pairs, and no error bar knows what was not drawn.
    seen = (truth > 0.01) & (truth < 0.99) if name == "narrow" else truth >= 0
    assert np.all((np.abs(s.value - truth) <= 4 * s.standard_error)[seen])
    evidence = log_evidence(lw, n)
    assert abs(evidence.value - exact.evidence) <= 4 * evidence.standard_error + 1e-9


@pytest.mark.parametrize("name", ["exact", "rough", "wide", "bad"])
def test_standard_errors_cover(exact: Exact, seed: int, name: str) -> None:
    q = proposal(name, exact.p)
    rng = np.random.default_rng(seed)
    i, j = np.triu_indices(8, 1)
    pairs = exact.similarity[:, i, j]
    truth_k, truth_s = exact.p @ exact.k, exact.p @ pairs
    usual = (truth_s > 0.05) & (truth_s < 0.95)
    covered_k, covered_s, covered_evidence = [], [], []
    for _ in range(400):
        rows, lw, n = draw(rng, exact, q, 2_000)
        k = expectation(exact.k[rows], lw, n)
        s = expectation(pairs[rows], lw, n, bounds=(0.0, 1.0))
        evidence = log_evidence(lw, n)
        covered_k.append(abs(k.value - truth_k) <= GOOD_NORMAL * k.standard_error)
        covered_s.append(np.abs(s.value - truth_s) <= GOOD_NORMAL * s.standard_error)
        error = GOOD_NORMAL * evidence.standard_error + 1e-9
        covered_evidence.append(abs(evidence.value - exact.evidence) <= error)
    assert 0.90 <= np.mean(covered_k) <= 0.98
    assert 0.90 <= np.mean(np.array(covered_s)[:, usual]) <= 0.98
    # pairs that are hardly ever (or always) together: never seen must not mean certain
    assert np.mean(np.array(covered_s)[:, ~usual]) >= 0.90
    if name != "exact":  # where the weights are constant and the evidence is exact
        assert 0.90 <= np.mean(covered_evidence) <= 0.98
    else:
        assert np.mean(covered_evidence) == 1.0


def test_counts_equal_expanded_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lw, n, r = rng.normal(size=40), rng.integers(1, 9, size=40), rng.normal(size=(40, 3))
    many = np.repeat(np.arange(40), n)
    assert effective_sample_size(lw, n) == pytest.approx(effective_sample_size(lw[many]))
    for compact, expanded in zip(
        expectation(r, lw, n), expectation(r[many], lw[many]), strict=True
    ):
        np.testing.assert_allclose(compact, expanded, rtol=1e-12)
    np.testing.assert_allclose(log_evidence(lw, n), log_evidence(lw[many]), rtol=1e-12)
    assert pareto_smooth(lw, n).k_hat == pytest.approx(pareto_smooth(lw[many]).k_hat, abs=1e-12)


def test_equal_weights_give_the_textbook_standard_error(seed: int) -> None:
    r = np.random.default_rng(seed).normal(size=50)
    k = expectation(r, np.full(50, -3.0))
    assert k.value == pytest.approx(r.mean())
    assert k.standard_error == pytest.approx(r.std(ddof=1) / np.sqrt(50))


def test_scale_of_weights_does_not_matter() -> None:
    lw = np.array([0.0, 1.0, 2.0, -np.inf])
    for shift in (-5000.0, 5000.0):
        assert expectation([1.0, 2, 3, 4], lw + shift) == expectation([1.0, 2, 3, 4], lw)
        assert effective_sample_size(lw + shift) == pytest.approx(effective_sample_size(lw))
        assert log_evidence(lw + shift).value == pytest.approx(log_evidence(lw).value + shift)


def test_one_draw_that_carries_all_weight_is_not_certain() -> None:
    lw = [0.0, -500.0, -500.0]
    assert expectation([1.0, 2.0, 3.0], lw).standard_error == np.inf
    assert expectation([1.0, 1.0, 1.0], lw).standard_error == 0.0
    assert diagnose(lw).verdict.startswith("do not trust")
    assert np.isinf(influence(lw)[1][0])
    assert expectation([2.0], [0.0]).value == 2.0
    assert log_evidence([-4.0]).standard_error == np.inf


# Pareto smoothing ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def psislw() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = importlib.import_module("arviz")

    def quiet(log_weights: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            return arviz.psislw(log_weights.copy(), normalize=False)

    return quiet


SHAPES = {
    "light": lambda rng, n: rng.uniform(size=n),
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy": lambda rng, n: 1.5 * rng.exponential(size=n),
    "very heavy": lambda rng, n: 5.0 * rng.normal(size=n) - 1000.0,
    "huge range": lambda rng, n: 400.0 * rng.normal(size=n),
    "few values": lambda rng, n: np.log(rng.integers(1, 12, size=n)),
}


@pytest.mark.parametrize("n_draws", [26, 100, 1000, 20_000])
@pytest.mark.parametrize("name", SHAPES)
def test_agrees_with_arviz(psislw: Any, seed: int, name: str, n_draws: int) -> None:
    lw = SHAPES[name](np.random.default_rng(seed), n_draws)
    theirs, k = psislw(lw)
    ours = pareto_smooth(lw)
    if np.isfinite(k):
        assert ours.k_hat == pytest.approx(float(k), abs=1e-8)
    else:
        assert np.isinf(ours.k_hat)
    np.testing.assert_allclose(ours.log_weights, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", SHAPES)
def test_counts_agree_with_arviz_on_expanded_draws(psislw: Any, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    lw, n = SHAPES[name](rng, 300), rng.integers(1, 6, size=300)
    many = np.repeat(np.arange(300), n)
    theirs, k = psislw(lw[many])
    ours = pareto_smooth(lw, n)
    if np.isfinite(k):
        assert ours.k_hat == pytest.approx(float(k), abs=1e-8)
    top = theirs.max()
    # the draws of one row share the mean of their smoothed weights
    mean = np.bincount(many, weights=np.exp(theirs - top)) / n
    np.testing.assert_allclose(np.exp(ours.log_weights - top), mean, rtol=1e-8, atol=1e-300)


def test_constant_weights_are_perfect(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for lw in (np.zeros(1000), np.full(1000, -345.678), 7.0 + 1e-12 * rng.normal(size=1000)):
        assert pareto_smooth(lw).k_hat == -np.inf
        report = diagnose(lw)
        assert report.verdict == "good"
        assert report.ess == pytest.approx(1000)
        np.testing.assert_array_equal(pareto_smooth(lw).log_weights, lw)
    assert diagnose([-3.0], [1000]).verdict == "good"


def test_weights_that_are_largest_most_of_the_time_have_no_tail() -> None:
    assert pareto_smooth([0.0, -1.0], [600, 400]).k_hat == -np.inf


def test_k_hat_finds_the_tail(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k in (0.2, 0.5, 0.9):
        assert pareto_smooth(k * rng.exponential(size=50_000)).k_hat == pytest.approx(k, abs=0.15)


# Several orders --------------------------------------------------------------------------------


def test_average_over_orders_is_valid_and_buys_ess(exact: Exact, seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(4, len(exact.p)))
    q = exact.p**0.8 * np.exp(0.8 * noise)
    q /= q.sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(2_500, row) for row in q])  # (orders, partitions)
    order, row = np.nonzero(counts)
    draws = Partitions(exact.labels[row], counts[order, row], np.log(q[order, row]))
    weighted, report = reweight(draws, Model(), X, log_q=np.log(q[:, row]))
    assert report.order_gain is not None
    assert report.order_gain > 1.2
    assert "times that of single orders" in repr(report)
    error = 4 * report.log_evidence.standard_error
    assert abs(report.log_evidence.value - exact.evidence) <= error
    assert weighted.log_weights is not None
    k = expectation(weighted.n_clusters, weighted.log_weights, weighted.counts)
    assert abs(k.value - exact.p @ exact.k) <= 4 * k.standard_error
    single = reweight(draws, Model(), X).report
    assert single.ess == pytest.approx(report.ess_own_order)
    assert single.order_gain is None


def test_average_log_q_far_below_one() -> None:
    log_q = np.array([[-2000.0, -np.inf], [-2000.0, -10.0]])
    np.testing.assert_allclose(average_log_q(log_q), [-2000.0, -10.0 - np.log(2)])


# Partitions ------------------------------------------------------------------------------------


def sampled(exact: Exact, rng: np.random.Generator, name: str, n_samples: int) -> Partitions:
    q = proposal(name, exact.p)
    rows, _, n = draw(rng, exact, q, n_samples)
    return Partitions(exact.labels[rows], n, np.log(q[rows]))


def test_reweight(exact: Exact, seed: int) -> None:
    draws = sampled(exact, np.random.default_rng(seed), "bad", 4_000)
    weighted, report = reweight(draws, Model(), X)
    assert weighted.weights.sum() == pytest.approx(1.0)
    assert report.n_samples == 4_000
    assert report.n_unique == len(draws)
    assert 0 < report.ess_fraction < 0.3
    assert draws.log_weights is None
    assert weighted.log_weights is not None
    truth = exact.p @ exact.k
    k = expectation(weighted.n_clusters, weighted.log_weights, weighted.counts)
    assert k.value == pytest.approx(weighted.weights @ weighted.n_clusters)
    unweighted = draws.weights @ draws.n_clusters
    assert abs(k.value - truth) < 4 * k.standard_error < abs(unweighted - truth)
    smooth = reweight(draws, Model(), X, smooth=True)
    assert smooth.report == report
    assert smooth.partitions.weights.max() <= weighted.weights.max() + 1e-12


def test_resampled_draws_have_equal_weights(exact: Exact, seed: int) -> None:
    draws = sampled(exact, np.random.default_rng(seed), "wide", 4_000)
    weighted, report = reweight(draws, Model(), X)
    equal = resample(weighted, 20_000, seed=seed)
    assert equal.n_samples == 20_000
    assert equal.log_weights is None
    assert equal.weights @ equal.n_clusters == pytest.approx(
        weighted.weights @ weighted.n_clusters, abs=0.01
    )
    again = reweight(equal, Model(), X).report
    assert again.verdict == "good"
    assert again.ess_fraction == pytest.approx(1.0)
    assert again.log_evidence.value == pytest.approx(report.log_evidence.value)
    assert resample(weighted, seed=1).n_samples == 4_000
    with pytest.raises(ValueError, match="call reweight first"):
        resample(draws)


def test_resample_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.dirichlet(np.full(30, 0.3))
    total = np.zeros(30)
    for i in range(400):
        n = resample_counts(w, 100, seed=seed + i)
        assert n.sum() == 100
        assert np.all(np.abs(n - 100 * w) < 1)
        total += n
    # a count is one of two neighbouring integers, so its variance is at most 1/4
    assert np.all(np.abs(total / 400 - 100 * w) <= 4.5 * 0.5 / 20)
    np.testing.assert_array_equal(
        resample_counts(w, 100, seed=seed), resample_counts(w, 100, seed=seed)
    )


# Verdicts and mistakes -------------------------------------------------------------------------


def test_verdicts(exact: Exact, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert diagnose(0.3 * rng.normal(size=2_000)).verdict == "good"
    assert diagnose(0.9 * rng.exponential(size=5_000)).verdict == "do not trust: run MCMC"
    one_order = Report(5_000, 900, 300.0, 0.6, log_evidence([0.0, 0.1]))
    assert one_order.verdict == "usable"
    uniform = np.full(len(exact.p), 1 / len(exact.p))
    _, lw, n = draw(rng, exact, uniform, 1_000)
    assert diagnose(lw, n).verdict == "do not trust: run MCMC"


def test_too_short_a_tail_is_judged_by_the_ess() -> None:
    harmless, harmful = diagnose([0.0, 0.1], [998, 2]), diagnose([0.0, 8.0], [998, 2])
    assert harmless.k_hat == harmful.k_hat == np.inf
    assert harmless.verdict == "good"
    assert harmful.verdict == "do not trust: run MCMC"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effective_sample_size([]), "shape"),
        (lambda: effective_sample_size([np.nan, 0.0]), "nan"),
        (lambda: effective_sample_size([-np.inf]), "infinity"),
        (lambda: effective_sample_size([np.inf, 0.0]), "infinity"),
        (lambda: effective_sample_size([0.0], [1, 2]), "one for each row"),
        (lambda: effective_sample_size([0.0], [0]), "integers >= 1"),
        (lambda: expectation([1.0, 2.0], [0.0]), "1 rows"),
        (lambda: average_log_q([0.0]), "orders, rows"),
        (lambda: resample_counts([1.0, -1.0], 3), "not negative"),
        (lambda: resample_counts([1.0], 0), "n_samples >= 1"),
    ],
)
def test_mistakes_are_explained(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_reweight_refuses_the_wrong_shapes(exact: Exact) -> None:
    draws = Partitions(exact.labels[:3], np.ones(3, dtype=np.int64), np.zeros(3))
    with pytest.raises(ValueError, match="log_q of 3 rows"):
        reweight(draws, Model(), X, log_q=np.zeros(2))


def test_reweight_by_a_mixture(exact: Exact, seed: int) -> None:
    likelihood = GaussianKnownVariance(dim=1, prior_sd=10.0, noise_sd=1.0)
    mixture = Mixture(CRP(0.7), likelihood)
    draws = sampled(exact, np.random.default_rng(seed), "wide", 2_000)
    by_hand, by_mixture = (reweight(draws, m, X[:, None]) for m in (Model(), mixture))
    assert by_hand.partitions.log_weights is not None
    assert by_mixture.partitions.log_weights is not None
    np.testing.assert_allclose(
        by_mixture.partitions.log_weights, by_hand.partitions.log_weights, atol=1e-9
    )
    assert by_mixture.report.verdict == by_hand.report.verdict


def test_hopeless_weights_are_reported() -> None:
    """A tail of k = 178, as a network far from its data has it, is no reason to fail."""
    lw = -(np.linspace(0.0, 30.0, 500) ** 2)
    assert diagnose(lw).verdict == "do not trust: run MCMC"


def test_the_evidence_allows_for_what_q_missed(exact: Exact) -> None:
    """q leaves out a partition and is perfect elsewhere: the weights alone promise no error."""
    order = np.argsort(exact.p)
    missed = order[np.searchsorted(np.cumsum(exact.p[order]), 1e-3)]
    q = np.where(np.arange(len(exact.p)) == missed, 0.0, exact.p)
    q /= q.sum()
    counts = np.random.default_rng(0).multinomial(1000, q)
    seen = counts > 0
    found = log_evidence(exact.log_joint[seen] - np.log(q[seen]), counts[seen])
    error = abs(float(found.value) - exact.evidence)
    assert 1e-6 < error < 2 * found.standard_error
    assert found.standard_error == pytest.approx(1e-3)


def test_weights_that_are_not_trusted_give_a_lower_bound() -> None:
    lw = np.append(np.zeros(999), 12.0)
    assert "log evidence at least about" in repr(diagnose(lw))
    assert "log evidence at least about" in repr(diagnose(np.zeros(1000), in_range=False))
    assert diagnose(np.zeros(1000), in_range=False).verdict.endswith("outside the trained range")


def in_runs(labels: np.ndarray, runs: np.ndarray) -> Partitions:
    n = len(labels)
    rows = canonical(torch.from_numpy(labels)).numpy()
    return Partitions(rows, np.ones(n, int), np.zeros(n), np.zeros(n), runs=runs)


@pytest.mark.parametrize("n_runs", [2, 8])
def test_independent_draws_of_runs_are_worth_their_number(n_runs: int, seed: int) -> None:
    """The worst of many pairs said 285 of 1,000 with eight runs."""
    rng = np.random.default_rng(seed)
    for n_clusters in (2, 3, 10):
        labels = rng.integers(n_clusters, size=(1000, 40))
        drawn = in_runs(labels, np.arange(1000) % n_runs)
        assert drawn.ess > 700
        assert drawn._ess_of_runs() < 1400


def test_runs_that_repeat_themselves_are_worth_one_draw_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(3, size=(8, 40)), 125, axis=0)
    runs = np.repeat(np.arange(8), 125)
    assert 4 < in_runs(labels, runs).ess < 12
    labels[:, 20:] = rng.integers(3, size=(1000, 20))  # they disagree on half of the points
    assert in_runs(labels, runs).ess < 50


def test_pairs_of_many_points_are_few() -> None:
    i, j = some_pairs(100_000, np.random.default_rng(0), 300)
    assert len(i) == len(j) == 300
    assert (i != j).all()
    assert min(i.min(), j.min()) >= 0
    assert max(i.max(), j.max()) < 100_000
    assert len(some_pairs(5, np.random.default_rng(0))[0]) == 10


def test_runs_of_different_weights_are_worth_little() -> None:
    """Eight clusters of nine points: runs agreed on pairs, one had most of the weight."""
    means = np.full((8, 10), 0.5) + 1e-6 * np.arange(8)[:, None]
    assert pooled_ess(means, np.ones(8)) > 1e6
    assert pooled_ess(means, np.array([4.0, 1, 1, 1, 1, 0.5, 0.5, 0.5])) < 20
