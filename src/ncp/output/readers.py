"""Data files, gzipped or not, or standard input, to a table of numbers.

The kind of a file is read from its first bytes, not from its name: text (`ncp.output.text`), or
NPY, NPZ, Parquet, Feather, Excel, JSON (`ncp.output.binary`). Which columns are numbers, and which
name the rows, is told from what they hold (`ncp.output.columns`). Whatever is wrong is one
`ValueError` that names the file and says what to do.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ncp.files import read_some
from ncp.output.binary import Budget, load_arrow, load_json, load_npy, load_zip, unpacked
from ncp.output.columns import Columns, check_whole, columns_of, default_names, find_column
from ncp.output.text import MISSING, PLAIN, Marks, load_text

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["STANDARD_INPUT", "Marks", "Table", "expand", "names", "read_bytes", "read_table"]

STANDARD_INPUT = "-"
MAX_MEMORY = 4 * 2**30  # bytes that a file may become, unless more are allowed


@dataclass(frozen=True)
class Table:
    """Numbers from a file.

    Attributes:
        name: Short name of the source.
        values: The numbers, `(N, P)` (or `(N, ...)` for images), NaN for missing.
        columns: Names of the columns.
        notes: What was left out, in words.
        digest: SHA-256 of the file.
        rows: What goes along with the results: the columns that name the rows, or all of them.
        row_names: What the rows are called, if a column says so.
        known: Labels of rows, None for unknown, if a column has them.
        levels: Of each column, what its numbers mean if it is a category, else empty.
    """

    name: str
    values: np.ndarray
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    digest: str
    rows: DataFrame | None = None
    row_names: tuple[str, ...] | None = None
    known: tuple[str | None, ...] | None = None
    levels: tuple[tuple[str, ...], ...] = ()

    @property
    def data(self) -> Columns:
        """The columns with what they mean."""
        levels = self.levels or ((),) * len(self.columns)
        return Columns(self.values, self.columns, levels, notes=self.notes)


class _Content(NamedTuple):
    """Columns of anything, or an array.

    Attributes:
        data: The columns or the array.
        header: Whether columns have names of their own.
        notes: What was done.
        keys: Names of columns that were the table's index.
        marks: Of numbers with a unit, if the whole file has said them.
    """

    data: DataFrame | np.ndarray
    header: bool = True
    notes: Sequence[str] = ()
    keys: Sequence[str] = ()
    marks: Marks | None = None


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


def read_bytes(source: str, max_memory: int = MAX_MEMORY) -> bytes:
    """The content of a file or of standard input, unless it is larger than `max_memory` bytes."""
    if source == STANDARD_INPUT:
        try:
            return read_some(sys.stdin.buffer, "readable", max_memory)
        except ValueError as error:
            raise ValueError(f"standard input: {error}") from None
    if os.path.isdir(source):
        raise ValueError(f"{source}: is a directory; name the files in it, e.g. '{source}/*.csv'")
    try:
        Budget(max_memory).check(os.stat(source).st_size)
        return Path(source).read_bytes()
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def read_table(
    source: str,
    content: bytes | None = None,
    columns: Sequence[str] | None = None,
    *,
    numeric: Sequence[str] = (),
    categorical: Sequence[str] = (),
    marks: Marks | None = None,
    append: bool = False,
    known: str | None = None,
    max_memory: int = MAX_MEMORY,
) -> Table:
    """Read a table.

    Args:
        source: The path, or `-` for standard input.
        content: Its bytes, if they have been read already.
        columns: Names (or numbers, from 1) of the columns to take; all that can be by default.
        numeric: Columns that are numbers, whatever they look like.
        categorical: Columns that are categories, whatever they look like.
        marks: Decimal point and separator of thousands of a text file, if they cannot be told.
        append: Whether all columns go along with the results, or those that name the rows.
        known: The column with known labels of rows, empty where there is none.
        max_memory: Bytes that the file may become.
    """
    content = read_bytes(source, max_memory) if content is None else content
    try:
        digest = hashlib.sha256(content).hexdigest()
        found = _content(content, Budget(max_memory), marks or Marks())
        if isinstance(found.data, np.ndarray):
            if known is not None:
                raise ValueError("holds an array of numbers, without a column of known labels")
            if numeric or categorical:
                raise ValueError("holds an array of numbers, without names of columns")
            return _array_table(source, found.data, columns, digest, append)
        data = found.data
        numbers = columns_of(
            data,
            found.header,
            columns,
            numeric=numeric,
            categorical=categorical,
            index=found.keys,
            known=known,
            marks=found.marks,
        )
        return _table(source, found, numbers, digest, append, known)
    except ValueError as error:
        raise ValueError(f"{_shown(source)}: {error}") from None


def _shown(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _content(content: bytes, budget: Budget, marks: Marks) -> _Content:
    if content[:2] == b"\x1f\x8b":
        content = unpacked(content, budget)
    start = content[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start and not content.strip():
        raise ValueError("is empty; a table needs at least one row of numbers")
    if content[:6] == b"\x93NUMPY":
        return _Content(load_npy(content, budget), header=False)
    if content[:4] == b"PK\x03\x04":
        return _Content(load_zip(content, budget))
    if content[:4] == b"PAR1" or content[:6] == b"ARROW1":
        frame, notes = load_arrow(content, budget)
        frame, keys = _with_index(frame)
        return _Content(frame, True, notes, keys)
    if start[:1] == b"{" or start[:2] in (b"[{", b"[[", b"[\n", b"[ "):
        return _Content(load_json(content, budget))
    budget.check_text(content)
    return _Content(*load_text(content, marks), marks=PLAIN)


def _with_index(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """The index of a frame as columns, unless it only counts; and the names of these."""
    if type(frame.index).__name__ == "RangeIndex" and frame.index.name is None:
        return frame, []
    taken = {str(name) for name in frame.columns}
    named = [str(n) if n is not None else "index" for n in frame.index.names]
    named = [f"{name} (index)" if name in taken else name for name in named]
    return frame.rename_axis(index=named).reset_index(), named


def _table(
    source: str,
    found: _Content,
    numbers: Columns,
    digest: str,
    append: bool,
    known: str | None,
) -> Table:
    frame = found.data
    assert not isinstance(frame, np.ndarray)
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis=1)
    if not found.header:
        frame = frame.set_axis(default_names(frame.shape[1]), axis=1)
    chosen = range(frame.shape[1]) if append else numbers.identifiers
    rows = frame.iloc[:, list(chosen)] if len(chosen) else None
    first = next(iter(numbers.identifiers), None)
    called = None if first is None else tuple(str(cell) for cell in frame.iloc[:, first])
    notes = (*found.notes, *numbers.notes)
    labels = None if known is None else _labels(frame, known)
    return Table(
        source, numbers.values, numbers.names, notes, digest, rows, called, labels, numbers.levels
    )


def _labels(frame: DataFrame, column: str) -> tuple[str | None, ...]:
    """The cells of a column as text, None for those that are empty."""
    cells = frame.iloc[:, find_column(column, [str(name) for name in frame.columns])]
    text = cells.astype(str).str.strip()
    missing = cells.isna() | text.str.lower().isin(MISSING)
    if text[~missing].str.fullmatch(r"[+-]?\d+\.0").all():  # as pandas writes whole ones with gaps
        text = text.str.removesuffix(".0")
    return tuple(None if none else str(cell) for cell, none in zip(text, missing, strict=True))


def _array_table(
    source: str, array: np.ndarray, columns: Sequence[str] | None, digest: str, append: bool
) -> Table:
    values = array.astype(np.float64)
    if np.isinf(values).any():
        raise ValueError("has infinite values; replace or remove them")
    if values.ndim > 2:
        if columns is not None:
            raise ValueError(f"holds an array of shape {array.shape}, which has no columns")
        check_whole(array)
        width = int(np.prod(values.shape[1:]))
        return Table(source, values, tuple(str(i + 1) for i in range(width)), (), digest)
    numbers = [str(i + 1) for i in range(values.shape[1])]
    chosen = list(range(len(numbers)))
    if columns is not None:
        chosen = [find_column(column, numbers) for column in columns]
    check_whole(array[:, chosen])
    named = tuple(f"column {numbers[i]}" for i in chosen)
    rows = None
    if append:
        from pandas import DataFrame

        rows = DataFrame(array, columns=[f"column {number}" for number in numbers])
    return Table(source, values[:, chosen], named, (), digest, rows)
