"""The Gaussian family for users: exact at six points, invariant, and plain about bad input."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from ncp.cli import app
from ncp.clustering.cluster import cluster
from ncp.clustering.compare import compare, read_comparison
from ncp.clustering.estimator import NCPClusterer
from ncp.clustering.gaussian import FamilyTable, nearest_alpha, prepare_family
from ncp.clustering.gaussian_result import GaussianClustering
from ncp.clustering.prepare import Settings
from ncp.clustering.result import Clustering
from ncp.generative.gaussian_family import GaussianFamily
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, PitmanYor
from ncp.inference.bridge import bridge
from ncp.inference.exact import posterior
from ncp.inference.finish import Goal
from ncp.inference.grid import grid_chains
from ncp.inference.predictive import cluster_posteriors, leave_one_out, log_predictive
from ncp.model import NCP
from ncp.network.checkpoint import save_model
from ncp.partitions import enumerate_partitions
from ncp.posterior import Partitions
from ncp.sampling.constraints import constrain
from tests.small_models import gaussian, small

FAMILY = GaussianFamily(sizes=(5, 60))
SETTINGS: list[dict[str, Any]] = [
    {"alpha": 1.0, "ratio": 5.0, "dof": "known"},
    {"alpha": 0.3, "ratio": 3.0, "dof": 5.0},
    {"alpha": 4.0, "ratio": 10.0, "dof": 40.0},
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


@pytest.fixture(scope="module")
def model() -> NCP:
    return small(FAMILY)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def six(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(6, 2)) * 30 + 150 * rng.integers(0, 2, size=(6, 1)) + 1000


def result(x: Any, model: NCP, **settings: Any) -> GaussianClustering:
    found = cluster(x, model, seed=0, **settings)
    assert isinstance(found, GaussianClustering)
    return found


def table_of(x: np.ndarray, model: NCP, **settings: Any) -> FamilyTable:
    table = prepare_family(model, x, Settings(seed=0, exact=False, **settings)).preparation
    assert isinstance(table, FamilyTable)
    return table


def mixture_of(setting: dict[str, Any], dim: int, noise_sd: float) -> Mixture:
    dof = math.inf if setting["dof"] == "known" else setting["dof"]
    return FAMILY.condition(
        alpha=setting["alpha"], ratio=setting["ratio"], dim=dim, dof=dof, noise_sd=noise_sd
    )


# --- exact at six points -------------------------------------------------------------------------


@each_setting
def test_posterior_and_evidence_are_those_of_enumeration(
    setting: dict[str, Any], six: np.ndarray, model: NCP
) -> None:
    found = result(six, model, noise_sd=40.0, n_samples=20_000, **setting)
    exact = posterior(six - six.mean(0), mixture_of(setting, 2, 40.0))
    assert found.evidence.value == pytest.approx(exact.log_evidence, abs=1e-7)
    same = exact.labels[:, :, None] == exact.labels[:, None]
    together = np.einsum("u,uij->ij", np.exp(exact.log_prob), same)
    np.testing.assert_allclose(found.similarity(), together, atol=0.005)
    assert found.posterior.report.verdict == "exact"


@each_setting
def test_rotation_and_scale_change_nothing_but_the_jacobian(
    setting: dict[str, Any], six: np.ndarray, model: NCP, rng: np.random.Generator
) -> None:
    turn = stats.special_ortho_group.rvs(2, random_state=rng)
    plain = result(six, model, noise_sd=40.0, **setting)
    turned = result(7.0 * six @ turn - 3.0, model, noise_sd=280.0, **setting)
    shift = -12 * math.log(7.0)
    assert turned.evidence.value == pytest.approx(plain.evidence.value + shift, abs=1e-7)
    assert turned.labels.tolist() == plain.labels.tolist()
    np.testing.assert_allclose(turned.similarity(), plain.similarity(), atol=1e-9)
    np.testing.assert_allclose(
        turned.outlier_scores(), plain.outlier_scores() + 2 * math.log(7.0), atol=1e-6
    )


def test_columns_of_any_unit_have_one_evidence(six: np.ndarray, model: NCP) -> None:
    """Each column is divided by its spread, and the Jacobian says so."""
    units = np.array([1.0, 1e3])
    plain = result(six, model, **SETTINGS[1])
    other = result(six * units, model, **SETTINGS[1])
    assert other.evidence.value == pytest.approx(plain.evidence.value - 6 * math.log(1e3), abs=1e-7)
    assert "standard deviations" in " ".join(plain.notes)


def test_densities_of_all_settings_at_once(six: np.ndarray, model: NCP) -> None:
    table = table_of(six, model)
    assert len(table.settings) == 45
    rows = enumerate_partitions(6).numpy()[::17]
    together = table.log_joints(rows)
    for g in (0, 13, 29, 44):
        alone = table.mixture(g).log_joint(table.z, rows)
        np.testing.assert_allclose(together[g], alone, rtol=1e-9)


def evidences(table: FamilyTable) -> np.ndarray:
    n = len(table.settings)
    return np.array([posterior(table.z, table.mixture(g)).log_evidence for g in range(n)])


def test_chains_over_settings_visit_them_by_their_evidence(six: np.ndarray, model: NCP) -> None:
    table = table_of(six, model, alpha=1.0)
    exact = np.exp(evidences(table) - evidences(table).max())
    exact /= exact.sum()
    start, where = np.zeros((4, 6), dtype=np.int64), np.array([0, 5, 10, 14])
    goal = Goal(min_ess=1500.0, time_limit=60.0)
    found = grid_chains(table.grid(), start, where, goal=goal, seed=1)
    assert found.finish.converged
    np.testing.assert_allclose(found.probabilities, exact, atol=0.02)
    share = np.bincount(found.which, minlength=15) / len(found.which)
    np.testing.assert_allclose(share, exact, atol=0.06)


def test_the_best_setting_and_the_average(six: np.ndarray, model: NCP) -> None:
    best = result(six, model, ratio=4.0, time_limit=10.0)
    table = best.family
    assert table is not None
    exact = np.exp(evidences(table) - evidences(table).max())
    exact /= exact.sum()
    assert len(table.settings) == 9
    np.testing.assert_allclose(table.probabilities, exact, atol=0.05)
    alphas = best.posterior_of("alpha")
    assert list(alphas) == [0.3, 1.0, 3.0]
    assert sum(alphas.values()) == pytest.approx(1)
    average = result(six, model, ratio=4.0, hyperparameters="average", time_limit=10.0)
    expected = sum(p * posterior_similarity(table, g) for g, p in enumerate(exact))
    np.testing.assert_allclose(average.similarity(), expected, atol=0.06)
    whole = np.logaddexp.reduce(evidences(table)) - math.log(9) + 6 * table.log_jacobian
    error = float(average.evidence.standard_error)  # it was unknown after chains
    assert float(average.evidence.value) == pytest.approx(whole, abs=4 * error)
    assert error < 0.3
    words = " ".join(average.words())
    assert "Averaged over 9 settings" in words
    assert "Concentration alpha, with its probability: 0.3 (" in words
    assert "Hyper-parameters chosen" in " ".join(best.words())


def test_the_best_setting_and_the_average_given_what_is_known(six: np.ndarray, model: NCP) -> None:
    """p(setting | x, C) and p(c | x, C) of the average, among all partitions that obey C."""
    said = {"known": {0: "a", 3: "b"}, "together": [(1, 2)], "n_clusters": 4, "at_any_price": True}
    found = result(six, model, alpha=1.0, n_samples=90_000, hyperparameters="average", **said)
    every = enumerate_partitions(6).numpy()
    obey = (every[:, 0] != every[:, 3]) & (every[:, 1] == every[:, 2]) & (every.max(1) == 3)
    table = found.family
    assert table is not None
    joint = table.log_joints(every)
    joint = np.exp(joint - joint[:, obey].max())
    exact = joint[:, obey] / joint[:, obey].sum()
    assert np.abs(joint.sum(1) / joint.sum() - exact.sum(1)).max() > 0.1  # that C is known matters
    np.testing.assert_allclose(table.probabilities, exact.sum(1), atol=0.03)
    same = every[obey][:, :, None] == every[obey][:, None]
    expected = np.einsum("u,uij->ij", exact.sum(0), same)
    np.testing.assert_allclose(found.similarity(), expected, atol=0.03)


def posterior_similarity(table: FamilyTable, g: int) -> np.ndarray:
    exact = posterior(table.z, table.mixture(g))
    same = exact.labels[:, :, None] == exact.labels[:, None]
    return np.asarray(np.einsum("u,uij->ij", np.exp(exact.log_prob), same))


def test_another_prior_by_weights(six: np.ndarray, model: NCP) -> None:
    prior = PitmanYor(discount=0.3, alpha=0.5)
    found = result(six, model, prior=prior, ratio=4.0, dof=6.0, noise_sd=40.0)
    mixture = mixture_of({"alpha": 1.0, "ratio": 4.0, "dof": 6.0}, 2, 40.0)
    exact = posterior(six - six.mean(0), replace(mixture, prior=prior))
    assert found.evidence.value == pytest.approx(exact.log_evidence, abs=1e-7)
    assert nearest_alpha(CRP(2.0), 50, FAMILY) == pytest.approx(2.0, rel=0.2)


def test_a_setting_outside_the_range_is_weighted_from_the_nearest(
    six: np.ndarray, model: NCP
) -> None:
    setting: dict[str, Any] = {"alpha": 30.0, "ratio": 5.0, "dof": "known", "noise_sd": 40.0}
    with pytest.raises(ValueError, match=r"Expected alpha between 0.1 and 10.0 but got 30.0"):
        result(six, model, **setting)
    found = result(six, model, nearest=True, **setting)
    exact = posterior(six - six.mean(0), mixture_of(setting, 2, 40.0))
    assert found.evidence.value == pytest.approx(exact.log_evidence, abs=1e-7)
    assert "Outside the trained range: alpha" in " ".join(found.notes)


# --- single points -------------------------------------------------------------------------------


@each_setting
def test_densities_of_points_are_ratios_of_evidences(
    setting: dict[str, Any], six: np.ndarray
) -> None:
    mixture, x = mixture_of(setting, 2, 40.0), six - six.mean(0)
    exact = posterior(x, mixture)
    p, mixtures = np.exp(exact.log_prob), [mixture] * len(exact.labels)
    alone = leave_one_out(x, exact.labels, p, mixtures)
    for i in range(6):
        without = posterior(np.delete(x, i, axis=0), mixture).log_evidence
        assert alone[i] == pytest.approx(exact.log_evidence - without, abs=1e-8)
    new = np.array([[5.0, -20.0]])
    each = [np.logaddexp.reduce(log_predictive(new, x, c, mixture)[0]) for c in exact.labels]
    density = np.log(p @ np.exp(each))
    longer = posterior(np.concatenate([x, new]), mixture).log_evidence
    assert density == pytest.approx(longer - exact.log_evidence, abs=1e-8)


@each_setting
def test_parameters_of_clusters_give_the_same_densities(
    setting: dict[str, Any], six: np.ndarray, rng: np.random.Generator
) -> None:
    mixture, labels = mixture_of(setting, 2, 40.0), np.array([0, 0, 0, 1, 1, 0])
    x, new = six - six.mean(0), np.array([[5.0, -20.0], [90.0, 10.0]])
    joins = log_predictive(new, x, labels, mixture)
    prior = np.log([4, 2, setting["alpha"]]) - np.log(6 + setting["alpha"])
    for k, one in enumerate(cluster_posteriors(x, labels, mixture)):
        spread = one.scale * (1 + 1 / one.kappa)
        law: Any = stats.multivariate_normal(one.mean, spread)
        free = math.inf
        if math.isfinite(one.dof):
            free = one.dof - 1
            law = stats.multivariate_t(one.mean, spread / free, df=free)  # type: ignore[arg-type]
        np.testing.assert_allclose(joins[:, k], prior[k] + law.logpdf(new), rtol=1e-9)
        drawn = one.draw(2000, rng)
        wide = math.sqrt(spread[0, 0] / (1 if math.isinf(free) else free))
        z = (drawn[:, 0] - one.mean[0]) / wide
        cdf = stats.norm.cdf if math.isinf(free) else stats.t(free).cdf
        assert stats.kstest(z, cdf).pvalue > 1e-4


def test_what_users_of_mixtures_expect(model: NCP, rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 2)) + 12 * rng.integers(0, 2, size=(40, 1))
    x[0] = [60.0, -40.0]
    found = result(x, model, alpha=1.0, ratio=10.0, dof=6.0, noise_sd=1.0, n_samples=200)
    assert found.posterior.report.verdict == "converged"
    assert int(np.nanargmax(found.outlier_scores())) == 0
    largest = found.clusters()[0]
    rows = x[found.labels == 0]
    np.testing.assert_allclose(largest.mean, rows.mean(0), atol=0.3)
    assert 0.2 < largest.covariance[0, 0] < 3.0
    assert largest.mean_sd[0] == pytest.approx(math.sqrt(largest.covariance[0, 0] / 20), rel=0.3)
    p = found.predict_proba(np.array([[0.0, 0.0], [500.0, 0.0]]))
    np.testing.assert_allclose(p.sum(1), 1)
    assert found.predict(np.array([[500.0, 0.0]])).tolist() == [-1]
    assert p[0].argmax() in (0, 1)
    density = found.score_samples(np.array([[0.0, 0.0], [500.0, 0.0]]))
    assert density[0] > density[1] + 5
    drawn, labels = found.sample(500, seed=1)
    assert drawn.shape == (500, 2)
    assert (labels == 0).mean() == pytest.approx((found.labels == 0).mean(), abs=0.15)
    again, _ = found.sample(500, seed=1)
    np.testing.assert_array_equal(drawn, again)


def test_a_bridge_between_two_samples_knows_the_evidence(rng: np.random.Generator) -> None:
    """q misses half of the posterior's weight; its own weights are a lower bound."""
    log_p = np.log([0.5, 0.3, 0.2]) - 40.0
    q = np.array([0.6, 0.3999, 0.0001])
    of_q, of_p = log_p - np.log(q), log_p - np.log(q)
    drawn_q, drawn_p = rng.choice(3, 2000, p=q), rng.choice(3, 2000, p=[0.5, 0.3, 0.2])
    found = bridge(of_q[drawn_q], of_p[drawn_p], 2000.0)
    assert found.value == pytest.approx(-40.0, abs=5 * found.standard_error)
    assert found.standard_error < 0.1


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.01}, "Expected alpha between 0.1 and 10.0"),
        ({"ratio": 100.0}, "Expected ratio between 1.5 and 50.0"),
        ({"dof": 3.0}, r"Expected dof between dim \+ 2 = 4 and 100"),
        ({"alpha": -1.0}, "Expected alpha > 0"),
        ({"hyperparameters": "worst"}, "Expected hyperparameters 'best' or 'average'"),
        ({"alpha": 1.0, "prior": CRP(1.0)}, "Expected alpha or prior but got both"),
        ({"location": [[1.0]]}, "Expected location to be numbers"),
        ({"location": [1.0, 2.0, 3.0]}, "Expected location to be one number or 2 but got 3"),
    ],
)
def test_settings_that_no_network_has_seen(
    change: dict[str, Any], words: str, six: np.ndarray, model: NCP
) -> None:
    with pytest.raises(ValueError, match=words):
        cluster(six, model, **change)


