"""The kernels of `ncp.network.attention.Kernels`, compiled: without gradients, on the CPU.

A row of the kernels is made, weighted and forgotten, so they never go to memory: several times as
fast as the same by torch. Imported where needed: numba is slow to import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import exp_minus, njit

__all__ = ["kernel_bias", "kernel_sums"]

Floats = NDArray[Any]

PAIRS = 2048  # of points at a time: their kernels stay in the cache
FAR = 1e8  # as in `ncp.network.attention`
_fast = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@njit(**_fast)
def _fall(values: Floats, rate: float, factor: float, out: Floats) -> None:
    """exp(-rate value), and at rates `factor` times as large from row to row.

    Every third is an exponential; those between are fourth powers of their neighbours, of the one
    before where rates grow, of the one after where they fall.
    """
    n_rates = len(out)
    for i in range(n_rates):
        k = i if factor > 1 else n_rates - 1 - i  # from the slowest to the fastest
        if i % 3 == 0:
            r = rate * factor**k
            for j in range(len(values)):
                out[k, j] = exp_minus(r * values[j])
        else:
            before = k - 1 if factor > 1 else k + 1
            for j in range(len(values)):
                squared = out[before, j] * out[before, j]
                out[k, j] = squared * squared


@njit(**_fast)
def _channels(
    points: Floats,
    columns: Floats,
    ratios: Floats,
    first: int,
    octaves: int,
    squares: Floats,
    out: Floats,
) -> None:
    """The kernels of a few points and the N points whose coordinates are columns.

    A pair (i, j) goes to column i N + j of `out`; its ratios are in column `first` + i N + j.
    """
    n, n_pairs = columns.shape[1], len(points) * columns.shape[1]
    for i in range(len(points)):
        for j in range(n):
            squares[i * n + j] = 0.0
        for d in range(len(columns)):
            at = points[i, d]
            for j in range(n):
                squares[i * n + j] += (columns[d, j] - at) * (columns[d, j] - at)
    for j in range(n_pairs):
        squares[j] = min(squares[j], FAR)
    _fall(squares[:n_pairs], 1 / 8, 4.0, out[:octaves])
    if len(ratios) > 0:
        each = (len(out) - octaves) // len(ratios)
        for m in range(len(ratios)):
            at_m = octaves + m * each
            _fall(ratios[m, first : first + n_pairs], 1 / 2, 1 / 4, out[at_m : at_m + each])


@njit(**_fast)
def kernel_bias(
    of: Floats, columns: Floats, ratios: Floats, octaves: int, weight: Floats, out: Floats
) -> None:
    """The weighted sum of the kernels for each head.

    Args:
        of: points, `(B, M, D)`.
        columns: those that they see, `(B, D, N)`.
        ratios: of `Links`, `(B, m, M N)`; of none, m is 0.
        octaves: of distances.
        weight: `(heads, channels)`.
        out: to be filled, `(B, heads, M, N)`.
    """
    n_rows, n = of.shape[1], columns.shape[2]
    step = max(1, min(n_rows, PAIRS // n))
    channels = np.zeros((weight.shape[1], step * n), of.dtype)
    squares = np.empty(step * n, of.dtype)
    weighted = np.empty((len(weight), step * n), of.dtype)
    for b in range(len(of)):
        for i in range(0, n_rows, step):
            end = min(i + step, n_rows)
            _channels(of[b, i:end], columns[b], ratios[b], i * n, octaves, squares, channels)
            np.dot(weight, channels, weighted)
            for h in range(len(weight)):
                out[b, h, i:end] = weighted[h, : (end - i) * n].reshape(end - i, n)


@njit(**_fast)
def kernel_sums(of: Floats, columns: Floats, ratios: Floats, octaves: int, out: Floats) -> None:
    """The sum of each kernel over the N points, `(B, M, channels)`; arguments as above."""
    n_channels, n = out.shape[2], columns.shape[2]
    channels = np.empty((n_channels, n), of.dtype)
    squares = np.empty(n, of.dtype)
    for b in range(len(of)):
        for i in range(of.shape[1]):
            one = of[b, i : i + 1]
            _channels(one, columns[b], ratios[b], i * n, octaves, squares, channels)
            for c in range(n_channels):
                total = 0.0
                for j in range(n):
                    total += channels[c, j]
                out[b, i, c] = total
