"""Compiled loops of `ncp.summary`: distances of partitions and the search for a point estimate.

Both losses are built from one concave-convex pair. With phi(n) = n^2 / N^2 (Binder) or
phi(n) = n log2(n) / N (variation of information), the distance of two partitions a and c with
contingency table n_ac is

    d(a, c) = sum_a phi(n_a) + sum_c phi(n_c) - 2 sum_ac phi(n_ac),

so the expected loss of a under weighted draws c_u changes, when a point that belongs to no
cluster joins cluster a, by

    delta(n_a) - 2 sum_u w_u delta(n_{a, c_u(i)}),        delta(n) = phi(n + 1) - phi(n).

`delta` is a table of N numbers. The search keeps 2 w_u delta(n_{a,c}) itself in a matrix `gain`
with one row for each cluster of each draw and one column for each cluster of the estimate:
scoring a point is then a sum of U short contiguous rows, and moving it changes 2 U entries.

The module is imported inside the functions that need it, because numba is slow to import.
"""

# ruff: noqa: NPY002 (in compiled code these calls use numba's own state, never numpy's global one)

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import INSIDE, njit

__all__ = [
    "affinity",
    "alone",
    "canonical_rows",
    "distances",
    "expected_distances",
    "group_points",
    "mean_distances",
    "overlap",
    "row_sums",
    "search",
    "shared_pairs",
    "similarity_matrix",
]

IntArray = NDArray[Any]
FloatArray = NDArray[Any]

# A move must gain more than rounding noise, or the search would walk in circles along ties.
TOLERANCE = 1e-12


@njit
def canonical_rows(labels: IntArray, n_values: int) -> IntArray:
    """Relabel each row of labels in {0, ..., n_values - 1} by order of appearance."""
    n_rows, n_points = labels.shape
    result = np.empty((n_rows, n_points), dtype=np.int64)
    new_label = np.empty(n_values, dtype=np.int64)
    for u in range(n_rows):
        for i in range(n_points):
            new_label[labels[u, i]] = -1
        n_clusters = 0
        for i in range(n_points):
            old = labels[u, i]
            if new_label[old] < 0:
                new_label[old] = n_clusters
                n_clusters += 1
            result[u, i] = new_label[old]
    return result


@njit
def row_sums(labels: IntArray, delta: FloatArray) -> FloatArray:
    """sum_k phi(n_k) of each row (U, N) -> (U,)."""
    n_rows, n_points = labels.shape
    result = np.zeros(n_rows)
    size = np.zeros(n_points, dtype=np.int64)
    for u in range(n_rows):
        size[:] = 0
        for i in range(n_points):
            k = labels[u, i]
            result[u] += delta[size[k]]
            size[k] += 1
    return result


@njit(**INSIDE)
def _n_labels(rows: IntArray) -> int:
    """One more than the largest label, by loops: `rows.max()` takes half a second to compile."""
    n_labels = 0
    for u in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            n_labels = max(n_labels, rows[u, i] + 1)
    return n_labels


@njit(**INSIDE)
def joint_sum(
    a: IntArray, c: IntArray, delta: FloatArray, table: IntArray, width: int | np.int64
) -> float:
    """sum_ac phi(n_ac) of two rows; `table` holds zeros before and after."""
    total = 0.0
    n_points = a.shape[0]
    for i in range(n_points):
        cell = a[i] * width + c[i]
        total += delta[table[cell]]
        table[cell] += 1
    for i in range(n_points):
        table[a[i] * width + c[i]] = 0
    return total


@njit
def distances(rows: IntArray, centre: IntArray, delta: FloatArray) -> FloatArray:
    """d(centre, row) of each row (U, N), (N,) -> (U,)."""
    # The three sums run over the points in the same order, so that the distance of a partition
    # to itself is exactly zero.
    result = row_sums(rows, delta)
    width, n_own = _n_labels(rows), 0
    for i in range(len(centre)):
        n_own = max(n_own, centre[i] + 1)
    table = np.zeros(n_own * width, dtype=np.int64)
    own = joint_sum(centre, centre, delta, table, np.int64(0))  # all in one line of the table
    for u in range(rows.shape[0]):
        shared = joint_sum(centre, rows[u], delta, table, width)
        result[u] = max(own + result[u] - 2.0 * shared, 0.0)
    return result


@njit
def expected_distances(
    candidates: IntArray, rows: IntArray, weights: FloatArray, delta: FloatArray
) -> FloatArray:
    """sum_u w_u d(candidate, row_u) of each candidate: (M, N), (U, N), (U,) -> (M,)."""
    result = np.empty(candidates.shape[0])
    for m in range(candidates.shape[0]):
        result[m] = np.sum(distances(rows, candidates[m], delta) * weights)
    return result


