"""Binary files to columns or arrays, never more than a limit allows.

A small file can unpack to any size: compressed zeros, a dictionary of one long string, a header
that promises rows. So what a file becomes is reckoned from its metadata before it is read, and what
cannot be reckoned is read in pieces until the limit is reached. Text columns of Parquet and Feather
files stay dictionaries, since a million equal strings need not be a million strings.
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ncp.files import Archive, Refused, read_array, read_header, read_some, refusing
from ncp.output.text import counts_columns, has_header

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["Budget", "load_arrow", "load_excel", "load_json", "load_npy", "load_zip", "unpacked"]

COPIES = 3  # of an array of floats while it is read and clustered
TEXT_BYTES, TEXT_LINE, TEXT_CELL = 5, 100, 60  # of memory for each byte, line and cell of a text
JSON_BYTES = 25  # of memory for each byte of a JSON text
EXCEL_BYTES = 10  # of memory for each byte of a sheet
BATCH_ROWS = 65_536
SAFE_FEATHER = (23, 0, 1)  # of pyarrow: before, a file could make it use memory that was freed


class Budget:
    """How much memory a file may take up while it is read.

    Args:
        limit: In bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def check(self, needed: int) -> None:
        """Refuse what needs more."""
        if needed > self.limit:
            raise Refused(
                f"takes about {_size(needed)} of memory to read, more than the {_size(self.limit)} "
                "that are allowed; see --max-memory"
            )

    def check_text(self, content: bytes) -> None:
        """Refuse a text whose lines and cells would take up too much."""
        lines = content.count(b"\n") + content.count(b"\r")
        cells = lines + max(content.count(mark) for mark in (b",", b";", b"\t", b"|", b" "))
        self.check(TEXT_BYTES * len(content) + TEXT_LINE * lines + TEXT_CELL * cells)


def _size(n_bytes: int) -> str:
    """A number of bytes for people.

    Example:
        >>> _size(3 * 2**30), _size(2_000_000)
        ('3 GiB', '1.9 MiB')
    """
    unit, name = (2**30, "GiB") if n_bytes >= 2**30 else (2**20, "MiB")
    return (
        f"{n_bytes / unit:.2g} {name}" if n_bytes < 100 * unit else f"{n_bytes / unit:,.0f} {name}"
    )


def unpacked(content: bytes, budget: Budget) -> bytes:
    """The content of a gzip file."""
    file = gzip.GzipFile(fileobj=io.BytesIO(content))
    return read_some(file, "a complete gzip file", budget.limit)


# -- arrays ----------------------------------------------------------------------------------------


def load_npy(content: bytes, budget: Budget) -> np.ndarray:
    """The array of an NPY file."""
    with refusing("a NumPy file of numbers"):
        shape, _ = read_header(io.BytesIO(content))
    budget.check(COPIES * 8 * math.prod(map(abs, shape)))
    return _checked(read_array(content))


def load_zip(content: bytes, budget: Budget) -> np.ndarray | DataFrame:
    """The array of an NPZ file, or the first sheet of an Excel file."""
    archive = Archive(content)
    if any(name.startswith("xl/") for name in archive.members):
        return load_excel(content, archive, budget)
    if len(archive.names) != len(archive.members) or not archive.names:
        raise Refused("is a zip file but neither NPZ nor Excel")
    wanted = [name for name in archive.names if name.lower() in ("x", "data")] or archive.names
    if len(wanted) > 1:
        listed = ", ".join(archive.names[:8])
        raise Refused(f"holds several arrays ({listed}); name the data 'x'")
    shape, dtype = archive.header(wanted[0])
    numbers = math.prod(map(abs, shape))
    budget.check(numbers * (COPIES * 8 + 2 * dtype.itemsize))
    return _checked(archive.read(wanted[0], budget.limit))