def test_hyper_parameters_are_for_models_that_take_them(six: np.ndarray) -> None:
    with pytest.raises(ValueError, match="Expected no alpha for this model"):
        cluster(six, gaussian(2), alpha=1.0)


def test_singular_data_are_named(six: np.ndarray, model: NCP) -> None:
    frame = pd.DataFrame(six, columns=["a", "b"])
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": "known"}
    with pytest.raises(ValueError, match="these are constant: c"):
        cluster(frame.assign(c=1.0), model, **how)
    with pytest.raises(ValueError, match="'c' says the same as 'a'"):
        cluster(frame.assign(c=-2 * frame["a"]), model, **how)
    with pytest.raises(ValueError, match="the 3 columns have rank 2"):
        cluster(frame.assign(c=frame["a"] + frame["b"]), model, **how)
    with pytest.raises(ValueError, match="Expected at least 2 rows"):  # not "constant columns"
        cluster(frame.iloc[:1], model, **how)
    few = cluster(frame.iloc[:2].assign(c=[0.0, 2.0]), model, **how)
    assert "2 rows of 3 columns" in " ".join(few.warnings)


def test_more_than_eight_columns(model: NCP, rng: np.random.Generator) -> None:
    x = rng.normal(size=(12, 10)) * np.arange(1, 11)
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": "known", "noise_sd": 1.0}
    found = result(x, model, n_samples=50, time_limit=0.2, **how)
    assert "of 10 columns the 8 leading principal axes" in " ".join(found.warnings)
    with pytest.raises(ValueError, match="all used, to have a density"):
        found.score_samples(x)
    with pytest.raises(ValueError, match="Expected at most 8 columns for an exact answer"):
        cluster(x, model, exact=True, **how)


