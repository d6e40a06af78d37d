"""What the columns of a table are: numbers, categories, dates, names of rows."""

import io
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ncp.clustering.cluster import cluster
from ncp.clustering.estimator import NCPClusterer
from ncp.clustering.prepare import Settings, as_columns
from ncp.clustering.result import Clustering
from ncp.output.columns import Columns, columns_of, encode
from ncp.output.readers import read_table
from ncp.output.results import labels_file, labels_table

N = 60


def frame_of(**columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"size": rng.normal(size=N).round(3), **columns})


def kinds(found: Columns) -> dict[str, tuple[str, ...]]:
    return dict(zip(found.names, found.levels, strict=True))


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(N)]


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (cycle("red", "blue"), ("blue", "red")),
        (cycle(True, False), ("False", "True")),
        (cycle(33, 44, 49), ("33", "44", "49")),
        (cycle(33.0, 44.0, 49.0), ("33", "44", "49")),
        (cycle(0, 1), ("0", "1")),
        (cycle(1, 2, 3, 5, 8, 13), ("1", "2", "3", "5", "8", "13")),
        (cycle(1, 2, 3, 4, 5, 6), ()),
        (cycle(0, 1, 2, 3, 4, 5, 7), ()),  # counts
        (cycle(*range(10, 140, 10)), ()),
        (list(range(N)), ()),
        ([0.1 * i for i in range(N)], ()),
        (pd.Categorical(cycle(1, 2, 3, 4, 5, 6)), ("1", "2", "3", "4", "5", "6")),
    ],
)
def test_kinds_of_columns(values: Any, levels: tuple[str, ...]) -> None:
    found = columns_of(frame_of(odd=values))
    assert kinds(found)["odd"] == levels
    column = found.values[:, found.names.index("odd")]
    if levels:
        named = [levels[int(code)] for code in column]
        assert named == [f"{v:g}" if isinstance(v, float) else str(v) for v in list(values)]
        assert any("Taken as categories" in note and "odd" in note for note in found.notes)


def test_a_table_of_nothing_but_codes_is_numbers() -> None:
    found = columns_of(pd.DataFrame({"a": cycle(1, 2), "b": cycle(1, 1, 2)}))
    assert found.levels == ((), ())


def test_what_names_rows_is_left_out() -> None:
    rng = np.random.default_rng(1)
    long = rng.permutation(np.arange(10_000_000, 99_999_999, 1_000_003))[:N]
    found = columns_of(frame_of(account=long, name=[f"row {i}" for i in range(N)]))
    assert found.names == ("size",)
    assert len(found.identifiers) == 2
    assert any("account" in note for note in found.notes)


@pytest.mark.parametrize(
    ("cells", "first", "unit"),
    [
        ("{} kg", 1.5, "kg"),
        ("{}%", 1.5, "%"),
        ("${}", 1.5, "$"),
    ],
)
def test_units(cells: str, first: float, unit: str) -> None:
    found = columns_of(frame_of(odd=[cells.format(first + i) for i in range(N)]))
    np.testing.assert_allclose(found.values[:, 1], first + np.arange(N))
    assert any(repr(unit) in note for note in found.notes)
    money = columns_of(frame_of(odd=["$1,200"] + ["$300.50"] * (N - 1)))
    assert money.values[:2, 1].tolist() == [1200.0, 300.5]
    mixed = columns_of(frame_of(odd=["12 kg"] * 20 + ["12 lb"] * 40))
    assert kinds(mixed)["odd"] == ("12 kg", "12 lb")  # two units are no numbers


def test_dates_are_days() -> None:
    days = pd.date_range("2024-02-27", periods=N)
    for values in (days, days.strftime("%Y-%m-%d")):
        found = columns_of(frame_of(when=values))
        np.testing.assert_allclose(np.diff(found.values[:, 1]), 1.0)
        assert any("dates" in note for note in found.notes)


@pytest.mark.parametrize("form", ["%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M", "%m-%d-%Y"])
def test_dates_as_people_write_them(form: str) -> None:
    days = pd.date_range("2024-02-27", periods=N)
    found = columns_of(pd.DataFrame({"day": days.strftime(form), "x": np.arange(N) % 7}))
    np.testing.assert_array_equal(found.values[:, 0], 19780 + np.arange(N))


def test_dates_whose_months_may_be_days_are_not_guessed() -> None:
    days = [f"{i % 12 + 1}/{i % 5 + 1}/2024" for i in range(N)]
    found = columns_of(pd.DataFrame({"day": days, "x": np.arange(N) % 7}))
    assert not any("dates" in note for note in found.notes)


def test_a_minus_of_typography_is_a_minus() -> None:
    frame = pd.DataFrame({"x": ["\u22121.5", "2", "3.25"]})
    assert columns_of(frame).values[:, 0].tolist() == [-1.5, 2.0, 3.25]


