"""Clusters that are clouds: ellipsoids seen through a noise that need not be Gaussian.

`draw_latents` gives every cluster a mean, a size, a shape and an orientation of its own,

    z_n = m_k + L_k^T e_n,        k = c_n,

with e_n Gaussian, heavy-tailed, skewed, uniform, bent, hollow or a few overlapping parts. The means
are scaled so that the typical cluster lies `separation` away from its nearest neighbour, in units
of the pooled spread. `draw_blobs` has many round or slightly elliptical clusters in few dimensions
whose centres keep apart, stand on a grid, on a ring or along a wave: what benchmarks of many
clusters look like. `draw_cloud` is one cluster without any structure, whatever its form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["draw_blobs", "draw_cloud", "draw_latents"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def draw_blobs(c: Labels, dim: int, separation: tuple[float, float], rng: Generator) -> Array:
    """Places (N, q) of round clusters: centre + size x (shape) x noise.

    Args:
        c: labels (N,) in {0, ..., K - 1}.
        dim: q.
        separation: range of half the distance between a typical cluster and its nearest
            neighbour, in units of the clusters' standard deviation (log-uniform).
        rng: the source of randomness.
    """
    k = int(c.max()) + 1
    size = np.exp(rng.normal(0.0, rng.choice((0.0, 0.15, 0.4)), size=k))
    centre = _centres(k, dim, size, rng)
    if k > 1:
        # among many clusters, some are much closer than the typical ones
        low, high = np.log(separation)
        half = np.exp(rng.uniform(low + (0.3 if k > 8 else 0.0), high))
        d = np.linalg.norm(centre[:, None] - centre, axis=-1) / (size[:, None] + size)
        np.fill_diagonal(d, np.inf)
        centre = centre * (half / max(float(np.median(d.min(1))), 1e-9))
    e = _noise(c, k, dim, rng) if rng.random() < 0.3 else rng.standard_normal((c.size, dim))
    if rng.random() < 0.35 and dim > 1:
        e = np.einsum("nq,nqp->np", e, _ellipses(k, dim, rng)[c])
    return np.asarray(centre[c] + size[c, None] * e)


def _ellipses(k: int, dim: int, rng: Generator) -> Array:
    """Mild ellipses (K, q, q) of unit volume, each turned in its own way or all alike."""
    stretch = rng.normal(0.0, rng.uniform(0.1, 0.5), size=(k, dim))
    spread = np.exp(stretch - stretch.mean(1, keepdims=True))
    shape = (dim, dim) if rng.random() < 0.2 else (k, dim, dim)
    return np.asarray(spread[:, :, None] * np.linalg.qr(rng.standard_normal(shape))[0])


def _centres(k: int, dim: int, size: Array, rng: Generator) -> Array:
    """Unscaled centres (K, q): free, keeping apart, on a grid, on a ring, or along a wave."""
    from ncp.generative.table_kernels import keep_apart

    kind = rng.random()
    if kind < 0.2 and k > 3:
        side = int(np.ceil(k ** (1.0 / min(dim, 3))))
        cells = rng.permutation(side ** min(dim, 3))[:k] if rng.random() < 0.5 else np.arange(k)
        grid = np.zeros((k, dim))
        for j in range(min(dim, 3)):
            grid[:, j] = cells // side**j % side
        if dim > 1 and rng.random() < 0.3:
            grid[:, 0] += 0.5 * (grid[:, 1] % 2)
        return np.asarray(grid + rng.uniform(0.0, 0.25) * rng.standard_normal((k, dim)))
    if kind < 0.27 and dim > 1 and k > 2:
        angle = 2 * np.pi * np.arange(k) / k
        ring = np.zeros((k, dim))
        ring[:, 0], ring[:, 1] = np.cos(angle), np.sin(angle)
        ring[:, :2] *= 1.0 + (np.arange(k) % 2)[:, None] * rng.choice((0.0, 0.0, 0.6))
        return ring
    if kind < 0.32 and dim > 1 and k > 4:
        return _along_a_wave(k, dim, rng)
    tries = (3, 8, 20, 40)[rng.integers(4)] if k > 8 else (1, 3, 8, 20)[rng.integers(4)]
    if kind < 0.4:
        return keep_apart(rng.standard_normal((k, tries, dim)), size)
    reach = np.exp(rng.normal(0.0, 0.4, size=dim))
    return keep_apart(reach * rng.uniform(-1.0, 1.0, size=(k, tries, dim)), size)


def _along_a_wave(k: int, dim: int, rng: Generator) -> Array:
    """Centres (K, q) one after the other along a sine curve."""
    t = np.arange(k) + 0.2 * rng.standard_normal(k)
    centre = np.zeros((k, dim))
    centre[:, 0] = t
    height = k * rng.uniform(0.0, 0.4)
    centre[:, 1] = height * np.sin(t / k * rng.uniform(1.0, 14.0) + rng.uniform(0.0, 6.3))
    return centre


def draw_cloud(n_points: int, dim: int, rng: Generator) -> Array:
    """One cloud (N, q) with a density that falls from one place, or is even: one cluster."""
    e = rng.standard_normal((n_points, dim))
    if dim > 1 and n_points > 2 and rng.random() < 0.4:  # correlated, before or after what follows
        e = e @ np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        e = (e * np.exp(rng.normal(0.0, 0.6, size=dim))) @ rng.standard_normal((dim, dim))
        e = e / np.maximum(e.std(0), 1e-3)
    z = _density(e, rng)
    if dim > 1 and rng.random() < 0.25:
        z = z @ (np.eye(dim) + rng.uniform(0.2, 1.0) * rng.standard_normal((dim, dim)))
    return np.asarray(z)


def _density(e: Array, rng: Generator) -> Array:
    """Of normal numbers (N, q), those of some other density."""
    kind = rng.random()
    if kind < 0.35:  # log-normal in every column
        return np.asarray(np.exp(rng.uniform(0.3, 1.4) * rng.uniform(0.7, 1.3, e.shape[1]) * e))
    if kind < 0.55:
        return rng.random(e.shape)
    if kind < 0.65:
        return rng.gamma(np.exp(rng.uniform(-0.3, 2.0)), size=e.shape)
    if kind < 0.75:
        return _ball(e, rng)
    return _heavy(e, rng) if kind < 0.85 else e


def draw_latents(
    c: Labels, dim: int, separation: tuple[float, float], composite: float, rng: Generator
) -> Array:
    """Latent coordinates (N, q): mean of the cluster + factor of the cluster @ noise."""
    n_clusters = int(c.max()) + 1
    part, owner, offsets = _sub_clusters(composite, c, dim, rng)
    factors = _factors(n_clusters, dim, rng)  # (K, q, q), rows are axes times their sd
    means = _means(separation, factors, rng)  # (K, q)
    noise = _noise(part, owner.size, dim, rng) + offsets[part]
    out: Array = means[c] + np.einsum("nq,nqp->np", noise, factors[c])
    return out


def _sub_clusters(
    composite: float, c: Labels, dim: int, rng: Generator
) -> tuple[Labels, Labels, Array]:
    """Split clusters into overlapping parts that keep one label.

    Returns the part of every row (N,), the cluster of every part (M,), and the offset of
    every part (M, q) in units of the cluster's own spread.
    """
    n_clusters = int(c.max()) + 1
    parts = np.ones(n_clusters, dtype=np.int64)
    if rng.random() < composite:
        parts = rng.integers(1, 5, size=n_clusters)
    owner = np.repeat(np.arange(n_clusters), parts)
    first = np.cumsum(parts) - parts
    part = first[c] + np.floor(rng.random(c.size) ** 1.5 * parts[c]).astype(np.int64)
    reach = rng.uniform(0.3, 0.8)  # parts that stood out would be clusters
    offsets = reach * rng.standard_normal((owner.size, dim)) * (parts[owner] > 1)[:, None]
    return part, owner, offsets


def _factors(n_clusters: int, dim: int, rng: Generator) -> Array:
    """Square roots of the covariances (K, q, q): partly shared shape, own size, own turn."""
    tied = rng.random() < 0.35
    shared = rng.normal(0.0, rng.uniform(0.0, 1.2), size=dim)  # one axis often dominates
    own = 0.0 if tied else rng.uniform(0.0, 0.5)
    log_sd = shared + own * rng.standard_normal((n_clusters, dim))
    size = np.exp(rng.normal(0.0, 0.0 if tied else rng.uniform(0.0, 0.7), size=n_clusters))
    spread = np.exp(log_sd - log_sd.mean(1, keepdims=True)) * size[:, None]
    turn = rng.random()
    if turn < 0.25 or dim == 1:
        return np.asarray(np.eye(dim) * spread[:, :, None])
    common = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    if turn < 0.5 or tied:
        return np.asarray(spread[:, :, None] * common)
    # between a common and a free orientation: neighbours in a table share their factors
    mix = rng.uniform(0.1, 2.0)
    own_turn = np.linalg.qr(common + mix * rng.standard_normal((n_clusters, dim, dim)))[0]
    return np.asarray(spread[:, :, None] * own_turn)


def _means(separation: tuple[float, float], factors: Array, rng: Generator) -> Array:
    """Means (K, q), scaled so that the median nearest neighbour is `separation` away."""
    n_clusters, dim, _ = factors.shape
    if n_clusters == 1:
        return np.zeros((1, dim))
    relevance = np.exp(rng.normal(0.0, 0.7, size=dim)) * (rng.random(dim) < rng.uniform(0.4, 1.0))
    relevance[rng.integers(dim)] += 1.0
    pooled = np.einsum("kij,kil->jl", factors, factors) / n_clusters  # mean covariance
    # units of the pooled spread, so that separation and shape are chosen independently
    root = np.linalg.cholesky(pooled + 1e-9 * np.trace(pooled) / dim * np.eye(dim))
    size = np.linalg.norm(factors, axis=(1, 2)) / np.linalg.norm(root)
    best, gap = _spread_layout(relevance, size, rng)
    low, high = np.log(separation)
    half_distance = np.exp(rng.uniform(low, high))
    return np.asarray(best / max(gap, 1e-9) * half_distance @ root.T)


def _spread_layout(relevance: Array, size: Array, rng: Generator) -> tuple[Array, float]:
    """The best of some layouts, and its median gap: more tries, more evenly spread clusters."""
    best, best_gap = np.zeros((len(size), len(relevance))), -1.0
    for _ in range(rng.integers(1, 6)):
        m = _layout(len(size), len(relevance), rng) * relevance
        d = np.linalg.norm(m[:, None] - m[None], axis=-1) / (size[:, None] + size[None])
        np.fill_diagonal(d, np.inf)
        gap = float(np.sort(d.min(1))[len(size) // 2])
        if gap > best_gap:
            best, best_gap = m, gap
    return best, best_gap


def _layout(n_clusters: int, dim: int, rng: Generator) -> Array:
    """Unscaled means: a cloud, clusters of clusters, or stages along a line."""
    kind = rng.random()
    m = rng.standard_normal((n_clusters, dim))
    if kind < 0.15 and n_clusters > 3:
        centres = 3.0 * rng.standard_normal((2 + n_clusters // 4, dim))
        m += centres[rng.integers(len(centres), size=n_clusters)]
    elif kind < 0.27:
        direction = rng.standard_normal(dim)
        steps = np.cumsum(rng.uniform(0.6, 1.6, size=n_clusters))
        m = 0.4 * m + steps[:, None] * direction / np.linalg.norm(direction)
    return m


def _noise(part: Labels, n_parts: int, dim: int, rng: Generator) -> Array:
    """Unit-scale noise (N, q): one family for the data set, or one for every part."""
    e: Array = rng.standard_normal((part.size, dim))
    if rng.random() < 0.75:
        return _FAMILIES[np.searchsorted(_FAMILY_SHARES, rng.random())](e, rng)
    row_kind = np.searchsorted(_FAMILY_SHARES, rng.random(n_parts))[part]
    for k in np.flatnonzero(np.bincount(row_kind)):
        rows = row_kind == k
        e[rows] = _FAMILIES[k](e[rows], rng)
    return e


def _gaussian(e: Array, rng: Generator) -> Array:
    return e


def _heavy(e: Array, rng: Generator) -> Array:
    dof = rng.uniform(2.5, 9.0)
    shared = rng.random() < 0.6  # elliptical tails, or tails along the axes
    g = rng.chisquare(dof, size=(len(e), 1) if shared else e.shape)
    return np.asarray(e * np.sqrt((dof - 2.0) / g) * 1.1)


def _skewed(e: Array, rng: Generator) -> Array:
    """Shifted log-normal along random axes, of either sign."""
    a = rng.uniform(0.2, 1.2, size=e.shape[1]) * (rng.random(e.shape[1]) < 0.7)
    a = np.maximum(a, 0.02) * rng.choice((-1.0, 1.0), size=e.shape[1])
    out = (np.exp(a * e) - np.exp(a**2 / 2)) / a
    return np.asarray(out / np.sqrt(np.expm1(a**2) * np.exp(a**2) / a**2))


def _box(e: Array, rng: Generator) -> Array:
    return rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), size=e.shape)


def _ball(e: Array, rng: Generator) -> Array:
    dim = e.shape[1]
    radius = rng.random((len(e), 1)) ** (1.0 / dim) * np.sqrt(dim + 2.0)
    return np.asarray(e / np.linalg.norm(e, axis=1, keepdims=True) * radius)


def _bent(e: Array, rng: Generator) -> Array:
    """The banana: one axis bends over another."""
    if e.shape[1] < 2:
        return e
    i, j = rng.permutation(e.shape[1])[:2]
    b = rng.uniform(0.4, 1.5) * rng.choice((-1.0, 1.0))
    out = e.copy()
    out[:, i] *= 1.6
    out[:, j] = rng.uniform(0.3, 1.0) * e[:, j] + b * (e[:, i] ** 2 - 1.0)
    return out / 1.2


def _elongated(e: Array, rng: Generator) -> Array:
    out = e.copy()
    out[:, rng.integers(e.shape[1])] = rng.uniform(-1.0, 1.0, size=len(e)) * rng.uniform(2.0, 4.0)
    return out / 1.3


def _shell(e: Array, rng: Generator) -> Array:
    radius = np.sqrt(e.shape[1]) * (1.0 + rng.uniform(0.03, 0.25) * rng.standard_normal(len(e)))
    return np.asarray(e / np.linalg.norm(e, axis=1, keepdims=True) * radius[:, None])


_FAMILIES: tuple[Callable[[Array, Generator], Array], ...] = (
    _gaussian,
    _heavy,
    _skewed,
    _box,
    _ball,
    _bent,
    _elongated,
    _shell,
)
_FAMILY_SHARES = np.cumsum((0.28, 0.18, 0.26, 0.05, 0.04, 0.09, 0.07))  # the last has the rest
