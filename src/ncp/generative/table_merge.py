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
    while that exceeds `limit`, or while S_kk or S_ll is below 1 - 2 limit (a cluster among many may
    be confused with none in particular, and yet be lost). Two equal Gaussian clusters at a
    distance of 2, 3, 4 standard deviations have about 0.22, 0.10, 0.03: those whose mixture has
    two modes keep their labels. A cluster of one point stays when it lies far off.

    Args:
        labels: (N,) integers.
        neighbours: index and distance (N, k) of every point's nearest points.
        limit: between 0 (merge all that touch) and 1 (merge nothing).
    """
    index, distance = neighbours
    c = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    n_clusters = int(c.max()) + 1
    if n_clusters == 1 or index.shape[1] == 0:
        return c
    shared = _shared(c, n_clusters, index, distance)
    target = np.arange(n_clusters)
    while True:
        own = np.diag(shared)
        ratio = shared / np.maximum(shared + own[:, None], 1e-12)
        ratio = (ratio + ratio.T) / 2.0
        np.fill_diagonal(ratio, 0.0)
        lost = own < (1.0 - 2.0 * limit) * shared.sum(1)
        k_from, k_to = divmod(int((ratio + lost[:, None]).argmax()), n_clusters)
        if ratio[k_from, k_to] <= limit and not lost[k_from]:
            return np.unique(target[c], return_inverse=True)[1].astype(np.int64)
        target[target == k_from] = k_to
        shared[k_to] += shared[k_from]
        shared[:, k_to] += shared[:, k_from]
        shared[k_from] = 0.0
        shared[:, k_from] = 0.0


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
