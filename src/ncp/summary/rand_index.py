"""The largest posterior expected adjusted Rand index (Fritsch and Ickstadt 2009).

    a* = argmax_a sum_u w_u ARI(a, c_u),

over the draws and the cuts of the average-linkage tree of the similarity matrix. The index hardly
sees small clusters, so those that nothing speaks for are given up afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from ncp.summary.assignment import assignment
from ncp.summary.distance import PAIRWISE_WORK
from ncp.summary.rows import Labels, Obeys, Weights, as_row, as_rows, weighted_rows
from ncp.summary.similarity import LINKAGE_POINTS, linkage_cuts

__all__ = [
    "BestByRandIndex",
    "best_by_rand_index",
    "expected_agreement",
    "expected_rand_index",
]

# An estimate by the Rand index gives up a cluster that the draws are less sure of than this, as
# long as it loses less than this of the expected index, which hardly sees small clusters.
SURE = 0.8
NEGLIGIBLE = 0.005
ELSEWHERE = 0.1  # how far the points of such a cluster belong to some other one, at least


class BestByRandIndex(NamedTuple):
    """The best candidate, its expected index, how many are as good, and how many there were."""

    labels: Int64[np.ndarray, " points"]
    score: float
    hits: int
    tried: int


def best_by_rand_index(
    rows: Labels, w: Weights, max_clusters: int | None, obeys: Obeys | None = None
) -> BestByRandIndex:
    """The best of merged rows and linkage cuts; one cluster if that has more than half the mass.

    Args:
        rows: distinct partitions, heaviest first, of shape (U, N).
        w: their weights, of shape (U,).
        max_clusters: the largest number of clusters the estimate may have.
        obeys: which partitions the estimate may be, if not all; the draws do.
    """
    n_rows, n_points = rows.shape
    limit = min(max_clusters or n_points, n_points)
    draws = rows[rows.max(axis=1) < limit]  # sorted by weight: try the heaviest
    tried = draws[: max(1, PAIRWISE_WORK // (n_rows * n_points))]
    if n_points <= LINKAGE_POINTS:
        tried = np.concatenate([tried, linkage_cuts(rows, w, limit)])
    tried = tried[tried.max(axis=1) > 0]
    tried = tried if obeys is None else tried[obeys(tried)]
    if len(tried) == 0 or w[rows.max(axis=1) == 0].sum() > 0.5:
        tried = np.zeros_like(rows[:1])  # nothing to tell apart: said if more probable than not
    scores = _expected_rand_indices(tried, rows, w)
    best = int(scores.argmax())
    row, score = _without_fragments(tried[best], float(scores[best]), rows, w, obeys)
    hits = int((scores >= scores[best] - 1e-9).sum())
    return BestByRandIndex(row, score, hits, len(scores))


def expected_rand_index(estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> float:
    """sum_u w_u ARI(a, c_u) of an estimate a and draws c_u."""
    rows, w = weighted_rows(labels, weights)
    return float(_expected_rand_indices(as_row(estimate, rows.shape[1])[None], rows, w)[0])


def expected_agreement(estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> float:
    """What to expect of an estimate's index with the truth; P(K = 1) for one cluster.

    Example:
        >>> draws, weights = [[0, 0, 1, 1], [0, 0, 0, 0]], [0.75, 0.25]
        >>> expected_agreement([0, 0, 1, 1], draws, weights)
        0.75
        >>> expected_agreement([0, 0, 0, 0], draws, weights)
        0.25
    """
    if np.max(estimate, initial=0) == 0:
        rows, w = weighted_rows(labels, weights)
        return float(w[rows.max(axis=1) == 0].sum())
    return max(0.0, expected_rand_index(estimate, labels, weights))


def _expected_rand_indices(
    candidates: Int64[np.ndarray, "candidates points"], rows: Labels, w: Weights
) -> Float64[np.ndarray, " candidates"]:
    """sum_u w_u ARI(a, c_u) of each candidate a."""
    from ncp.summary.kernels import row_sums, shared_pairs

    n_points = rows.shape[1]
    pairs = np.arange(n_points, dtype=np.float64)  # phi(n) = n (n - 1) / 2
    theirs, own = row_sums(rows, pairs), row_sums(candidates, pairs)[:, None]
    by_chance = own * theirs / max(n_points * (n_points - 1) / 2, 1.0)
    room = (own + theirs) / 2 - by_chance
    more = shared_pairs(candidates, rows) - by_chance
    # Without room, both are all apart or both all together: equal.
    index = np.where(room > 1e-9, more / np.maximum(room, 1e-9), 1.0)
    return np.asarray(index @ w)


def _without_fragments(
    row: Int64[np.ndarray, " points"],
    score: float,
    rows: Labels,
    w: Weights,
    obeys: Obeys | None,
) -> tuple[Int64[np.ndarray, " points"], float]:
    """Give up clusters that nothing speaks for: their points go where they belong next."""
    least = score - NEGLIGIBLE
    while row.max() > 1:
        belongs = assignment(row, rows, w)
        own = belongs[np.arange(len(row)), row]
        other = np.where(np.arange(belongs.shape[1]) == row[:, None], 0.0, belongs).max(1)
        is_unsure = np.bincount(row, own) < SURE * np.bincount(row)
        is_near = np.bincount(row, other) >= ELSEWHERE * np.bincount(row)
        unsure = np.flatnonzero(is_unsure & is_near)
        if len(unsure) == 0:
            break
        columns = np.arange(belongs.shape[1])
        next_best = [np.where(columns == k, -1.0, belongs).argmax(1) for k in unsure]
        fewer = as_rows(
            [np.where(row == k, best, row) for k, best in zip(unsure, next_best, strict=True)]
        )
        fewer = fewer if obeys is None else fewer[obeys(fewer)]
        if len(fewer) == 0:
            break
        scores = _expected_rand_indices(fewer, rows, w)
        best = int(scores.argmax())
        if scores[best] < least:
            break
        row, score = fewer[best], float(scores[best])
    return row, score
