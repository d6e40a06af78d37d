"""A posterior as a table: rows of labels ``c_u`` with weights ``w_u``.

Everything in `ncp.summary` is an expectation, a minimiser or a quantile under such a table. Labels
are any integers; here they become canonical (in order of appearance), weights sum to one, and equal
partitions become one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike

__all__ = ["Labels", "Obeys", "Weights", "as_row", "as_rows", "merge_rows", "weighted_rows"]

Labels: TypeAlias = Int64[np.ndarray, "rows points"]
Weights: TypeAlias = Float64[np.ndarray, " rows"]
Obeys: TypeAlias = Callable[[Labels], Bool[np.ndarray, " rows"]]  # which partitions are allowed


def as_rows(labels: ArrayLike) -> Labels:
    """Canonical rows of any integer labels."""
    from ncp.summary.kernels import canonical_rows

    rows = np.asarray(labels)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"Expected labels of shape (rows, points) but got {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise ValueError(f"Expected integer labels but got {rows.dtype}")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= rows.size:
        rows = np.unique(rows, return_inverse=True)[1].reshape(rows.shape)
        high = int(rows.max())
    return np.asarray(canonical_rows(np.ascontiguousarray(rows, dtype=np.int64), high + 1))


def as_row(labels: ArrayLike, n_points: int | None = None) -> Int64[np.ndarray, " points"]:
    row = np.asarray(labels)
    if row.ndim != 1 or len(row) != (n_points or len(row)):
        expected = "labels of shape (points,)" if n_points is None else f"{n_points} labels"
        raise ValueError(f"Expected {expected} but got shape {row.shape}")
    return np.asarray(as_rows(row[None])[0])


def as_weights(weights: ArrayLike | None, n_rows: int) -> Weights:
    """Normalised weights; equal ones when none are given."""
    if weights is None:
        return np.full(n_rows, 1.0 / n_rows)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n_rows,):
        raise ValueError(f"Expected {n_rows} weights, one for each row, but got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0) or not array.sum() > 0:
        raise ValueError("Expected weights that are finite, not negative and not all zero")
    return np.asarray(array / array.sum())


def weighted_rows(labels: ArrayLike, weights: ArrayLike | None) -> tuple[Labels, Weights]:
    """Canonical rows and their normalised weights."""
    rows = as_rows(labels)
    return rows, as_weights(weights, len(rows))


def merge_rows(labels: ArrayLike, weights: ArrayLike | None = None) -> tuple[Labels, Weights]:
    """Distinct partitions, heaviest first, with the summed weights of their rows.

    A partition drawn in two orders of the points is two rows of a sampler's result; here it
    becomes one. Rows of weight zero are left out.

    Example:
        >>> labels, weights = merge_rows([[0, 0, 1], [0, 1, 1], [5, 5, 2]])
        >>> labels.tolist(), weights.round(3).tolist()
        ([[0, 0, 1], [0, 1, 1]], [0.667, 0.333])
    """
    rows, w = weighted_rows(labels, weights)
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    mass = np.bincount(inverse.ravel(), weights=w)
    order = np.lexsort((first, -mass))
    order = order[mass[order] > 0]
    return rows[first[order]], mass[order]