def test_chains_over_settings_that_are_cut_short_say_so(
    model: NCP, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(30, 2))
    found = result(x, model, ratio=4.0, dof="known", n_samples=50, time_limit=1e-6)
    assert found.family is not None
    assert found.family.how == "short chains"
    assert "exact chains over them that did not agree in time" in " ".join(found.words())
    result(x, model, ratio=4.0, dof="known", hyperparameters="average", time_limit=1e-6)


def test_the_evidence_of_chains_that_do_not_agree_is_a_lower_bound(
    model: NCP, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(40, 2))
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": 6.0, "noise_sd": 0.3}
    found = result(x, model, n_samples=50, time_limit=1e-6, **how)
    assert found.posterior.report.verdict == "not converged"
    assert np.isfinite(found.evidence.value)
    assert np.isinf(found.evidence.standard_error)
    assert "Log evidence: at least about" in " ".join(found.words())
    assert found.to_dict()["gaussian"]["log_evidence_se"] is None


def test_exact_insists_and_may_be_left_out(model: NCP, rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 2))
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": 6.0, "noise_sd": 0.3, "seed": 0}
    with pytest.raises(ValueError, match="Expected exact samples but the verdict is 'not conv"):
        cluster(x, model, exact=True, time_limit=1e-6, **how)
    plain = cluster(x, model, exact=False, n_samples=50, **how)
    assert plain.posterior.report.verdict == "no weights"


