"""What the result of a clustering answers, and that it survives a file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ncp import NCP, Clustering
from ncp.clustering.cluster import cluster
from ncp.clustering.profile import moments, traits, typical_rows
from ncp.clustering.result import number_by_size
from ncp.model import load
from ncp.network.checkpoint import save_model
from ncp.output.payload import Column
from tests.small_models import gaussian, tabular


@pytest.fixture(scope="module")
def model() -> NCP:
    return tabular()


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 3)) + 9 * (np.arange(24) % 3 == 0)[:, None]
    return pd.DataFrame(x, columns=["a", "b", "c"], index=[f"r{i}" for i in range(24)])


@pytest.fixture(scope="module")
def found(model: NCP, frame: pd.DataFrame) -> Clustering:
    return cluster(frame, model, n_samples=80, seed=0)


@pytest.fixture(scope="module")
def large(model: NCP, frame: pd.DataFrame) -> Clustering:
    return cluster(frame, model, n_samples=40, max_points=12, seed=0)


# -- clusters and confidence -----------------------------------------------------------------------


def test_clusters_are_numbered_by_size(found: Clustering, large: Clustering) -> None:
    for one in (found, large):
        assert (np.diff(one.sizes) <= 0).all()
        assert one.sizes.sum() == one.n_points
        np.testing.assert_array_equal(one.labels[one.index], one.summary.estimate.labels)
    assert number_by_size(np.array([2, 0, 0, 1, 1, 1])).tolist() == [1, 0, 2, -1]


def test_the_confidence_is_the_same_for_sampled_and_assigned_rows(
    found: Clustering, large: Clustering
) -> None:
    for one in (found, large):
        expected = np.zeros(one.n_points)
        for sample in one.samples:
            for i in range(one.n_points):
                own, other = one.labels == one.labels[i], sample == sample[i]
                expected[i] += (own & other).sum() / (own | other).sum() / len(one.samples)
        np.testing.assert_allclose(one.confidence, expected)
    assert large.is_partial
    assert len(large.index) == 12


# -- new rows and pairs ----------------------------------------------------------------------------


def test_predict_gives_minus_one_for_a_new_cluster(
    found: Clustering, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = found.predict_proba(frame)
    assert p.shape == (24, found.n_clusters + 1)
    chances = np.zeros((2, 4))
    chances[0, 2] = chances[1, 3] = 1.0
    monkeypatch.setattr(Clustering, "predict_proba", lambda *_: chances)
    assert found.predict(frame[:2]).tolist() == [2, -1]


def test_probability_together(found: Clustering, large: Clustering) -> None:
    for one in (found, large):
        same = (one.samples[:, :, None] == one.samples[:, None, :]).mean(0)
        assert one.probability_together(3, 5) == pytest.approx(same[3, 5])
        assert one.probability_together("r3", "r5") == pytest.approx(same[3, 5])
        np.testing.assert_allclose(one.probability_together(3), same[3])
        np.testing.assert_allclose(one.probability_together([3, "r4"], [0, 1, 2]), same[3:5, :3])
        np.testing.assert_allclose(one.probability_together([3, 4]), same[3:5])
        np.testing.assert_allclose(one.probability_together([3, 4], 7), same[3:5, 7])
        np.testing.assert_allclose(one.probability_together(-1, 0), same[-1, 0])
        np.testing.assert_allclose(one.similarity(), same)
        np.testing.assert_allclose(one.similarity([2, "r9"]), same[np.ix_([2, 9], [2, 9])])


def test_pairs_use_the_weights_and_rows_left_out_are_nan() -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    x[4] = np.nan
    one = cluster(x, gaussian(2), n_samples=50, reweight=True, seed=0)
    assert one.posterior.log_weights is not None
    expected = one.posterior.similarity_matrix()
    assert one.probability_together(0, 1) == pytest.approx(expected[0, 1])
    assert np.isnan(one.probability_together(0, 4))
    matrix = one.similarity()
    assert np.isnan(matrix[4]).all()
    np.testing.assert_allclose(np.delete(np.delete(matrix, 4, 0), 4, 1), expected)


@pytest.mark.parametrize("row", [24, -25, "nobody", 1.5, True])
def test_rows_that_are_not_there(found: Clustering, row: object) -> None:
    with pytest.raises(ValueError, match="Expected a row"):
        found.probability_together(row, 0)


# -- partitions and profiles -----------------------------------------------------------------------


def test_the_best_partition_with_k_clusters(found: Clustering) -> None:
    k = found.samples.max(1) + 1
    values, counts = np.unique(k, return_counts=True)
    for value in values[counts >= 5]:
        labels = found.best(n_clusters=int(value))
        assert labels.max() + 1 == value
        assert (np.diff(np.bincount(labels)) <= 0).all()
        matches = [number_by_size(s.astype(int))[s] for s in found.samples[k == value]]
        assert any(np.array_equal(labels, one) for one in matches)
    with pytest.raises(ValueError, match=r"Expected n_clusters among .* but got 24"):
        found.best(24)


def test_the_best_partition_is_the_one_in_the_middle(found: Clustering) -> None:
    """Of samples with two clusters, the one that differs least from the others."""
    middle = np.repeat([0, 1], 12)
    first, last = middle.copy(), middle.copy()
    first[0], last[-1] = 1, 0
    samples = np.array([first] * 3 + [middle] * 3 + [last] * 3, dtype=np.int16)
    labels = replace(found, samples=samples).best(2)
    assert labels.tolist() == middle.tolist()


def test_profile(found: Clustering, frame: pd.DataFrame) -> None:
    profile = found.profile()
    assert profile.columns.tolist() == ["cluster", "column", "level", "mean", "others", "effect"]
    line = profile[(profile.cluster == 0) & (profile.column == "b")].iloc[0]
    inside, outside = (frame["b"][found.labels == 0], frame["b"][found.labels != 0])
    assert line["mean"] == pytest.approx(inside.mean())
    assert line["others"] == pytest.approx(outside.mean())
    n, m = len(inside), len(outside)
    pooled = ((n - 1) * inside.var() + (m - 1) * outside.var()) / (n + m - 2)
    assert line["effect"] == pytest.approx((inside.mean() - outside.mean()) / np.sqrt(pooled))
    for _, lines in profile.groupby("cluster"):
        assert (np.diff(lines["effect"].abs()) <= 0).all()


def test_profiles_of_levels_constants_and_missing_values() -> None:
    labels = np.array([0, 0, 0, 1, 1, -1])
    kind = Column("kind", np.array([0.0, 0, 1, 1, 1, 0]), ("red", "blue"))
    constant = Column("constant", np.full(6, 0.1))
    empty = Column("empty", np.array([np.nan] * 3 + [1.0, 2.0, 3.0]))
    first, second = traits([kind, constant, empty], labels)
    assert [(t.column, t.level) for t in first] == [("kind", "red"), ("constant", None)]
    assert first[0].inside[0] == pytest.approx(2 / 3)
    assert first[0].outside[0] == 0.0
    assert first[0].effect == pytest.approx(2 * np.arcsin(np.sqrt(2 / 3)))
    assert first[1].effect == 0.0
    assert second[0].level == "blue"
    assert second[0].effect == pytest.approx(first[0].effect)
    assert np.isinf(moments(np.array([[1.0], [1], [2], [2]]), np.array([0, 0, 1, 1])).effects).all()


def test_typical_rows_do_not_depend_on_units() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 2)), np.repeat([0, 1], 15)
    assert typical_rows(x, labels) == typical_rows(x * [1, 1e6] + 5, labels)


# -- other forms -----------------------------------------------------------------------------------


def test_to_pandas_keeps_index_and_columns(found: Clustering, frame: pd.DataFrame) -> None:
    table = found.to_pandas()
    assert table.index.tolist() == frame.index.tolist()
    assert table.columns.tolist() == ["a", "b", "c", "cluster", "confidence"]
    pd.testing.assert_frame_equal(table[["a", "b", "c"]], frame)
    assert "cluster" not in frame


def test_to_arviz_has_all_rows(found: Clustering, large: Clustering) -> None:
    for one in (found, large):
        posterior = one.to_arviz().posterior
        assert posterior["labels"].shape == (1, *one.samples.shape)
        assert posterior["row"].values.tolist() == list(one.row_names)
        np.testing.assert_array_equal(posterior["n_clusters"][0], one.samples.max(1) + 1)


def test_in_a_notebook(found: Clustering) -> None:
    shown = found._repr_html_()
    assert "Best single partition" in shown
    assert shown.count("<svg") > found.n_clusters
    assert "<script" not in shown


def test_models_are_called_by_their_names(frame: pd.DataFrame) -> None:
    by_name = cluster(frame, "tabular", n_samples=5, seed=0)
    loaded = cluster(frame, load("tabular"), n_samples=5, seed=0)
    assert by_name.model_name == loaded.model_name == "tabular"


def test_singular_and_plural(model: NCP) -> None:
    text = repr(cluster(np.ones((1, 2)), model, n_samples=1, orders=1, seed=0))
    assert "of 1 row by" in text
    assert "1 sample," in text
    assert "1 cluster of 1 row." in text


# -- files -----------------------------------------------------------------------------------------


def assert_same(one: Clustering, other: Clustering) -> None:
    for name in ("labels", "confidence", "samples", "index"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert other.posterior.labels.tolist() == one.posterior.labels.tolist()
    assert other.row_names == one.row_names
    assert other.words() == one.words()
    assert other.to_dict() == one.to_dict()


def test_save_and_load(found: Clustering, model: NCP, frame: pd.DataFrame, tmp_path: Path) -> None:
    found.save(tmp_path / "found.npz")
    again = Clustering.load(tmp_path / "found.npz", model)
    assert_same(found, again)
    pd.testing.assert_frame_equal(again.to_pandas(), found.to_pandas())
    np.testing.assert_allclose(again.predict_proba(frame), found.predict_proba(frame), atol=1e-6)
    assert again.report("x") == found.report("x")
    alone = Clustering.load(tmp_path / "found.npz")  # without the network
    assert alone.profile().equals(found.profile())
    with pytest.raises(ValueError, match=r"Expected the model .* give it to"):
        alone.predict(frame)
    with pytest.raises(ValueError, match="Expected the weights"):
        Clustering.load(tmp_path / "found.npz", gaussian(2))


def test_saved_categories_are_categories(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = pd.Categorical(rng.permutation(np.arange(60) % 6), categories=range(6))
    frame = pd.DataFrame({"size": rng.normal(size=60), "code": codes})
    found = cluster(frame, tabular(), n_samples=32, seed=0)
    found.save(tmp_path / "found.npz")
    again = Clustering.load(tmp_path / "found.npz", tabular())
    pd.testing.assert_frame_equal(again.frame, frame)
    np.testing.assert_array_equal(again.predict(frame), found.predict(frame))


def test_save_without_the_table(found: Clustering, model: NCP, tmp_path: Path) -> None:
    found.save(tmp_path / "small.npz", table=False)
    values = {f"{value:.9g}"[:9] for value in found.table.ravel()}
    with zipfile.ZipFile(tmp_path / "small.npz") as archive:
        kept = [name for name in archive.namelist() if "table" in name or "frame" in name]
        assert kept == ["frame_0.npy"]  # what the rows are called
        assert not any(value in archive.read("about.json").decode() for value in values)
    again = Clustering.load(tmp_path / "small.npz", model)
    assert not again.has_table
    np.testing.assert_array_equal(again.labels, found.labels)
    assert again.probability_together("r3", "r4") == found.probability_together(3, 4)
    table = again.to_pandas()
    assert table.columns.tolist() == ["cluster", "confidence"]
    assert table.index.tolist() == list(found.row_names)
    for what in (again.report, again.profile, again.plot):
        with pytest.raises(ValueError, match="saved without"):
            what()
    assert "<p>Best single partition" in again._repr_html_()
    with pytest.raises(ValueError, match="saved with its table"):
        again.predict(np.zeros((1, 3)))


def test_frames_of_any_kind_survive(model: NCP, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "whole": np.arange(20),
            "some": pd.array([None, *range(19)], dtype="Int64"),
            "yes": np.arange(20) % 2 == 0,
        },
        index=pd.date_range("2020-01-01", periods=20),
    )
    result = cluster(frame, model, n_samples=10, seed=0)
    result.save(tmp_path / "found.npz")
    again = Clustering.load(tmp_path / "found.npz", model).to_pandas()
    assert again["whole"].tolist() == list(range(20))
    assert again["yes"].dtype == bool
    assert np.isnan(again["some"].iloc[0])
    assert again.index.equals(frame.index)


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize(
    "index", [range(12), range(5, 17), range(11, -1, -1), [f"{i}0" for i in range(12)]]
)
def test_rows_have_the_same_names_after_loading(
    index: list[object], table: bool, model: NCP, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(12, 2)) + np.arange(12)[:, None]
    result = cluster(pd.DataFrame(x, index=index), model, n_samples=40, seed=0)
    result.save(tmp_path / "found.npz", table=table)
    again = Clustering.load(tmp_path / "found.npz", model)
    assert again.row_names == result.row_names
    assert again.to_pandas().index.tolist() == list(index)
    for label in index:
        np.testing.assert_array_equal(
            again.probability_together(label), result.probability_together(label)
        )
    assert again.ask(2) == result.ask(2)


CODE = """
import sys
import numpy as np
from ncp import Clustering
found = Clustering.load(sys.argv[1], sys.argv[2])
print(found.labels.tolist() == np.load(sys.argv[3]).tolist())
print(found.predict_proba(found.table).shape)
"""


def test_in_another_process(found: Clustering, model: NCP, tmp_path: Path) -> None:
    found.save(tmp_path / "found.npz")
    save_model(tmp_path / "model.safetensors", model)
    np.save(tmp_path / "labels.npy", found.labels)
    files = [str(tmp_path / name) for name in ("found.npz", "model.safetensors", "labels.npy")]
    run = subprocess.run([sys.executable, "-c", CODE, *files], capture_output=True, text=True)
    assert run.stdout.split("\n")[:2] == ["True", f"(24, {found.n_clusters + 1})"], run.stderr


def test_large_and_weighted_results_survive(large: Clustering, model: NCP, tmp_path: Path) -> None:
    large.save(tmp_path / "large.npz")
    assert_same(large, Clustering.load(tmp_path / "large.npz", model))
    x = np.random.default_rng(0).normal(size=(12, 2))
    x[4] = np.nan
    plane = gaussian(2)
    weighted = cluster(x, plane, n_samples=50, reweight=True, noise_sd=0.5, seed=0)
    weighted.save(tmp_path / "weighted.npz")
    again = Clustering.load(tmp_path / "weighted.npz", plane)
    assert_same(weighted, again)
    rows = x[:3]
    np.testing.assert_allclose(again.predict_proba(rows), weighted.predict_proba(rows), atol=1e-6)


@pytest.mark.parametrize(
    "damage",
    ["empty", "text", "cut", "format", "shape", "member", "pickle", "no scorer", "scorer's shape"],
)
def test_damaged_files_are_refused(
    found: Clustering, model: NCP, damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "found.npz"
    found.save(path)
    content = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if damage in ("empty", "text", "cut"):
        content = {"empty": b"", "text": b"no zip", "cut": content[: len(content) // 2]}[damage]
    else:
        if damage == "format":
            members["about.json"] = json.dumps({"format": "another"}).encode()
        elif damage == "shape":
            members["confidence.npy"] = _npy(np.zeros(3))
        elif damage == "member":
            del members["samples.npy"]
        elif damage == "no scorer":
            del members["scorer_labels.npy"]
        elif damage == "scorer's shape":
            members["scorer_labels.npy"] = _npy(np.zeros((2, 3), dtype=np.int64))
        else:
            members["cluster.npy"] = _npy(np.array([{}] * 24, dtype=object))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, part in members.items():
                archive.writestr(name, part)
        content = buffer.getvalue()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not"):
        Clustering.load(path, model)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


# -- rows by label ---------------------------------------------------------------------------------


def test_numbers_that_are_labels(model: NCP) -> None:
    """In a frame that was filtered or sliced, row 12 is the one that is called 12."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"])
    for part in (frame[frame.index % 2 == 0], frame[10:30]):
        found = cluster(part, model, n_samples=40, seed=0)
        labels = part.index.tolist()
        assert found.row_names == tuple(str(label) for label in labels)
        expected = found.similarity()[1, 2]
        assert found.probability_together(labels[1], labels[2]) == expected
        with pytest.raises(ValueError, match="Expected a row"):
            found.probability_together(99)
        asked = found.ask(3)
        assert all(set(q.points) <= set(labels) for q in asked)
        told = found.given(together=[q.points for q in asked[:1]], at_any_price=True)
        i, j = (labels.index(label) for label in asked[0].points)
        assert told.labels[i] == told.labels[j]
        assert "<svg" in told.report()


