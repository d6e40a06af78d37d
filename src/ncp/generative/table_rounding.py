"""Rounded numbers, spread over what they stand for.

A column of few different numbers u_1 < u_2 < ... (ages, ratings, lengths to a tenth) has a gap
after each, which a density takes for the edge of a cluster. The rows that share u_i are therefore
laid out evenly, in random order, over the cell

    u_i + w_i (-1/2, 1/2),     w_i = min(u_i - u_{i-1}, u_{i+1} - u_i, 2 m),

with m the median gap: of numbers rounded to a step this is what they were rounded from, and gaps
wider than usual stay. Columns of two numbers, and those of which one number has half of the rows,
are left as they are: switches, and counts that are mostly zero.

The order within a cell is drawn for each column from which of its rows are equal, so nothing
depends on order, unit and sign of the columns.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["oriented_key", "unrounded"]

Array = NDArray[np.float64]
OFTEN = 3.0  # rows of a number, on average, from which a column is rounded
HALF = 0.5  # share of the rows of one number, beyond which it is no column of measurements


def unrounded(x: Array, categorical: NDArray[np.bool_] | None = None) -> Array:
    """A table (N, P) with rounded numbers spread; NaN for missing.

    Args:
        x: the table.
        categorical: which columns (P,) hold codes of categories, which stay as they are.

    Example:
        >>> x = np.repeat([[1.0], [2.0], [3.0]], 4, axis=0)
        >>> np.sort(unrounded(x)[:, 0])[:4]
        array([0.625, 0.875, 1.125, 1.375])
    """
    out = np.array(x, dtype=np.float64)
    for j in range(out.shape[1]):
        if categorical is None or not categorical[j]:
            rows = np.flatnonzero(~np.isnan(out[:, j]))
            out[rows, j] = _spread(out[rows, j])
    return out


def _spread(column: Array) -> Array:
    values, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
    if len(values) < 3 or len(column) < OFTEN * len(values) or counts.max() > HALF * len(column):
        return column
    gap = np.diff(values)
    width = np.minimum(np.append(gap, np.inf), np.insert(gap, 0, np.inf))
    width = np.minimum(width, 2.0 * np.median(gap))
    if not width.min() > 1e-9 * np.abs(values).max():
        return column  # differences of rounding, not of measuring
    sign, key = oriented_key(codes)
    rng = np.random.default_rng(key)
    order = np.lexsort((rng.random(len(codes)), codes))
    of = codes[order]
    place = np.arange(len(codes)) - (np.cumsum(counts) - counts)[of]
    offset = np.empty(len(codes))
    offset[order] = (place + 0.5) / counts[of] - 0.5
    return np.asarray(column + sign * width[codes] * offset)


def oriented_key(codes: NDArray[np.int64]) -> tuple[float, int]:
    """A number that belongs to a column whatever its unit and sign, and the sign that it is for.

    Args:
        codes: which of the different values 0, 1, ... in increasing order each row has.

    Example:
        >>> codes = np.array([0, 2, 1])
        >>> oriented_key(codes)[1] == oriented_key(2 - codes)[1]
        True
    """
    both = ((1.0, codes.tobytes()), (-1.0, (codes.max(initial=0) - codes).tobytes()))
    sign, least = min(both, key=lambda one: one[1])
    return sign, zlib.crc32(least)
