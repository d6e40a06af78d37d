"""Random tables with known clusters: the simulator behind `ncp.generative.tables`.

A table is drawn in four steps:

1. `draw_partition`: labels c from one of five partition laws (one cluster, equal sizes, symmetric
   Dirichlet, very unequal sizes, Pitman-Yor), tiny clusters mostly dissolved;
2. a place for every row: clouds or blobs (`table_clouds`), or shapes (`table_shapes`), the latter
   with few clusters and sizes of their own;
3. columns of numbers and of categories (`table_columns`);
4. rows are blown up here and there (outliers, which keep the label of their own cluster), and
   values go missing.

One smooth cloud is *one* cluster, whatever its form: log-normal, uniform, bent, a ring.
Everything is numpy with one explicit `rng`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ncp.generative.table_clouds import draw_blobs, draw_cloud, draw_latents
from ncp.generative.table_columns import (
    blow_up_rows,
    draw_categories,
    draw_columns,
    draw_missing,
    draw_n_columns,
    embed,
    warp_columns,
)
from ncp.generative.table_shapes import draw_shapes, with_background

__all__ = ["RawTable", "TablePrior", "draw_partition", "draw_table"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
MOST_ON_A_LINE = 10  # clusters of one column
SELDOM = 0.1  # share of the finite partition laws with up to twice as many clusters
MANY_BLOBS = 0.3  # further share of blobs where there are more than eight clusters


@dataclass(frozen=True)
class TablePrior:
    """The knobs of the simulator: shares of data sets, unless said otherwise.

    Args:
        single: data sets of one cluster only.
        plain: share of these that are a cloud without structure.
        max_clusters: largest K of the finite partition laws; seldom twice as many.
        max_columns: largest number of columns.
        curved: data sets of curves, rings, spirals, bars and other shapes.
        blobs: data sets of round clusters in few dimensions, often many.
        composite: data sets, of the other ones, whose clusters consist of overlapping parts.
        realistic: data sets with warped, bounded, rounded or clipped columns.
        outliers: data sets with one to three per cent of blown-up rows.
        background: data sets of shapes and blobs with rows strewn over the picture.
        categorical: data sets with columns of categories.
        missing: data sets with missing values.
        separation: range of half the Mahalanobis distance between a typical cluster and
            its nearest neighbour (log-uniform).
    """

    single: float = 0.2
    plain: float = 0.5
    max_clusters: int = 60
    max_columns: int = 40
    curved: float = 0.4
    blobs: float = 0.3
    composite: float = 0.3
    realistic: float = 0.5
    outliers: float = 0.15
    background: float = 0.15
    categorical: float = 0.2
    missing: float = 0.12
    separation: tuple[float, float] = (0.9, 4.5)


class RawTable(NamedTuple):
    """A table before any preprocessing.

    Attributes:
        x: numbers and codes (N, P), NaN for missing.
        labels: the cluster of every row (N,), not yet in order of appearance.
        categorical: which columns are codes (P,).
    """

    x: Array
    labels: Labels
    categorical: NDArray[np.bool_]


def draw_table(prior: TablePrior, n_points: int, rng: Generator) -> RawTable:
    """One table of N rows."""
    c = draw_partition(prior, n_points, rng)
    kind = rng.random()
    single = 1 if c.max() == 0 else None
    if single and rng.random() < prior.plain:
        x = draw_cloud(n_points, min(draw_n_columns(prior.max_columns, rng), 12), rng)
    elif kind < prior.curved and n_points >= 12:
        x, c = _shapes_table(prior, n_points, single, rng)
    elif kind < prior.curved + prior.blobs + (MANY_BLOBS if c.max() >= 8 and prior.blobs else 0.0):
        x, c = _blobs_table(prior, c, rng)
    else:
        x = _clouds_table(prior, c, rng)
    if rng.random() < prior.outliers:
        x = blow_up_rows(x, rng)
    categorical = np.zeros(x.shape[1], dtype=bool)
    if rng.random() < prior.categorical and n_points >= 8:
        x, categorical = _mixed_table(c, x, rng)
    if rng.random() < prior.missing:
        x = draw_missing(x, rng)
    return RawTable(x, c, categorical)


def _shapes_table(
    prior: TablePrior, n_points: int, n_clusters: int | None, rng: Generator
) -> tuple[Array, Labels]:
    z, c = draw_shapes(n_points, rng, n_clusters)
    if n_clusters is None and rng.random() < prior.background:
        z, c = with_background(z, c, rng.uniform(0.02, 0.25), rng)
    x = embed(z, rng) if rng.random() < 0.25 else z
    return (warp_columns(x, rng) if rng.random() < 0.4 * prior.realistic else x), c


def _blobs_table(prior: TablePrior, c: Labels, rng: Generator) -> tuple[Array, Labels]:
    dim = int(rng.choice((1, 2, 3, 5, 8), p=(0.07, 0.5, 0.18, 0.15, 0.1)))
    dim = max(dim, 2) if c.max() >= MOST_ON_A_LINE else dim
    z = draw_blobs(c, dim, prior.separation, rng)
    if c.max() > 0 and dim <= 3 and rng.random() < prior.background:
        z, c = with_background(z, c, rng.uniform(0.02, 0.25), rng)
    x = draw_columns(z, dim + int(rng.integers(1, 12)), rng) if rng.random() < 0.25 else z
    return (warp_columns(x, rng) if rng.random() < 0.4 * prior.realistic else x), c


def _clouds_table(prior: TablePrior, c: Labels, rng: Generator) -> Array:
    n_columns = draw_n_columns(prior.max_columns, rng)
    if c.max() >= MOST_ON_A_LINE:
        n_columns = max(n_columns, 2)
    dim = min(n_columns, 1 + int(rng.geometric(0.2)), 12)
    z = draw_latents(c, dim, prior.separation, prior.composite, rng)
    x = draw_columns(z, n_columns, rng)
    return warp_columns(x, rng) if rng.random() < prior.realistic else x


def _mixed_table(c: Labels, x: Array, rng: Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Columns of categories beside some or none of those of numbers, in any order."""
    if rng.random() < 0.1:
        x = x[:, :0]
    n_codes = int(rng.integers(1, 5)) if rng.random() < 0.7 else int(rng.integers(3, 13))
    codes = draw_categories(c, x, max(n_codes, 3 - x.shape[1]), rng)
    kinds = np.arange(x.shape[1] + codes.shape[1]) >= x.shape[1]
    return np.concatenate((x, codes), axis=1), kinds


