"""What a user says of a table: in words and positions, through clustering, and back by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ncp
from ncp.clustering import cluster as clustering
from ncp.clustering.cluster import cluster_many
from ncp.clustering.estimator import NCPClusterer
from ncp.clustering.knowledge import Knowledge, cluster_names, row_finder
from ncp.clustering.result import Clustering
from ncp.clustering.said import Said
from ncp.inference.finish import Finish
from ncp.model import NCP
from ncp.output.readers import read_table
from ncp.partitions import enumerate_partitions
from ncp.summary.questions import best_pairs, best_rows
from tests.small_models import gaussian, tabular


def blobs(n: int = 40, seed: int = 0) -> np.ndarray:
    """Two clear groups of n / 2 rows, one after the other."""
    centres = np.repeat([[-6.0, 0.0], [6.0, 0.0]], n // 2, axis=0)
    return np.asarray(centres + np.random.default_rng(seed).normal(size=(n, 2)))


@pytest.fixture(scope="module")
def model() -> NCP:
    return gaussian()


def found(model: NCP, x: Any, **how: Any) -> Clustering:
    return ncp.cluster(x, model, seed=0, n_samples=64, orders=4, reweight=False, **how)


# -- words to constraints -----------------------------------------------------------------------


def test_rows_by_position_or_label() -> None:
    frame = pd.DataFrame(np.zeros((4, 1)), index=["a", "b", "c", "c"])
    find = row_finder(frame, 4)
    assert find("b") == 1
    with pytest.raises(ValueError, match="several rows are called 'c'"):
        find("c")
    with pytest.raises(ValueError, match="positions below 4 or labels of the index but got 'd'"):
        find("d")
    assert (find(2), find(-1)) == (2, 3)
    numbers = row_finder(pd.DataFrame(np.zeros((3, 1)), index=[5, 6, 7]), 3)
    assert numbers(6) == numbers(np.int64(6)) == numbers("6") == 1
    with pytest.raises(ValueError, match="rows by labels of the index but got 1"):
        numbers(1)
    plain = row_finder(pd.DataFrame(np.zeros((3, 1))), 3)
    assert (plain(0), plain(-1)) == (0, 2)
    for wrong in (3, "a", True, 0.5, None):
        with pytest.raises(ValueError, match="positions below 3"):
            plain(wrong)


def test_labels_of_any_kind() -> None:
    said = Knowledge(known=["setosa", None, "", float("nan"), -1, "virginica ", "setosa"])
    rows = said.translate(np.zeros((7, 1)))
    assert rows.names == ("setosa", "virginica")
    assert rows.labels.tolist() == [0, -1, -1, -1, -1, 1, 0]
    numbers = Knowledge(known=pd.Series([10.0, 2.0, np.nan])).translate(np.zeros((3, 1)))
    assert numbers.names == ("2", "10")
    missing = Knowledge(known=pd.array(["x", pd.NA, None])).translate(np.zeros((3, 1)))
    assert missing.labels.tolist() == [0, -1, -1]
    assert Knowledge(known=[np.inf, 1.0]).translate(np.zeros((2, 1))).names == ("1", "inf")
    by_row = Knowledge(known={-1: "z", 0: "y"}).translate(np.zeros((3, 1)))
    assert by_row.labels.tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="known labels of 3 rows but got 2"):
        Knowledge(known=["a", "b"]).translate(np.zeros((3, 1)))


def test_a_series_goes_by_its_index() -> None:
    """As everywhere in pandas, and not by position: that would label other rows in silence."""
    frame = pd.DataFrame(np.zeros((3, 1)), index=[2, 1, 0])
    full = pd.Series(["a", None, "b"])
    assert Knowledge(known=full).translate(frame).labels.tolist() == [1, -1, 0]
    assert Knowledge(known=full[:1]).translate(frame).labels.tolist() == [-1, -1, 0]
    assert Knowledge(known=full[:1]).translate(np.zeros((3, 1))).labels.tolist() == [0, -1, -1]
    same = full.set_axis(frame.index)
    assert Knowledge(known=same).translate(frame).labels.tolist() == [0, -1, 1]
    later = Knowledge(known=full[2:]).added_to(Knowledge(known=full[:1]), frame)
    assert later.translate(frame).labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize("word", ["nan", "-1", "-1.0", " ", " <NA> "])
def test_words_for_unknown_are_no_label(word: str) -> None:
    """As in an array of text that had NaN in it, or a file with -1: they were one cluster once."""
    known = np.array(["setosa", word, word, "setosa"])
    assert Knowledge(known).translate(np.zeros((4, 1))).labels.tolist() == [0, -1, -1, 0]


@pytest.mark.parametrize("word", ["-", "none", "?", "NA", "missing"])
def test_words_that_someone_may_mean_are_labels(word: str) -> None:
    """They say nothing in a file, whose reader knows; here they were said."""
    x = np.zeros((3, 1))
    assert Knowledge(["+", word, word]).translate(x).labels.tolist().count(-1) == 0
    assert Knowledge({0: word}).translate(x).names == (word,)


def test_a_label_that_was_said_of_a_row_is_one() -> None:
    """Also -1 and "nan", which are unknown in a column, and also after more was said."""
    x = np.zeros((4, 1))
    said = Knowledge({0: -1, 1: "+1", 2: "nan", 3: None})
    assert said.translate(x).names == ("-1", "+1", "nan")
    assert Knowledge({3: "+1"}).added_to(said, x).translate(x).labels.tolist() == [0, 1, 2, 1]
    line = Said(known=("1=-1", "2=none")).knowledge(read_table("x", b"a\n0.5\n1.5\n2.5\n4\n"))
    assert line.translate(x).names == ("-1", "none")


def test_cells_of_a_file_that_say_nothing_are_no_labels() -> None:
    table = read_table("x", b"a,b\n0.5,x\n1.5,NA\n2.5,?\n4,-1\n", known="b")
    assert Said().knowledge(table).translate(np.zeros((4, 1))).labels.tolist() == [0, -1, -1, -1]


def test_two_labels_of_one_row_are_a_contradiction() -> None:
    x = pd.DataFrame({"a": [1.0, 2.0]}, index=["r", "s"])
    twice = pd.Series(["a", "b"], index=["r", "r"])
    for known in ({"r": "a", 0: "b"}, {-2: "b", "r": "a"}, twice):
        with pytest.raises(ValueError, match="one known label for each row but row"):
            Knowledge(known).translate(x)
    assert Knowledge({"r": 1, 0: 1.0, -2: None}).translate(x).labels.tolist() == [0, -1]


def test_links_are_pairs_or_more() -> None:
    rows = Knowledge(together=[(0, 1, 2)], apart=[[3, 0]]).translate(np.zeros((4, 1)))
    assert rows.together == ((0, 1, 2),)
    assert rows.apart == ((3, 0),)
    assert rows.rows.tolist() == [0, 1, 2, 3]
    wrong: Any
    for wrong in ([3], [(3,)], ["ab"]):
        with pytest.raises(ValueError, match="pairs of rows that are together but got"):
            Knowledge(together=wrong).translate(np.zeros((4, 1)))


def test_later_words_hold() -> None:
    x = np.zeros((4, 1))
    first = Knowledge(known={0: "a", 1: "b"}, together=[(2, 3)], n_clusters=2)
    both = Knowledge(known={1: "c"}, apart=[(0, 2)], at_most=3).added_to(first, x)
    assert both.translate(x).names == ("a", "c")
    assert both.together == ((2, 3),)
    assert both.apart == ((0, 2),)
    assert (both.n_clusters, both.at_most) == (None, 3)
    assert Knowledge().added_to(first, x).n_clusters == 2


def test_clusters_are_called_by_their_known_rows() -> None:
    labels = np.array([0, 0, 1, 1, 2, 3, -1])
    known = np.array([-1, 1, -1, -1, 0, -1, 0])
    assert cluster_names(labels, known, ("a", "b")) == ("b", "new 1", "a", "new 2")
    split = cluster_names(np.array([0, 0]), np.array([0, 1]), ("a", "b"))
    assert split == ("a + b",)
    taken = cluster_names(np.array([0, 1]), np.array([-1, 0]), ("new 1",))
    assert taken == ("new 2", "new 1")


# -- through clustering -------------------------------------------------------------------------


def obeys(samples: np.ndarray, together: Any = (), apart: Any = ()) -> bool:
    same = all((samples[:, i] == samples[:, j]).all() for i, j in together)
    return same and all((samples[:, i] != samples[:, j]).all() for i, j in apart)


def test_links_hold_in_samples_and_estimate(model: NCP) -> None:
    together, apart = [(0, 39), (1, 38)], [(0, 1), (2, 3)]
    result = found(model, blobs(), together=together, apart=apart)
    assert obeys(result.samples, together, apart)
    assert obeys(result.labels[None], together, apart)
    assert result.heard is not None
    assert result.heard.log_probability < 0
    assert 1 <= result.n_draws <= 64
    assert "Known: 2 links together, 2 links apart. The model gave that a" in repr(result)


@pytest.mark.parametrize("estimate", ["vi", "binder", "pear", "map"])
def test_the_estimate_obeys_or_is_refused(model: NCP, estimate: str) -> None:
    with pytest.raises(ValueError, match="at most 2 clusters but got none"):
        found(model, blobs(), apart=[(0, 1, 2)], max_clusters=2, estimate=estimate)


@pytest.mark.parametrize("estimate", ["vi", "binder", "pear", "map"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_number_holds_in_samples_and_estimate(model: NCP, estimate: str, k: int) -> None:
    result = found(model, blobs(20), n_clusters=k, estimate=estimate, at_any_price=True)
    assert (result.samples.max(1) + 1 == k).all()
    assert result.n_clusters == k
    bounded = found(model, blobs(20), at_least=k, at_most=k + 1, estimate=estimate)
    assert k <= bounded.n_clusters <= k + 1


def test_known_labels_give_names(model: NCP) -> None:
    x = pd.DataFrame(blobs(), columns=["a", "b"], index=[f"r{i}" for i in range(40)])
    result = found(model, x, known={"r0": "left", "r5": "left", "r30": "right"})
    assert result.labels[0] == result.labels[5] != result.labels[30]
    names = result.cluster_names
    assert names[result.labels[0]] == "left"
    assert names[result.labels[30]] == "right"
    assert all(name in ("left", "right") or name.startswith("new ") for name in names)
    table = result.to_pandas()
    assert table.loc["r5", "name"] == "left"
    assert result.to_dict()["cluster_names"] == list(names)
    assert result.to_dict()["known"]["labels"] == 3
    assert result.predict_proba(x[:3]).shape == (3, len(names) + 1)


def test_nothing_said_changes_nothing(model: NCP) -> None:
    plain, empty = found(model, blobs()), found(model, blobs(), known=[None] * 40, at_most=400)
    assert (plain.samples == empty.samples).all()
    assert plain.heard is None
    assert plain.cluster_names == tuple(str(k) for k in range(plain.n_clusters))
    assert "name" not in plain.to_pandas()


def test_exact_weights_under_constraints(model: NCP) -> None:
    """For a conjugate mixture the weights are those of p(c, x) among what obeys."""
    x = blobs(8)
    result = ncp.cluster(
        x, model, seed=0, n_samples=4000, orders=4, reweight=True, together=[(0, 7)], at_most=3
    )
    labels = enumerate_partitions(8).numpy()
    k = labels.max(1) + 1
    labels = labels[(labels[:, 0] == labels[:, 7]) & (k <= 3)]
    assert model.mixture is not None
    assert result.posterior.x is not None
    joint = np.asarray(model.mixture.log_joint(result.posterior.x, labels))
    p = np.exp(joint - joint.max())
    p /= p.sum()
    expected = p @ (labels[:, 0] == labels[:, 1])
    assert result.posterior.log_weights is not None
    assert result.probability_together(0, 1) == pytest.approx(expected, abs=0.05)


SIX = [[27.9], [29.0], [33.7], [33.8], [28.3], [30.7]]


def test_what_is_known_is_exact_where_weights_fail() -> None:
    """The network alone says 0.41."""
    result = ncp.cluster(SIX, "gaussian-1d", seed=0, apart=[(0, 1)])
    assert result.posterior.report.verdict == "exact"
    assert result.probability_together(1, 2) == pytest.approx(0.65, abs=0.01)
    assert result.warnings == ()


def test_weights_that_fail_are_said_where_chains_do_not_obey() -> None:
    x = [*SIX, [31.0], [29.5], [28.8]]
    result = ncp.cluster(x, "gaussian-1d", seed=0, n_clusters=4)  # of probability 1e-5
    assert (result.samples.max(1) == 3).all()
    assert "weights were not used; they are not to be trusted" in result.warnings[0]
    with pytest.raises(ValueError, match="Expected exact samples"):
        ncp.cluster(x, "gaussian-1d", seed=0, n_clusters=4, exact=True)


def test_samples_that_replace_the_networks_have_their_own_worth() -> None:
    result = ncp.cluster(SIX, "gaussian-1d", seed=0, apart=[(0, 1)])
    assert result.heard is not None
    worth = float(result.posterior.n_samples)
    poor = replace(result, heard=replace(result.heard, n_draws=3.0))
    assert poor.n_draws == result.n_draws == worth
    plain = replace(poor, posterior=replace(poor.posterior, finish=None))
    assert plain.n_draws == 3.0


def test_samples_of_chains_that_obey_more_are_worth_less() -> None:
    x = [*SIX, [31.0], [29.5], [28.8]]
    result = ncp.cluster(x, "gaussian-1d", seed=0)
    chains = replace(result.posterior, log_weights=None, finish=Finish("chains", True, 400.0))
    before = replace(result, posterior=chains)
    share = float(chains.weights[chains.labels[:, 0] == chains.labels[:, 1]].sum())
    assert before.given(together=[(0, 1)]).n_draws == pytest.approx(400.0 * share)


def test_a_verdict_of_runs_that_disagree_outlasts_a_file(tmp_path: Path) -> None:
    x = [*SIX, [31.0], [29.5], [28.8]]
    result = ncp.cluster(x, "gaussian-1d", seed=0, n_clusters=3, reweight=True)
    result.save(tmp_path / "a.npz")
    again = ncp.Clustering.load(tmp_path / "a.npz")
    assert again.posterior.report == result.posterior.report
    assert not again.posterior.report.trusted


def test_any_part_that_is_not_exact_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first part was asked."""
    make, calls = clustering._make_exact, []

    def all_but_the_second(drawn: Any, network: NCP, how: Any, *rest: Any) -> Any:
        calls.append(how)
        return make(drawn, network, replace(how, reweight=len(calls) != 2), *rest)

    monkeypatch.setattr(clustering, "_make_exact", all_but_the_second)
    x = np.random.default_rng(0).normal(size=(300, 1)).cumsum(0)
    result = ncp.cluster(x, "gaussian-1d", max_points=100, n_samples=40, seed=0)
    assert len(calls) > 2
    assert any("weights were not used" in one for one in result.warnings)


