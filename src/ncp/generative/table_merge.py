"""Clusters nobody could tell apart get one label, so that the network splits no more than that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["merge_confused"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def merge_confused(labels: Labels, neighbours: tuple[Labels, Array], limit: float) -> Labels:
    """Give one label to clusters whose points are each other's neighbours.

    With S_kl the share of neighbours of cluster k's points that lie in cluster l, the pair with
    the largest mean of S_kl / (S_kl + S_kk) and S_lk / (S_lk + S_ll) is merged, again and again,
    while that exceeds `limit`, or while S_kk is below 1 - 1.6 limit: a cluster among many may be
    confused with none in particular, and yet be lost. Two equal Gaussian clusters at a distance
    of 2, 3, 4 standard deviations have about 0.22, 0.10, 0.03, so that those whose mixture has two
    modes keep their labels. A cluster of one point stays when it lies far off.

    Args:
        labels: (N,) integers.
        neighbours: index and distance (N, k) of every point's nearest points.
        limit: between 0 (merge all that touch) and 1 (merge nothing).
    """
    index, distance = neighbours
    c = _compact(labels)
    n_clusters = int(c.max()) + 1
    if n_clusters == 1 or index.shape[1] == 0:
        return c
    from ncp.generative.table_kernels import merge

    return _compact(merge(_shared(c, n_clusters, index, distance), limit)[c])


def _compact(labels: Labels) -> Labels:
    """Labels without gaps, in the same order."""
    used = np.bincount(labels) > 0
    return np.asarray((np.cumsum(used) - 1)[labels])


def _shared(c: Labels, n_clusters: int, index: Labels, distance: Array) -> Array:
    """How many neighbours, in units of rows, the points of cluster k have in cluster l (K, K)."""
    k = index.shape[1]
    size = np.bincount(c)
    reach = np.clip(size // 2, 1, k)[c]  # a cluster's points cannot all be near
    weight = (np.arange(k) < reach[:, None]) / reach[:, None]
    flat = (c[:, None] * n_clusters + c[index]).ravel()
    counts = np.bincount(flat, weights=weight.ravel(), minlength=n_clusters**2)
    shared: Array = counts.reshape(n_clusters, n_clusters).astype(np.float64)
    if (size == 1).any():
        far = distance[:, 0] > 3.0 * np.quantile(distance[:, 0], 0.9)
        alone = np.bincount(c, weights=far) * (size == 1) > 0
        shared[alone] = 0.0
        shared[alone, alone] = 1.0
    return shared
