"""How far to trust a clustered table."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from ncp.clustering.cluster import cluster
from ncp.clustering.verdict import LEVELS, is_worth_little, judge
from ncp.generative.tables import TabularMixture
from ncp.inference.importance import Estimate, Report
from ncp.posterior import Partitions
from ncp.summary.rand_index import expected_agreement


def samples(share_split: float, n: int = 40) -> Partitions:
    """Two halves, together in the rest of 100 samples."""
    halves = np.repeat([0, 1], n // 2)
    n_split = round(100 * share_split)
    return Partitions.of([halves] * n_split + [np.zeros(n, int)] * (100 - n_split))


def test_agreement_is_the_mean_rand_index() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, size=(20, 12))
    estimate = rng.integers(0, 2, size=12)
    expected = np.mean([adjusted_rand_score(estimate, row) for row in drawn])
    found = expected_agreement(estimate, drawn, np.full(20, 0.05))
    assert found == pytest.approx(max(0.0, expected), abs=1e-9)


@pytest.mark.parametrize(("share", "level"), [(0.95, 0), (0.7, 1), (0.3, 2)])
def test_agreement_decides(share: float, level: int) -> None:
    found = judge(samples(share), np.repeat([0, 1], 20))
    assert found.level == LEVELS[level]
    assert found.agreement == pytest.approx(share)
    assert f"{share:.2f}" in str(found)


def test_what_was_measured_counts() -> None:
    """Tables of this size fell short of what their samples promised."""
    kept = [[15, 0.6, 0.7], [250, 0.9, 0.6]]
    mixture = TabularMixture(reference={"ranges": [], "agreement": kept})
    assert mixture.shortfall(20) == 0.0
    assert mixture.shortfall(100) == pytest.approx(0.3)
    assert TabularMixture().shortfall(20) == 0.0
    for share in (np.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="agreement from 0 to 1"):
            TabularMixture(reference={"ranges": [], "agreement": [[250, share, 0.6]]})
    halves = np.repeat([0, 1], 20)
    assert judge(samples(0.95), halves, shortfall=0.0).level == "good"
    short = judge(samples(0.95), halves, shortfall=0.3)
    assert short.level == "with care"
    assert "0.65" in str(short)


def test_confidence_is_corrected_by_what_was_measured() -> None:
    """In log odds, by a line in log N between the sizes that were measured, level beyond."""
    mixture = TabularMixture(reference={"ranges": [], "confidence": [[10, 0.0], [1000, 1.0]]})
    sure = np.array([0.0, 0.2, 0.5, 0.9, 1.0, np.nan])
    np.testing.assert_allclose(mixture.calibrated(sure, 5), sure)
    log_odds = np.log(sure[1:4] / (1 - sure[1:4]))
    for n, offset in ((100, 0.5), (1000, 1.0), (2000, 1.0)):
        found = mixture.calibrated(sure, n)
        np.testing.assert_allclose(found[1:4], 1 / (1 + np.exp(-log_odds - offset)))
        np.testing.assert_allclose(found[[0, 4, 5]], sure[[0, 4, 5]])
    assert TabularMixture().calibrated(sure, 100) is sure
    for wrong in ([[10, 0.1], [10, 0.2]], [[0, 0.1]], [[10, np.nan]], [[10, 11.0]], [[10]]):
        with pytest.raises(ValueError):
            TabularMixture(reference={"ranges": [], "confidence": wrong})


def test_other_reasons() -> None:
    halves = np.repeat([0, 1], 20)
    assert judge(samples(1.0), halves, ["odd"]).level == "with care"
    assert judge(samples(1.0), halves, stability=0.7).level == "with care"
    assert judge(samples(1.0), halves, stability=0.3).level == "do not trust"
    assert "stability of 0.30" in str(judge(samples(1.0), halves, ["odd"], stability=0.3))
    few = judge(samples(1.0, 10), np.repeat([0, 1], 5))
    assert few.level == "with care"
    assert "10 rows" in str(few)


def test_exact_samples_may_be_worth_little() -> None:
    report = Report(1000, 900, 30.0, 0.5, Estimate(-3.0, 0.1), "weights")
    assert report.trusted
    assert is_worth_little(report)
    assert not is_worth_little(replace(report, ess=150.0))
    assert not is_worth_little(replace(report, n_samples=50))


def test_weights_tell_where_there_are_some() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    found = cluster(x, "gaussian-2d", n_samples=200, seed=0)
    assert found.verdict.agreement is None
    assert (found.verdict.level == "do not trust") == (not found.posterior.report.trusted)


def test_a_clear_table_is_good_and_says_so() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]], 40, axis=0) + rng.normal(size=(120, 2))
    found = cluster(x, n_samples=100, seed=0)
    assert found.verdict.level == "good"
    assert str(found.verdict) in repr(found)
    assert found.to_dict()["verdict"]["level"] == "good"
