"""From weighted draws of partitions to answers.

A posterior over partitions comes as rows of labels ``c_u`` with weights ``w_u``. Everything here
is an expectation, a minimiser or a quantile under that weighted table:

* the posterior of a statistic t is the table of ``P(t = v) = sum_u w_u [t(c_u) = v]``;
* the similarity matrix is ``S_ij = P(c_i = c_j) = sum_u w_u [c_u(i) = c_u(j)]``;
* the point estimate minimises the expected distance to the draws,
  ``a* = argmin_a sum_u w_u d(a, c_u)``;
* the credible ball of level 1 - alpha is the smallest ball around a* with that much mass.

Two distances are offered, both metrics on partitions. With the contingency table ``n_ac``,

    Binder:  d(a, c) = (sum_a n_a^2 + sum_c n_c^2 - 2 sum_ac n_ac^2) / N^2
    VI:      d(a, c) = (sum_a n_a log2 n_a + sum_c n_c log2 n_c - 2 sum_ac n_ac log2 n_ac) / N

Binder's is the fraction of ordered pairs of points on which the partitions disagree; the
variation of information, in bits, is ``H(a | c) + H(c | a)``. The estimate minimises the expected
loss itself (for VI not the lower bound that only needs the similarity matrix), and works from
contingency counts, so no N x N matrix is formed when N is large.

The search follows Dahl, Johnson and Mueller (2022): sequential allocation in a random order,
sweetening, dissolving clusters, several restarts. The ball and its bounds are those of Wade and
Ghahramani (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Float64, Int64, Num
from numpy.typing import ArrayLike

from ncp.inference.importance import Estimate, effective_sample_size, influence, unseen

Loss: TypeAlias = Literal["vi", "binder"]
Estimator: TypeAlias = Literal["vi", "binder", "pear", "map"]
Labels: TypeAlias = Int64[np.ndarray, "rows points"]
Weights: TypeAlias = Float64[np.ndarray, " rows"]

# Work below which the search looks at every draw (pairs x points) and at the average-linkage
# tree (points); above, it looks at the heaviest draws and leaves the tree out.
PAIRWISE_WORK = 200_000_000
LINKAGE_POINTS = 500

# An estimate by the Rand index gives up a cluster that the draws are less sure of than this, as
# long as it loses less than this of the expected index, which hardly sees small clusters.
SURE = 0.8
NEGLIGIBLE = 0.005


# Weighted rows ---------------------------------------------------------------------------------


def _as_rows(labels: ArrayLike) -> Labels:
    """Canonical rows of any integer labels."""
    from ncp.summary.kernels import canonical_rows

    rows = np.asarray(labels)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"Expected labels of shape (rows, points) but got {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise ValueError(f"Expected integer labels but got {rows.dtype}")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= rows.size:
        rows = np.unique(rows, return_inverse=True)[1].reshape(rows.shape)
        high = int(rows.max())
    return np.asarray(canonical_rows(np.ascontiguousarray(rows, dtype=np.int64), high + 1))


def _as_row(labels: ArrayLike, n_points: int | None = None) -> Int64[np.ndarray, " points"]:
    row = np.asarray(labels)
    if row.ndim != 1 or len(row) != (n_points or len(row)):
        expected = "labels of shape (points,)" if n_points is None else f"{n_points} labels"
        raise ValueError(f"Expected {expected} but got shape {row.shape}")
    return np.asarray(_as_rows(row[None])[0])


def _as_weights(weights: ArrayLike | None, n_rows: int) -> Weights:
    """Normalised weights; equal ones when none are given."""
    if weights is None:
        return np.full(n_rows, 1.0 / n_rows)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n_rows,):
        raise ValueError(f"Expected {n_rows} weights, one for each row, but got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0) or not array.sum() > 0:
        raise ValueError("Expected weights that are finite, not negative and not all zero")
    return np.asarray(array / array.sum())


def _table(labels: ArrayLike, weights: ArrayLike | None) -> tuple[Labels, Weights]:
    rows = _as_rows(labels)
    return rows, _as_weights(weights, len(rows))


def merge_rows(labels: ArrayLike, weights: ArrayLike | None = None) -> tuple[Labels, Weights]:
    """Distinct partitions, heaviest first, with the summed weights of their rows.

    A partition drawn in two orders of the points is two rows of a sampler's result; here it
    becomes one. Rows of weight zero are left out.

    Example:
        >>> labels, weights = merge_rows([[0, 0, 1], [0, 1, 1], [5, 5, 2]])
        >>> labels.tolist(), weights.round(3).tolist()
        ([[0, 0, 1], [0, 1, 1]], [0.667, 0.333])
    """
    rows, w = _table(labels, weights)
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    mass = np.bincount(inverse.ravel(), weights=w)
    order = np.lexsort((first, -mass))
    order = order[mass[order] > 0]
    return rows[first[order]], mass[order]


# Posterior of statistics -----------------------------------------------------------------------


class Discrete(NamedTuple):
    """The posterior of a statistic: its values, ascending, and their probabilities.

    Example:
        >>> posterior_of_k([[0, 0, 1], [0, 1, 2]], [3, 1]).mean
        2.25
    """

    values: Num[np.ndarray, " values"]
    probabilities: Float64[np.ndarray, " values"]

    @property
    def mean(self) -> float:
        return float(self.values @ self.probabilities)

    @property
    def sd(self) -> float:
        return float(np.sqrt((self.values - self.mean) ** 2 @ self.probabilities))

    @property
    def mode(self) -> float:
        return float(self.values[int(self.probabilities.argmax())])

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The central interval that holds at least `level` of the mass."""
        cumulative = np.cumsum(self.probabilities)
        low = int(np.searchsorted(cumulative, (1 - level) / 2 + 1e-12))
        high = int(np.searchsorted(cumulative, (1 + level) / 2 - 1e-12))
        last = len(self.values) - 1  # the sum may fall short of one by rounding
        return float(self.values[min(low, last)]), float(self.values[min(high, last)])

    def __repr__(self) -> str:
        pairs = zip(self.values, self.probabilities, strict=True)
        shown = [f"{v:g}: {p:.3f}" for v, p in pairs if p >= 5e-4]
        return "Discrete({" + ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "") + "})"