def test_chains_of_parts_that_ran_out_of_time_are_said() -> None:
    x = np.random.default_rng(0).normal(size=(300, 1)).cumsum(0)
    how: dict[str, Any] = {"max_points": 100, "n_samples": 40, "seed": 0, "time_limit": 1e-6}
    result = ncp.cluster(x, "gaussian-1d", **how)
    assert result.is_partial
    assert any("did not agree in time" in one for one in result.warnings)


def test_known_rows_are_in_the_subset_of_a_large_table(model: NCP) -> None:
    x = blobs(400)
    known = dict.fromkeys(range(0, 150, 2), "left") | {399: "right"}
    links = [(180, 390), (181, 391)]
    result = found(model, x, known=known, together=links[:1], apart=links[1:], max_points=60)
    assert result.is_partial
    assert len(result.index) == 60
    assert {180, 181, 390, 391, 399} <= set(result.index.tolist())
    assert len(set(result.labels[list(known)[:-1]].tolist())) == 1  # in the subset or not
    assert obeys(result.samples, [(0, i) for i in list(known)[1:-1]], [(0, 399)])
    assert obeys(result.samples, links[:1], links[1:])
    few = found(model, x, n_clusters=2, max_points=60, at_any_price=True)
    assert (few.samples.max(1) == 1).all()
    with pytest.raises(ValueError, match="links between at most 60 rows but got 61"):
        found(model, x, together=[range(61)], max_points=60)


