"""The compiled loops of `ncp.network.links`; imported where needed: numba is slow to import.

Arrays are filled by loops: `np.full`, `np.arange` and the like take as long to compile as these do.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import INSIDE, njit

__all__ = ["steps_from", "ways"]

Floats = NDArray[Any]
Whole = NDArray[Any]


@njit(**INSIDE)
def _columns(x: Floats) -> Floats:
    """The transpose, as an array of its own."""
    columns = np.empty((x.shape[1], x.shape[0]))
    for d in range(x.shape[1]):
        for j in range(x.shape[0]):
            columns[d, j] = x[j, d]
    return columns


@njit(**INSIDE)
def _squares(columns: Floats, n: int, point: Floats, out: Floats) -> None:
    """|x_j - point|^2 of the first n points, whose coordinates are rows."""
    for j in range(n):
        out[j] = 0.0
    for d in range(len(columns)):
        column, value = columns[d], point[d]
        for j in range(n):
            out[j] += (column[j] - value) * (column[j] - value)


@njit(**INSIDE)
def _smallest(values: Floats, n: int, best: Floats) -> None:
    """The smallest of the first n values, in order."""
    k = len(best)
    for place in range(k):
        best[place] = np.inf
    for j in range(n):
        if values[j] < best[k - 1]:
            place = k - 1
            while place > 0 and best[place - 1] > values[j]:
                best[place] = best[place - 1]
                place -= 1
            best[place] = values[j]


@njit
def ways(x: Floats, neighbours: Whole, least: float) -> tuple[Floats, Floats]:
    """Squared gaps (B, m, N, N) and squared distances to the m-th neighbours (B, m, N).

    Args:
        x: data sets (B, N, D).
        neighbours: the values of m, the largest last.
        least: the least squared distance to a neighbour.
    """
    n_datasets, n = x.shape[:2]
    gaps = np.empty((n_datasets, len(neighbours), n, n))
    core = np.empty((n_datasets, len(neighbours), n))
    d2, best = np.empty(n), np.empty(neighbours[-1] + 1)
    for b in range(n_datasets):
        columns = _columns(x[b])
        for i in range(n):
            _squares(columns, n, x[b, i], d2)
            _smallest(d2, n, best)
            for k in range(len(neighbours)):  # the first is the point itself
                core[b, k, i] = max(best[min(neighbours[k], n - 1)], least)
        for k in range(len(neighbours)):
            _prim(columns, x[b], n, core[b, k], gaps[b, k], d2)
    return gaps, core


@njit(**INSIDE)
def _prim(columns: Floats, x: Floats, n: int, core: Floats, gaps: Floats, d2: Floats) -> None:
    """Grow a minimum spanning tree from the first point; gaps of those in it are known."""
    nearest, parent = np.empty(n), np.empty(n, dtype=np.int64)
    waiting, inside = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for j in range(n):  # the first point does not wait
        nearest[j], parent[j], waiting[j] = np.inf, 0, j + 1
    n_waiting, n_inside, new = n - 1, 0, 0
    while True:
        for t in range(n_inside):
            other = inside[t]
            gap = max(nearest[new], gaps[parent[new], other])
            gaps[new, other] = gap
            gaps[other, new] = gap
        gaps[new, new] = core[new]
        inside[n_inside] = new
        n_inside += 1
        if n_waiting == 0:
            return
        _squares(columns, n, x[new], d2)
        at, least = 0, np.inf
        for t in range(n_waiting):
            j = waiting[t]
            step = max(d2[j], max(core[new], core[j]))
            if step < nearest[j]:
                nearest[j] = step
                parent[j] = new
            if nearest[j] < least:
                at, least = t, nearest[j]
        new = waiting[at]
        n_waiting -= 1
        waiting[at] = waiting[n_waiting]


@njit
def steps_from(
    new: Floats, x: Floats, core: Floats, neighbours: Whole, least: float
) -> tuple[Whole, Floats, Floats]:
    """The best first step of new points (M, D), for each m: to which point, how far, and c^2."""
    n, columns = len(x), _columns(x)
    shape = (len(new), len(neighbours))
    first, step, own = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf), np.empty(shape)
    d2, best = np.empty(n), np.empty(neighbours[-1])
    for i in range(len(new)):
        _squares(columns, n, new[i], d2)
        _smallest(d2, n, best)
        for k in range(len(neighbours)):
            own[i, k] = max(best[min(neighbours[k], n) - 1], least)
            for j in range(n):
                far = max(d2[j], max(own[i, k], core[k, j]))
                if far < step[i, k]:
                    first[i, k], step[i, k] = j, far
    return first, step, own