@njit
def mean_distances(rows: IntArray, weights: FloatArray, delta: FloatArray) -> FloatArray:
    """sum_v w_v d(row_u, row_v) of each row: (U, N), (U,) -> (U,), each pair visited once."""
    n_rows = rows.shape[0]
    single = row_sums(rows, delta)
    width = _n_labels(rows)
    table = np.zeros(width * width, dtype=np.int64)
    result = np.zeros(n_rows)
    for u in range(n_rows):
        for v in range(u):
            shared = joint_sum(rows[u], rows[v], delta, table, width)
            distance = single[u] + single[v] - 2.0 * shared
            result[u] += weights[v] * distance
            result[v] += weights[u] * distance
    return result


@njit
def shared_pairs(candidates: IntArray, rows: IntArray) -> FloatArray:
    """How many pairs of points are together in both: (M, N), (U, N) -> (M, U)."""
    n_points = rows.shape[1]
    width = _n_labels(rows)
    table = np.zeros(_n_labels(candidates) * width, dtype=np.int32)
    result = np.empty((candidates.shape[0], rows.shape[0]))
    for m in range(candidates.shape[0]):
        for u in range(rows.shape[0]):
            total = 0
            for i in range(n_points):
                cell = np.uint64(candidates[m, i] * width + rows[u, i])
                total += table[cell]
                table[cell] += 1
            for i in range(n_points):
                table[np.uint64(candidates[m, i] * width + rows[u, i])] = 0
            result[m, u] = total
    return result