# --- files, estimator, command line ---------------------------------------------------------------


def test_saved_and_read_again(six: np.ndarray, model: NCP, tmp_path: Path) -> None:
    found = result(six, model, ratio=4.0, dof="known", n_samples=300)
    path = tmp_path / "six.npz"
    found.save(path)
    again = Clustering.load(path)
    assert isinstance(again, GaussianClustering)
    assert again.words() == found.words()
    new = six[:2] + 1
    np.testing.assert_allclose(again.predict_proba(new), found.predict_proba(new))
    np.testing.assert_allclose(again.score_samples(new), found.score_samples(new))
    assert again.hyperparameters == found.hyperparameters
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["gaussian"]["hyperparameters"]["dof"] == "inf"
    found.save(path, table=False)
    assert type(Clustering.load(path)) is Clustering


def test_the_estimator(six: np.ndarray, model: NCP) -> None:
    fitted = NCPClusterer(model, alpha=1.0, ratio=4.0, dof="known", random_state=0).fit(six)
    assert fitted.predict_proba(six).shape == (6, fitted.n_clusters_ + 1)
    assert fitted.score_samples(six).shape == (6,)
    assert fitted.sample(3)[0].shape == (3, 2)
    assert not hasattr(NCPClusterer(gaussian(2)), "score_samples")
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": 6.0, "random_state": 0}
    hasty = NCPClusterer(model, exact=True, time_limit=1e-6, **how)
    with pytest.raises(ValueError, match="Expected exact samples but the verdict is 'not conv"):
        hasty.fit(np.random.default_rng(0).normal(size=(40, 2)))