def _checked(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise Refused(f"holds an array of {array.dtype}; expected numbers")
    if array.ndim == 0 or array.size == 0:
        raise Refused(f"holds an array of shape {array.shape}; expected rows of numbers")
    return array[:, None] if array.ndim == 1 else array


# -- tables ----------------------------------------------------------------------------------------


def load_arrow(content: bytes, budget: Budget) -> tuple[DataFrame, list[str]]:
    """The columns of a Parquet or Feather file, with their index, and what was left out."""
    kind = "Parquet" if content[:4] == b"PAR1" else "Feather"
    try:
        import pyarrow
    except ImportError:
        raise Refused(
            f"is a {kind} file, which needs pyarrow: pip install pyarrow, or save it as CSV"
        ) from None
    if kind == "Feather" and _numbers(pyarrow.__version__) < SAFE_FEATHER:
        raise Refused(
            f"is a Feather file, which pyarrow {pyarrow.__version__} does not read safely "
            "(CVE-2026-25087): pip install --upgrade pyarrow, or save it as Parquet"
        )
    try:
        with refusing(f"a readable {kind} file"), _memory(kind == "Feather", budget.limit):
            read = _parquet_batches if kind == "Parquet" else _feather_batches
            frame, nested = _collect(read(content, budget), budget)
    except pyarrow.ArrowException as error:
        said = " ".join(str(error).split())[:200]
        raise Refused(f"is not a readable {kind} file ({said})") from None
    if len(frame) == 0:
        raise Refused("has no rows")
    listed = ", ".join(nested[:6]) + (", ..." if len(nested) > 6 else "")
    return frame, [f"Columns of lists and structures were left out: {listed}."] if nested else []


def _numbers(version: str) -> tuple[int, ...]:
    """Of a version.

    Example:
        >>> _numbers("23.0.1.dev4+local")
        (23, 0, 1)
    """
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _parquet_batches(content: bytes, budget: Budget) -> Iterator[Any]:
    import pyarrow.parquet

    file = io.BytesIO(content)
    found = pyarrow.parquet.ParquetFile(file)
    budget.check(COPIES * 8 * found.metadata.num_rows * found.metadata.num_columns)
    text = [field.name for field in found.schema_arrow if _is_text(field.type)]
    yield found.schema_arrow
    file.seek(0)
    compact = pyarrow.parquet.ParquetFile(file, read_dictionary=text)
    flat = [field.name for field in compact.schema_arrow if not _is_nested(field.type)]
    yield from compact.iter_batches(BATCH_ROWS, columns=flat)


def _feather_batches(content: bytes, budget: Budget) -> Iterator[Any]:
    import pyarrow

    reader = pyarrow.ipc.open_file(pyarrow.py_buffer(content))
    yield reader.schema
    flat = [i for i, field in enumerate(reader.schema) if not _is_nested(field.type)]
    how = pyarrow.ipc.IpcReadOptions(included_fields=flat)
    reader = pyarrow.ipc.open_file(pyarrow.py_buffer(content), options=how)
    for i in range(reader.num_record_batches):
        yield reader.get_batch(i)


def _collect(parts: Iterator[Any], budget: Budget) -> tuple[DataFrame, list[str]]:
    """Batches after their schema, as a frame; and the names of columns that it has not."""
    import pyarrow

    schema = next(parts)
    nested = [str(field.name) for field in schema if _is_nested(field.type)]
    batches, total = [], 0
    for batch in parts:
        total += batch.nbytes + 8 * batch.num_rows * batch.num_columns
        budget.check(total)
        batches.append(batch)
    if not batches:
        raise Refused("has no rows")
    table = pyarrow.Table.from_batches(batches).replace_schema_metadata(schema.metadata)
    frame = table.to_pandas(types_mapper=_whole_numbers().get)
    for name in {str(field.name) for field in schema if _is_text(field.type)} & {*frame.columns}:
        frame[name], total = _as_text(frame[name], total, budget)
    return frame, nested


def _as_text(column: Series[Any], total: int, budget: Budget) -> tuple[Series[Any], int]:
    """A dictionary of text as text, if that fits, so that its cells are read as any others."""
    if str(column.dtype) != "category":
        return column, total
    sizes = np.array([len(text) for text in column.cat.categories] + [0])
    total += TEXT_CELL * len(column) + TEXT_BYTES * int(sizes[column.cat.codes].sum())
    return (column.astype(object), total) if total <= budget.limit else (column, total)


def _whole_numbers() -> dict[Any, Any]:
    """Types of pandas that have gaps: floats would round numbers, objects take memory."""
    import pandas
    import pyarrow

    names = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
    return {getattr(pyarrow, name.lower())(): pandas.api.types.pandas_dtype(name) for name in names}


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _is_nested(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_nested(kind))


def load_excel(content: bytes, archive: Archive, budget: Budget) -> DataFrame:
    """The first sheet that holds anything; its first row are the names of the columns."""
    budget.check(EXCEL_BYTES * archive.total_size)
    try:
        import openpyxl
    except ImportError:
        raise Refused(
            "is an Excel file, which needs openpyxl: pip install openpyxl, or save it as CSV"
        ) from None
    from pandas import DataFrame

    with refusing("a readable Excel file"):
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = next((rows for rows in map(_sheet_rows, book.worksheets) if rows), [])
        if not rows:
            raise Refused("is empty; a table needs at least one row of numbers")
        width = max(map(_width, rows))
        budget.check(COPIES * 8 * len(rows) * width)
        rows = [(*row, *([None] * width))[:width] for row in rows]
        names = [f"column {i + 1}" for i in range(width)]
        shown = [["" if cell is None else str(cell) for cell in row] for row in rows[:50]]
        has_words = any(isinstance(cell, str) for cell in rows[0])
        if not (has_header(shown) if has_words else counts_columns(shown)):
            return DataFrame(rows, columns=names, dtype=object)
        if len(rows) == 1:
            raise Refused("has a header but no rows")
        names = [
            f"Unnamed: {i}" if own in (None, "") else str(own) for i, own in enumerate(rows[0])
        ]
        return DataFrame(rows[1:], columns=names, dtype=object)


def _sheet_rows(sheet: Any) -> list[tuple[Any, ...]]:
    """The rows of a sheet that hold anything."""
    sheet.reset_dimensions()  # what it says of its size may be anything
    return [row for row in sheet.iter_rows(values_only=True) if _width(row)]


def _width(row: Sequence[Any]) -> int:
    """The number of cells up to the last that is filled."""
    return max((i + 1 for i, cell in enumerate(row) if cell not in (None, "")), default=0)


def load_json(content: bytes, budget: Budget) -> DataFrame:
    """A JSON object for each row, one a line or in a list; or one of columns; or lists of cells."""
    import json

    from pandas import DataFrame

    budget.check(JSON_BYTES * len(content))
    with refusing("a JSON table"):
        text = content.decode("utf-8-sig")
        if text.lstrip()[:1] == "[":
            rows = json.loads(text)
        else:
            rows = _objects(text)
        if len(rows) == 1 and isinstance(rows[0], dict):
            rows = _transposed(rows[0])
        if rows and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
            rows = [{f"column {i + 1}": cell for i, cell in enumerate(row)} for row in rows]
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise Refused("is not a JSON table (expected an object for each row)")
        names = dict.fromkeys(name for row in rows for name in row)
        budget.check(COPIES * 8 * len(rows) * len(names))
        flat = {name: [_plain(row.get(name)) for row in rows] for name in names}
        return DataFrame(flat, dtype=object)


def _objects(text: str) -> list[Any]:
    """The only object of a text, on however many lines, or those of its lines."""
    import json

    with suppress(ValueError):
        return [json.loads(text)]
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _transposed(table: dict[str, Any]) -> list[Any]:
    """The rows of an object of columns: lists, or objects from row to cell, as pandas writes."""
    columns = list(table.values())
    if columns and all(isinstance(column, list) for column in columns):
        if len({len(column) for column in columns}) > 1:
            raise Refused("is not a JSON table (its columns have different lengths)")
        return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]
    if columns and all(isinstance(column, dict) for column in columns):
        rows = dict.fromkeys(row for column in columns for row in column)
        return [{name: column.get(row) for name, column in table.items()} for row in rows]
    return [table]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)


@contextmanager
def _memory(wanted: bool, limit: int) -> Iterator[None]:
    """Let the system refuse more memory, where it can: the sizes of Feather are not told before."""
    try:
        import resource
    except ImportError:  # Windows
        wanted = False
    if not wanted:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # a system that does not tell
        yield
        return
    most = used + limit + 2**28
    soft = most if before[0] == resource.RLIM_INFINITY else min(before[0], most)
    resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
    try:
        yield
    except MemoryError:
        raise Refused(
            f"takes more than the {_size(limit)} of memory that are allowed to read; see "
            "--max-memory"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
