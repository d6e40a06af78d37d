"""Random tables with known clusters: the simulator behind `ncp.generative.tables`.

A table is drawn in four steps, each of them a function below:

1. `draw_partition`: labels c from one of five partition laws (one cluster, equal sizes,
   symmetric Dirichlet, Chinese restaurant, Pitman-Yor), tiny clusters partly dissolved;
2. `draw_latents` or `draw_curves`: a point in a latent space for every row. Clusters are
   ellipsoids seen through a non-Gaussian noise (heavy-tailed, skewed, uniform, bent, a shell,
   several overlapping sub-clusters), or arcs, rings, moons, spirals and segments;
3. `draw_columns`: the latent coordinates become columns (loadings, own noise, uninformative
   columns), and the columns become real-looking (logarithmic, bounded, rounded, clipped);
4. rows are blown up here and there: outliers, which keep the label of their own cluster.

Everything is numpy with one explicit `rng`; a table of a hundred rows takes about a
millisecond, so thousands a minute come out of one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class TablePrior:
    """The knobs of the simulator: shares of data sets, unless said otherwise.

    Arguments:
        single: data sets of one cluster only.
        max_clusters: largest K of the finite partition laws.
        max_columns: largest number of columns.
        curved: data sets of arcs, rings, moons, spirals and segments.
        composite: data sets whose clusters consist of overlapping sub-clusters.
        realistic: data sets with warped, bounded, rounded or clipped columns.
        outliers: data sets with one to three per cent of blown-up rows.
        separation: range of half the Mahalanobis distance between a typical cluster and
            its nearest neighbour (log-uniform).
    """

    single: float = 0.08
    max_clusters: int = 15
    max_columns: int = 40
    curved: float = 0.12
    composite: float = 0.35
    realistic: float = 0.5
    outliers: float = 0.2
    separation: tuple[float, float] = (0.9, 4.5)


def draw_table(
    prior: TablePrior, n_points: int, rng: Generator, labels: Labels | None = None
) -> tuple[Array, Labels]:
    """One table: columns (N, P) and labels (N,), not yet in order of appearance."""
    c = draw_partition(prior, n_points, rng) if labels is None else labels
    if rng.random() < prior.curved and 1 <= c.max() <= 7:
        z = draw_curves(c, rng)
        x = _embed(z, rng) if rng.random() < 0.35 else z
        if rng.random() < 0.5 * prior.realistic:
            x = _warp_columns(x, rng)
    else:
        n_columns = _draw_n_columns(prior, rng)
        z = draw_latents(prior, c, min(n_columns, 1 + rng.geometric(0.2), 12), rng)
        x = draw_columns(z, n_columns, rng)
        if rng.random() < prior.realistic:
            x = _warp_columns(x, rng)
    if rng.random() < prior.outliers:
        x = _blow_up_rows(x, rng)
    return x, c


# ---------------------------------------------------------------------------------------
# 1. partitions
# ---------------------------------------------------------------------------------------


def draw_partition(prior: TablePrior, n_points: int, rng: Generator) -> Labels:
    """Labels (N,) from one of the partition laws; clusters below a random floor dissolved."""
    if n_points < 4 or rng.random() < prior.single:
        return np.zeros(n_points, dtype=np.int64)
    law = rng.choice(4, p=(0.25, 0.40, 0.22, 0.13))
    if law <= 1:
        # K needs about five rows per cluster to be seen at all; small K is more common
        largest = max(2, min(prior.max_clusters, n_points // 5))
        candidates = np.arange(2, largest + 1)
        p = candidates ** -rng.uniform(0.0, 1.0)
        k = int(rng.choice(candidates, p=p / p.sum()))
        if law == 0:
            c = rng.permutation(np.arange(n_points) % k)
        else:
            shares = rng.dirichlet(np.full(k, np.exp(rng.uniform(np.log(0.7), np.log(20)))))
            c = rng.choice(k, size=n_points, p=shares)
    else:
        alpha = np.exp(rng.uniform(np.log(0.15), np.log(3.0)))
        c = _urn(n_points, alpha, rng.uniform(0.05, 0.4) if law == 3 else 0.0, rng)
    if rng.random() < 0.7:
        c = _dissolve_small(c, max(2, round(n_points * rng.uniform(0.01, 0.05))), rng)
    return np.unique(c, return_inverse=True)[1].astype(np.int64)


def _urn(n_points: int, alpha: float, discount: float, rng: Generator) -> Labels:
    """The Pitman-Yor urn by stick-breaking: given the sticks the rows are independent."""
    k = np.arange(1, 61)
    v = rng.beta(1.0 - discount, alpha + k * discount)
    sticks = v * np.concatenate(([1.0], np.cumprod(1.0 - v)[:-1]))
    c: Labels = np.searchsorted(np.cumsum(sticks)[:-1], rng.random(n_points)).astype(np.int64)
    return c


def _dissolve_small(c: Labels, floor: int, rng: Generator) -> Labels:
    """Give every cluster of fewer than `floor` rows to another one, chosen by size."""
    sizes = np.bincount(c)
    big = np.flatnonzero(sizes >= floor)
    if big.size == 0:
        return np.zeros_like(c)
    target = np.arange(sizes.size)
    small = np.flatnonzero((sizes > 0) & (sizes < floor))
    target[small] = rng.choice(big, size=small.size, p=sizes[big] / sizes[big].sum())
    return target[c]


# ---------------------------------------------------------------------------------------
# 2a. clusters that are ellipsoids seen through a non-Gaussian noise
# ---------------------------------------------------------------------------------------


def draw_latents(prior: TablePrior, c: Labels, dim: int, rng: Generator) -> Array:
    """Latent coordinates (N, q): mean of the cluster + factor of the cluster @ noise."""
    n_clusters = int(c.max()) + 1
    part, owner, offsets = _sub_clusters(prior, c, dim, rng)
    factors = _factors(n_clusters, dim, rng)  # (K, q, q), rows are axes times their sd
    means = _means(prior, factors, rng)  # (K, q)
    noise = _noise(part, owner.size, dim, rng) + offsets[part]
    out: Array = means[c] + np.einsum("nq,nqp->np", noise, factors[c])
    return out


def _sub_clusters(
    prior: TablePrior, c: Labels, dim: int, rng: Generator
) -> tuple[Labels, Labels, Array]:
    """Split clusters into overlapping parts that keep one label.

    Returns the part of every row (N,), the cluster of every part (M,), and the offset of
    every part (M, q) in units of the cluster's own spread.
    """
    n_clusters = int(c.max()) + 1
    parts = np.ones(n_clusters, dtype=np.int64)
    if rng.random() < prior.composite:
        parts = rng.integers(1, 5, size=n_clusters)
    owner = np.repeat(np.arange(n_clusters), parts)
    first = np.cumsum(parts) - parts
    part = first[c] + np.floor(rng.random(c.size) ** 1.5 * parts[c]).astype(np.int64)
    reach = rng.uniform(0.4, 1.1)
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


def _means(prior: TablePrior, factors: Array, rng: Generator) -> Array:
    """Means (K, q), scaled so that the median nearest neighbour is `separation` away."""
    n_clusters, dim, _ = factors.shape
    if n_clusters == 1:
        return np.zeros((1, dim))
    best = np.zeros((n_clusters, dim))
    best_gap = -1.0
    relevance = np.exp(rng.normal(0.0, 0.7, size=dim)) * (rng.random(dim) < rng.uniform(0.4, 1.0))
    relevance[rng.integers(dim)] += 1.0
    pooled = np.einsum("kij,kil->jl", factors, factors) / n_clusters  # mean covariance
    # units of the pooled spread, so that separation and shape are chosen independently
    root = np.linalg.cholesky(pooled + 1e-9 * np.trace(pooled) / dim * np.eye(dim))
    size = np.linalg.norm(factors, axis=(1, 2)) / np.linalg.norm(root)
    for _ in range(rng.integers(1, 6)):  # more tries, more evenly spread clusters
        m = _layout(n_clusters, dim, rng) * relevance
        d = np.linalg.norm(m[:, None] - m[None], axis=-1) / (size[:, None] + size[None])
        np.fill_diagonal(d, np.inf)
        gap = float(np.sort(d.min(1))[n_clusters // 2])
        if gap > best_gap:
            best, best_gap = m, gap
    low, high = np.log(prior.separation)
    half_distance = np.exp(rng.uniform(low, high))
    return np.asarray(best / max(best_gap, 1e-9) * half_distance @ root.T)


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
    families = tuple(_FAMILIES)
    if rng.random() < 0.75:
        kind = rng.choice(len(families), p=_FAMILY_SHARES) * np.ones(n_parts, dtype=np.int64)
    else:
        kind = rng.choice(len(families), p=_FAMILY_SHARES, size=n_parts)
    e: Array = rng.standard_normal((part.size, dim))
    row_kind = kind[part]
    for k in np.unique(kind):
        rows = row_kind == k
        if families[k] is not None and rows.any():
            e[rows] = families[k](e[rows], rng)
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


_FAMILIES: dict[Callable[[Array, Generator], Array], float] = {
    _gaussian: 0.28,
    _heavy: 0.18,
    _skewed: 0.26,
    _box: 0.05,
    _ball: 0.04,
    _bent: 0.09,
    _elongated: 0.07,
    _shell: 0.03,
}
_FAMILY_SHARES = np.array(tuple(_FAMILIES.values()))


# ---------------------------------------------------------------------------------------
# 2b. clusters that are curves
# ---------------------------------------------------------------------------------------


def draw_curves(c: Labels, rng: Generator) -> Array:
    """Planar points (N, 2) on one curve per cluster, with noise; a random turn and stretch."""
    n_clusters = int(c.max()) + 1
    u = rng.random(c.size)  # position along the curve
    if rng.random() < 0.3:
        u = rng.beta(2.0, 2.0, size=c.size)
    curve = rng.choice(len(_CURVES))
    z, gap = _CURVES[curve](c, u, n_clusters, rng)
    z = z + gap * rng.uniform(0.03, 0.22) * rng.standard_normal(z.shape)
    z = z @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
    return np.asarray(z * np.exp(rng.normal(0.0, 0.2, size=2)))


def _moons(c: Labels, u: Array, k: int, rng: Generator) -> tuple[Array, float]:
    angle = np.pi * u
    up = np.where(c % 2 == 0, 1.0, -1.0)
    height = up * (np.sin(angle) - rng.uniform(0.1, 0.45))
    return np.asarray(np.stack((np.cos(angle) + c, height), axis=1), dtype=np.float64), 0.6


def _rings(c: Labels, u: Array, k: int, rng: Generator) -> tuple[Array, float]:
    """Concentric rings; the innermost may be a filled disc."""
    radius: Array = c + rng.uniform(0.3, 1.2) * np.ones(c.size)
    if rng.random() < 0.4:
        radius = np.where(c == 0, radius * np.sqrt(rng.random(c.size)), radius)
    angle = 2 * np.pi * u * rng.choice((1.0, 0.8))
    return radius[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=1), 0.8


def _arcs(c: Labels, u: Array, k: int, rng: Generator) -> tuple[Array, float]:
    """Free arcs around the points of a jittered grid."""
    side = int(np.ceil(np.sqrt(k)))
    cells = rng.permutation(side * side)[:k]
    pitch = rng.uniform(2.2, 3.2)
    centre = pitch * np.stack((cells // side, cells % side), axis=1)
    centre = centre + 0.3 * rng.standard_normal((k, 2))
    start, span = rng.uniform(0, 2 * np.pi, size=k), rng.uniform(0.4, 1.7, size=k) * np.pi
    angle = (start + u[:, None] * span)[np.arange(c.size), c]
    return np.asarray(centre[c] + np.stack((np.cos(angle), np.sin(angle)), axis=1)), 0.8


def _spirals(c: Labels, u: Array, k: int, rng: Generator) -> tuple[Array, float]:
    turns = rng.uniform(0.3, 1.0)
    radius = 0.4 + 1.6 * np.sqrt(u)
    angle = 2 * np.pi * (turns * radius / 2.0 + c / k)
    return radius[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=1), 2.0 / k


def _segments(c: Labels, u: Array, k: int, rng: Generator) -> tuple[Array, float]:
    """Side by side: long, nearly parallel segments of unequal length."""
    length, shift = rng.uniform(2.0, 7.0, size=k), rng.normal(0.0, 1.0, size=k)
    tilt = rng.normal(0.0, 0.06, size=k)
    along = (u - 0.5) * length[c] + shift[c]
    return np.stack((along, c + tilt[c] * along), axis=1), 0.8


_CURVES: tuple[Callable[[Labels, Array, int, Generator], tuple[Array, float]], ...] = (
    _moons,
    _rings,
    _arcs,
    _spirals,
    _segments,
)


# ---------------------------------------------------------------------------------------
# 3. columns
# ---------------------------------------------------------------------------------------


def _draw_n_columns(prior: TablePrior, rng: Generator) -> int:
    edges = ((1, 2), (2, 3), (3, 6), (6, 13), (13, 41))
    low, high = edges[rng.choice(len(edges), p=(0.03, 0.15, 0.24, 0.31, 0.27))]
    return min(int(rng.integers(low, high)), prior.max_columns)


def draw_columns(z: Array, n_columns: int, rng: Generator) -> Array:
    """Columns (N, P): the latents themselves, then loadings with own noise, then noise."""
    n, q = z.shape
    if n_columns <= q:
        return z
    z = (z - z.mean(0)) / (z.std() + 1e-12)
    n_noise = 0
    if rng.random() < 0.35:
        n_noise = int(rng.integers(0, max(1, (n_columns - q) // 2) + 1))
    n_loaded = n_columns - n_noise
    direct = min(q, n_loaded) if rng.random() < 0.4 else 0
    loadings = rng.standard_normal((q, n_loaded - direct)) * np.exp(
        rng.normal(0.0, 0.5, size=(q, 1))
    )
    if rng.random() < 0.5:
        loadings *= rng.random(loadings.shape) < rng.uniform(0.3, 1.0)
    mixed = z @ loadings
    mixed = mixed / (mixed.std(0) + 1e-6)
    own = rng.uniform(0.05, 1.2) * np.exp(rng.normal(0.0, 0.3, size=n_loaded - direct))
    mixed = mixed + own * rng.standard_normal(mixed.shape)
    x = np.concatenate((z[:, :direct], mixed, _noise_columns(n, n_noise, rng)), axis=1)
    return _size_factor(x, rng) if rng.random() < 0.2 else x


def _size_factor(x: Array, rng: Generator) -> Array:
    """Something all columns share and no cluster explains, like the size of an animal."""
    factor = rng.standard_normal(len(x))
    if rng.random() < 0.5:
        factor = np.exp(0.5 * factor)
    loadings = rng.normal(rng.uniform(0.0, 2.0), 1.0, size=x.shape[1])
    return np.asarray(x + rng.uniform(0.3, 1.5) * np.outer(factor, loadings * x.std(0)))


def _noise_columns(n: int, n_noise: int, rng: Generator) -> Array:
    """Columns that know nothing of the clusters, a few correlated among themselves."""
    e = rng.standard_normal((n, n_noise))
    if n_noise > 1 and rng.random() < 0.4:
        e = e + rng.uniform(0.3, 1.5) * rng.standard_normal((n, 1))
    if rng.random() < 0.3:
        e = np.exp(rng.uniform(0.3, 0.9) * e)
    return e


def _embed(z: Array, rng: Generator) -> Array:
    """A plane in a few more dimensions, with a little noise across it."""
    extra = int(rng.integers(1, 7))
    loadings = np.linalg.qr(rng.standard_normal((2 + extra, 2)))[0].T  # (2, 2 + extra)
    level = 0.12 * rng.random() * z.std()
    return np.asarray(z @ loadings + level * rng.standard_normal((len(z), 2 + extra)))


def _warp_columns(x: Array, rng: Generator) -> Array:
    """Monotone warps of single columns, as units and instruments do.

    Yes-or-no columns and coarse grids are for tables of several columns: alone they would
    make gaps of their own where there is no cluster.
    """
    z = (x - x.mean(0)) / (x.std(0) + 1e-12)
    many = z.shape[1] >= 6
    coarse = many and rng.random() < 0.15  # questionnaires and counts: few levels everywhere
    share = rng.uniform(0.2, 1.0)
    kind = np.where(rng.random(z.shape[1]) < share, rng.integers(0, 5, size=z.shape[1]), -1)
    if rng.random() < 0.4:  # all affected columns of one kind
        kind = np.where(kind >= 0, rng.integers(0, 5), -1)
    if coarse:
        kind = np.full(kind.shape, 4)
    if many and rng.random() < 0.2:
        kind = np.where(rng.random(kind.shape) < rng.uniform(0.05, 0.4), 5, kind)
    sign = rng.choice((-1.0, 1.0), size=z.shape[1]) if rng.random() < 0.5 else 1.0
    z = z * sign
    strength = rng.uniform(0.2, 1.3, size=z.shape[1])
    z = np.where(kind == 0, np.expm1(strength * z) / strength, z)
    z = np.where(kind == 1, np.tanh(z * (0.4 + strength)), z)
    z = np.where(kind == 2, np.maximum(z, -1.5 * strength), z)
    z = np.where(kind == 3, np.sign(z) * np.abs(z) ** (1.0 + 0.7 * strength), z)
    low, high = (2.0, 10.0) if coarse else ((6.0, 40.0) if many else (15.0, 60.0))
    levels = np.floor(np.exp(rng.uniform(np.log(low), np.log(high), size=z.shape[1])))
    grid = (z.max(0) - z.min(0) + 1e-9) / levels
    z = np.where(kind == 4, np.round(z / grid) * grid, z)
    yes = (z > rng.normal(0.0, 1.0, size=z.shape[1])).astype(np.float64)
    return np.asarray(np.where(kind == 5, yes, z))


def _blow_up_rows(x: Array, rng: Generator) -> Array:
    rows = rng.random(len(x)) < rng.uniform(0.005, 0.03)
    level = rng.uniform(1.0, 4.0) * x.std(0)
    return np.where(rows[:, None], x + level * rng.standard_normal(x.shape), x)