def test_to_pandas_loses_no_column_of_the_table(model: NCP) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 2)), columns=["cluster", "b"])
    table = cluster(frame, model, n_samples=20, seed=0).to_pandas()
    assert list(table.columns) == ["cluster (input)", "b", "cluster", "confidence"]
    np.testing.assert_array_equal(table["cluster (input)"], frame["cluster"])


def test_a_number_of_clusters_that_no_sample_has(model: NCP) -> None:
    found = cluster(np.random.default_rng(0).normal(size=(9, 2)), model, n_samples=20, seed=0)
    with pytest.raises(ValueError, match=r"given\(n_clusters=9\) draws others"):
        found.best(n_clusters=9)


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_hierarchy_joins_what_is_often_together(found: Clustering, numbers: list[int]) -> None:
    from ncp.posterior import Partitions

    three = np.repeat(numbers, [4, 3, 3])  # in any order of appearance
    joined = np.where(three == 2, 1, three)
    samples = Partitions.of([three] * 6 + [joined] * 4)
    estimate = replace(found.summary.estimate, labels=three)
    made = replace(found, posterior=samples, summary=replace(found.summary, estimate=estimate))
    tree = made.hierarchy()
    np.testing.assert_allclose(tree[0], [1, 2, 0.6, 2])
    np.testing.assert_allclose(tree[1, 2:], [1.0, 3])
    one = replace(estimate, labels=np.zeros(10, dtype=np.int64))
    assert replace(made, summary=replace(made.summary, estimate=one)).hierarchy().shape == (0, 4)
