"""Rounded numbers are spread over what they stand for; tables of whole numbers are clustered."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from ncp.clustering.cluster import cluster
from ncp.clustering.result import Clustering
from ncp.generative.table_rounding import unrounded


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("digits", [0, 1])
def test_a_rounded_number_stays_within_its_cell(rng: np.random.Generator, digits: int) -> None:
    x = rng.normal(size=(2000, 3)) * [5.0, 20.0, 3.0] * 10.0**-digits
    rounded = x.round(digits)
    found = unrounded(rounded)
    # where neighbours are missing in the tails, cells are twice as wide
    assert np.abs(found - rounded).max() <= 1.001 * 10.0**-digits
    middle = np.abs(x) < x.std(0)
    np.testing.assert_array_equal(found.round(digits)[middle], rounded[middle])
    assert np.unique(found[:, 0]).size == len(x)
    for j in range(3):  # and it is spread evenly
        within = (found - rounded)[middle[:, j], j] * 10.0**digits
        assert np.abs(np.histogram(within, 4, (-0.5, 0.5))[0] / len(within) - 0.25).max() < 0.03


def test_columns_do_not_share_an_order(rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, size=(4000, 2)).astype(float)
    moved = unrounded(x) - x
    assert abs(np.corrcoef(moved.T)[0, 1]) < 4 / np.sqrt(len(x))


def test_order_unit_and_sign_do_not_matter(rng: np.random.Generator) -> None:
    x = rng.normal(size=(500, 3)).round(1)
    x[rng.random(x.shape) < 0.1] = np.nan
    there = unrounded(x)
    back = (5.0 - unrounded(5.0 - 2.0 * x[:, ::-1])) / 2.0
    np.testing.assert_allclose(back[:, ::-1], there, atol=1e-12)
    np.testing.assert_array_equal(np.isnan(there), np.isnan(x))


@pytest.mark.parametrize(
    "column",
    [
        np.arange(60) % 2,  # a switch
        np.r_[np.zeros(40), np.arange(60) % 5],  # mostly zero
        np.linspace(0.0, 1.0, 60) ** 2,  # measured
        1.0 + 1e-15 * (np.arange(60) % 4),
        np.full(60, np.nan),
    ],
    ids=["switch", "zeros", "measured", "one", "missing"],
)
def test_what_is_not_rounded_stays(column: np.ndarray) -> None:
    column = column.astype(np.float64)
    np.testing.assert_array_equal(unrounded(column[:, None])[:, 0], column)


def test_categories_stay(rng: np.random.Generator) -> None:
    x = rng.integers(0, 5, size=(60, 2)).astype(float)
    found = unrounded(x, np.array([True, False]))
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    assert (found[:, 1] != x[:, 1]).any()


CORNERS = np.array([[0.0, 0.0], [12.0, 0.0], [0.0, 12.0], [12.0, 12.0]])


def corners(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """Four clear clusters."""
    labels = np.arange(n) % 4
    return pd.DataFrame(CORNERS[labels] + rng.normal(size=(n, 2)), columns=["x", "y"]), labels


@pytest.mark.parametrize("n", [500, 2500])
def test_whole_numbers_are_no_heaps(n: int, rng: np.random.Generator) -> None:
    frame, labels = corners(n, rng)
    found = cluster(frame.round().astype(int), seed=0)
    assert adjusted_rand_score(labels, found.labels) > 0.95
    assert (found.data.values == frame.round()).all(axis=None)  # what is shown is what was given
    assert (found.predict(frame.round().astype(int).head(50)) == found.labels[:50]).mean() > 0.95


@pytest.mark.parametrize(
    "column",
    [
        np.arange(1, 6),  # a rating
        np.arange(1, 13),  # months
        np.array([0.5, 1.0, 1.5]),
        np.array([36, 40, 56, 76, 100, 124, 152, 156, 208, 246, 250, 276, 300]),  # countries
    ],
    ids=["rating", "months", "halves", "codes"],
)
def test_an_irrelevant_column_of_few_numbers_changes_nothing(
    column: np.ndarray, rng: np.random.Generator
) -> None:
    frame, labels = corners(300, rng)
    found = cluster(frame.assign(more=rng.choice(column, len(frame))), seed=0)
    assert adjusted_rand_score(labels, found.labels) > 0.9
    assert adjusted_rand_score(labels, cluster(frame, seed=0).labels) > 0.95


@pytest.mark.parametrize(("n", "wrong"), [(300, 4), (200, 3), (100, 5)])
@pytest.mark.parametrize("columns", [["x"], ["x", "y"]])
def test_a_few_wrong_entries_decide_nothing(
    n: int, wrong: int, columns: list[str], rng: np.random.Generator
) -> None:
    frame, labels = corners(n, rng)
    frame.loc[: wrong - 1, columns] = 1e9
    found = cluster(frame, seed=0)
    assert adjusted_rand_score(labels[wrong:], found.labels[wrong:]) > 0.95


@pytest.mark.parametrize(("n_copies", "n"), [(30, 100), (10, 300)])
def test_copies_count_once(n_copies: int, n: int, rng: np.random.Generator) -> None:
    frame, labels = corners(n, rng)
    copied = pd.concat([frame] * n_copies, ignore_index=True)
    found = cluster(copied, seed=0)
    assert adjusted_rand_score(np.tile(labels, n_copies), found.labels) > 0.95
    np.testing.assert_array_equal(found.labels, np.tile(found.labels[:n], n_copies))
    assert found.samples.shape[1] == len(found.data.values) == len(copied)
    assert found.sizes.sum() == len(copied)
    assert "copies of others" in found.notes[0]
    assert cluster(frame, seed=0).labels.tolist() == found.labels[:n].tolist()


def test_copies_are_loaded_as_they_were_saved(tmp_path: Path, rng: np.random.Generator) -> None:
    frame, _ = corners(200, rng)
    found = cluster(pd.concat([frame.round(2)] * 8, ignore_index=True), seed=0)
    assert "copies of others" in found.notes[0]
    found.save(tmp_path / "some.npz")
    loaded = Clustering.load(tmp_path / "some.npz")
    np.testing.assert_array_equal(loaded.predict_proba(frame), found.predict_proba(frame))


def test_equal_rows_of_rounded_numbers_are_no_copies(rng: np.random.Generator) -> None:
    frame, _ = corners(2000, rng)
    assert not any("copies" in note for note in cluster(frame.round(), seed=0).notes)