def posterior_of(
    statistic: Callable[[Int64[np.ndarray, " points"]], float] | ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
) -> Discrete:
    """P(t = v) = sum_u w_u [t(c_u) = v].

    Args:
        statistic: a function of one row of canonical labels, or its values, of shape (U,).
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.

    Example:
        >>> posterior_of(lambda c: (c == c[0]).sum(), [[0, 0, 1], [0, 1, 1]], [3, 1])
        Discrete({1: 0.250, 2: 0.750})
    """
    rows, w = _table(labels, weights)
    if callable(statistic):
        values = np.array([statistic(row) for row in rows])
    else:
        values = np.asarray(statistic)
    if values.shape != (len(rows),):
        raise ValueError(f"Expected one value for each of {len(rows)} rows but got {values.shape}")
    distinct, inverse = np.unique(values, return_inverse=True)
    return Discrete(distinct, np.bincount(inverse.ravel(), weights=w))


def posterior_of_k(labels: ArrayLike, weights: ArrayLike | None = None) -> Discrete:
    """The posterior of the number of clusters.

    Example:
        >>> posterior_of_k([[0, 0, 1], [0, 0, 0]], [3, 1])
        Discrete({1: 0.250, 2: 0.750})
    """
    rows = _as_rows(labels)
    return posterior_of(rows.max(axis=1) + 1, rows, weights)


def _sorted_sizes(rows: Labels) -> Int64[np.ndarray, "rows clusters"]:
    n_clusters = int(rows.max()) + 1
    flat = (rows + n_clusters * np.arange(len(rows))[:, None]).ravel()
    sizes = np.bincount(flat, minlength=n_clusters * len(rows)).reshape(len(rows), n_clusters)
    return np.sort(sizes, axis=1)[:, ::-1].astype(np.int64)


def posterior_of_sizes(
    labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, "clusters sizes"]:
    """P(the r-th largest cluster has s points), for r = 0, 1, ... and s = 0, ..., N.

    Size 0 means that the draw has no r-th cluster, so every row sums to one.

    Example:
        >>> posterior_of_sizes([[0, 0, 1], [0, 0, 0]], [3, 1])
        array([[0.  , 0.  , 0.75, 0.25],
               [0.25, 0.75, 0.  , 0.  ]])
    """
    rows, w = _table(labels, weights)
    sizes = _sorted_sizes(rows)
    n_sizes = rows.shape[1] + 1
    return np.stack([np.bincount(s, weights=w, minlength=n_sizes) for s in sizes.T])


