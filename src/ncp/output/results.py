"""The files of a result: labels, samples, summary. Plain values in, bytes out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from ncp.output.columns import is_gap

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FORMATS", "labels_file", "labels_table", "samples_file", "summary_file"]

FORMATS = {"csv": "", "json": "", "jsonl": "", "parquet": "pyarrow", "feather": "pyarrow",
           "xlsx": "openpyxl"}  # fmt: skip  # and what they need
OURS = {"cluster", "confidence", "name"}
JSON: dict[str, Any] = {"double_precision": 15, "date_format": "iso"}  # pandas rounds to 10 digits
EXCEL = (str, int, float, date, time, timedelta, Decimal, type(None))  # what a cell can hold


def labels_table(
    labels: np.ndarray,
    confidence: np.ndarray,
    others: DataFrame | None = None,
    names: Sequence[str] | None = None,
) -> DataFrame:
    """Row (from 1), cluster (from 0; -1 for none) and confidence, with other columns between.

    Args:
        labels: The cluster of each row.
        confidence: How sure that is.
        others: Columns of the table that go along; those called like ours get another name.
        names: What the cluster of each row is called, if clusters have names.
    """
    from pandas import DataFrame

    columns: dict[str, Any] = {"row": np.arange(1, len(labels) + 1)}
    for i, name in enumerate([] if others is None else others.columns):
        assert others is not None
        columns[_free_name(str(name), {*columns, *OURS})] = others.iloc[:, i]
    columns |= {"cluster": labels, "confidence": confidence.round(6)}
    if names is not None:
        columns["name"] = list(names)
    return DataFrame({name: np.asarray(values) for name, values in columns.items()})


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"{name} (input)"
    return name


def labels_file(frame: DataFrame, format: str) -> bytes:
    """A table as a file.

    Args:
        frame: See `labels_table`.
        format: One of `FORMATS`.
    """
    if format == "csv":
        return frame.to_csv(index=False).encode()
    if format == "json":
        return (str(frame.to_json(orient="records", **JSON)) + "\n").encode()
    if format == "jsonl":
        return str(frame.to_json(orient="records", lines=True, **JSON)).encode()
    try:
        return _excel(frame) if format == "xlsx" else _arrow(frame, format)
    except ImportError:
        needed = FORMATS[format]
        raise ValueError(
            f"--format {format} needs {needed}: pip install {needed}, or use --format csv"
        ) from None


def _arrow(frame: DataFrame, format: str) -> bytes:
    """Columns of several types become text, since these files have one type a column."""
    frame = frame.infer_objects()
    mixed = [name for name in frame.columns if frame[name].dtype == object]
    frame = frame.astype(dict.fromkeys(mixed, "string"))
    buffer = io.BytesIO()
    if format == "parquet":
        frame.to_parquet(buffer, index=False)
    else:
        frame.to_feather(buffer)
    return buffer.getvalue()


def _excel(frame: DataFrame) -> bytes:
    """Text stays text: a cell that begins with an equals sign must not become a formula."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("labels")

    def cell(value: Any) -> Any:
        if is_gap(value):
            return None
        if not isinstance(value, EXCEL) or getattr(value, "tzinfo", None) is not None:
            value = str(value)  # lists, and times of a zone, have no place in a sheet
        if not isinstance(value, str):
            return value
        made = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("", value))
        made.data_type = "s"
        return made

    sheet.append([cell(str(name)) for name in frame.columns])
    for row in frame.astype(object).itertuples(index=False):
        sheet.append([cell(value) for value in row])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def samples_file(
    posterior: Mapping[str, np.ndarray], index: np.ndarray, samples: np.ndarray
) -> bytes:
    """An NPZ file that `ncp.Partitions.load` reads, too.

    Args:
        posterior: Arrays of the distinct samples of the rows that were clustered at once.
        index: Which rows these are, from 0.
        samples: Complete samples of all rows, one a line.
    """
    arrays = {**posterior, "labels": posterior["labels"].astype(np.int16)}
    arrays |= {"index": index, "samples": samples}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def summary_file(summary: Mapping[str, Any]) -> bytes:
    """JSON that people can read as well."""
    return (json.dumps(summary, indent=2) + "\n").encode()
