"""From places to columns that look real: loadings, noise, units, categories, missing values.

The coordinates of the clusters become columns (themselves, or loadings with noise of their own),
columns that know nothing of the clusters are added, and columns are bent, bounded, rounded or
clipped as units and instruments do. `draw_categories` adds columns of levels: some that depend on
the cluster, some that are a number cut into classes, some that know nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = [
    "blow_up_rows",
    "draw_categories",
    "draw_columns",
    "draw_missing",
    "draw_n_columns",
    "embed",
    "warp_columns",
]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def draw_categories(c: Labels, x: Array, n_columns: int, rng: Generator) -> Array:
    """Columns of codes (N, n_columns): relevant ones, irrelevant ones, and classes of numbers."""
    relevant = rng.choice((0.0, 0.5, 0.9), p=(0.3, 0.4, 0.3))
    columns = []
    for _ in range(n_columns):
        levels = int(np.exp(rng.uniform(np.log(2.0), np.log(21.0)))) if rng.random() < 0.6 else 2
        levels = max(2, min(levels, len(c) // 3))
        if rng.random() < relevant:
            column = _levels_of_clusters(c, levels, rng)
        elif x.shape[1] and rng.random() < 0.1:
            value = x[:, rng.integers(x.shape[1])]
            cuts = np.quantile(value, np.sort(rng.random(min(levels, 5) - 1)))
            column = np.searchsorted(cuts, value)
        else:
            shares = rng.dirichlet(np.full(levels, np.exp(rng.uniform(-0.7, 2.5))))
            column = rng.choice(levels, size=c.size, p=shares)
        columns.append(column)
    return np.stack(columns, axis=1).astype(np.float64)


def _levels_of_clusters(c: Labels, levels: int, rng: Generator) -> Labels:
    """A level for every row that depends on its cluster: always, mostly, or somewhat."""
    k = int(c.max()) + 1
    peaked = np.exp(rng.uniform(np.log(0.08), np.log(1.5)))
    shares = rng.dirichlet(np.full(levels, peaked), size=k)
    if rng.random() < 0.5:  # one level for a cluster, but for a few rows
        other = rng.uniform(0.0, 0.3)
        home = (
            (np.arange(k) + rng.integers(levels)) % levels
            if rng.random() < 0.5
            else (rng.integers(levels, size=k))
        )
        shares = np.full((k, levels), other / levels)
        shares[np.arange(k), home] += 1.0 - other
    edges = np.cumsum(shares, axis=1)[:, :-1]
    return np.asarray((rng.random((c.size, 1)) > edges[c]).sum(1))


def draw_missing(x: Array, rng: Generator) -> Array:
    """Values that are missing at random: anywhere, or more of them in some columns."""
    share = rng.uniform(0.0, 0.4) * np.ones(x.shape[1])
    if rng.random() < 0.5:
        share = np.minimum(share * rng.exponential(size=x.shape[1]), 0.6)
    gone = rng.random(x.shape) < share
    gone[rng.integers(len(x))] = False  # no column is missing altogether
    return np.where(gone, np.nan, x)


def draw_n_columns(most: int, rng: Generator) -> int:
    edges = ((1, 2), (2, 3), (3, 6), (6, 13), (13, 41))
    low, high = edges[rng.choice(len(edges), p=(0.06, 0.2, 0.25, 0.27, 0.22))]
    return min(int(rng.integers(low, high)), most)


def draw_columns(z: Array, n_columns: int, rng: Generator) -> Array:
    """Columns (N, P): the latents themselves, then loadings with own noise, then noise."""
    n, q = z.shape
    if n_columns <= q:
        return z
    z = (z - z.mean(0)) / (z.std() + 1e-12)
    n_noise = 0
    if rng.random() < 0.4:  # every other of these tables may have hardly anything else
        most = (n_columns - q) // (2 if rng.random() < 0.5 else 1)
        n_noise = int(rng.integers(0, max(1, most) + 1))
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


def embed(z: Array, rng: Generator) -> Array:
    """A plane or space in a few more dimensions, with a little noise across it."""
    dim = z.shape[1]
    extra = int(rng.integers(1, 7))
    loadings = np.linalg.qr(rng.standard_normal((dim + extra, dim)))[0].T  # (q, q + extra)
    level = 0.12 * rng.random() * z.std()
    return np.asarray(z @ loadings + level * rng.standard_normal((len(z), dim + extra)))


def warp_columns(x: Array, rng: Generator) -> Array:
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
    # alone, a bound would pile up rows in heaps that are no clusters
    firm = strength if many else 0.2 + 0.3 * strength
    z = np.where(kind == 0, np.expm1(strength * z) / strength, z)
    z = np.where(kind == 1, np.tanh(z * firm) if many else np.arctan(z * firm), z)
    z = np.where(kind == 2, np.maximum(z, -1.5 * strength if many else -1.2 - strength), z)
    z = np.where(kind == 3, np.sign(z) * np.abs(z) ** (1.0 + 0.7 * strength), z)
    low, high = (2.0, 10.0) if coarse else ((6.0, 40.0) if many else (15.0, 60.0))
    levels = np.floor(np.exp(rng.uniform(np.log(low), np.log(high), size=z.shape[1])))
    grid = (z.max(0) - z.min(0) + 1e-9) / levels
    z = np.where(kind == 4, np.round(z / grid) * grid, z)
    yes = (z > rng.normal(0.0, 1.0, size=z.shape[1])).astype(np.float64)
    return np.asarray(np.where(kind == 5, yes, z))


def blow_up_rows(x: Array, rng: Generator) -> Array:
    rows = rng.random(len(x)) < rng.uniform(0.005, 0.03)
    level = rng.uniform(1.0, 4.0) * x.std(0)
    return np.where(rows[:, None], x + level * rng.standard_normal(x.shape), x)