def test_evidences_side_by_side(six: np.ndarray, model: NCP) -> None:
    how: dict[str, Any] = {"ratio": 4.0, "dof": "known", "noise_sd": 40.0, "seed": 0}
    found = compare(six, model, "alpha", [0.3, 3.0], **how)
    for one in found:
        setting = {"alpha": one.value, "ratio": 4.0, "dof": "known"}
        exact = posterior(six - six.mean(0), mixture_of(setting, 2, 40.0))
        assert one.log_evidence == pytest.approx(exact.log_evidence, abs=1e-7)
    assert sum(one.probability for one in found) == pytest.approx(1)
    assert read_comparison("dof=5,known") == ("dof", [5.0, "known"])
    for bad in ("alpha", "colour=1", "alpha=x"):
        with pytest.raises(ValueError, match="Expected one of alpha"):
            read_comparison(bad)


def test_the_command_line(
    six: np.ndarray, model: NCP, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, data = tmp_path / "mine.safetensors", tmp_path / "six.csv"
    save_model(weights, model)
    pd.DataFrame(six, columns=["a", "b"]).to_csv(data, index=False)
    common = ["cluster", str(data), "--model", str(weights), "--ratio", "4", "--dof", "known"]
    assert app([*common, "--alpha", "1", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"][0]
    assert found["gaussian"]["hyperparameters"]["alpha"] == 1.0
    assert app([*common, "--compare", "alpha=0.3,1", "--json"]) == 0
    rows = next(iter(json.loads(capsys.readouterr().out).values()))
    assert [row["value"] for row in rows] == [0.3, 1.0]
    assert rows[1]["log_evidence"] == pytest.approx(found["gaussian"]["log_evidence"])
    assert app([*common, "--dof", "many"]) == 3


def test_what_is_known_is_obeyed(six: np.ndarray, model: NCP) -> None:
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": "known", "noise_sd": 40.0}
    found = result(six, model, together=[(0, 5)], **how)
    assert found.probability_together(0, 5) == 1.0
    torch.testing.assert_close(float(found.given(apart=[(1, 2)]).probability_together(1, 2)), 0.0)


def test_weights_that_cannot_be_had_end_nothing(
    six: np.ndarray, model: NCP, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_density(*_: Any) -> None:
        raise ValueError("no density is left")

    monkeypatch.setattr(Partitions, "reweight", no_density)
    how: dict[str, Any] = {"alpha": 1.0, "ratio": 4.0, "dof": "known", "noise_sd": 40.0}
    found = result(six, model, reweight=False, **how)
    assert "no importance weights: no density is left" in found.warnings[-1]


def test_a_rough_choice_given_what_is_known_is_said(
    six: np.ndarray, model: NCP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncp.inference.importance.Report.trusted", False)
    settings, known = Settings(seed=0, ratio=4.0, dof="known"), constrain(6, apart=[(0, 5)])
    found = prepare_family(model, six, settings, lambda _: known)
    assert isinstance(found.preparation, FamilyTable)
    assert found.preparation.how == "rough weights"
    assert any("choice among them may be wrong" in one for one in found.warnings)
