"""Data files: a right table, or one line that says what to do."""

from __future__ import annotations

import gzip
import io
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ncp.output.binary import Budget, load_arrow
from ncp.output.readers import Marks, Table, expand, read_table


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;b\n1'234.5;2\n1\u2019000'000;3.5\n", [[1234.5, 2], [1_000_000, 3.5]]),
        ("a;b\n\u22121.5;2\n\u2212.25;3\n", [[-1.5, 2], [-0.25, 3]]),
    ],
)
def test_marks_of_typography(text: str, expected: list[list[float]]) -> None:
    assert read_table("a.csv", text.encode()).values.tolist() == expected


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\x0b", "\x0c", "\u00a0"])
def test_only_ends_of_lines_end_rows(character: str) -> None:
    text = "name,a,b\n" + f"x{character}y,1,2\n" + "z,3,4\n" * 9
    assert read(text)[0] == [[0, 1, 2]] + [[1, 3, 4]] * 9
    if character == "\x85":
        assert read(text.encode("latin-1"))[0] == [[0, 1, 2]] + [[1, 3, 4]] * 9


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


def test_kinds_by_name() -> None:
    values, names = read("a,c\n1,x\n3,y\n", categorical=["c"])
    assert (values, names) == ([[1, 0], [3, 1]], ("a", "c"))
    with pytest.raises(ValueError, match="without names of columns"):
        read(_npy(np.zeros((3, 2))), categorical=["c"])


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
        (b"a,b\n1,2\n3,4,5\n", "row 2 has 3 cells where the header has 2"),
        (b"name,city\nx,y\nz,w\n", "no numeric column"),
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


# -- commas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"1,234",0.500\n"2,500",1.125\n', [[1234, 0.5], [2500, 1.125]]),
        ('a,b\n"1,234",0.500\n"2,500",1.125\n', [[1234, 0.5], [2500, 1.125]]),
        ('a,b\n"1,234",12.5\n"-2,500",1e-3\n', [[1234, 12.5], [-2500, 0.001]]),
        ('a\n"1,234"\n"12"\n', [[1234], [12]]),
        # the witness stands in line 80
        ("a,b\n" + '"1,234.5",7\n' * 80 + '"1,235",0.5\n', [[1234.5, 7]] * 80 + [[1235, 0.5]]),
        ("a;b\n0,5;1.234\n1,5;2.500\n", [[0.5, 1234], [1.5, 2500]]),
        ('a,b\n"0,5",0.25\n"1,5",2.5\n', [[0.5, 0.25], [1.5, 2.5]]),
    ],
)
def test_the_file_says_what_commas_mean(text: str, expected: list[list[float]]) -> None:
    assert read(text)[0] == expected


AMBIGUOUS = [
    'a,b\n"1,234",7\n"2,500",8\n',
    "1,234;2,500\n3,125;1,875\n",
    'a,b\n"1,234",1.125\n"2,500",2.375\n',
    'a\n"1,234"\n"56789"\n',
]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_commas_that_may_mean_either_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--decimal , or --thousands ,"):
        read(text)
    decimal = read(text, marks=Marks(decimal=","))[0]
    thousands = read(text, marks=Marks(thousands=","))[0]
    assert decimal[0][0] == 1.234
    assert thousands[0][0] == 1234
    assert read(text, marks=Marks(decimal="."))[0] == thousands
    assert read(text, marks=Marks(thousands="."))[0] == decimal


def test_marks_that_contradict_each_other_are_refused() -> None:
    for text in ('a,b\n"1,5","1,234,567"\n', 'a,b,c\n"1,5",2.25,"1,234"\n'):
        with pytest.raises(ValueError, match="say which with --decimal and --thousands"):
            read(text)
    assert read("a;b\n1'234;5\n12;6\n", marks=Marks(thousands="'"))[0] == [[1234, 5], [12, 6]]
    for wrong in ({"decimal": ";"}, {"thousands": "x"}, {"decimal": ",", "thousands": ","}):
        with pytest.raises(ValueError, match="Expected"):
            Marks(**wrong)