# ---------------------------------------------------------------------------------------
# partitions
# ---------------------------------------------------------------------------------------


def draw_partition(prior: TablePrior, n_points: int, rng: Generator) -> Labels:
    """Labels (N,) from one of the partition laws; clusters below a random floor dissolved."""
    if n_points < 4 or rng.random() < prior.single:
        return np.zeros(n_points, dtype=np.int64)
    law = int(np.searchsorted((0.25, 0.6, 0.78), rng.random()))
    if law <= 2:
        # K needs a few rows per cluster to be seen at all; small K is more common
        most = prior.max_clusters * (2 if rng.random() < SELDOM else 1)
        largest = max(2, min(most, n_points // (4 if n_points < 40 else 6)))
        weights = np.cumsum(np.arange(2, largest + 1) ** -rng.uniform(0.0, 1.3))
        k = 2 + int(np.searchsorted(weights, rng.random() * weights[-1]))
    if law == 0:
        c = rng.permutation(np.arange(n_points) % k)
    elif law <= 2:
        c = rng.choice(k, size=n_points, p=_shares(k, law == 2, rng))
    else:
        alpha = np.exp(rng.uniform(np.log(0.15), np.log(3.0)))
        c = _urn(n_points, alpha, max(rng.uniform(-0.4, 0.4), 0.0), rng)
    if rng.random() < 0.95:
        floor = max(2 if n_points < 15 else 3, round(n_points * rng.uniform(0.0, 0.025)))
        c = _dissolve_small(c, floor, rng)
    used = np.bincount(c) > 0
    return np.asarray((np.cumsum(used) - 1)[c])


def _shares(k: int, unequal: bool, rng: Generator) -> Array:
    """Shares of K clusters: symmetric Dirichlet, or some a tenth to a hundredth of the others."""
    if not unequal:
        return np.asarray(rng.dirichlet(np.full(k, np.exp(rng.uniform(np.log(0.7), np.log(20))))))
    small = rng.random(k) < rng.uniform(0.2, 0.8)
    weights = np.where(small, np.exp(-rng.uniform(np.log(5.0), np.log(100.0))), 1.0)
    weights = weights * np.exp(rng.normal(0.0, 0.2, size=k))
    return np.asarray(weights / weights.sum())


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