# Similarity ------------------------------------------------------------------------------------


def similarity_blocks(
    labels: ArrayLike, weights: ArrayLike | None = None, block_size: int = 512
) -> Iterator[tuple[slice, Float64[np.ndarray, "block points"]]]:
    """The similarity matrix as (rows, block) pairs, for N too large to hold N x N numbers.

    Example:
        >>> for rows, block in similarity_blocks([[0, 0, 1], [0, 1, 1]], block_size=2):
        ...     print(rows.start, rows.stop, block.shape)
        0 2 (2, 3)
        2 3 (1, 3)
    """
    from ncp.summary.kernels import group_points, similarity_block

    if block_size < 1:
        raise ValueError(f"Expected block_size >= 1 but got {block_size}")
    rows, w = merge_rows(labels, weights)
    groups = group_points(rows)
    for start in range(0, rows.shape[1], block_size):
        stop = min(start + block_size, rows.shape[1])
        block = similarity_block(*groups, w, start, stop)
        yield slice(start, stop), np.minimum(block, 1.0)


def similarity(
    labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, "points points"]:
    """S_ij = P(c_i = c_j): the posterior similarity (co-clustering) matrix.

    Example:
        >>> similarity([[0, 0, 1], [0, 1, 1]], [3, 1])
        array([[1.  , 0.75, 0.  ],
               [0.75, 1.  , 0.25],
               [0.  , 0.25, 1.  ]])
    """
    from ncp.summary.kernels import group_points, similarity_matrix

    rows, w = merge_rows(labels, weights)
    matrix = similarity_matrix(*group_points(rows), w)
    return np.minimum(matrix, 1.0, out=matrix)


def similarity_estimate(
    labels: ArrayLike, log_weights: ArrayLike, counts: ArrayLike | None = None
) -> Estimate:
    """The similarity matrix from importance weights, with a standard error for each pair.

    Equals ``importance.expectation`` of the indicators [c_i = c_j] with bounds (0, 1), without
    forming U matrices.

    Args:
        labels: rows of labels, of shape (U, N).
        log_weights: log w of one draw of each row, in any scale, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.

    Example:
        >>> similarity_estimate([[0, 0], [0, 1]], [0.0, 0.0], [50, 50]).standard_error.round(3)
        array([[0.02 , 0.052],
               [0.052, 0.02 ]])
    """
    from ncp.summary.kernels import group_points, similarity_matrix

    share, pull = influence(log_weights, counts)
    rows = _as_rows(labels)
    if len(rows) != len(share):
        raise ValueError(
            f"Expected {len(rows)} log weights, one for each row, but got {len(share)}"
        )
    groups = group_points(rows)
    mean = np.asarray(similarity_matrix(*groups, share))
    if np.isinf(pull).any():
        variance = np.where(np.eye(len(mean)) > 0, 0.0, np.inf)
    else:
        # sum_u b_u ([together] - m)^2, with the square multiplied out; on the diagonal it is 0
        together = np.asarray(similarity_matrix(*groups, pull))
        variance = np.maximum(together * (1 - 2 * mean) + mean**2 * pull.sum(), 0.0)
        np.fill_diagonal(variance, 0.0)
    variance = variance + unseen(mean, effective_sample_size(log_weights, counts), (0.0, 1.0))
    return Estimate(mean, np.sqrt(variance))


# Distances -------------------------------------------------------------------------------------


def _increments(loss: str, n_points: int) -> Float64[np.ndarray, " points"]:
    """delta(n) = phi(n + 1) - phi(n) for n = 0, ..., N - 1, see `ncp.summary.kernels`."""
    n = np.arange(n_points + 1, dtype=np.float64)
    if loss == "binder":
        return np.diff(n**2) / n_points**2
    if loss == "vi":
        return np.diff(n * np.log2(np.maximum(n, 1.0))) / n_points
    raise ValueError(f"Expected loss 'vi' or 'binder' but got {loss!r}")


