"""Data files: a right table, or one line that says what to do."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ncp.output import readers
from ncp.output.readers import expand, read_table


def read(text: str | bytes, **more: object) -> tuple[list[list[float]], tuple[str, ...]]:
    content = text.encode() if isinstance(text, str) else text
    table = read_table("some.csv", content, **more)  # type: ignore[arg-type]
    return table.values.tolist(), table.columns


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n3,4\n",
        "a;b\n1;2\n3;4\n",
        "a\tb\n1\t2\n3\t4\n",
        "a b\n1 2\n3 4\n",
        "a|b\n1|2\n3|4\n",
        '"a","b"\n"1","2"\n"3","4"\n',
        "\ufeffa,b\r\n1,2\r\n3,4\r\n",
        "a,b\n\n1,2\n\n3,4",
        "a;b\n1,0;2,0\n3,0;4,0\n",
        "name,a,b\nx,1,2\ny,3,4\n",
        "sep=;\na;b\n1;2\n3;4\n",
        "# made by hand\na,b\n1,2\n3,4\n",
        " a , b \n 1 , 2 \n 3 , 4 \n",
        '"a","b"\n"1,0","2,0"\n"3,0","4,0"\n',
        "a,b,\n1,2,\n3,4,\n",
    ],
)
def test_text(text: str) -> None:
    assert read(text) == ([[1, 2], [3, 4]], ("a", "b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,13;-0,13;0,64\n1,5;2,25;3\n", [[0.13, -0.13, 0.64], [1.5, 2.25, 3]]),
        ("0,5\t1,5\n2,5\t3,5\n", [[0.5, 1.5], [2.5, 3.5]]),
        ("0,5 1,5\n2,5 3,5\n", [[0.5, 1.5], [2.5, 3.5]]),
        ("Länge, cm;Breite, cm\n1,5;2,5\n3,5;4,5\n", [[1.5, 2.5], [3.5, 4.5]]),
        ("a;b\n1.234,5;2\n12;3,25\n", [[1234.5, 2], [12, 3.25]]),
        ("a;b\n1\u00a0234,5;2\n1\u202f000;3,5\n", [[1234.5, 2], [1000, 3.5]]),
        ("a\tb\n1,810\t950\n12\t1,180\n", [[1810, 950], [12, 1180]]),
        ("a\tb\n1,810,000\t2,500.5\n", [[1810000, 2500.5]]),
        ("a;b\n1,810;1,180\n0,950;2,125\n", [[1.81, 1.18], [0.95, 2.125]]),
        ("name;a;b\nx, y;1,5;2\nz;2,5;3\n", [[1.5, 2], [2.5, 3]]),
    ],
)
def test_commas_in_numbers(text: str, expected: list[list[float]]) -> None:
    table = read_table("some.csv", text.encode())
    assert table.values.tolist() == expected
    assert table.notes[0].startswith("Commas in numbers were read as")


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\x0b", "\x0c", "\u00a0"])
def test_only_ends_of_lines_end_rows(character: str) -> None:
    text = "name,a,b\n" + f"x{character}y,1,2\n" + "z,3,4\n" * 9
    assert read(text)[0] == [[1, 2]] + [[3, 4]] * 9
    if character == "\x85":
        assert read(text.encode("latin-1"))[0] == [[1, 2]] + [[3, 4]] * 9


def test_a_blank_line_of_one_column_is_a_missing_value() -> None:
    values, _ = read("a\n1\n\n3\n4\n\n")
    np.testing.assert_array_equal(values, [[1], [np.nan], [3], [4]])


def test_encodings() -> None:
    assert read("é,b\n1,2\n".encode("latin-1")) == ([[1, 2]], ("é", "b"))
    assert read("é,b\n1,2\n".encode("utf-16"))[1] == ("é", "b")
    assert read(gzip.compress(b"a,b\n1,2\n")) == ([[1, 2]], ("a", "b"))


def test_without_header() -> None:
    assert read("1,2\n3,4\n") == ([[1, 2], [3, 4]], ("column 1", "column 2"))
    assert read("1,x\n3,y\n") == ([[1], [3]], ("column 1",))
    assert read("5\n") == ([[5]], ("column 1",))


def test_missing_values() -> None:
    values, _ = read("a,b\n1,\nNA,4\n?,nan\n")
    np.testing.assert_array_equal(values, [[1, np.nan], [np.nan, 4], [np.nan, np.nan]])


def test_columns_by_name_and_number() -> None:
    text = "a,b,c\n1,2,x\n3,4,y\n"
    assert read(text, columns=["b", "1"]) == ([[2, 1], [4, 3]], ("b", "a"))
    with pytest.raises(ValueError, match=r"no column 'z'; its columns are a, b, c"):
        read(text, columns=["z"])
    with pytest.raises(ValueError, match=r"'c' is not numeric, e\.g\. 'x'"):
        read(text, columns=["c"])


def test_one_hot() -> None:
    values, names = read("a,c\n1,x\n3,y\n", one_hot=["c"])
    assert names == ("a", "c=x", "c=y")
    assert values == [[1, 1, 0], [3, 0, 1]]
    values, names = read("a,b,c\n1,5,x\n3,6,\n", columns=["a"], one_hot=["c"])
    assert (values, names) == ([[1, 1], [3, 0]], ("a", "c=x"))
    with pytest.raises(ValueError, match="without columns to one-hot"):
        read(_npy(np.zeros((3, 2))), one_hot=["c"])


def test_a_column_that_numbers_the_rows_is_left_out() -> None:
    text = "id,a\n" + "".join(f"{i},{i * i}\n" for i in range(1, 8))
    assert read(text)[1] == ("a",)
    assert read(text, columns=["id"])[1] == ("id",)
    assert read(text.replace("id", "time"))[1] == ("time", "a")


@pytest.mark.parametrize("name", ["id", "customer_id", "orderId", "Patient ID"])
def test_a_column_that_names_the_rows_is_left_out(name: str) -> None:
    text = f"a,{name},b\n" + "".join(f"{i},{1000 + 7 * i % 31},{i * i}\n" for i in range(3, 12))
    table = read_table("some.csv", text.encode())
    assert table.columns == ("a", "b")
    assert f"{name!r} only names the rows" in table.notes[0]
    assert read(text, columns=["a", name])[1] == ("a", name)
    assert read(text.replace(name, "humid"))[1] == ("a", "humid", "b")


def test_almost_numeric_columns_are_explained() -> None:
    text = "a,b\n" + "".join(f"{i},{i}\n" for i in range(3, 20)) + "1,oops\n"
    table = read_table("some.csv", text.encode())
    assert table.columns == ("a",)
    assert "1 of 18 values are not numbers, e.g. 'oops'" in table.notes[0]


def test_binary_kinds(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(3))
    pd.DataFrame(x, columns=["a", "b"]).to_parquet(tmp_path / "x.parquet")
    for name in ("x.npy", "x.npz", "x.parquet"):
        np.testing.assert_array_equal(read_table(str(tmp_path / name)).values, x)
    np.save(tmp_path / "line.npy", np.arange(4))
    assert read_table(str(tmp_path / "line.npy")).values.shape == (4, 1)
    np.save(tmp_path / "images.npy", np.zeros((5, 28, 28), dtype=np.uint8))
    assert read_table(str(tmp_path / "images.npy")).values.shape == (5, 28, 28)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"a,b\n", "header but no rows"),
        (bytes(range(256)) * 9, "binary file"),
        (b"\x01\x02\x03\x04" * 99, "binary file"),
        (b"a,b\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        (b"name,city\nx,y\n", "no numeric column"),
        (b"a,b\ncm,kg\nx,y\n", "e.g., 'cm'"),
        (b"a,b\n1," + b"2" * 200_000 + b"\n", "field larger than field limit"),
        (b"a,b\n1,2\ninf,4\n", "infinite value in row 2, column 'a'"),
        (b"a,b\nNA,\n,NA\n", "every cell is missing"),
        (b"PK\x03\x04rubbish", "not a complete zip"),
        (b"PAR1rubbish", "not a readable Parquet"),
        (b"\x93NUMPY\x01\x00rubbish", "not a NumPy file"),
        (_npy(np.array([{}], dtype=object)), "not a NumPy file of numbers"),
        (_npy(np.array(["a"])), "expected numbers"),
        (_npy(np.zeros((0, 2))), "expected rows"),
        (b"\x1f\x8brubbish", "gzip"),
    ],
)
def test_bad_files_are_explained(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_table("some.csv", content)
    assert str(caught.value).startswith("some.csv: ")
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_unpacks_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    pd.DataFrame({"a": np.zeros(1000)}).to_parquet(buffer)
    assert len(read(buffer.getvalue())[0]) == 1000
    monkeypatch.setattr(readers, "LARGEST", 7999)
    with pytest.raises(ValueError, match=r"1,000 rows of 1 column"):
        read(buffer.getvalue())


def test_patterns(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("1\n")
    found = expand([str(tmp_path / "*.csv"), str(tmp_path / "a.csv")])
    assert [Path(path).name for path in found] == ["a.csv", "b.csv"]
    assert expand(["-"]) == ["-"]
    with pytest.raises(ValueError, match="no file matches"):
        expand([str(tmp_path / "*.tsv")])
    with pytest.raises(ValueError, match="no such file"):
        expand([str(tmp_path / "nonesuch.csv")])
    with pytest.raises(ValueError, match="is a directory"):
        read_table(str(tmp_path))
