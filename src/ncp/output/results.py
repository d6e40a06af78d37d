"""The files of a result: labels, samples, summary. Plain values in, bytes out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FORMATS", "labels_file", "samples_file", "summary_file"]

FORMATS = ("csv", "parquet", "json")


def labels_file(frame: DataFrame, format: str) -> bytes:
    """A table with a line for each row, as CSV, Parquet or JSON.

    Args:
        frame: Its columns `cluster` and `confidence`, and any others.
        format: One of `FORMATS`.
    """
    frame = frame.assign(confidence=frame["confidence"].round(6))
    if "row" not in frame:
        frame.insert(0, "row", np.arange(1, len(frame) + 1))
    if format == "csv":
        return frame.to_csv(index=False).encode()
    if format == "json":
        return (str(frame.to_json(orient="records")) + "\n").encode()
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer, index=False)
    except ImportError:
        raise ValueError(
            "--format parquet needs pyarrow: pip install pyarrow, or use --format csv"
        ) from None
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
