"""The kernels of `ncp.network.attention.Kernels`, compiled: on the CPU, of points without gradient.

Where weights have no gradients either, a row of the kernels is made, weighted and forgotten, so
they never go to memory: several times as fast as the same by torch. Imported where needed: numba is
slow to import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import FAST, INSIDE, exp_minus, njit

__all__ = ["kernel_bias", "kernel_sums", "kernel_values"]

Floats = NDArray[Any]

FAR = 1e8  # as in `ncp.network.attention`


@njit(**FAST, **INSIDE)
def _fall(values: Floats, rate: float, factor: float, out: Floats) -> None:
    """exp(-rate value), and at rates `factor` times as large from row to row.

    Every third is an exponential; those between are fourth powers of their neighbours, of the one
    before where rates grow, of the one after where they fall.
    """
    n_rates = len(out)
    for i in range(n_rates):
        k = i if factor > 1 else n_rates - 1 - i  # from the slowest to the fastest
        if i % 3 == 0:
            r = out.dtype.type(rate * factor**k)
            for j in range(len(values)):
                out[k, j] = exp_minus(r * values[j])
        else:
            before = k - 1 if factor > 1 else k + 1
            for j in range(len(values)):
                squared = out[before, j] * out[before, j]
                out[k, j] = squared * squared


@njit(**FAST, **INSIDE)
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


@njit(**FAST)
def kernel_bias(
    of: Floats,
    columns: Floats,
    ratios: Floats,
    octaves: int,
    squares: Floats,
    channels: Floats,
    weight: Floats,
    weighted: Floats,
    out: Floats,
) -> None:
    """The weighted sum of the kernels for each head.

    Args:
        of: points, `(B, M, D)`.
        columns: those that they see, `(B, D, N)`.
        ratios: of `Links`, `(B, m, M N)`; of none, m is 0.
        octaves: of distances.
        squares, channels: room for some rows of pairs, `(pairs,)` and `(channels, pairs)`.
        weight: `(heads, channels)`.
        weighted: room for their product, `(heads, pairs)`.
        out: to be filled, `(B, heads, M N)`.
    """
    n_rows, n = of.shape[1], columns.shape[2]
    step = len(squares) // n
    for b in range(len(of)):
        for i in range(0, n_rows, step):
            end = min(i + step, n_rows)
            _channels(of[b, i:end], columns[b], ratios[b], i * n, octaves, squares, channels)
            np.dot(weight, channels, weighted)
            for h in range(len(weight)):
                for j in range((end - i) * n):
                    out[b, h, i * n + j] = weighted[h, j]


@njit(**FAST)
def kernel_sums(
    of: Floats,
    columns: Floats,
    ratios: Floats,
    octaves: int,
    squares: Floats,
    channels: Floats,
    out: Floats,
) -> None:
    """The sum of each kernel over the N points, `(B, M, channels)`; arguments as above."""
    n_rows, n = of.shape[1], columns.shape[2]
    step = len(squares) // n
    for b in range(len(of)):
        for i in range(0, n_rows, step):
            end = min(i + step, n_rows)
            _channels(of[b, i:end], columns[b], ratios[b], i * n, octaves, squares, channels)
            for row in range(end - i):
                for c in range(len(channels)):
                    total = 0.0
                    for j in range(row * n, row * n + n):
                        total += channels[c, j]
                    out[b, i + row, c] = total


@njit(**FAST)
def kernel_values(
    of: Floats,
    columns: Floats,
    ratios: Floats,
    octaves: int,
    squares: Floats,
    channels: Floats,
    out: Floats,
) -> None:
    """The kernels themselves, `(B, channels, M N)`; arguments as above."""
    n_rows, n = of.shape[1], columns.shape[2]
    step = len(squares) // n
    for b in range(len(of)):
        for i in range(0, n_rows, step):
            end = min(i + step, n_rows)
            _channels(of[b, i:end], columns[b], ratios[b], i * n, octaves, squares, channels)
            for c in range(len(channels)):
                for j in range((end - i) * n):
                    out[b, c, i * n + j] = channels[c, j]
