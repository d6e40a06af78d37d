"""Data files: CSV, TSV, Parquet, NPY, NPZ, gzipped or from standard input, to a table of numbers.

The kind of a file is read from its first bytes, not from its name. Text is taken apart with care:
the delimiter is the one that cuts the first lines alike, a first line with words is a header,
columns that are not numbers are left out and said to be, and so is a leading column that only
counts the rows. Whatever is wrong is one `ValueError` that says where and what to do.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncp._partitions_files import Archive, read_array, read_some, refusing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "<na>", "missing")
DELIMITERS = ",;\t|"
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

    >>> names(["a/x.csv", "b/x.csv", "-"])
    ['x', 'x-2', 'stdin']
    """
    taken: dict[str, int] = {}
    result = []
    for source in sources:
        stem = "stdin" if source == STANDARD_INPUT else _stem(source)
        taken[stem] = taken.get(stem, 0) + 1
        result.append(stem if taken[stem] == 1 else f"{stem}-{taken[stem]}")
    return result


def _stem(source: str) -> str:
    name = Path(source).name.removesuffix(".gz")
    return Path(name).stem or name


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
        frame, header = _frame(content)
        if isinstance(frame, np.ndarray):
            return _array_table(source, frame, columns, digest)
        values, names, notes = _numbers(frame, header, columns, one_hot)
    except ValueError as error:
        raise ValueError(f"{_shown(source)}: {error}") from None
    return Table(source, values, names, tuple(notes), digest)


def _shown(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _frame(content: bytes) -> tuple[DataFrame | np.ndarray, bool]:
    """Columns of anything, or an array; and whether the columns have names of their own."""
    if content[:2] == b"\x1f\x8b":
        content = read_some(gzip.GzipFile(fileobj=io.BytesIO(content)), "a complete gzip file")
    if not content.strip():
        raise ValueError("is empty; a table needs at least one row of numbers")
    if content[:6] == b"\x93NUMPY":
        return _check_array(read_array(content)), False
    if content[:4] == b"PK\x03\x04":
        return _load_zip(content), False
    if content[:4] == b"PAR1":
        return _load_parquet(content), True
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


def _load_text(content: bytes) -> tuple[DataFrame, bool]:
    import pandas

    text = _decode(content)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("is empty; a table needs at least one row of numbers")
    delimiter = _delimiter(lines[:50])
    decimal = "," if delimiter != "," and _decimal_comma(lines[1:50], delimiter) else "."
    header = _has_header([_cut(line, delimiter) for line in lines[:50]], decimal)
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
    if decimal == ",":
        frame = frame.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) else cell)
    return frame, header


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
        text = content.decode("latin-1")
    start = text[:65536]
    odd = sum(not character.isprintable() and character not in "\r\n\t" for character in start)
    if odd > 0.02 * len(start):
        raise ValueError(f"is a binary file; expected {KINDS}")
    return text


def _cut(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))


def _delimiter(lines: list[str]) -> str:
    """The delimiter that cuts the first lines into the same number of (at least two) cells."""
    best, most = ",", 1
    for delimiter in (*DELIMITERS, " "):
        widths = [len(_cut(line, delimiter)) for line in lines]
        if len(set(widths)) == 1 and widths[0] > most:
            best, most = delimiter, widths[0]
    if most == 1:  # ragged lines: the most frequent delimiter, so that the error is about them
        counts = {d: sum(line.count(d) for line in lines) for d in DELIMITERS}
        best = max(counts, key=lambda d: counts[d]) if max(counts.values()) else ","
    return best


def _has_header(rows: list[list[str]], decimal: str) -> bool:
    """Whether the first row names the columns: no number in it, or a word above numbers.

    >>> _has_header([["5.1", "setosa"], ["4.9", "setosa"]], ".")
    False
    >>> _has_header([["size", "2"], ["4.9", "3.0"]], ".")
    True
    """
    first = [_is_number(cell, decimal) for cell in rows[0]]
    if not any(first):
        return True
    for i, number in enumerate(first):
        below = [_is_number(row[i], decimal) for row in rows[1:] if i < len(row)]
        if not number and below and sum(below) > 0.5 * len(below):
            return True
    return False


def _decimal_comma(lines: list[str], delimiter: str) -> bool:
    cells = [cell for line in lines for cell in _cut(line, delimiter)]
    with_comma = [cell for cell in cells if "," in cell]
    return bool(with_comma) and all(_is_number(cell, ",") for cell in with_comma)


def _is_number(cell: str, decimal: str = ".") -> bool:
    cell = cell.strip()
    if cell.lower() in MISSING:
        return True
    try:
        float(cell.replace(",", ".") if decimal == "," else cell)
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
    wanted = sorted({*wanted, *spread}) if columns is None else [*dict.fromkeys(wanted)]
    kept: list[np.ndarray] = []
    kept_names: list[str] = []
    notes: list[str] = []
    text: list[str] = []
    for i in wanted:
        series = frame.iloc[:, i]
        if i in spread:
            parts, values = _spread(series, names[i])
            kept += parts
            kept_names += values
            continue
        numbers, bad = _parse(series)
        if not bad:
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
    if text:
        listed = ", ".join(text[:6]) + (", ..." if len(text) > 6 else "")
        notes.append(f"Columns that are not numeric were left out: {listed}.")
    if not kept:
        raise ValueError(
            f"has no numeric column (found {', '.join(names[:6])}); check the delimiter, or turn "
            "text into numbers with --one-hot"
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
    values = np.unique(cells)
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