def test_rows_with_missing_values(model: NCP) -> None:
    x = blobs()
    x[3, 0] = np.nan
    result = found(model, x, known={3: "a", 0: "a", 20: "b"})
    assert result.labels[3] == -1
    assert result.cluster_names[result.labels[0]] == "a"
    with pytest.raises(ValueError, match="can be clustered but row 3 has missing values"):
        found(model, x, together=[(3, 0)])


def test_tables_with_and_without_knowledge_at_once() -> None:
    model = tabular()
    xs = [blobs(20), blobs(30), blobs(20)]
    said = [Knowledge(), Knowledge(apart=[(0, 1)]), Knowledge()]
    how: dict[str, Any] = {"seed": 0, "n_samples": 20, "orders": 2}
    many = cluster_many(xs, model, knowledge=said, **how)
    alone = [ncp.cluster(xs[0], model, **how), ncp.cluster(xs[1], model, apart=[(0, 1)], **how)]
    for one, other in zip(many, alone, strict=False):
        assert (one.samples == other.samples).all()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"together": [("b", "c")], "apart": [("c", "b")]}, "rows c and b must be together and ap"),
        ({"known": {"a": 1, "b": 2}, "together": [("a", "b")]}, "rows a and b must be together"),
        ({"together": [("b", "x")]}, "labels of the index but got 'x'"),
        ({"n_clusters": 7}, "n_clusters <= 6"),
        ({"known": {"a": 1, "b": 2}, "at_most": 1}, "known labels, 2, but got 1"),
        ({"apart": [("a", "b", "c")], "at_most": 2}, "obeys but at row [abc] no choice was left"),
    ],
)
def test_what_cannot_be_is_a_sentence(model: NCP, said: dict[str, Any], sentence: str) -> None:
    x = pd.DataFrame(blobs(6), index=list("abcdef"))
    with pytest.raises(ValueError, match=sentence):
        found(model, x, **said)