# -- names of rows ---------------------------------------------------------------------------------


def identifiers(table: Table) -> list[str]:
    return [] if table.rows is None else list(table.rows.columns)


def parquet(frame: pd.DataFrame, **how: Any) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, **how)
    return buffer.getvalue()


def test_names_of_rows_go_along() -> None:
    text = "id,who,kind,a\n" + "".join(f"{7 * i},p{i},x,{i * i}\n" for i in range(9))
    table = read_table("some.csv", text.encode())
    assert table.columns == ("a",)
    assert identifiers(table) == ["id", "who"]
    assert table.row_names == tuple(str(7 * i) for i in range(9))
    whole = read_table("some.csv", text.encode(), append=True)
    assert identifiers(whole) == ["id", "who", "kind", "a"]
    assert whole.row_names == table.row_names
    assert read_table("some.csv", b"a,b\n1,2\n3,4\n").rows is None


def test_an_index_of_a_parquet_file_names_the_rows() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0]}, index=pd.Index([5, 3, 9], name="plot"))
    table = read_table("some.parquet", parquet(frame))
    assert table.columns == ("a",)
    assert identifiers(table) == ["plot"]
    assert table.row_names == ("5", "3", "9")
    assert "'plot' only names the rows" in table.notes[0]
    assert read(parquet(frame), columns=["plot", "a"])[0] == [[5, 1], [3, 2], [9, 4]]
    unnamed = frame.rename_axis(None).set_axis(["x", "y", "z"])
    assert read_table("some.parquet", parquet(unnamed)).row_names == ("x", "y", "z")
    clash = frame.rename_axis("a")
    assert identifiers(read_table("some.parquet", parquet(clash))) == ["a (index)"]


@pytest.mark.parametrize("kind", ["text", "int64", "uint64", "json"])
def test_whole_numbers_beyond_floats_are_names(kind: str) -> None:
    numbers = [2**53 + 1 + i // 2 for i in range(6)]
    if kind == "text":
        content = ("tag,a\n" + "".join(f"{n},{i}.5\n" for i, n in enumerate(numbers))).encode()
    elif kind == "json":
        content = "\n".join(f'{{"tag": {n}, "a": {i}.5}}' for i, n in enumerate(numbers)).encode()
    else:
        content = parquet(pd.DataFrame({"tag": np.array(numbers, kind), "a": np.arange(6) + 0.5}))
    table = read_table("some", content)
    assert table.columns == ("a",)
    assert "'tag' has whole numbers beyond 2^53" in table.notes[0]
    assert table.row_names == tuple(map(str, numbers))  # to the last digit
    large = b"a,b\n1e20,1.5\n3e20,2.5\n"
    assert read_table("some.csv", large).columns == ("a", "b")


# -- other kinds -----------------------------------------------------------------------------------


def feather(frame: pd.DataFrame, **how: Any) -> bytes:
    buffer = io.BytesIO()
    frame.to_feather(buffer, **how)
    return buffer.getvalue()


def excel(frame: pd.DataFrame, **how: Any) -> bytes:
    buffer = io.BytesIO()
    frame.to_excel(buffer, index=False, **how)
    return buffer.getvalue()


def test_other_kinds() -> None:
    frame = pd.DataFrame({"who": ["x", "y", "x"], "a": [1.5, np.nan, 2.0], "b": [3, 4, 5]})
    lines = frame.to_json(orient="records", lines=True)
    every = frame.to_json(orient="records")
    assert isinstance(lines, str)
    assert isinstance(every, str)
    for content in (feather(frame), excel(frame), lines.encode(), every.encode(), parquet(frame)):
        table = read_table("some", content)
        assert table.columns == ("who", "a", "b")
        assert table.levels == (("x", "y"), (), ())
        expected = frame.assign(who=[0, 1, 0]).to_numpy(dtype=np.float64)
        np.testing.assert_array_equal(table.values, expected)
    bare = excel(frame[["b"]], header=False)
    assert read(bare) == ([[3], [4], [5]], ("column 1",))


def test_lists_in_a_parquet_file_are_left_out() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "lists": [[1, 2], [3]]})
    for content in (parquet(frame), feather(frame)):
        table = read_table("some", content)
        assert table.columns == ("a",)
        assert table.notes == ("Columns of lists and structures were left out: lists.",)


