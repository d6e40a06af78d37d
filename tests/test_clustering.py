"""From a table to an answer: units, warnings, large tables, weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch

from ncp import NCP
from ncp.clustering import prepare as preparing
from ncp.clustering.cluster import cluster, cluster_many
from ncp.clustering.prepare import Range, Settings, as_columns, as_rows, prepare
from tests.small_models import gaussian, tabular


@pytest.fixture(scope="module")
def table() -> NCP:
    return tabular()


@pytest.fixture(scope="module")
def plane() -> NCP:
    return gaussian(2)


@pytest.fixture
def x(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(30, 2)) + 8 * rng.integers(0, 2, size=(30, 1))


def test_settings_are_chosen_for_the_model(plane: NCP) -> None:
    from tests.small_models import tabular

    chosen = Settings().for_model(plane)
    assert (chosen.n_samples, chosen.orders, chosen.estimate) == (1000, 8, "vi")
    assert chosen.max_points == 1000
    table = tabular()
    assert table.mixture is not None
    chosen = Settings().for_model(table)
    assert (chosen.n_samples, chosen.orders, chosen.estimate) == (400, 16, "pear")
    assert chosen.max_points == table.mixture.sizes[1]
    said = Settings(n_samples=7, orders="each", estimate="binder", max_points=9)
    assert said.for_model(table) == said


def test_samples_are_the_models_own(plane: NCP, x: np.ndarray) -> None:
    found = cluster(x, plane, n_samples=50, orders=1, reweight=False, seed=3)
    direct = plane.sample(x, 50, orders=1, seed=3)
    np.testing.assert_array_equal(found.posterior.labels, direct.labels)
    assert found.samples.shape == (50, 30)
    assert found.labels.tolist() == found.summary.estimate.labels.tolist()


def test_weights_where_they_exist(plane: NCP, table: NCP, x: np.ndarray) -> None:
    weighted = cluster(x, plane, n_samples=50, reweight=True, seed=0)
    expected = weighted.posterior.reweight(plane.mixture, x).log_weights  # type: ignore[arg-type]
    np.testing.assert_allclose(weighted.posterior.log_weights, expected)  # type: ignore[arg-type]
    assert cluster(x, plane, n_samples=20, reweight=False).posterior.log_weights is None
    assert cluster(x, table, n_samples=20).posterior.log_weights is None
    with pytest.raises(ValueError, match="joint density"):
        cluster(x, table, n_samples=20, reweight=True)


def test_chains_take_over_from_untrusted_weights(plane: NCP, x: np.ndarray) -> None:
    found = cluster(x, plane, n_samples=200, seed=0)  # random weights: hopeless
    assert found.posterior.log_weights is None
    assert "exact chains" in found.trust()


def test_noise_sd_brings_data_to_the_models_units(plane: NCP, x: np.ndarray) -> None:
    prepared = prepare(plane, 0.02 * x + 5, Settings(noise_sd=0.02))
    np.testing.assert_allclose(prepared.features, x - x.mean(0), atol=1e-9)
    np.testing.assert_allclose(prepared.preparation.apply(0.02 * x + 5), x - x.mean(0), atol=1e-9)
    assert "multiplied by 50" in prepared.notes[0]
    scaled = prepare(plane, x, Settings(scale=2.0))
    np.testing.assert_allclose(scaled.features, 2 * (x - x.mean(0)), atol=1e-9)


@pytest.mark.parametrize(
    ("factor", "n", "said"),
    [(1.0, 30, None), (1000.0, 30, "as far as"), (1e-3, 30, "look like one"), (1.0, 3, "guesses")],
)
def test_data_unlike_the_training_data(
    plane: NCP, x: np.ndarray, factor: float, n: int, said: str | None
) -> None:
    warnings = prepare(plane, factor * x[:n]).warnings
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


def test_more_points_than_trained_on(plane: NCP, seed: int) -> None:
    many = np.random.default_rng(seed).normal(size=(100, 2))
    assert "max_points 60" in prepare(plane, many).warnings[0]


def test_missing_values(plane: NCP, table: NCP, x: np.ndarray) -> None:
    x[4, 0] = np.nan
    left_out = cluster(x, plane, n_samples=20, seed=0)
    assert left_out.labels[4] == -1
    assert np.isnan(left_out.confidence[4])
    assert (left_out.samples[:, 4] == -1).all()
    assert "1 row with missing values" in left_out.notes[0]
    filled_in = cluster(x, table, n_samples=20, seed=0)
    assert filled_in.labels.min() == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((0, 2)), "rows and columns"),
        (np.array([["a", "b"]]), "table of numbers"),
        (np.array([[np.inf, 1.0]]), "infinity"),
        (np.zeros((4, 3)), "Expected 2 columns"),
        (np.full((3, 2), np.nan), "every row has one"),
    ],
)
def test_bad_tables(plane: NCP, bad: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster(bad, plane)


@pytest.fixture
def _as_users_run_it() -> Iterator[None]:
    """Without the checks of types, which only tests have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_samples", "5"),
        ("n_samples", True),
        ("max_points", 20.5),
        ("max_clusters", 2.5),
        ("seed", 1.7),
        ("seed", "7"),
        ("seed", -1),
        ("scale", "2"),
        ("noise_sd", float("nan")),
    ],
)
def test_bad_settings(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"Expected an? (integer|number) {name} >=? [01] but got"):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.usefixtures("_as_users_run_it")
def test_numbers_of_numpy_are_welcome(plane: NCP, x: np.ndarray) -> None:
    how: dict[str, Any] = {"n_samples": np.int32(20), "seed": np.uint8(3), "scale": np.float32(2)}
    found = cluster(x, plane, reweight=np.False_, **how)
    assert found.settings == cluster(x, plane, reweight=0, **how).settings
    assert found.posterior.log_weights is None
    json.dumps(found.to_dict())