def distance(
    labels: ArrayLike, reference: ArrayLike, loss: Loss = "vi"
) -> Float64[np.ndarray, "*rows"]:
    """d(c, reference) of one row (N,) or of each of many (U, N); VI in bits.

    Example:
        >>> distance([[0, 0, 1, 1], [0, 0, 0, 0]], [1, 1, 0, 0]).tolist()
        [0.0, 1.0]
    """
    from ncp.summary.kernels import distances

    array = np.asarray(labels)
    rows = _as_rows(array[None] if array.ndim == 1 else array)
    centre = _as_row(reference, rows.shape[1])
    result = distances(rows, centre, _increments(loss, rows.shape[1]))
    return result.reshape(array.shape[:-1])


def expected_loss(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None, loss: Loss = "vi"
) -> float:
    """sum_u w_u d(estimate, c_u).

    Example:
        >>> expected_loss([0, 0, 0, 0], [[0, 0, 1, 1], [0, 0, 0, 0]], loss="binder")
        0.25
    """
    rows, w = _table(labels, weights)
    return float(distance(rows, estimate, loss) @ w)


class Agreement(NamedTuple):
    """How close partitions are to a reference: numbers, or one for each row.

    Attributes:
        ari: adjusted Rand index, 1 for equality, 0 expected by chance.
        ami: adjusted mutual information, 1 for equality, 0 expected by chance.
        vi: variation of information in bits, 0 for equality.
        binder: fraction of ordered pairs that disagree, 0 for equality.
    """

    ari: Float64[np.ndarray, "*rows"]
    ami: Float64[np.ndarray, "*rows"]
    vi: Float64[np.ndarray, "*rows"]
    binder: Float64[np.ndarray, "*rows"]


def agreement(labels: ArrayLike, reference: ArrayLike) -> Agreement:
    """ARI, AMI (scikit-learn), VI and Binder's distance to a reference, (N,) or (U, N).

    Example:
        >>> a = agreement([0, 0, 1, 1], [1, 1, 0, 0])
        >>> float(a.ari), float(a.ami), float(a.vi)
        (1.0, 1.0, 0.0)
    """
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    array = np.asarray(labels)
    rows = _as_rows(array[None] if array.ndim == 1 else array)
    centre = _as_row(reference, rows.shape[1])
    scores = [
        [f(centre, row) for row in rows] for f in (adjusted_rand_score, adjusted_mutual_info_score)
    ]
    ari, ami = (np.array(s, dtype=np.float64).reshape(array.shape[:-1]) for s in scores)
    return Agreement(ari, ami, distance(array, centre, "vi"), distance(array, centre, "binder"))


# Point estimates -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PointEstimate:
    """One partition that stands for the posterior.

    Attributes:
        labels: the partition, of shape (N,), in order of appearance.
        loss: "vi", "binder", "pear" or "map".
        expected_loss: its expected distance to the draws; for "pear" one minus the expected
            adjusted Rand index, for "map" one minus its probability.
        hits: how many of the runs of the search ended with this loss.
        runs: how many runs there were.
    """

    labels: Int64[np.ndarray, " points"]
    loss: str
    expected_loss: float
    hits: int = 1
    runs: int = 1

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def sizes(self) -> Int64[np.ndarray, " clusters"]:
        return np.bincount(self.labels).astype(np.int64)

    def __repr__(self) -> str:
        sizes = ", ".join(str(s) for s in self.sizes[:8]) + (", ..." if self.n_clusters > 8 else "")
        return (
            f"PointEstimate({self.n_clusters} clusters of sizes [{sizes}], {self.loss}: "
            f"expected loss {self.expected_loss:.4g}, found by {self.hits} of {self.runs} runs)"
        )