# -- bombs -----------------------------------------------------------------------------------------


def zeros(n: int) -> pd.DataFrame:
    return pd.DataFrame({"a": np.zeros(n)})


def many_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.zeros(30_000_000, np.int8))
    return buffer.getvalue()


# Small files that unpack to far more than a limit of 64 MiB.
BOMBS: dict[str, Callable[[], bytes]] = {
    "parquet of zeros": lambda: parquet(zeros(6_000_000), compression="zstd"),
    "feather of zeros": lambda: feather(zeros(6_000_000), compression="zstd"),
    "feather of more": lambda: feather(zeros(40_000_000), compression="zstd", chunksize=2**30),
    "npz of bytes": many_bytes,
    "gzip of lines": lambda: gzip.compress(b"1\n" * 2**22),
    "gzip of zeros": lambda: gzip.compress(b"0" * 2**27),
    "json lines": lambda: gzip.compress(b'{"a":1}\n' * 2**20),
}


LIMITED = """
import resource, sys
from ncp.output.readers import read_table
import pandas, pyarrow, pyarrow.parquet, numpy
content = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
try:
    read_table("bomb", content, max_memory=2**26)
except ValueError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(kind: str) -> None:
    content = BOMBS[kind]()
    assert len(content) < 2**18
    run = subprocess.run([sys.executable, "-c", LIMITED], input=content, capture_output=True)
    said = run.stderr.decode()
    assert run.returncode == 1, said
    assert said.startswith("bomb: ")
    assert "--max-memory" in said, said


def test_equal_strings_are_not_copied() -> None:
    """A text column of a Parquet file that would unpack to 8 GiB is read in little memory."""
    import pyarrow
    import pyarrow.parquet

    codes = pyarrow.array(np.zeros(2**17, np.int32))
    long = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["x" * 2**16]))
    buffer = io.BytesIO()
    table = pyarrow.table({"a": np.arange(2.0**17), "long": long})
    pyarrow.parquet.write_table(table, buffer, store_schema=False)
    assert len(buffer.getvalue()) < 2**21
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_table("some", buffer.getvalue(), max_memory=2**30)
    assert found.columns == ("a",)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # 512 MiB


def test_a_file_that_is_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.csv"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"sparse.csv: takes about 1,024 GiB of memory"):
        read_table(str(path))


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


def test_feather_is_not_read_by_a_pyarrow_that_cannot_do_it_safely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    buffer = io.BytesIO()
    pd.DataFrame({"a": [1.0, 2.0]}).to_feather(buffer)
    assert read_table("x", buffer.getvalue()).values.shape == (2, 1)
    monkeypatch.setattr(pyarrow, "__version__", "23.0.0")
    with pytest.raises(ValueError, match="CVE-2026-25087"):
        read_table("x", buffer.getvalue())


# -- numbers that were another without a word ------------------------------------------------------


def test_points_that_must_be_thousands_say_so_of_all_columns() -> None:
    values, _ = read("a;b\n1.234.567;1.234\n2.345.678;2.500\n12;3.750\n")
    assert values == [[1234567, 1234], [2345678, 2500], [12, 3750]]
    addresses = "a;b\n192.168.100.200;1.234\n10.0.0.1;2.500\n192.168.100.201;3.750\n"
    assert [row[-1] for row in read(addresses)[0]] == [1.234, 2.5, 3.75]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1,200 kg", "2,500 kg"), (1.2, 2.5)),  # was 1200: the other column has decimals
        (("1,2 kg", "2,5 kg"), (1.2, 2.5)),
        (("1.200 €", "2.500 €"), (1200, 2500)),
        (("0,312 €", "1,012 €"), (0.312, 1.012)),  # was 1012
    ],
    ids=lambda cells: cells[0] if isinstance(cells[0], str) else "",
)
def test_numbers_with_units_follow_the_file(
    cells: tuple[str, str], expected: tuple[float, float]
) -> None:
    text = f"a;b\n1,5;{cells[0]}\n2,25;{cells[1]}\n"
    assert read(text)[0] == [[1.5, expected[0]], [2.25, expected[1]]]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0,312 €", "1,012 €", "0,298 €", "1,105 €"], [0.312, 1.012, 0.298, 1.105]),
        (["$1,200", "$2,500", "$1,105"], [1200, 2500, 1105]),
        (["$1,200", "$7", "NA"], [1200, 7]),
        (["$1,200", "$7.50", "$1.250"], [1200, 7.5, 1.25]),
        (["0.312 €", "1.012 €"], [0.312, 1.012]),
        (["1.200,50 €", "2.500 €"], [1200.5, 2500]),
        (["1.200.000 €", "2.500 €", "12 €"], [1200000, 2500, 12]),
    ],
    ids=lambda cells: str(cells[0]),
)
def test_money_of_one_column_has_one_scale(cells: list[str], expected: list[float]) -> None:
    text = "a;price\n" + "".join(f"{i};{cell}\n" for i, cell in enumerate(cells))
    values = [row[1] for row in read(text, columns=["a", "price"])[0]]
    assert values[: len(expected)] == expected


def test_points_of_money_are_refused_unless_the_file_says_what_they_mean() -> None:
    """Were 950 and 1.2."""
    text = "a;price\n1;950 €\n2;1.200 €\n3;870 €\n4;2.500 €\n"
    with pytest.raises(ValueError, match=r"'1.200', whose point .* --decimal . or --thousands ."):
        read(text)
    assert read(text, marks=Marks(thousands="."))[0][1] == [2, 1200]
    assert read(text, marks=Marks(decimal="."))[0][1] == [2, 1.2]
    assert read(text.replace("4;", "0.5;"))[0][1] == [2, 1.2]
    assert read(text.replace("4;", "0,5;"))[0][1] == [2, 1200]
    with pytest.raises(ValueError, match="say which with --decimal and --thousands"):
        read("a;b\n1,5;$1,200\n2,25;$7\n")


def test_names_with_numbers_stay_as_they_are() -> None:
    """Were "3B": a number and its unit, put together without the blank."""
    text = "a;kind\n1,5;3 B\n2,5;3 B\n3,5;5 B\n4,5;NA\n"
    assert read_table("x", text.encode(), known="kind").known == ("3 B", "3 B", "5 B", None)


def test_numbers_with_units_follow_what_is_said() -> None:
    text = "a;b\n1;1,200 kg\n2;2,500 kg\n"
    with pytest.raises(ValueError, match="'1,200', whose comma may stand for"):
        read(text)
    assert read(text, marks=Marks(decimal=","))[0] == [[1, 1.2], [2, 2.5]]
    assert read(text, marks=Marks(thousands=","))[0] == [[1, 1200], [2, 2500]]


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c\n1,2,3\n4,5\n7,8,9\n",
        "a,b,c\n" + "1.5,2.5,3.5\n" * 60 + "1.5,2",
        "a b c\n" + "1 2 3\n" * 60 + "1 2\n",
        'a,b,c\n"x\ny",2,3\n' + "z,2,\n" * 60 + "z,2\n",
    ],
    ids=["early", "cut off", "blanks", "quoted"],
)
def test_rows_with_too_few_cells_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"row \d+ has 2 cells where others have 3.* write NA"):
        read(text)
    assert len(read("a,b,c\n1,2,\n4,5,\n7,8,9\n")[0]) == 3


def test_rows_are_counted_not_lines() -> None:
    broken = 'a, b, c\n1, "x\ny", 2\n2, z, \n3, z, 4\n'  # a row of two lines, with blanks
    assert [row[0] for row in read(broken)[0]] == [1, 2, 3]
    with pytest.raises(ValueError, match="row 4 has 2 cells"):
        read(broken + "4, z\n")


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_arrays_of_names_are_refused(kind: str) -> None:
    array, buffer = np.stack([np.arange(12) + 2**60, np.arange(12)], axis=1), io.BytesIO()
    np.save(buffer, array) if kind == "npy" else np.savez(buffer, x=array)
    with pytest.raises(ValueError, match=r"whole numbers up to 2\^53"):
        read(buffer.getvalue())
    assert read(buffer.getvalue(), columns=["2"])[0][3] == [3.0]


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_whole_numbers_with_gaps_are_not_rounded(kind: str) -> None:
    """pandas makes them floats, and one could not tell any more."""
    arrow = pytest.importorskip("pyarrow")
    numbers = [2**60 + i for i in range(11)]
    table = arrow.table({"n": arrow.array([*numbers, None]), "v": [0.5 * i for i in range(12)]})
    buffer = io.BytesIO()
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, buffer)
    else:
        pytest.importorskip("pyarrow.feather").write_feather(table, buffer)
    assert read(buffer.getvalue())[0][3] == [1.5]
    frame, _ = load_arrow(buffer.getvalue(), Budget(2**30))
    assert str(frame["n"].dtype) == "Int64"  # not Python's numbers, of 36 bytes each
    assert frame["n"][10] == 2**60 + 10


# -- columns without names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,1\n0.5,1.5\n2.5,3.5\n", ("0", "1")),
        ("2019;2020\n0,5;1,5\n2,5;3,5\n", ("2019", "2020")),
        (",0,1\n0,0.5,1.5\n1,2.5,3.5\n", ("0", "1")),
        (",\n0.5,1.5\n2.5,3.5\n", ("Unnamed: 0", "Unnamed: 1")),
    ],
)
def test_numbers_of_columns_are_no_row(text: str, names: tuple[str, ...]) -> None:
    values, columns = read(text)
    assert values[-2:] == [[0.5, 1.5], [2.5, 3.5]][-len(values) :] or columns[0] == "Unnamed: 0"
    assert (len(values), columns[-2:]) == (2, names)


def test_a_frame_without_names_comes_back_from_its_file() -> None:
    x = np.random.default_rng(0).integers(0, 9, (20, 3))
    text = io.StringIO()
    pd.DataFrame(x).to_csv(text)
    values, columns = read(text.getvalue())
    assert (values, columns) == (x.tolist(), ("0", "1", "2"))


def test_a_first_line_without_names_is_said_to_be_a_row() -> None:
    table = read_table("some.csv", b"1,2\n3,4\n")
    assert table.values.tolist() == [[1, 2], [3, 4]]
    assert "The first line has no names" in table.notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n0,5,1,5\n2,5,3,5\n", "row 1 has 4 cells where the header has 2"),
        ("My table\n\na,b\n1,2\n", "row 1 has 2 cells where the header has 1"),
    ],
)
def test_rows_longer_than_the_header_are_said_with_their_length(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 3], "b": [2, 4]}',
        '{"a": {"0": 1, "1": 3}, "b": {"0": 2, "1": 4}}',
        '{\n  "a": [1, 3],\n  "b": [2, 4]\n}\n',
    ],
)
def test_json_of_columns(text: str) -> None:
    assert read(text) == ([[1, 2], [3, 4]], ("a", "b"))


def test_json_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        read('{"a": [1, 3], "b": [2]}')


def test_excel_with_numbers_for_names(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    x = np.random.default_rng(0).normal(size=(20, 3))
    pd.DataFrame(x).to_excel(tmp_path / "x.xlsx")
    table = read_table(str(tmp_path / "x.xlsx"))
    assert (table.columns, len(table.values)) == (("0", "1", "2"), 20)


def test_very_long_lines() -> None:
    """Cut by another delimiter than its own, such a line is one cell, too long for `csv`."""
    x = np.random.default_rng(0).normal(size=(3, 2000))
    text = "\n".join(",".join(f"{value:.70f}" for value in row) for row in x)
    assert min(map(len, text.split("\n"))) > 2**17
    np.testing.assert_allclose(read(text)[0], x)


ROWS = [f"{number:.2f}" for number in np.random.default_rng(0).normal(size=60)]


@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("country,2019,2020", "c{i},{cell},{cell}"),  # numbers above decimals, a new word
        ("name,1,2", "n{i},{cell},{cell}"),
        ("kind,2", "{letter},{cell}"),  # a word that is none of a few
        (",kind,day", "{i},{letter},2020-01-1{one}"),  # an empty name is no number
        (",weight,price", "{i},{cell} kg,${cell}"),
        ("kind,more", "{letter},{letter}"),
    ],
)
def test_a_first_line_of_names_is_a_header(first: str, line: str) -> None:
    lines = [
        line.format(i=i, cell=cell.strip("-"), letter="abc"[i % 3], one=i % 9)
        for i, cell in enumerate(ROWS)
    ]
    assert len(read_table("some.csv", "\n".join([first, *lines]).encode()).values) == 60
    assert len(read_table("some.csv", "\n".join(lines[:50]).encode()).values) == 50


def test_a_table_is_the_same_in_every_format(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "size": [float(cell) for cell in ROWS],
            "weight": [f"{cell} kg" for cell in ROWS],
            "day": [f"2020-01-{1 + i % 28:02d}" for i in range(60)],
            "number": ROWS,
            "kind": [" " + "abc"[i % 3] for i in range(60)],
        }
    )
    files = {name: tmp_path / f"table.{name}" for name in ("csv", "parquet", "feather", "xlsx")}
    frame.to_csv(files["csv"], index=False)
    frame.to_parquet(files["parquet"])
    frame.to_feather(files["feather"])
    frame.to_excel(files["xlsx"], index=False)
    first, *others = (read_table(path.name, path.read_bytes()) for path in files.values())
    assert first.columns == ("size", "weight", "day", "number", "kind")
    for other in others:
        assert (other.columns, other.levels) == (first.columns, first.levels)
        np.testing.assert_array_equal(other.values, first.values)


def test_text_that_takes_too_much_room_stays_a_dictionary() -> None:
    """Read back, a word of a megabyte in each of a thousand rows would be a gigabyte."""
    buffer = io.BytesIO()
    words = ["b" * 2**20, "a" * 2**20] * 500
    pd.DataFrame({"size": np.arange(1000) / 7, "kind": words}).to_parquet(buffer)
    frame, _ = load_arrow(buffer.getvalue(), Budget(2**28))
    assert str(frame["kind"].dtype) == "category"


def test_excel_without_names(tmp_path: Path) -> None:
    path = tmp_path / "table.xlsx"
    rows = [["abc"[i % 3], float(cell)] for i, cell in enumerate(ROWS)]
    pd.DataFrame(rows).to_excel(path, index=False, header=False)
    assert len(read_table(path.name, path.read_bytes()).values) == 60


def test_json_of_lists() -> None:
    assert read("[[1, 2], [3, 4.5]]") == ([[1.0, 2.0], [3.0, 4.5]], ("column 1", "column 2"))


def test_whole_labels_with_gaps_are_whole() -> None:
    table = read_table("some.csv", b"x,kind\n0.5,1.0\n1.5,\n2.5,2.0\n", known="kind")
    assert table.known == ("1", None, "2")