# -- scikit-learn -------------------------------------------------------------------------------


def test_fit_with_labels(model: NCP) -> None:
    y = np.full(40, -1)
    y[[0, 3, 30]] = [7, 7, 9]
    fitted = NCPClusterer(model, n_samples=64, random_state=0).fit(blobs(), y)
    assert fitted.labels_[0] == fitted.labels_[3] != fitted.labels_[30]
    assert fitted.clustering_.cluster_names[fitted.labels_[30]] == "9"
    number: dict[str, Any] = {"at_least": 3, "at_most": 3, "at_any_price": True}
    bounded = NCPClusterer(model, n_samples=64, random_state=0, **number).fit(blobs())
    assert bounded.n_clusters_ == 3


# -- a conversation -----------------------------------------------------------------------------


def test_the_best_question_is_the_one_that_decides() -> None:
    """Two halves may be one cluster; one point alone is as doubtful, but matters less."""
    one, two = np.zeros(12, int), np.repeat([0, 1], 6)
    draws = np.array([one, two, one, two])
    draws[2:, 11] = 2  # whatever the halves do
    (question,) = best_pairs(draws, None, two, 1)
    assert question.probability == 0.5
    i, j = question.points
    assert i < 6 <= j < 11
    questions = best_pairs(draws, None, two, 5)
    assert len(questions) == 2  # then all is known
    assert sum(q.gain for q in questions) == pytest.approx(1.0)
    assert questions[0].gain > questions[1].gain
    assert best_pairs(draws[:1], None, one, 5) == []
    many = np.repeat(draws, 100, axis=0)  # distinct: of as many points, one after another alone
    many = np.concatenate([many, np.diag(np.arange(1, 401)) + 2 * many[:, :1]], axis=1)
    thinned = best_pairs(many, None, many[0], 1)
    assert 0.3 < thinned[0].probability < 0.7