def point_estimate(
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    loss: Estimator = "vi",
    *,
    max_clusters: int | None = None,
    n_restarts: int = 16,
    seed: int | None = 0,
) -> PointEstimate:
    """argmin_a sum_u w_u d(a, c_u), by greedy search; for "map" the heaviest draw.

    "pear" maximises the posterior expected adjusted Rand index (Fritsch and Ickstadt, 2009) over
    the draws and the cuts of the average-linkage tree of the similarity matrix. It keeps apart what
    the draws agree on where they are unsure of all else; "vi" would then merge everything. One
    cluster is the answer if it has more than half of the probability. The index hardly sees small
    clusters, so those that the draws are less than 80% sure of are then given up one by one, while
    all of it costs no more than 0.005.

    One run starts at the best of the draws, one (up to 500 points) at the best cut of the
    average-linkage tree of the similarity matrix, `n_restarts` at random: half by sequential
    allocation of all points, half at draws. So the result is never worse than any draw (with
    very many rows, U^2 N > 4e8: than any of the heaviest draws).

    Args:
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        loss: "vi" (expected variation of information), "binder", "pear" or "map".
        max_clusters: the largest number of clusters the estimate may have; no bound when left
            out.
        n_restarts: number of runs from random starts.
        seed: of the search; None for a fresh one.

    Example:
        >>> point_estimate([[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1]]).labels
        array([0, 0, 1, 1])
    """
    rows, w = merge_rows(labels, weights)
    if max_clusters is not None and max_clusters < 1:
        raise ValueError(f"Expected max_clusters >= 1 but got {max_clusters}")
    if n_restarts < 0:
        raise ValueError(f"Expected n_restarts >= 0 but got {n_restarts}")
    if loss == "map":
        return _heaviest(rows, w, max_clusters)
    if loss == "pear":
        return _best_by_rand_index(rows, w, max_clusters)
    search = _Search(rows, w, loss, max_clusters)
    starts = search.starts(n_restarts, np.random.default_rng(seed))
    ends = np.stack([search.run(start, run_seed) for start, run_seed in starts])
    losses = search.losses(ends)
    best = int(losses.argmin())
    hits = int((losses <= losses[best] + 1e-9).sum())
    return PointEstimate(ends[best], loss, float(losses[best]), hits, len(ends))


def _heaviest(rows: Labels, w: Weights, max_clusters: int | None) -> PointEstimate:
    allowed = np.flatnonzero(rows.max(axis=1) < (max_clusters or rows.shape[1]))
    if len(allowed) == 0:
        raise ValueError(f"Expected a draw with at most {max_clusters} clusters but got none")
    best = allowed[0]
    return PointEstimate(rows[best], "map", float(1.0 - w[best]))