@njit
def group_points(labels: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The points of each row in order of their labels, and where each point's cluster lies.

    Returns:
        members (U, N), a permutation of the points with clusters contiguous and ascending;
        first (U, N) and last (U, N): the cluster of point i is members[first[i]:last[i]].
    """
    n_rows, n_points = labels.shape
    members = np.empty((n_rows, n_points), dtype=np.int32)
    first = np.empty((n_rows, n_points), dtype=np.int32)
    last = np.empty((n_rows, n_points), dtype=np.int32)
    start = np.empty(n_points + 1, dtype=np.int64)
    filled = np.empty(n_points, dtype=np.int64)
    for u in range(n_rows):
        start[:] = 0
        filled[:] = 0
        for i in range(n_points):
            start[labels[u, i] + 1] += 1
        for k in range(n_points):
            start[k + 1] += start[k]
        for i in range(n_points):
            k = labels[u, i]
            members[u, start[k] + filled[k]] = i
            filled[k] += 1
            first[u, i] = start[k]
            last[u, i] = start[k + 1]
    return members, first, last


@njit
def similarity_matrix(
    members: IntArray, first: IntArray, last: IntArray, weights: FloatArray
) -> FloatArray:
    """The co-clustering matrix (N, N), each pair visited once.

    The cost follows the pairs that are together, sum_k n_k^2, not all N^2.
    """
    n_rows, n_points = members.shape
    result = np.zeros((n_points, n_points))
    done = first.copy()  # where the points after i begin in i's cluster
    for i in range(n_points):
        row = result[i]
        for u in range(n_rows):
            weight = weights[u]
            for p in range(done[u, i] + 1, last[u, i]):
                row[members[u, p]] += weight
            if done[u, i] + 1 < last[u, i]:
                done[u, members[u, done[u, i] + 1]] = done[u, i] + 1
        row[i] = 1.0
    for i in range(n_points):
        for j in range(i):
            result[i, j] = result[j, i]
    return result


@njit
def affinity(
    labels: IntArray, weights: FloatArray, estimate: IntArray, n_clusters: int
) -> FloatArray:
    """sum_j [a_j = k, j != i] P(c_i = c_j) for each point and cluster: (U, N) -> (N, K)."""
    n_rows, n_points = labels.shape
    result = np.zeros((n_points, n_clusters))
    table = np.zeros((n_points, n_clusters), dtype=np.int64)
    for u in range(n_rows):
        table[:] = 0
        for i in range(n_points):
            table[labels[u, i], estimate[i]] += 1
        for i in range(n_points):
            row = table[labels[u, i]]
            for k in range(n_clusters):
                result[i, k] += weights[u] * row[k]
            result[i, estimate[i]] -= weights[u]
    return result


@njit
def overlap(
    labels: IntArray, weights: FloatArray, estimate: IntArray, n_clusters: int
) -> FloatArray:
    """sum_u w_u |A n C_u| / |A u C_u| of each point's clusters in the estimate and in row u."""
    n_rows, n_points = labels.shape
    result = np.zeros(n_points)
    size = np.zeros(n_clusters, dtype=np.int64)
    for i in range(n_points):
        size[estimate[i]] += 1
    for u in range(n_rows):
        n_other = 0
        for i in range(n_points):
            n_other = max(n_other, labels[u, i] + 1)
        shared = np.zeros(n_clusters * n_other, dtype=np.int64)
        other = np.zeros(n_other, dtype=np.int64)
        for i in range(n_points):
            shared[estimate[i] * n_other + labels[u, i]] += 1
            other[labels[u, i]] += 1
        for i in range(n_points):
            both = shared[estimate[i] * n_other + labels[u, i]]
            either = size[estimate[i]] + other[labels[u, i]] - both
            result[i] += weights[u] * both / either
    return result


@njit
def alone(labels: IntArray, weights: FloatArray) -> FloatArray:
    """P(point i is a cluster of its own): (U, N), (U,) -> (N,)."""
    n_rows, n_points = labels.shape
    result = np.zeros(n_points)
    size = np.zeros(n_points, dtype=np.int64)
    for u in range(n_rows):
        size[:] = 0
        for i in range(n_points):
            size[labels[u, i]] += 1
        for i in range(n_points):
            if size[labels[u, i]] == 1:
                result[i] += weights[u]
    return result


# -- the search ------------------------------------------------------------------------------------


class _Search(NamedTuple):
    """The state of a search. Columns from the number of clusters on are empty and ready for use."""

    estimate: IntArray  # (N,) the cluster of each point, -1 while it has none
    where: IntArray  # (N, U) the row of each point; a row is one cluster of one draw
    scale: FloatArray  # (R,) 2 w_u of the row's draw
    delta: FloatArray  # (N,)
    phi: FloatArray  # (N + 1,)
    size: IntArray  # (C,) number of points of each cluster
    counts: IntArray  # (R, C) contingency counts
    gain: FloatArray  # (R, C) scale[r] * delta[counts[r, a]]
    cost: FloatArray  # (C,) scratch


@njit
def _score(s: _Search, i: int, n_columns: int) -> None:
    """Fill cost[:n_columns] with the change of loss when point i joins each column."""
    s.cost[:n_columns] = 0.0
    for u in range(s.where.shape[1]):
        row = s.gain[s.where[i, u]]
        for a in range(n_columns):
            s.cost[a] -= row[a]
    for a in range(n_columns):
        s.cost[a] += s.delta[s.size[a]]


@njit
def _change(s: _Search, i: int, a: int, step: int) -> None:
    """Add point i to column a (step = 1) or take it out (step = -1)."""
    s.size[a] += step
    for u in range(s.where.shape[1]):
        row = s.where[i, u]
        s.counts[row, a] += step
        s.gain[row, a] = s.scale[row] * s.delta[s.counts[row, a]]


@njit
def _close(s: _Search, a: int, n_clusters: int) -> int:
    """Fill the empty column a with the last one, so that the used columns stay contiguous."""
    last = n_clusters - 1
    if a != last:
        s.size[a] = s.size[last]
        for r in range(s.scale.shape[0]):
            s.counts[r, a] = s.counts[r, last]
            s.gain[r, a] = s.gain[r, last]
        for i in range(s.estimate.shape[0]):
            if s.estimate[i] == last:
                s.estimate[i] = a
    s.size[last] = 0
    for r in range(s.scale.shape[0]):
        s.counts[r, last] = 0
        s.gain[r, last] = s.scale[r] * s.delta[0]
    return last


@njit
def _best_column(cost: FloatArray, n_columns: int) -> int:
    best = 0
    for a in range(1, n_columns):
        if cost[a] < cost[best] - TOLERANCE:
            best = a
    return best


@njit
def _n_columns(s: _Search, n_clusters: int) -> int:
    """The existing clusters and, where there is room, a new one."""
    capacity: int = s.size.shape[0]
    return min(n_clusters + 1, capacity)


@njit
def _allocate(s: _Search, points: IntArray, n_clusters: int) -> tuple[int, float]:
    """Place points one after the other, each where the loss grows least."""
    change = 0.0
    for i in points:
        n_columns = _n_columns(s, n_clusters)
        _score(s, i, n_columns)
        a = _best_column(s.cost, n_columns)
        change += s.cost[a]
        _change(s, i, a, 1)
        s.estimate[i] = a
        n_clusters = max(n_clusters, a + 1)
    return n_clusters, change


@njit
def _sweeten(s: _Search, n_clusters: int) -> int:
    """Move single points, in random order, to where the loss is least, until none moves."""
    n_points, n_draws = s.where.shape
    moved = True
    while moved:
        moved = False
        for i in np.random.permutation(n_points):
            old = s.estimate[i]
            n_columns = _n_columns(s, n_clusters)
            _score(s, i, n_columns)
            stay = s.delta[s.size[old] - 1]
            for u in range(n_draws):
                row = s.where[i, u]
                stay -= s.scale[row] * s.delta[s.counts[row, old] - 1]
            s.cost[old] = stay
            a = _best_column(s.cost, n_columns)
            if s.cost[a] >= stay - TOLERANCE or (s.size[old] == 1 and a == n_clusters):
                continue
            moved = True
            _change(s, i, old, -1)
            _change(s, i, a, 1)
            s.estimate[i] = a
            n_clusters = max(n_clusters, a + 1)
            if s.size[old] == 0:
                n_clusters = _close(s, old, n_clusters)
    return n_clusters


@njit
def _dissolve(s: _Search, a: int, n_clusters: int) -> tuple[int, bool]:
    """Empty cluster a and allocate its points again; undone unless the loss falls."""
    members: IntArray = np.flatnonzero(s.estimate == a)
    np.random.shuffle(members)
    change = 0.0
    for i in members:
        _change(s, i, a, -1)
        change -= s.delta[s.size[a]]
        for u in range(s.where.shape[1]):
            change += s.gain[s.where[i, u], a]
        s.estimate[i] = -1
    n_before = _close(s, a, n_clusters)
    n_clusters, added = _allocate(s, members, n_before)
    if change + added < -TOLERANCE * n_before - TOLERANCE:
        return n_clusters, True
    for i in members:
        _change(s, i, s.estimate[i], -1)
    for i in members:
        _change(s, i, n_before, 1)
        s.estimate[i] = n_before
    return n_before + 1, False


@njit
def _merge(s: _Search, n_clusters: int) -> tuple[int, bool]:
    """Merge the two clusters whose union lowers the loss most, if any does."""
    phi, size, count = s.phi, s.size, s.counts
    change = np.zeros((n_clusters, n_clusters))
    for r in range(s.scale.shape[0]):
        for a in range(n_clusters):
            if count[r, a] == 0:
                continue
            for b in range(a):
                if count[r, b] > 0:
                    joined = phi[count[r, a] + count[r, b]] - phi[count[r, a]] - phi[count[r, b]]
                    change[a, b] -= s.scale[r] * joined
    best, best_a, best_b = -TOLERANCE, -1, -1
    for a in range(n_clusters):
        for b in range(a):
            total = change[a, b] + phi[size[a] + size[b]] - phi[size[a]] - phi[size[b]]
            if total < best:
                best, best_a, best_b = total, a, b
    if best_a < 0:
        return n_clusters, False
    size[best_b] += size[best_a]
    for r in range(s.scale.shape[0]):
        count[r, best_b] += count[r, best_a]
        if count[r, best_a] > 0:
            s.gain[r, best_b] = s.scale[r] * s.delta[count[r, best_b]]
    for i in range(s.estimate.shape[0]):
        if s.estimate[i] == best_a:
            s.estimate[i] = best_b
    return _close(s, best_a, n_clusters), True


@njit
def _settle(s: _Search, n_clusters: int) -> int:
    """Move points, then merge clusters, until neither lowers the loss."""
    merged = True
    while merged:
        n_clusters = _sweeten(s, n_clusters)
        n_clusters, merged = _merge(s, n_clusters)
    return n_clusters


@njit
def search(
    start: IntArray,
    seed: int,
    where: IntArray,
    scale: FloatArray,
    delta: FloatArray,
    capacity: int,
) -> IntArray:
    """One greedy run from the labels `start` (-1: not placed yet) to a local optimum.

    Points without a cluster are allocated in random order; then single points move and clusters
    merge until neither gains (sweetening); then clusters chosen at random are dissolved and
    built again until that has failed twice per cluster in a row, each success being followed by
    more sweetening.
    """
    np.random.seed(seed)
    s = _Search(
        np.full(where.shape[0], -1),
        where,
        scale,
        delta,
        np.concatenate((np.zeros(1), np.cumsum(delta))),
        np.zeros(capacity, dtype=np.int64),
        np.zeros((scale.shape[0], capacity), dtype=np.int32),
        np.empty((scale.shape[0], capacity)),
        np.empty(capacity),
    )
    for r in range(scale.shape[0]):
        s.gain[r] = scale[r] * delta[0]
    n_clusters = 0
    for i in range(where.shape[0]):
        if start[i] >= 0:
            _change(s, i, start[i], 1)
            s.estimate[i] = start[i]
            n_clusters = max(n_clusters, start[i] + 1)
    points = np.flatnonzero(s.estimate < 0)
    np.random.shuffle(points)
    n_clusters = _settle(s, _allocate(s, points, n_clusters)[0])
    failures = 0
    while failures < 2 * n_clusters:
        n_clusters, success = _dissolve(s, np.random.randint(n_clusters), n_clusters)
        failures = 0 if success else failures + 1
        if success:
            n_clusters = _settle(s, n_clusters)
    return s.estimate
