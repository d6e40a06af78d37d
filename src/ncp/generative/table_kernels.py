"""The compiled loops behind tables: nearest rows, and centres that keep apart.

The module is imported inside the functions that need it, because numba is slow to import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import njit

__all__ = ["keep_apart", "nearest"]

FloatArray = NDArray[Any]
IntArray = NDArray[Any]


@njit
def nearest(y: FloatArray, among: FloatArray, k: int, same: bool) -> tuple[IntArray, FloatArray]:
    """Index and distance (M, k) of the k rows of `among` that are nearest to every row of `y`.

    Brute force, with the k best kept in order: for a thousand rows of eight numbers four times
    faster than a tree. With `same` the two are one table and no row is its own neighbour.
    """
    n_rows, n_axes = y.shape
    n_among = among.shape[0]
    columns = np.ascontiguousarray(among.T)
    index = np.zeros((n_rows, k), dtype=np.int64)
    distance = np.full((n_rows, k), np.inf)
    d2 = np.empty(n_among)
    for i in range(n_rows):
        d2[:] = 0.0
        for j in range(n_axes):
            column = columns[j]
            value = y[i, j]
            for m in range(n_among):
                d2[m] += (column[m] - value) * (column[m] - value)
        if same:
            d2[i] = np.inf
        best, where = distance[i], index[i]
        for m in range(n_among):
            if d2[m] < best[k - 1]:
                place = k - 1
                while place > 0 and best[place - 1] > d2[m]:
                    best[place] = best[place - 1]
                    where[place] = where[place - 1]
                    place -= 1
                best[place] = d2[m]
                where[place] = m
    return index, np.sqrt(distance)


@njit
def keep_apart(candidates: FloatArray, size: FloatArray) -> FloatArray:
    """Choose one of m candidates (K, m, q) for every centre: the one farthest from those before.

    Distances are in units of the sum of the two clusters' sizes (K,).
    """
    n_centres, n_candidates, dim = candidates.shape
    chosen = np.empty((n_centres, dim))
    for k in range(n_centres):
        best, farthest = 0, -1.0
        for m in range(n_candidates):
            gap = np.inf
            for other in range(k):
                d2 = 0.0
                for j in range(dim):
                    d2 += (candidates[k, m, j] - chosen[other, j]) ** 2
                reach = size[k] + size[other]
                gap = min(gap, d2 / (reach * reach))
            if gap > farthest:
                best, farthest = m, gap
        chosen[k] = candidates[k, best]
    return chosen