def _best_by_rand_index(rows: Labels, w: Weights, max_clusters: int | None) -> PointEstimate:
    n_rows, n_points = rows.shape
    limit = min(max_clusters or n_points, n_points)
    draws = rows[rows.max(axis=1) < limit]  # sorted by weight: try the heaviest
    tried = draws[: max(1, PAIRWISE_WORK // (n_rows * n_points))]
    if n_points <= LINKAGE_POINTS:
        tried = np.concatenate([tried, _cuts(rows, w, limit)])
    tried = tried[tried.max(axis=1) > 0]
    if len(tried) == 0 or w[rows.max(axis=1) == 0].sum() > 0.5:
        tried = np.zeros_like(rows[:1])  # nothing to tell apart: said if more probable than not
    scores = _expected_rand_indices(tried, rows, w)
    best = int(scores.argmax())
    row, score = _without_fragments(tried[best], float(scores[best]), rows, w)
    hits = int((scores >= scores[best] - 1e-9).sum())
    return PointEstimate(row, "pear", 1.0 - score, hits, len(scores))


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
        fewer = _as_rows(
            [np.where(row == k, best, row) for k, best in zip(unsure, next_best, strict=True)]
        )
        scores = _expected_rand_indices(fewer, rows, w)
        best = int(scores.argmax())
        if scores[best] < least:
            break
        row, score = fewer[best], float(scores[best])
    return row, score


def _cuts(rows: Labels, w: Weights, limit: int) -> Int64[np.ndarray, "cuts points"]:
    """The cuts of the average-linkage tree of the similarity matrix, into 1, 2, ... clusters.

    Up to about twice those of any draw, and up to `limit`.
    """
    n_points, most = rows.shape[1], min(limit, 2 * int(rows.max()) + 4)
    if n_points == 1:
        return np.zeros((1, 1), dtype=np.int64)
    from scipy.cluster.hierarchy import cut_tree, linkage

    matrix = similarity(rows, w)
    tree = linkage(1.0 - matrix[np.triu_indices(n_points, 1)], "average")
    return _as_rows(cut_tree(tree, n_clusters=np.arange(1, min(most, n_points) + 1)).T)


class _Search:
    """What all runs of one search share: the draws as contingency rows, and the increments."""

    def __init__(self, rows: Labels, w: Weights, loss: str, max_clusters: int | None) -> None:
        n_points = rows.shape[1]
        n_clusters = rows.max(axis=1) + 1
        offsets = np.concatenate([[0], np.cumsum(n_clusters)[:-1]])
        self.rows, self.weights, self.loss = rows, w, cast(Loss, loss)
        self.limit = min(max_clusters or n_points, n_points)
        self.delta = _increments(loss, n_points)
        self.where = np.ascontiguousarray((rows + offsets[:, None]).T, dtype=np.int32)
        self.scale = np.repeat(2.0 * w, n_clusters)

    def losses(self, candidates: Labels) -> Float64[np.ndarray, " candidates"]:
        from ncp.summary.kernels import expected_distances

        return np.asarray(expected_distances(candidates, self.rows, self.weights, self.delta))

    def run(self, start: Int64[np.ndarray, " points"], seed: int) -> Int64[np.ndarray, " points"]:
        """One greedy run; room for clusters is doubled as long as the run uses all of it."""
        from ncp.summary.kernels import search

        largest = int(self.rows.max()) + 1
        capacity = min(self.limit, max(2 * largest, int(start.max()) + 2, 8))
        while True:
            end = _as_row(search(start, seed, self.where, self.scale, self.delta, capacity))
            if end.max() + 1 < capacity or capacity == self.limit:
                return end
            start, capacity = end, min(self.limit, 2 * capacity)

    def starts(
        self, n_restarts: int, rng: np.random.Generator
    ) -> Iterator[tuple[Int64[np.ndarray, " points"], int]]:
        """Starting labels, -1 for points still to be placed, and the seed of each run."""
        empty = np.full(self.rows.shape[1], -1)
        allowed = np.flatnonzero(self.rows.max(axis=1) < self.limit)
        firsts = [self._best_draw(allowed)] if len(allowed) else [empty]
        if self.rows.shape[1] <= LINKAGE_POINTS:
            firsts.append(self._best_cut())
        for start in firsts:
            yield start, int(rng.integers(2**31))
        for run in range(n_restarts):
            start = empty
            if run % 2 and len(allowed):
                p = self.weights[allowed] / self.weights[allowed].sum()
                start = self.rows[rng.choice(allowed, p=p)]
            yield start, int(rng.integers(2**31))

    def _best_draw(self, allowed: Int64[np.ndarray, " draws"]) -> Int64[np.ndarray, " points"]:
        from ncp.summary.kernels import mean_distances

        n_rows, n_points = self.rows.shape
        if n_rows * n_rows * n_points // 2 <= PAIRWISE_WORK:
            losses = mean_distances(self.rows, self.weights, self.delta)[allowed]
        else:  # rows are sorted by weight: try the heaviest
            allowed = allowed[: max(1, PAIRWISE_WORK // (n_rows * n_points))]
            losses = self.losses(self.rows[allowed])
        return np.asarray(self.rows[allowed[int(losses.argmin())]])

    def _best_cut(self) -> Int64[np.ndarray, " points"]:
        """The best cut of the average-linkage tree."""
        cuts = _cuts(self.rows, self.weights, self.limit)
        return np.asarray(cuts[int(self.losses(cuts).argmin())])


def climb(
    log_joint: Callable[[Labels], ArrayLike], start: ArrayLike, max_moves: int = 1000
) -> Int64[np.ndarray, " points"]:
    """argmax_c log p(c, x) by steepest ascent: move a point or merge two clusters.

    Where the model is known, this improves the heaviest draw, which is the mode among the
    draws only.

    Args:
        log_joint: from canonical rows (R, N) to log p(c, x), of shape (R,); for a conjugate
            mixture ``lambda c: mixture.log_joint(x, c)``.
        start: labels to start at, of shape (N,).
        max_moves: stop after so many moves.

    Example:
        >>> climb(lambda c: -c.max(axis=1), [0, 1, 2]).tolist()
        [0, 0, 0]
    """
    row = _as_row(start)
    value = float(np.asarray(log_joint(row[None]), dtype=np.float64)[0])
    for _ in range(max_moves):
        candidates = _neighbours(row)
        values = np.asarray(log_joint(candidates), dtype=np.float64)
        best = int(values.argmax())
        if not values[best] > value + 1e-10:
            break
        row, value = candidates[best], float(values[best])
    return row


def _neighbours(row: Int64[np.ndarray, " points"]) -> Labels:
    """Every partition that differs by the cluster of one point, or by two clusters merged."""
    n_points, n_clusters = len(row), int(row.max()) + 1
    point, cluster = np.divmod(np.arange(n_points * (n_clusters + 1)), n_clusters + 1)
    differs = row[point] != cluster
    moved = np.repeat(row[None], int(differs.sum()), axis=0)
    moved[np.arange(len(moved)), point[differs]] = cluster[differs]
    a, b = np.triu_indices(n_clusters, 1)
    merged = np.where(row[None] == b[:, None], a[:, None], row[None])
    return _as_rows(np.concatenate([moved, merged]))


# Uncertainty around the estimate ---------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class CredibleBall:
    """The smallest ball around an estimate that holds at least `level` of the mass.

    Attributes:
        centre: the estimate, of shape (N,).
        loss: the distance, "vi" or "binder".
        level: the mass asked for.
        radius: the largest distance in the ball.
        mass: the mass that it holds, at least `level`.
        upper: rows of the ball with the fewest clusters; of those, the most distant.
        lower: rows of the ball with the most clusters; of those, the most distant.
        horizontal: rows of the ball that are the most distant.
    """

    centre: Int64[np.ndarray, " points"]
    loss: str
    level: float
    radius: float
    mass: float
    upper: Int64[np.ndarray, "upper points"]
    lower: Int64[np.ndarray, "lower points"]
    horizontal: Int64[np.ndarray, "horizontal points"]

    def contains(self, labels: ArrayLike) -> Bool[np.ndarray, "*rows"]:
        """Whether each partition, (N,) or (U, N), lies in the ball."""
        return np.asarray(
            _within(distance(labels, self.centre, cast(Loss, self.loss)), self.radius)
        )

    def __repr__(self) -> str:
        k = [int(rows[0].max()) + 1 for rows in (self.upper, self.lower, self.horizontal)]
        return (
            f"CredibleBall({self.loss} radius {self.radius:.4g} holds {self.mass:.1%} "
            f"(asked {self.level:.1%}); clusters: {self.centre.max() + 1} at the centre, "
            f"{k[0]} upper, {k[1]} lower, {k[2]} horizontal)"
        )


def _within(distances: Float64[np.ndarray, "*rows"], radius: float) -> Bool[np.ndarray, "*rows"]:
    # Equal distances may differ by rounding when their sums run in different orders.
    return np.asarray(distances <= radius + 1e-10)


def credible_ball(
    estimate: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    loss: Loss = "vi",
    level: float = 0.95,
) -> CredibleBall:
    """B = {c : d(c, a) <= e}, with the smallest e such that P(B) >= level.

    The bounds describe the ball by its extreme members: the upper vertical bound has the fewest
    clusters, the lower one the most, the horizontal bound is the most distant. Each is a set of
    rows, because several may be tied.

    Args:
        estimate: the centre, of shape (N,), usually a point estimate under the same loss.
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        loss: the distance, "vi" or "binder".
        level: the mass to hold.

    Example:
        >>> credible_ball([0, 0, 1], [[0, 0, 1], [0, 0, 0], [0, 1, 2]], [8, 1, 1], level=0.85)
        CredibleBall(vi radius 0.6667 holds 90.0% (asked 85.0%); clusters: 2 at the centre, \
2 upper, 3 lower, 3 horizontal)
    """
    if not 0 < level <= 1:
        raise ValueError(f"Expected a level in (0, 1] but got {level}")
    rows, w = merge_rows(labels, weights)
    centre = _as_row(estimate, rows.shape[1])
    far = distance(rows, centre, loss)
    order = np.argsort(far, kind="stable")
    # The last sum may fall short of one by rounding, and level = 1 must still be reached.
    reached = int(np.searchsorted(np.cumsum(w[order]), level))
    radius = float(far[order[min(reached, len(order) - 1)]])
    inside = _within(far, radius)
    rows, far, mass = rows[inside], far[inside], min(float(w[inside].sum()), 1.0)
    k = rows.max(axis=1)
    return CredibleBall(
        centre,
        loss,
        level,
        radius,
        mass,
        upper=_most_distant(rows, far, k == k.min()),
        lower=_most_distant(rows, far, k == k.max()),
        horizontal=_most_distant(rows, far, np.ones(len(rows), dtype=bool)),
    )


def _most_distant(
    rows: Labels, far: Float64[np.ndarray, " rows"], among: Bool[np.ndarray, " rows"]
) -> Int64[np.ndarray, "chosen points"]:
    return np.asarray(rows[among & (far >= far[among].max() - 1e-10)])


def assignment(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, "points clusters"]:
    """How much point i belongs to cluster k of the estimate, whatever cluster it was put in.

        A_ik = mean over j != i with a_j = k of P(c_i = c_j),

    the probability that i is together with a random (other) member of cluster k. For a point
    that the estimate leaves alone, A_ik of its own cluster is the probability that it is alone.

    Example:
        >>> assignment([0, 0, 1], [[0, 0, 1], [0, 0, 0]], [3, 1])
        array([[1.  , 0.25],
               [1.  , 0.25],
               [0.25, 0.75]])
    """
    from ncp.summary.kernels import affinity, alone

    rows, w = merge_rows(labels, weights)
    a = _as_row(estimate, rows.shape[1])
    sizes = np.bincount(a)
    others = sizes[None, :] - (a[:, None] == np.arange(len(sizes)))
    total = affinity(rows, w, a, len(sizes))
    single = alone(rows, w)[:, None]
    mean = np.where(others > 0, total / np.maximum(others, 1), single)
    return np.asarray(np.clip(mean, 0.0, 1.0))


def confidence(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, " points"]:
    """How sure the posterior is of each point's cluster: `assignment` to its own cluster.

    Example:
        >>> confidence([0, 0, 1], [[0, 0, 1], [0, 0, 0]], [3, 1])
        array([1.  , 1.  , 0.75])
    """
    a = _as_row(estimate)
    return np.asarray(assignment(a, labels, weights)[np.arange(len(a)), a])


# Everything at once ----------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Summary:
    """What `summarise` found, in one place.

    Attributes:
        n_clusters: the posterior of the number of clusters.
        estimate: the point estimate.
        ball: the credible ball around it.
        confidence: of each point, of shape (N,).
        agreement: of the estimate with the reference, if one was given.
    """

    n_clusters: Discrete
    estimate: PointEstimate
    ball: CredibleBall
    confidence: Float64[np.ndarray, " points"]
    agreement: Agreement | None = None

    def __repr__(self) -> str:
        low, high = self.n_clusters.interval(self.ball.level)
        weakest = int(self.confidence.argmin())
        lines = [
            f"Summary of a posterior over partitions of {len(self.confidence)} points",
            f"  clusters:   mean {self.n_clusters.mean:.2f}, {self.ball.level:.0%} in "
            f"[{low:.0f}, {high:.0f}], {self.n_clusters}",
            f"  estimate:   {self.estimate}",
            f"  ball:       {self.ball}",
            f"  confidence: mean {self.confidence.mean():.3f}, "
            f"least {self.confidence[weakest]:.3f} at point {weakest}",
        ]
        if self.agreement is not None:
            a = self.agreement
            lines.append(f"  reference:  ARI {a.ari:.3f}, AMI {a.ami:.3f}, VI {a.vi:.3f} bits")
        return "\n".join(lines)


def summarise(
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    loss: Estimator = "vi",
    *,
    level: float = 0.95,
    reference: ArrayLike | None = None,
    max_clusters: int | None = None,
    n_restarts: int = 16,
    seed: int | None = 0,
) -> Summary:
    """Posterior of K, point estimate, credible ball and confidence of each point.

    Args:
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        loss: of the estimate; the ball is in the same distance (in VI for "pear" and "map").
        level: the mass of the ball.
        reference: labels to compare the estimate with, of shape (N,).
        max_clusters: the largest number of clusters of the estimate.
        n_restarts: number of runs of the search from random starts.
        seed: of the search.

    Example:
        >>> summary = summarise([[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1]])
        >>> summary.estimate.labels, summary.n_clusters
        (array([0, 0, 1, 1]), Discrete({2: 0.667, 3: 0.333}))
    """
    rows, w = merge_rows(labels, weights)
    estimate = point_estimate(
        rows, w, loss, max_clusters=max_clusters, n_restarts=n_restarts, seed=seed
    )
    return Summary(
        posterior_of_k(rows, w),
        estimate,
        credible_ball(estimate.labels, rows, w, "binder" if loss == "binder" else "vi", level),
        confidence(estimate.labels, rows, w),
        None if reference is None else agreement(estimate.labels, reference),
    )
