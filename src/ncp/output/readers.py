"""Data files: CSV, TSV, Parquet, NPY, NPZ, gzipped or from standard input, to a table of numbers.

The kind of a file is read from its first bytes, not from its name. Text is taken apart with care:
the delimiter is the one that cuts the first lines alike, into the most numbers; a first line with
words is a header; columns that are not numbers are left out and said to be, and so are those that
only count or name the rows. Whatever is wrong is one `ValueError` that says where and what to do.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncp.files import LARGEST, Archive, read_array, read_some, refusing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "<na>", "missing")
DELIMITERS = ",;\t|"
COMMAS = ("", "decimal", "thousands")  # what a comma in a number may mean
STANDARD_INPUT = "-"
KINDS = "CSV, TSV, Parquet, NPY or NPZ"


@dataclass(frozen=True)
class Table:
    """Numbers from a file.

    Attributes:
        name: Short name of the source.
        values: The numbers, `(N, P)` (or `(N, ...)` for images), NaN for missing.
        columns: Names of the columns.
        notes: What was left out, in words.
        digest: SHA-256 of the file.
    """

    name: str
    values: np.ndarray
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    digest: str


def expand(sources: Sequence[str]) -> list[str]:
    """Paths of files, patterns and `-`, in order and each once."""
    found: list[str] = []
    for source in sources:
        if source == STANDARD_INPUT or os.path.exists(source):
            found.append(source)
        elif any(character in source for character in "*?["):
            matches = sorted(glob.glob(source, recursive=True))
            if not matches:
                raise ValueError(f"{source}: no file matches this pattern")
            found += [match for match in matches if os.path.isfile(match)]
        else:
            raise ValueError(f"{source}: there is no such file")
    return list(dict.fromkeys(found))


def names(sources: Sequence[str]) -> list[str]:
    """A short, distinct name for each source.

    >>> names(["a/x.csv", "b/x.csv", "c/x-2.csv", "-"])
    ['x', 'x-2', 'x-2-2', 'stdin']
    """
    result: dict[str, str] = {}  # in order, as a file system without capitals tells them apart
    for source in sources:
        stem = name = "stdin" if source == STANDARD_INPUT else _stem(source)
        number = 1
        while name.casefold() in result:
            number += 1
            name = f"{stem}-{number}"
        result[name.casefold()] = name
    return list(result.values())


def _stem(source: str) -> str:
    """The name of a file without its endings, and never one that leads elsewhere.

    >>> [_stem(name) for name in ("a/x.tar.csv.gz", "...csv", "..csv", ".gz", ".csv")]
    ['x.tar', 'csv', 'csv', 'gz', 'csv']
    """
    name = Path(source).name.removesuffix(".gz") or Path(source).name
    return Path(name.lstrip(".")).stem.strip(". ") or "data"


def read_bytes(source: str) -> bytes:
    """The content of a file or of standard input."""
    if source == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    if os.path.isdir(source):
        raise ValueError(f"{source}: is a directory; name the files in it, e.g. '{source}/*.csv'")
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror})") from None


def read_table(
    source: str,
    content: bytes | None = None,
    columns: Sequence[str] | None = None,
    one_hot: Sequence[str] = (),
) -> Table:
    """Read a table.

    Arguments:
        source: The path, or `-` for standard input.
        content: Its bytes, if they have been read already.
        columns: Names (or numbers, from 1) of the columns to take; all numeric ones by default.
        one_hot: Text columns to turn into one 0/1 column for each of their values.
    """
    content = read_bytes(source) if content is None else content
    try:
        digest = hashlib.sha256(content).hexdigest()
        frame, header, said = _frame(content)
        if isinstance(frame, np.ndarray):
            if one_hot:
                raise ValueError("holds an array of numbers, without columns to one-hot")
            return _array_table(source, frame, columns, digest)
        values, names, notes = _numbers(frame, header, columns, one_hot)
    except ValueError as error:
        raise ValueError(f"{_shown(source)}: {error}") from None
    return Table(source, values, names, (*said, *notes), digest)


def _shown(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _frame(content: bytes) -> tuple[DataFrame | np.ndarray, bool, list[str]]:
    """Columns of anything, or an array; whether columns have names of their own; what was done."""
    if content[:2] == b"\x1f\x8b":
        content = read_some(gzip.GzipFile(fileobj=io.BytesIO(content)), "a complete gzip file")
    if not content.strip():
        raise ValueError("is empty; a table needs at least one row of numbers")
    if content[:6] == b"\x93NUMPY":
        return _check_array(read_array(content)), False, []
    if content[:4] == b"PK\x03\x04":
        return _load_zip(content), False, []
    if content[:4] == b"PAR1":
        return _load_parquet(content), True, []
    return _load_text(content)


# -- binary files ----------------------------------------------------------------------------------


def _load_zip(content: bytes) -> np.ndarray:
    file = Archive(content)
    if any(name.startswith("xl/") for name in file.members):
        raise ValueError("is an Excel file; save the sheet as CSV first")
    if len(file.names) != len(file.members) or not file.names:
        raise ValueError(f"is a zip file but not NPZ; expected {KINDS}")
    wanted = [name for name in file.names if name.lower() in ("x", "data")] or file.names
    if len(wanted) > 1:
        raise ValueError(f"holds several arrays ({', '.join(file.names[:8])}); name the data 'x'")
    return _check_array(file[wanted[0]])


def _check_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"holds an array of {array.dtype}; expected numbers")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"holds an array of shape {array.shape}; expected rows of numbers")
    return array[:, None] if array.ndim == 1 else array


def _load_parquet(content: bytes) -> DataFrame:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            "is a Parquet file, which needs pyarrow: pip install pyarrow, or save it as CSV"
        ) from None
    import pandas

    try:
        with refusing("a readable Parquet file"):
            shape = pyarrow.parquet.ParquetFile(io.BytesIO(content)).metadata
            if 8 * shape.num_rows * shape.num_columns > LARGEST:
                raise ValueError(f"({shape.num_rows:,} rows of {shape.num_columns} columns)")
            frame = pandas.read_parquet(io.BytesIO(content))
    except (pyarrow.ArrowException, ValueError) as error:
        said = _one_line(error).removeprefix("is not a readable Parquet file ")
        raise ValueError(f"is not a readable Parquet file ({said.strip('()')})") from None
    if len(frame) == 0:
        raise ValueError("has no rows")
    return frame


def _array_table(
    source: str, array: np.ndarray, columns: Sequence[str] | None, digest: str
) -> Table:
    values = array.astype(np.float64)
    if np.isinf(values).any():
        raise ValueError("has infinite values; replace or remove them")
    if values.ndim > 2:
        if columns is not None:
            raise ValueError(f"holds an array of shape {array.shape}, which has no columns")
        width = int(np.prod(values.shape[1:]))
        return Table(source, values, tuple(str(i + 1) for i in range(width)), (), digest)
    names = [str(i + 1) for i in range(values.shape[1])]
    if columns is not None:
        chosen = [_position(column, names) for column in columns]
        values, names = values[:, chosen], [names[i] for i in chosen]
    return Table(source, values, tuple(f"column {name}" for name in names), (), digest)


# -- text ------------------------------------------------------------------------------------------


def _load_text(content: bytes) -> tuple[DataFrame, bool, list[str]]:
    import pandas

    every = _decode(content).replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    while every and (every[0].startswith("#") or re.fullmatch(r"sep=.", every[0].strip())):
        every = every[1:]  # remarks, and what a spreadsheet says to itself
    lines = [line for line in every if line.strip()]
    if not lines:
        raise ValueError("is empty; a table needs at least one row of numbers")
    delimiter = _delimiter(lines[:50])
    cut = [_cut(line, delimiter) for line in lines[:50]]
    if max(map(len, cut)) == 1 and len(lines) > 0.5 * len(every):
        lines = [line if line.strip() else '""' for line in every]  # of one column: missing values
    comma = _meaning_of_commas([cell for row in cut[1:] for cell in row])
    header = _has_header(cut, comma)
    try:
        with warnings.catch_warnings():
            # pandas only warns when it drops cells of lines that are too long
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                io.StringIO("\n".join(lines)),
                sep=r"\s+" if delimiter == " " else delimiter,
                header=0 if header else None,
                dtype=str,
                keep_default_na=False,
                index_col=False,
                skipinitialspace=True,
            )
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, ValueError) as error:
        raise ValueError(f"is not a regular table: {_one_line(error)}") from None
    if len(frame) == 0:
        raise ValueError("has a header but no rows")
    if not comma:
        return frame, header, []
    frame = frame.map(
        lambda cell: _without_commas(cell, comma) if _is_number(cell, comma) else cell
    )
    meaning = "decimal points" if comma == "decimal" else "separators of thousands"
    return frame, header, [f"Commas in numbers were read as {meaning}."]


def _decode(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
        if b"\x00" in content[:65536]:
            raise ValueError(f"is a binary file; expected {KINDS}")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    start = text[:65536]
    if sum(_is_odd(character) for character in start) > 0.02 * len(start):
        raise ValueError(f"is a binary file; expected {KINDS}")
    return re.sub(r"(?<=\d)[\u00a0\u202f](?=\d)", "", text)  # spaces between thousands


def _is_odd(character: str) -> bool:
    """Whether a character does not belong in a text."""
    control = unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")
    return character == "\ufffd" or (control and character not in "\r\n\t")


def _cut(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"is not a regular table: {error}") from None


def _delimiter(lines: list[str]) -> str:
    """The delimiter that cuts the first lines alike, into the largest share of numbers.

    >>> _delimiter(["0,13;2", "1,5;0,25"])
    ';'
    """
    best, highest = ",", (-1.0, 0)
    for delimiter in (*DELIMITERS, " "):
        rows = [_cut(line, delimiter) for line in lines]
        width = len(rows[0])
        if width == 1 or any(len(row) != width for row in rows):
            continue
        cells = [cell for row in rows for cell in row]
        numbers = [any(_is_number(cell, comma) for comma in COMMAS) for cell in cells]
        score = sum(numbers) / len(numbers), width
        if score > highest:
            best, highest = delimiter, score
    if highest[1] == 0:  # ragged lines: the most frequent, so that the error is about them
        counts = {d: sum(line.count(d) for line in lines) for d in DELIMITERS}
        best = max(counts, key=lambda d: counts[d]) if max(counts.values()) else ","
    return best


def _has_header(rows: list[list[str]], comma: str) -> bool:
    """Whether the first row names the columns: no number in it, or a word above numbers.

    >>> _has_header([["5.1", "setosa"], ["4.9", "setosa"]], "")
    False
    >>> _has_header([["size", "2"], ["4.9", "3.0"]], "")
    True
    """
    first = [_is_number(cell, comma) for cell in rows[0]]
    if not any(first):
        return True
    for i, number in enumerate(first):
        below = [_is_number(row[i], comma) for row in rows[1:] if i < len(row)]
        if not number and below and sum(below) > 0.5 * len(below):
            return True
    return False


def _meaning_of_commas(cells: list[str]) -> str:
    """What commas in numbers stand for: "decimal", "thousands" or, if there are none, "".

    One to three digits, a comma and three digits could be either. They are thousands if smaller
    numbers stand beside them without a comma, and all of those are whole.

    >>> _meaning_of_commas(["1,5", "0,25", "3"])
    'decimal'
    >>> _meaning_of_commas(["1,810", "950", "1,200,300"])
    'thousands'
    """
    cells = [cell.strip() for cell in cells]
    with_comma = [cell for cell in cells if "," in cell and re.search(r"\d", cell)]
    decimal = [cell for cell in with_comma if _is_number(cell, "decimal")]
    thousands = [cell for cell in with_comma if THOUSANDS.fullmatch(cell)]
    if thousands and len(thousands) >= len(decimal):
        whole = [cell.lstrip("+-") for cell in cells if re.fullmatch(r"[+-]?\d+", cell)]
        beside = bool(whole) and all(len(cell) <= 3 for cell in whole)
        if beside or any(cell.count(",") > 1 or "." in cell for cell in thousands):
            return "thousands"
    return "decimal" if decimal else ""


THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
POINTED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?")


def _without_commas(cell: str, comma: str) -> str:
    """A number as computers write it."""
    if comma == "thousands":
        return cell.replace(",", "") if THOUSANDS.fullmatch(cell.strip()) else cell
    if comma == "decimal":
        cell = cell.replace(".", "") if POINTED_THOUSANDS.fullmatch(cell.strip()) else cell
        return cell.replace(",", ".")
    return cell


def _is_number(cell: str, comma: str = "") -> bool:
    cell = cell.strip()
    if cell.lower() in MISSING:
        return True
    try:
        float(_without_commas(cell, comma))
    except ValueError:
        return False
    return "_" not in cell


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said.removeprefix("Error tokenizing data. C error: ")[:200]


# -- columns ---------------------------------------------------------------------------------------


def _position(column: str, names: Sequence[str]) -> int:
    """Where a column is, by its name or, if no column is called so, its number from 1."""
    if column in names:
        return list(names).index(column)
    if column.isdigit() and 1 <= int(column) <= len(names):
        return int(column) - 1
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise ValueError(f"has no column {column!r}; its columns are {listed}")


def _numbers(
    frame: DataFrame, header: bool, columns: Sequence[str] | None, one_hot: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """The numeric columns, their names, and what was left out."""
    names = [str(name).strip() for name in frame.columns] if header else [
        f"column {i + 1}" for i in range(frame.shape[1])
    ]  # fmt: skip
    spread = {_position(name, names) for name in one_hot}
    wanted = range(len(names)) if columns is None else [_position(c, names) for c in columns]
    wanted = [*dict.fromkeys([*wanted, *sorted(spread)])]
    kept: list[np.ndarray] = []
    kept_names: list[str] = []
    notes: list[str] = []
    text: list[str] = []
    empty: list[str] = []
    example = ""
    for i in wanted:
        series = frame.iloc[:, i]
        if i in spread:
            parts, values = _spread(series, names[i])
            kept += parts
            kept_names += values
            continue
        numbers, bad = _parse(series)
        example = example or next(iter(bad), "")
        if columns is None and not bad and np.isnan(numbers).all():
            empty.append(names[i])
        elif columns is None and header and _is_key(numbers, names[i]):
            notes.append(
                f"Column {names[i]!r} only names the rows and was left out; name the columns to "
                "take if it is a measurement."
            )
        elif not bad:
            kept.append(numbers)
            kept_names.append(names[i])
        elif columns is not None:
            raise ValueError(f"column {names[i]!r} is not numeric, e.g. {bad[0]!r}; leave it out")
        elif len(bad) < 0.2 * len(series):
            notes.append(
                f"Column {names[i]!r} was left out: {len(bad)} of {len(series)} values are not "
                f"numbers, e.g. {bad[0]!r}."
            )
        else:
            text.append(names[i])
    for what, left_out in (("that are not numeric", text), ("without values", empty)):
        if left_out:
            listed = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
            notes.append(f"Columns {what} were left out: {listed}.")
    if not kept and empty and not text:
        raise ValueError("has no values; every cell is missing")
    if not kept:
        raise ValueError(
            f"has no numeric column (found {', '.join(names[:6])}; not a number is, e.g., "
            f"{example!r}); check the delimiter and the lines above the numbers, or turn text into "
            "numbers with --one-hot"
        )
    if columns is None and len(kept) > 1 and _counts_rows(kept[0], kept_names[0], header):
        notes.append(f"Column {kept_names[0]!r} only numbers the rows and was left out.")
        kept, kept_names = kept[1:], kept_names[1:]
    values_ = np.stack(kept, axis=1)
    if np.isinf(values_).any():
        row, column = np.argwhere(np.isinf(values_))[0]
        raise ValueError(
            f"has an infinite value in row {row + 1}, column {kept_names[column]!r}; "
            "replace or remove it"
        )
    if np.isnan(values_).all():
        raise ValueError("has no values; every cell is missing")
    return values_, tuple(kept_names), notes


def _parse(series: Series[Any]) -> tuple[np.ndarray, list[str]]:
    """Numbers with NaN for missing, and the cells that are neither."""
    import pandas

    if series.dtype.kind in "biuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan), []
    if series.dtype.kind in "mM":
        return np.full(len(series), np.nan), [str(value) for value in series]
    cells = series.astype(str).str.strip()
    missing = cells.str.lower().isin(MISSING).to_numpy() | series.isna().to_numpy()
    numbers = pandas.to_numeric(cells.mask(missing), errors="coerce").to_numpy(dtype=np.float64)
    bad = np.isnan(numbers) & ~missing
    return numbers, cells.to_numpy()[bad].tolist()


def _spread(series: Series[Any], name: str) -> tuple[list[np.ndarray], list[str]]:
    cells = series.astype(str).fillna("").str.strip().to_numpy().astype(str)
    values = np.array([v for v in np.unique(cells) if v.lower() not in MISSING])
    if len(values) > 50:
        raise ValueError(f"column {name!r} has {len(values)} different values, too many to one-hot")
    return [(cells == v).astype(np.float64) for v in values], [f"{name}={v}" for v in values]


def _counts_rows(values: np.ndarray, name: str, header: bool) -> bool:
    """Consecutive integers from 0 or 1, in a column whose name (if any) says nothing else."""
    if len(values) < 5 or values[0] not in (0.0, 1.0) or np.any(np.diff(values) != 1.0):
        return False
    plain = name.lower().strip("# ._")
    return not header or plain.startswith("unnamed") or plain in (
        "", "id", "index", "row", "rowid", "row_id", "no", "nr", "number", "obs", "rownames",
    )  # fmt: skip


def _is_key(values: np.ndarray, name: str) -> bool:
    """Distinct whole numbers in a column that is called an id."""
    called = re.search(r"(^|[_ .-])id$", name.lower()) or re.search(r"[a-z](Id|ID)$", name)
    if not called or len(values) < 5 or not np.isfinite(values).all():
        return False
    return bool((values == np.round(values)).all()) and len(np.unique(values)) == len(values)