def test_unknown_settings_are_refused_with_the_known(x: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"Expected settings among n_samples.* but got samples"):
        cluster(x, samples=5)


def test_tensors(plane: NCP, x: np.ndarray) -> None:
    asked = torch.from_numpy(x).requires_grad_()
    np.testing.assert_array_equal(cluster(asked, plane, n_samples=20, seed=0).table, x)


def test_columns_of_data_frames(plane: NCP) -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3, 4], dtype="Int64"),
            "real": pd.array([1.5, 2.5, None, 4], dtype="Float64"),
            "yes": [True, False, True, True],
        }
    )
    expected = [[1, 1.5, 1], [np.nan, 2.5, 0], [3, np.nan, 1], [4, 4, 1]]
    np.testing.assert_array_equal(as_columns(frame, Settings()).as_numbers().values, expected)
    np.testing.assert_array_equal(as_rows(frame["whole"]), np.array(expected)[:, :1])


def test_text_is_left_out_for_models_of_numbers(plane: NCP, x: np.ndarray) -> None:
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": ["red", "blue"] * (len(x) // 2)})
    found = cluster(frame, plane, n_samples=20, seed=0)
    assert found.columns == ("a", "b")
    assert "Columns that are not numeric were left out: kind." in found.notes
    np.testing.assert_array_equal(found.table, x)


def test_new_rows_by_the_names_of_their_columns(plane: NCP, x: np.ndarray) -> None:
    frame = pd.DataFrame(x, columns=["a", "b"])
    found = cluster(frame, plane, n_samples=20, seed=0)
    expected = found.predict_proba(x[:5])
    np.testing.assert_array_equal(found.predict_proba(frame[:5]), expected)
    np.testing.assert_array_equal(found.predict_proba(frame[["b", "a"]][:5]), expected)
    with pytest.raises(ValueError, match=r"\['b'\] are missing and \['c'\] are unknown"):
        found.predict_proba(frame.rename(columns={"b": "c"}))
    unnamed = cluster(x, plane, n_samples=20, seed=0)
    np.testing.assert_array_equal(unnamed.predict_proba(frame[:5]), expected)


def test_new_rows_of_another_shape(plane: NCP, x: np.ndarray) -> None:
    found = cluster(x, plane, n_samples=20, seed=0)
    with pytest.raises(ValueError, match="Expected 2 columns for this model but got 3"):
        found.predict_proba(np.zeros((4, 3)))


def test_rows_of_tables_may_have_any_shape(table: NCP, x: np.ndarray) -> None:
    cube = np.concatenate([x, x + 1], 1).reshape(30, 2, 2)
    found = cluster(cube, table, n_samples=20, max_points=20, seed=0)
    assert found.labels.min() == 0
    flat = cluster(cube.reshape(30, 4), table, n_samples=20, max_points=20, seed=0)
    np.testing.assert_array_equal(
        found.predict_proba(cube), flat.predict_proba(cube.reshape(30, 4))
    )


@pytest.mark.parametrize("same", [np.ones((6, 3)), np.array([[1.0, 2.0]])])
def test_tables_without_information(table: NCP, same: np.ndarray) -> None:
    prepared = prepare(table, same)
    assert "No column varies" in prepared.warnings[0]
    assert "100%" not in " ".join(prepared.notes)
    with pytest.raises(ValueError, match="every cell is missing"):
        prepare(table, np.full((6, 3), np.nan))