def test_the_best_row_is_the_doubtful_one() -> None:
    draws = np.array(
        [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 2, 1, 1, 1]]
    )
    (question,) = best_rows(draws, [1, 1, 1, 1], draws[0], 3)
    assert question.points == (2,)
    assert question.probability == 0.5
    assert question.gain == pytest.approx(1.0)


def test_asking_and_answering(model: NCP) -> None:
    truth = np.repeat([0, 1], 20)
    result = found(model, blobs())
    doubt = []
    for _ in range(3):
        questions = result.ask(3)
        assert all(0 < q.probability < 1 for q in questions)
        doubt.append(result.summary.estimate.expected_loss)
        pairs = [q.points for q in questions]
        yes = [pair for pair in pairs if truth[pair[0]] == truth[pair[1]]]
        no = [pair for pair in pairs if pair not in yes]
        result = result.given(together=yes, apart=no, at_any_price=True)
        assert obeys(result.samples, yes, no)
    assert result.heard is not None
    assert len(result.heard.rows.together) + len(result.heard.rows.apart) == 9
    assert all(len(q.points) == 1 for q in result.ask(2, about="rows"))
    with pytest.raises(ValueError, match="about 'pairs' or 'rows' but got 'all'"):
        result.ask(about="all")
    with pytest.raises(ValueError, match="n_questions to be an integer >= 1 but got 0"):
        result.ask(0)


