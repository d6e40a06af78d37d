"""The largest posterior expected adjusted Rand index (Fritsch and Ickstadt 2009).

    a* = argmax_a sum_u w_u ARI(a, c_u),

over the draws and the cuts of the average-linkage tree of the similarity matrix. The index hardly
sees small clusters, so those that nothing speaks for are given up afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ncp.summary.assignment import assignment
from ncp.summary.distance import PAIRWISE_WORK
from ncp.summary.rows import Labels, Weights, as_rows
from ncp.summary.similarity import LINKAGE_POINTS, linkage_cuts

__all__ = ["BestByRandIndex", "best_by_rand_index"]

# An estimate by the Rand index gives up a cluster that the draws are less sure of than this, as
# long as it loses less than this of the expected index, which hardly sees small clusters.
SURE = 0.8
NEGLIGIBLE = 0.005


class BestByRandIndex(NamedTuple):
    """The best candidate, its expected index, how many are as good, and how many there were."""

    labels: Int64[np.ndarray, " points"]
    score: float
    hits: int
    tried: int


def best_by_rand_index(rows: Labels, w: Weights, max_clusters: int | None) -> BestByRandIndex:
    """The best of merged rows and linkage cuts; one cluster if that has more than half the mass.

    Args:
        rows: distinct partitions, heaviest first, of shape (U, N).
        w: their weights, of shape (U,).
        max_clusters: the largest number of clusters the estimate may have.
    """
    n_rows, n_points = rows.shape
    limit = min(max_clusters or n_points, n_points)
    draws = rows[rows.max(axis=1) < limit]  # sorted by weight: try the heaviest
    tried = draws[: max(1, PAIRWISE_WORK // (n_rows * n_points))]
    if n_points <= LINKAGE_POINTS:
        tried = np.concatenate([tried, linkage_cuts(rows, w, limit)])
    tried = tried[tried.max(axis=1) > 0]
    if len(tried) == 0 or w[rows.max(axis=1) == 0].sum() > 0.5:
        tried = np.zeros_like(rows[:1])  # nothing to tell apart: said if more probable than not
    scores = _expected_rand_indices(tried, rows, w)
    best = int(scores.argmax())
    row, score = _without_fragments(tried[best], float(scores[best]), rows, w)
    hits = int((scores >= scores[best] - 1e-9).sum())
    return BestByRandIndex(row, score, hits, len(scores))


def _expected_rand_indices(
    candidates: Int64[np.ndarray, "candidates points"], rows: Labels, w: Weights
) -> Float64[np.ndarray, " candidates"]:
    """sum_u w_u ARI(a, c_u) of each candidate a."""
    from ncp.summary.kernels import distances, row_sums

    n_points = rows.shape[1]
    pairs = np.arange(n_points, dtype=np.float64)  # phi(n) = n (n - 1) / 2
    theirs = row_sums(rows, pairs)
    result = []
    for row, own in zip(candidates, row_sums(candidates, pairs), strict=True):
        shared = (own + theirs - distances(rows, row, pairs)) / 2
        by_chance = own * theirs / max(n_points * (n_points - 1) / 2, 1.0)
        room = (own + theirs) / 2 - by_chance
        # Without room, both are all apart or both all together: equal.
        index = np.where(room > 1e-9, (shared - by_chance) / np.maximum(room, 1e-9), 1.0)
        result.append(float(index @ w))
    return np.array(result)


def _without_fragments(
    row: Int64[np.ndarray, " points"], score: float, rows: Labels, w: Weights
) -> tuple[Int64[np.ndarray, " points"], float]:
    """Give up clusters that nothing speaks for: their points go where they belong next."""
    least = score - NEGLIGIBLE
    while row.max() > 1:
        belongs = assignment(row, rows, w)
        own = belongs[np.arange(len(row)), row]
        unsure = np.flatnonzero(np.bincount(row, own) < SURE * np.bincount(row))
        if len(unsure) == 0:
            break
        columns = np.arange(belongs.shape[1])
        next_best = [np.where(columns == k, -1.0, belongs).argmax(1) for k in unsure]
        fewer = as_rows(
            [np.where(row == k, best, row) for k, best in zip(unsure, next_best, strict=True)]
        )
        scores = _expected_rand_indices(fewer, rows, w)
        best = int(scores.argmax())
        if scores[best] < least:
            break
        row, score = fewer[best], float(scores[best])
    return row, score