def test_training_data_are_drawn_once_for_many_tables(
    plane: NCP, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = preparing._training_range

    def counted(model: NCP, size: int) -> Range:
        drawn.append(size)
        return draw(model, size)

    monkeypatch.setattr(preparing, "_training_range", counted)
    found = cluster_many([x, x[:20], 1000 * x, x[:3], x[:2]], plane, n_samples=20, seed=0)
    assert drawn == [30, 20, 5]
    assert "as far as" in found[2].warnings[0]


def test_tabular_standardises_by_itself(table: NCP, x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="standardises"):
        cluster(x, table, noise_sd=0.1)


def test_large_tables(plane: NCP, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(500, 2))
    found = cluster(x, plane, n_samples=40, max_points=50, seed=1)
    assert found.is_partial
    assert found.posterior.n_points == len(found.index) == 50
    assert found.samples.shape == (40, 500)
    assert found.samples.dtype == np.int16
    assert found.samples.min() >= 0
    np.testing.assert_array_equal(found.labels[found.index], found.summary.estimate.labels)
    again = cluster(x, plane, n_samples=40, max_points=50, seed=1)
    np.testing.assert_array_equal(found.labels, again.labels)


def test_assigned_rows_follow_the_networks_conditionals(plane: NCP, x: np.ndarray) -> None:
    """With one sample, carried over to itself, the probabilities are those of `assign`."""
    found = cluster(x, plane, n_samples=1, orders=1, reweight=False, seed=0)
    new = x[:5] + 0.3
    expected = plane.assign(new, x, found.posterior.labels[0]).numpy()
    found_first = [int(np.flatnonzero(found.labels == k)[0]) for k in range(found.n_clusters)]
    by_size = [*found.posterior.labels[0][found_first], found.n_clusters]
    np.testing.assert_allclose(found.predict_proba(new), expected[:, by_size], atol=1e-6)


def test_many_tables_at_once(table: NCP, x: np.ndarray) -> None:
    found = cluster_many([x, x[:7], x[:1]], table, n_samples=20, seed=0)
    assert [one.n_points for one in found] == [30, 7, 1]
    assert found[2].n_clusters == 1


def test_what_it_says(plane: NCP, x: np.ndarray) -> None:
    frame = pd.DataFrame(x, columns=["width", "height"])
    found = cluster(frame, plane, n_samples=30, reweight=True, seed=0)
    text = repr(found)
    assert found.columns == ("width", "height")
    assert "Number of clusters, with its probability" in text
    assert "ESS" in text
    assert "k-hat" in text
    plain = found.to_dict()
    assert sum(plain["posterior_of_k"].values()) == pytest.approx(1)
    assert sum(plain["sizes"]) == 30
    assert found.to_pandas().columns.tolist() == ["width", "height", "cluster", "confidence"]


def test_a_model_of_two_columns_takes_the_two_that_are_numbers(plane: NCP, x: np.ndarray) -> None:
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(kind="text")
    assert cluster(frame, plane, n_samples=20, seed=0).columns == ("a", "b")
    with pytest.raises(ValueError, match="Expected 2 columns"):
        cluster(frame[["a", "kind"]], plane)
    with pytest.raises(ValueError, match="no numeric column and no categories"):
        cluster(frame[["kind"]], tabular())


def test_rows_without_any_value_are_left_out(table: NCP, x: np.ndarray) -> None:
    gaps = np.concatenate([x, np.full((4, 2), np.nan)])
    found, plain = (cluster(rows, table, n_samples=32, seed=0) for rows in (gaps, x))
    assert (found.labels[30:] == -1).all()
    np.testing.assert_array_equal(found.labels[:30], plain.labels)
    assert found.posterior == plain.posterior or (found.samples[:, :30] == plain.samples).all()
    assert "4 rows without any value were left out." in found.notes


def test_frames_of_other_libraries(table: NCP, x: np.ndarray) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    frame = pyarrow.table({"a": x[:, 0], "b": x[:, 1]})
    found = cluster(frame, table, n_samples=32, seed=0)
    assert found.columns == ("a", "b")
    np.testing.assert_array_equal(found.predict(frame), found.predict(frame.to_pandas()))


def test_sparse_tables_are_refused(table: NCP, x: np.ndarray) -> None:
    from scipy.sparse import csr_array

    with pytest.raises(ValueError, match="dense"):
        cluster(csr_array(x), table, n_clusters=2)


def test_samples_that_were_not_weighted_have_weights_all_the_same(x: np.ndarray) -> None:
    found = cluster(x, "gaussian-2d", exact=False, n_samples=64, seed=0)
    assert not any("no weights" in said for said in (*found.notes, *found.warnings))