def test_overrides() -> None:
    frame = frame_of(code=cycle(33, 44, 49), level=cycle(1, 2, 3, 4, 5, 6))
    found = columns_of(frame, numeric=["code"], categorical=["level"])
    assert kinds(found)["code"] == ()
    assert kinds(found)["level"] == ("1", "2", "3", "4", "5", "6")
    assert found.values[0, 1] == 33
    with pytest.raises(ValueError, match="no column 'nothing'"):
        columns_of(frame, numeric=["nothing"])
    with pytest.raises(ValueError, match="list of columns"):
        Settings(numeric="code")


def test_a_text_of_many_levels_is_left_out() -> None:
    found = columns_of(frame_of(words=[f"w{i // 2}" for i in range(N)][::-1]))
    assert kinds(found)["words"]  # 30 levels of 60 rows
    many = pd.DataFrame({"a": np.arange(400) * 0.1, "words": [f"w{i // 2}" for i in range(400)]})
    assert columns_of(many).names == ("a",)
    with pytest.raises(ValueError, match="200 different values are no categories"):
        columns_of(many, columns=["words"])


def test_missing_levels_and_new_ones() -> None:
    frame = frame_of(kind=["x", None, "y", "", "NA"] * (N // 5))
    found = columns_of(frame)
    assert np.isnan(found.values[[1, 3, 4], 1]).all()
    new = pd.DataFrame({"kind": ["y", "z", None], "size": [1.0, 2.0, 3.0], "more": [0, 0, 0]})
    values = encode(new, found.names, found.levels)
    np.testing.assert_array_equal(values, [[1, 1], [2, -1], [3, np.nan]])


def test_the_same_frame_is_the_same_everywhere(tmp_path: Path) -> None:
    """From Python, by the estimator and from a file."""
    rng = np.random.default_rng(2)
    y = np.repeat([0, 1], N // 2)
    frame = pd.DataFrame(
        {
            "a": (8.0 * y + rng.normal(size=N)).round(4),
            "b": rng.normal(size=N).round(4),
            "kind": np.where(y == 0, "left", "right"),
            "code": cycle(33, 44, 49),
            "id": np.arange(N),
        }
    )
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    from_file, from_frame = read_table(str(path)).data, as_columns(frame, Settings())
    np.testing.assert_array_equal(from_file.values, from_frame.values)
    assert from_file.names == from_frame.names == ("a", "b", "kind", "code")
    assert from_file.levels == from_frame.levels
    found = cluster(frame, n_samples=40, orders=4, seed=5)
    np.testing.assert_array_equal(
        cluster(from_file, n_samples=40, orders=4, seed=5).labels, found.labels
    )
    assert found.predict(frame[:3]).tolist() == found.labels[:3].tolist()
    fitted = NCPClusterer(n_samples=40, orders=4, random_state=0).fit(frame)
    assert fitted.n_features_in_ == 5
    assert fitted.clustering_.columns == found.columns
    assert fitted.predict(frame[:3]).tolist() == fitted.labels_[:3].tolist()
    with pytest.raises(ValueError, match="data frame with the columns"):
        found.predict(frame[["a", "b"]].to_numpy())
    assert set(found.profile()["level"].dropna()) <= {"left", "right", "33", "44", "49"}
    found.save(tmp_path / "saved.npz")
    again = Clustering.load(tmp_path / "saved.npz")
    assert again.levels == found.levels
    np.testing.assert_allclose(again.predict_proba(frame[:3]), found.predict_proba(frame[:3]))


@pytest.mark.parametrize("irrelevant", [cycle("yes", "no"), cycle(33, 44, 49, 33, 33)])
def test_an_irrelevant_category_changes_nothing(irrelevant: list[Any]) -> None:
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(3)
    y = np.repeat([0, 1, 2], N // 3)
    x = 10.0 * np.array([[0, 0], [1, 0], [0, 1]])[y] + rng.normal(size=(N, 2))
    frame = pd.DataFrame(x, columns=["a", "b"])
    for table in (frame, frame.assign(odd=rng.permutation(irrelevant))):
        assert adjusted_rand_score(y, cluster(table, seed=0).labels) >= 0.95


# -- cells of odd types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cells",
    [
        cycle([1], [2]),
        cycle({"a": 1}, {"a": 2}, None),
        cycle("x", float("inf"), "y"),
        cycle(np.arange(2), np.arange(3)),
    ],
    ids=["lists", "dicts", "infinity among words", "arrays"],
)
def test_cells_of_any_type_are_text(cells: list[Any]) -> None:
    assert set(kinds(columns_of(frame_of(odd=cells)))) == {"size", "odd"}


def test_decimals_are_numbers_whatever_is_missing() -> None:
    found = columns_of(frame_of(odd=cycle(Decimal("1.5"), Decimal("sNaN"), Decimal("NaN"))))
    assert found.values[0, 1] == 1.5
    assert np.isnan(found.values[1:3, 1]).all()


def test_complex_numbers_are_not_numbers_with_a_unit() -> None:
    found = columns_of(frame_of(odd=np.arange(N) * 1j))
    assert found.names == ("size",)
    assert "odd" in found.notes[0]


# -- what goes along with the labels ---------------------------------------------------------------


def test_columns_that_go_along_keep_their_digits_in_json() -> None:
    table = labels_table(np.zeros(2, int), np.ones(2), pd.DataFrame({"a": [1 / 3, 1e-12]}))
    for format in ("json", "jsonl"):
        text = labels_file(table, format).decode()
        back = pd.read_json(io.StringIO(text), lines=format == "jsonl")
        np.testing.assert_allclose(back["a"], table["a"], rtol=1e-14)


def test_columns_of_any_type_go_along_to_excel() -> None:
    pytest.importorskip("openpyxl")
    others = pd.DataFrame(
        {
            "zone": pd.to_datetime(["2024-01-01", ""], utc=True),
            "whole": pd.array([1, None], dtype="Int64"),
            "list": [[1], [2]],
            "number": [0.5, np.nan],
        }
    )
    content = labels_file(labels_table(np.zeros(2, int), np.ones(2), others), "xlsx")
    back = pd.read_excel(io.BytesIO(content))
    assert back["zone"].tolist()[0].startswith("2024-01-01")
    assert back["list"].tolist() == ["[1]", "[2]"]
    assert back[["zone", "whole", "number"]].isna().sum().tolist() == [1, 1, 1]


def test_categories_of_any_values_are_used() -> None:
    frame = frame_of(
        cut=pd.cut(np.arange(N) % 3, 3),
        spaced=pd.Categorical(cycle(" a", " b", None)),
        number=pd.Categorical(cycle(3, 1, 2)),
    )
    found = kinds(columns_of(frame))
    assert len(found["cut"]) == 3
    assert (found["spaced"], found["number"]) == (("a", "b"), ("1", "2", "3"))


def test_parts_of_a_second_count() -> None:
    moments = pd.to_datetime(np.arange(N), unit="ms")
    days = columns_of(frame_of(when=moments)).values[:, 1]
    np.testing.assert_allclose(np.diff(days) * 86400e3, 1, rtol=1e-6)


def test_a_constant_column_is_no_other_column() -> None:
    codes = pd.DataFrame({"a": cycle(1, 2, 3), "b": cycle(1, 2, 3, 4)})
    assert not columns_of(codes).categorical.any()
    assert not columns_of(codes.assign(c=7)).categorical.any()
    assert columns_of(codes.assign(c=np.arange(N) / 7)).categorical.sum() == 2


def test_further_rows_are_found_however_they_are_written() -> None:
    frame = frame_of(
        code=cycle("01", "02", "03"),
        flag=pd.array(cycle(True, False), dtype="bool[pyarrow]"),
        day=cycle("2020-01-02", "2020-03-04", "2020-05-06"),
    )
    found = columns_of(frame)
    np.testing.assert_array_equal(encode(frame, found.names, found.levels), found.values)


SCATTERED = (36, 40, 56, 76, 100, 124, 152, 156, 208, 246, 250, 276, 300)
AMOUNTS = (100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 5000, 10000)


@pytest.mark.parametrize(("values", "n_levels"), [(SCATTERED, 13), (AMOUNTS, 0), (range(13), 0)])
def test_many_whole_numbers_are_codes_if_they_are_strewn(
    values: Sequence[int], n_levels: int
) -> None:
    odd = [list(values)[i % 13] for i in range(130)]
    frame = pd.DataFrame({"odd": odd, "x": np.linspace(0.0, 1.0, 130)})
    assert len(kinds(columns_of(frame))["odd"]) == n_levels


def test_commas_in_frames_are_those_of_files() -> None:
    pay = [None, *(f"{1000 * i**3 + 512:,}" for i in range(1, 30))]
    frame = pd.DataFrame({"x": [0.5, 1.25, 2.0] * 10, "pay": pay})
    found = columns_of(frame)
    np.testing.assert_array_equal(found.values[:3, 1], [np.nan, 1512.0, 8512.0])
    assert any("separators of thousands" in note for note in found.notes)
    np.testing.assert_array_equal(encode(frame[::-1], found.names, found.levels)[-2], [1.25, 1512])
    unclear = pd.DataFrame({"x": np.arange(30) ** 2, "pay": [f"{i},250" for i in range(1, 31)]})
    assert columns_of(unclear).names == ("x",)


def test_new_rows_have_the_unit_of_the_table(seed: int) -> None:
    y = np.random.default_rng(seed).normal(size=60) + 8 * (np.arange(60) % 2)
    frame = pd.DataFrame({"x": y + 0.1, "y": [f"{value:.3f} kg" for value in y]})
    found = cluster(frame, seed=0)
    assert (found.predict(frame.assign(y=y.round(3))) == found.predict(frame)).all()
    with pytest.raises(ValueError, match="column 'y' in 'kg', as it was clustered, but got 'g'"):
        found.predict(frame.assign(y=[f"{value:.3f} g" for value in y]))
    with pytest.raises(ValueError, match=r"column 'x' without a unit, .* but got '%'"):
        found.predict(frame.assign(x=[f"{value:.3f}%" for value in y]))
