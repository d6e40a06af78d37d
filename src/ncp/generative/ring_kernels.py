"""The compiled loop behind `ncp.generative.ring`: marginal likelihoods of few points.

The module is imported inside the function that needs it, because numba is slow to import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import njit

__all__ = ["subset_sums"]

FloatArray = NDArray[Any]
IntArray = NDArray[Any]


@njit
def _add_sets(
    density: FloatArray,
    other: IntArray,
    step: IntArray,
    product: FloatArray,
    bits: IntArray,
    out: FloatArray,
) -> None:
    """Add to `out` the sums over radii of all sets of the first point and some of the others."""
    n_done = 1
    for t in range(len(other)):
        row = density[step[t]]
        for s in range(n_done):
            total = 0.0
            for r in range(len(row)):
                product[n_done + s, r] = product[s, r] * row[r]
                total += product[n_done + s, r]
            bits[n_done + s] = bits[s] | 1 << other[t]
            out[bits[n_done + s]] += total
        n_done *= 2


@njit
def subset_sums(
    x: FloatArray,
    n_points: IntArray,
    prior_sd: float,
    edge: float,
    near: float,
    density: FloatArray,
    per_unit: float,
) -> FloatArray:
    """sum exp(-|centre|^2 / 2 prior_sd^2) prod_{i in S} p(x_i | centre, radius), (B, 2^N).

    S is every set of points of a data set, point i its bit i; the sum is over some radii and the
    centres of a square grid that is laid about the first point of S.

    Args:
        x: of shape (B, N, 2).
        n_points: how many of the N are points, of shape (B,).
        prior_sd: of the centres.
        edge: of the grid.
        near: two points whose distances from a centre differ by more have no ring in common.
        density: p(x | ring) of each radius at equal steps of the distance from the centre, from 0
            to where it is negligible, of shape (D, R).
        per_unit: these steps in a unit of length.
    """
    n_sets, most, _ = x.shape
    n_steps, n_radii = density.shape
    half = int(n_steps / (per_unit * edge))
    mass = density.sum(axis=1)
    out = np.zeros((n_sets, 1 << most))
    product = np.empty((1 << (most - 1), n_radii))  # of a set of others with the first point
    bits = np.empty(1 << (most - 1), dtype=np.int64)
    other, step = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    for b in range(n_sets):
        for i in range(n_points[b]):
            bits[0] = 1 << i
            for across in range(-half, half + 1):
                u = x[b, i, 0] + edge * across
                prior_u = np.exp(-0.5 * (u / prior_sd) ** 2)
                for up in range(-half, half + 1):
                    distance = edge * np.sqrt(float(across * across + up * up))
                    own = int(distance * per_unit + 0.5)
                    if own >= n_steps:
                        continue
                    v = x[b, i, 1] + edge * up
                    prior = prior_u * np.exp(-0.5 * (v / prior_sd) ** 2)
                    out[b, bits[0]] += prior * mass[own]
                    n_others = 0
                    for j in range(i + 1, n_points[b]):
                        du, dv = x[b, j, 0] - u, x[b, j, 1] - v
                        theirs = np.sqrt(du * du + dv * dv)
                        if abs(theirs - distance) < near and theirs * per_unit + 0.5 < n_steps:
                            other[n_others], step[n_others] = j, int(theirs * per_unit + 0.5)
                            n_others += 1
                    if n_others == 0:
                        continue
                    product[0] = prior * density[own]
                    _add_sets(density, other[:n_others], step[:n_others], product, bits, out[b])
    return out
