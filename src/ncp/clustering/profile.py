r"""What distinguishes a cluster from the rest, column by column.

For a column of numbers, the effect size is Cohen's d with the pooled standard deviation,

    d = (m_in - m_out) / s,   s^2 = ((n_in - 1) s_in^2 + (n_out - 1) s_out^2) / (n_in + n_out - 2),

and for a level of a category Cohen's h = 2 asin(sqrt p_in) - 2 asin(sqrt p_out) of its shares. Both
are in units of a standard deviation, so columns of either kind can be ordered by them. All columns
and clusters are done at once by sums over clusters, Z^T x with Z the indicators of the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ncp.output.payload import Column
from ncp.output.report import Trait

__all__ = ["Moments", "moments", "traits", "typical_rows"]

MOST_LEVELS = 12  # of a category that are looked at


class Moments(NamedTuple):
    """Counts, means and standard deviations inside and outside of each cluster, `(K, P)` each."""

    n_in: np.ndarray
    mean_in: np.ndarray
    sd_in: np.ndarray
    n_out: np.ndarray
    mean_out: np.ndarray
    sd_out: np.ndarray

    @property
    def effects(self) -> Float64[np.ndarray, "K P"]:
        """Cohen's d; zero where there is nothing to compare, infinite where nothing varies."""
        pooled = (np.maximum(self.n_in - 1, 0) * self.sd_in**2) + (
            np.maximum(self.n_out - 1, 0) * self.sd_out**2
        )
        sd = np.sqrt(pooled / np.maximum(self.n_in + self.n_out - 2, 1))
        gap = np.where((self.n_in > 0) & (self.n_out > 0), self.mean_in - self.mean_out, 0.0)
        scale = np.maximum(np.abs(self.mean_in), np.abs(self.mean_out))
        gap = np.where(np.abs(gap) <= 1e-12 * scale, 0.0, gap)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gap == 0.0, 0.0, gap / sd)


def moments(table: Float64[np.ndarray, "N P"], labels: Int64[np.ndarray, " N"]) -> Moments:
    """Of every column in and outside of every cluster; rows with label -1 do not count.

    Example:
        >>> m = moments(np.array([[1.0], [3.0], [9.0], [11.0]]), np.array([0, 0, 1, 1]))
        >>> m.mean_in.ravel(), m.mean_out.ravel(), m.effects.round(2).ravel()
        (array([ 2., 10.]), array([10.,  2.]), array([-5.66,  5.66]))
    """
    here = labels >= 0
    x, c = table[here], labels[here]
    known = ~np.isnan(x)
    centre = np.where(known, x, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    x = np.where(known, x - centre, 0.0)
    members = np.eye(int(c.max(initial=0)) + 1)[c].T  # (K, N)
    n, first, second = members @ known, members @ x, members @ x**2
    inside = _mean_and_sd(n, first, second)
    outside = _mean_and_sd(n.sum(0) - n, first.sum(0) - first, second.sum(0) - second)
    return Moments(n, inside[0] + centre, inside[1], n.sum(0) - n, outside[0] + centre, outside[1])


def _mean_and_sd(
    n: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    mean = first / np.maximum(n, 1)
    spread = np.maximum(second - n * mean**2, 0.0)
    # what is left of squares that cancel is rounding, not spread
    spread = np.where(spread <= 1e-12 * second, 0.0, spread)
    return mean, np.sqrt(spread / np.maximum(n - 1, 1))


def traits(columns: Sequence[Column], labels: Int64[np.ndarray, " N"]) -> list[list[Trait]]:
    """What tells each cluster from the rest, the largest effect first.

    Example:
        >>> width = Column("width", np.array([1.0, 3.0, 9.0, 11.0]))
        >>> [round(t.effect, 2) for t in traits([width], np.array([0, 0, 1, 1]))[1]]
        [5.66]
    """
    n_clusters = int(labels.max(initial=-1)) + 1
    found: list[list[Trait]] = [[] for _ in range(n_clusters)]
    numbers = [column for column in columns if not column.levels]
    if numbers and n_clusters:
        _add_numbers(found, numbers, labels)
    for column in columns:
        if column.levels and n_clusters:
            _add_levels(found, column, labels)
    return [sorted(some, key=lambda trait: -abs(trait.effect)) for some in found]


def _add_numbers(
    found: list[list[Trait]], columns: list[Column], labels: Int64[np.ndarray, " N"]
) -> None:
    table = np.stack([column.values for column in columns], 1)
    m = moments(table, labels)
    effects = m.effects
    for j, column in enumerate(columns):
        values = column.values[~np.isnan(column.values)]
        span = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        for k, some in enumerate(found):
            if m.n_in[k, j] and m.n_out[k, j]:
                inside = float(m.mean_in[k, j]), float(m.sd_in[k, j])
                outside = float(m.mean_out[k, j]), float(m.sd_out[k, j])
                some.append(Trait(column.name, float(effects[k, j]), inside, outside, span))


def _add_levels(found: list[list[Trait]], column: Column, labels: np.ndarray) -> None:
    known = ~np.isnan(column.values) & (labels >= 0)
    code, c = column.values[known].astype(np.int64), labels[known]
    counts = np.zeros((len(found), len(column.levels)))
    np.add.at(counts, (c, code), 1)
    rest = counts.sum(0) - counts
    frequent = np.argsort(-counts.sum(0), kind="stable")[:MOST_LEVELS]
    for k, some in enumerate(found):
        n_in, n_out = counts[k].sum(), rest[k].sum()
        if not n_in or not n_out:
            continue
        p, q = counts[k] / n_in, rest[k] / n_out
        effect = 2 * np.arcsin(np.sqrt(p)) - 2 * np.arcsin(np.sqrt(q))
        best = max(frequent, key=lambda level: (abs(effect[level]).round(9), effect[level]))
        share = (float(p[best]), 0.0), (float(q[best]), 0.0)
        level = column.levels[best]
        some.append(Trait(column.name, float(effect[best]), *share, level=level))


def typical_rows(
    table: Float64[np.ndarray, "N ..."], labels: Int64[np.ndarray, " N"], most: int = 3
) -> list[tuple[int, ...]]:
    """The rows of each cluster that lie nearest to its centre, in standard deviations.

    Example:
        >>> typical_rows(np.array([[0.0], [1.0], [2.0], [9.0]]), np.array([0, 0, 0, 1]), most=1)
        [(1,), (3,)]
    """
    x = table.reshape(len(table), -1)
    known = ~np.isnan(x)
    n = np.maximum(known.sum(0), 1)
    x = np.where(known, x - np.where(known, x, 0.0).sum(0) / n, 0.0)
    sd = np.sqrt((x**2).sum(0) / n)
    x = x / np.where(sd > 0, sd, 1.0)
    nearest = []
    for k in range(int(labels.max(initial=-1)) + 1):
        rows = np.flatnonzero(labels == k)
        far = ((x[rows] - x[rows].mean(0)) ** 2).sum(1)
        nearest.append(tuple(rows[np.argsort(far, kind="stable")[:most]].tolist()))
    return nearest