@pytest.mark.parametrize("kind", ["texts", "numbers", "dates", "repeated texts"])
def test_what_is_asked_can_be_answered(model: NCP, kind: str) -> None:
    index: dict[str, Any] = {
        "texts": [f"r{i}" for i in range(40)],
        "numbers": range(100, 140),
        "dates": pd.date_range("2020-01-01", periods=40),
        "repeated texts": ["a", "b"] * 20,
    }
    result = found(model, pd.DataFrame(blobs(), index=index[kind]))
    (question,) = result.ask(1)
    told = result.given(together=[question.points], at_any_price=True)
    assert told.probability_together(*question.points) == 1.0
    repeated = found(model, pd.DataFrame(blobs(), index=[0, 1] * 20))
    with pytest.raises(ValueError, match="Expected unique labels of rows but some are repeated"):
        repeated.ask(1)


def test_given_conditions_where_enough_agree(model: NCP, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ncp.cluster(blobs(), model, seed=0, n_samples=2000, reweight=False)
    (question,) = result.ask(1)
    draws: list[int] = []
    sample = type(model).sample
    monkeypatch.setattr(
        type(model),
        "sample",
        lambda *a, **k: draws.append(1) or sample(*a, **k),  # type: ignore[func-returns-value]
    )
    likely = result.given(together=[question.points])
    assert draws == []
    assert obeys(likely.samples, [question.points])
    assert likely.posterior.n_samples < 2000
    assert likely.heard is not None
    assert likely.heard.log_probability == pytest.approx(np.log(question.probability), abs=1e-9)
    many = result.given(n_clusters=30, at_any_price=True)
    assert draws == [1]
    assert many.n_clusters == 30


def test_a_number_that_was_said_is_certain_in_words(model: NCP) -> None:
    said = found(model, blobs(), n_clusters=2)
    assert "with its probability: 2 (100%)" in str(said)
    every = found(model, blobs(), known=["a"] * 20 + ["b"] * 20)
    assert "with its probability: 2 (100%)" in str(every)


def test_limits_that_were_said_before_stay_said(model: NCP) -> None:
    before = found(model, blobs(), at_least=3)
    after = before.given(at_most=4)
    assert set((after.samples.max(1) + 1).tolist()) <= {3, 4}
    assert (after.heard.knowledge.at_least, after.heard.knowledge.at_most) == (3, 4)  # type: ignore[union-attr]


def test_labels_are_one_for_each_row(model: NCP) -> None:
    with pytest.raises(ValueError, match="shape"):
        found(model, blobs(), known=np.zeros((40, 1)))
