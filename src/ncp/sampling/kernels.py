"""The prefix tree as one compiled loop per sequence (see `ncp.sampling.sample`).

Two functions do the arithmetic, for the tree and for new points alike:

* `join_pairs`: g of clusters that points have joined, and what f sees of both (`PairFeatures`);
* `score_candidates`: f of (prefix, pair) candidates.

The rest keeps books. Nothing here allocates per step: `Workspace` arrays grow by doubling and two
sets of them take turns. A sequence is worked on by one thread, which holds no lock of Python's;
matrix products go to BLAS with the same shapes whatever else runs, so that the samples of a
sequence depend on nothing but its own numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import njit

__all__ = ["OVERFLOW", "STOPPED", "Weights", "run_sequence", "score_new"]

BLOCK = 256  # candidates that go through f at once: their activations stay in the cache
COSINE = 10.0  # as in `ncp.network.pair_features`
FAR = 1e8  # as in `ncp.network.attention`
DONE, STOPPED, OVERFLOW = 0, 1, 2

# Sums may be taken in any order, and fused: vectors. Infinity and NaN keep their meaning.
fast = njit(fastmath={"reassoc", "contract", "arcp", "nsz"})

Array = NDArray[np.floating]
Run = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]  # labels, counts, log q


class Weights(NamedTuple):
    """What the kernels need of a network: products as (in, out), hidden layers stacked."""

    b_u: Array  # (g,)
    size_u: Array  # (g,) weight of log n; zero for sums
    g_w: Array  # (hidden, g, g)
    g_b: Array  # (hidden, g)
    g_slopes: Array  # (hidden + 1,)
    w_gc: Array  # (g, 2 f)
    b_gc: Array  # (2 f,)
    w_pair: Array  # (n_pair, f)
    w_point: Array  # (n_point, f)
    k_f: Array  # (f,) weight of log K'
    rest_f: Array  # (f,) weight of log(1 + N - n)
    f_w: Array  # (hidden, f, f)
    f_b: Array  # (hidden, f)
    f_slopes: Array  # (hidden + 1,)
    f_out: Array  # (f,)
    codes: int
    coordinates: int
    octaves: int
    mean: bool
    g_residual: bool
    f_residual: bool


@fast
def _hidden(a, b, n, w, bias, slopes, residual):
    """Hidden layers, in place in `a`: its activation first, then each product."""
    width = a.shape[1]
    zero = a.dtype.type(0)
    slope = slopes[0]
    for i in range(n):
        for j in range(width):
            a[i, j] = max(a[i, j], zero) + slope * min(a[i, j], zero)
    for layer in range(w.shape[0]):
        np.dot(a[:n], w[layer], b[:n])
        slope = slopes[layer + 1]
        keep = a.dtype.type(1 if residual else 0)
        for i in range(n):
            for j in range(width):
                v = b[i, j] + bias[layer, j]
                a[i, j] = keep * a[i, j] + max(v, zero) + slope * min(v, zero)


@fast
def _pair_features(w, sums, point, rest, first, out):
    """What f sees of a cluster by its sums and a point; see `PairFeatures.of_pair`."""
    c, d, octaves = w.codes, w.coordinates, w.octaves
    last = len(sums) - 1
    inverse = 1 / max(sums[last], sums.dtype.type(1))
    with_point = within = with_rest = sums.dtype.type(0)
    for j in range(c):
        code = sums[first + j] * inverse
        product, other = code * point[first + j], code * rest[j]
        out[j], out[c + j], out[2 * c + j] = code, product, other
        with_point += product
        within += code * code
        with_rest += other
    scale = COSINE / c
    out[3 * c], out[3 * c + 1], out[3 * c + 2] = (
        scale * with_point,
        scale * within,
        scale * with_rest,
    )
    out[3 * c + 3] = np.log1p(sums[last])
    if octaves == 0:
        return
    apart = norm = sums.dtype.type(0)
    for j in range(d):
        centre = sums[first + c + j] * inverse
        norm += centre * centre
        apart += (centre - point[first + c + j]) ** 2
    spread = max(sums[first + c + d] * inverse - norm, sums.dtype.type(0))
    apart, spread = min(apart, FAR) / 8, min(spread, FAR) / 8
    at = 3 * c + 4
    for j in range(octaves):
        out[at + j] = np.exp(-apart)
        out[at + octaves + j] = np.log1p(apart)
        out[at + 2 * octaves + j] = np.log1p(spread)
        apart *= 4
        spread *= 4


@fast
def join_pairs(w, sums, points, rest, cluster, point, n, a, b, features, join, pair):
    """Clusters with a point in each, for n pairs (cluster or -1 for none, point).

    Fills `join` with g-hat(H + h) and V_C g(H + h), side by side, and `pair` with V_A times the
    pair features (zero where there is no cluster). `rest` is the mean code of the unassigned.
    """
    width = len(w.b_u)
    last = points.shape[1] - 1
    for i in range(n):
        k, m = cluster[i], point[i]
        size = points[m, last] + (sums[k, last] if k >= 0 else 0)
        scale = points.dtype.type(1 / size if w.mean else 1)
        log_size = points.dtype.type(np.log(size))
        for j in range(width):
            v = points[m, j] + (sums[k, j] if k >= 0 else 0)
            a[i, j] = v * scale + w.size_u[j] * log_size + w.b_u[j]
    _hidden(a, b, n, w.g_w, w.g_b, w.g_slopes, w.g_residual)
    np.dot(a[:n], w.w_gc, join[:n])
    for i in range(n):
        for j in range(join.shape[1]):
            join[i, j] += w.b_gc[j]
    if w.codes == 0:
        pair[:n] = 0
        return
    for i in range(n):
        if cluster[i] >= 0:
            _pair_features(w, sums[cluster[i]], points[point[i]], rest, width, features[i])
        else:
            features[i] = 0
    np.dot(features[:n], w.w_pair, pair[:n])


@fast
def score_candidates(w, y, b, n, logits):
    """f after its first layer, of n rows of `y`."""
    _hidden(y, b, n, w.f_w, w.f_b, w.f_slopes, w.f_residual)
    width = y.shape[1]
    for i in range(n):
        total = y.dtype.type(0)
        for j in range(width):
            total += y[i, j] * w.f_out[j]
        logits[i] = total


@fast
def _first_layer(w, total, r, change, extra, i, base, n, n_clusters, y, at):
    """y of a candidate: the prefix's sum with its cluster's value replaced, and all the rest.

    `change` is g-hat(H + h) - g-hat(H) of a pair, `extra` all that is not summed over clusters.
    """
    kind = y.dtype.type
    scale = kind(1 / n_clusters if w.mean else 1)
    log_k = kind(np.log(n_clusters))
    for j in range(y.shape[1]):
        in_g = (total[r, j] + change[i, j]) * scale
        y[at, j] = in_g + w.k_f[j] * log_k + extra[i, j] + base[n, j]


@fast
def _finish_pairs(join, pair, g_hat, cluster, n, change, extra):
    """`change` and `extra` (see `_first_layer`) of n pairs."""
    width = change.shape[1]
    for i in range(n):
        c = cluster[i]
        for j in range(width):
            old = g_hat[c, j] if c >= 0 else g_hat.dtype.type(0)
            change[i, j] = join[i, j] - old
            extra[i, j] = join[i, width + j] + pair[i, j]


@njit
def _log_softmax(scores, n):
    """In place, in double precision, from left to right. False if a score is not finite."""
    top = scores[0]
    for j in range(n):
        if not np.isfinite(scores[j]):
            return False
        top = max(top, scores[j])
    total = 0.0
    for j in range(n):
        total += np.exp(scores[j] - top)
    shift = top + np.log(total)
    for j in range(n):
        scores[j] -= shift
    return True


# -- the tree -----------------------------------------------------------------------------------


@njit
def _child_key(key, number):
    """SplitMix64 started at a key, its number-th output; see `ncp.sampling.keys.child_keys`."""
    z = key + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit
def _uniform(key, number):
    return (_child_key(key, number) >> np.uint64(11)) * 2.0**-53


@njit
def _split(scores, start, n_rows, counts, log_q, key, seats, parent, choice, tally, new_log_q):
    """Each sample of a row chooses its child independently; returns the number of children."""
    n_children = 0
    sample = np.uint64(0)
    for r in range(n_rows):
        first, n_slots = start[r], start[r + 1] - start[r]
        cumulative = 0.0
        for j in range(n_slots):
            cumulative += np.exp(scores[first + j])
            seats[j, 0], seats[j, 1] = cumulative, 0.0
        for _ in range(counts[r]):
            u = _uniform(key, sample) * cumulative
            sample += np.uint64(1)
            j = 0
            while j < n_slots - 1 and u >= seats[j, 0]:
                j += 1
            seats[j, 1] += 1.0
        for j in range(n_slots):
            if seats[j, 1] > 0:
                parent[n_children], choice[n_children] = r, j
                tally[n_children] = np.int64(seats[j, 1])
                new_log_q[n_children] = log_q[r] + scores[first + j]
                n_children += 1
    return n_children


@njit
def _keep_best(scores, start, n_rows, counts, log_q, beam, parent, choice, tally, new_log_q):
    """The `beam` most probable children of all rows, in the order of their parents."""
    n = start[n_rows]
    total = np.empty(n)
    row = np.empty(n, np.int64)
    for r in range(n_rows):
        for j in range(start[r], start[r + 1]):
            total[j] = log_q[r] + scores[j]
            row[j] = r
    best = np.sort(np.argsort(-total, kind="mergesort")[:beam])
    for i in range(len(best)):
        j = best[i]
        parent[i], choice[i], tally[i] = row[j], j - start[row[j]], counts[row[j]]
        new_log_q[i] = total[j]
    return len(best)


@njit
def _room(array, n):
    """The array, or a copy with twice the rows that are wanted if it has fewer."""
    if array.shape[0] >= n:
        return array
    larger = np.zeros((2 * n, array.shape[1]), array.dtype)
    larger[: array.shape[0]] = array
    return larger


@njit
def _room1(array, n):
    if array.shape[0] >= n:
        return array
    larger = np.zeros(2 * n, array.dtype)
    larger[: array.shape[0]] = array
    return larger


@njit
def _positions(w, points, q, static):
    """What does not depend on clusters, of every position: `base`, and the mean code after it."""
    n, width = static.shape
    c, first = w.codes, len(w.b_u)
    base = static.copy()
    rest = np.zeros((n, max(c, 1)), static.dtype)
    q_sum = np.zeros(width)
    z_sum = np.zeros(max(c, 1))
    seen = np.zeros((n, w.w_point.shape[0]), static.dtype)
    for i in range(n - 1, -1, -1):
        number = n - 1 - i
        each = 1.0 / max(number, 1)
        log_rest = np.log1p(number)
        q_scale = each if w.mean else 1.0
        for j in range(width):
            base[i, j] += q_sum[j] * q_scale + w.rest_f[j] * log_rest
            q_sum[j] += q[i, j]
        if c > 0:
            cosine = 0.0
            for j in range(c):
                rest[i, j] = z_sum[j] * each
                product = rest[i, j] * points[i, first + j]
                seen[i, j] = product
                cosine += product
                z_sum[j] += points[i, first + j]
            seen[i, c] = COSINE / c * cosine
            seen[i, c + 1] = log_rest
    if c > 0:
        base += np.dot(seen, w.w_point)
    return base, rest


@njit
def run_sequence(  # type: ignore[no-untyped-def]
    w, points, q, static, order, count, key, beam, stop, done
) -> Any:
    """All samples of one data set in one order.

    Args:
        w: the network's `Weights`.
        points, q, static: the tables of `Points`, in the order of the sequence.
        order: which of the caller's points stands at each position.
        count: samples wanted.
        key: of the sequence's random numbers.
        beam: 0 to split samples, else the number of prefixes to keep.
        stop: an array of one flag, that another thread may set.
        done: an array of one number, to which the positions that are finished are added.

    Returns:
        Canonical labels `(rows, N)` in the caller's order, counts, log q,
        and `DONE`, `STOPPED` or `OVERFLOW`.
    """
    n_points, n_sums = points.shape
    width, g_width = len(w.f_out), len(w.b_u)
    kind = points.dtype
    base, rest = _positions(w, points, q, static)

    # rows: distinct prefixes; two sets that take turns
    cap = 64
    k, k2 = np.ones(cap, np.int64), np.ones(cap, np.int64)
    counts, counts2 = np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    log_q, log_q2 = np.zeros(cap), np.zeros(cap)
    total, total2 = np.zeros((cap, width), kind), np.zeros((cap, width), kind)
    refs, refs2 = np.zeros((cap, 8), np.int32), np.zeros((cap, 8), np.int32)
    parent, choice = np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    # arena: distinct live clusters, likewise
    sums, sums2 = np.zeros((cap, n_sums), kind), np.zeros((cap, n_sums), kind)
    g_hat, g_hat2 = np.zeros((cap, width), kind), np.zeros((cap, width), kind)
    # pairs of a step: every live cluster with the point, then the point alone
    cluster, alone = np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    a, b = np.zeros((cap, g_width), kind), np.zeros((cap, g_width), kind)
    features = np.zeros((cap, w.w_pair.shape[0]), kind)
    join, pair = np.zeros((cap, 2 * width), kind), np.zeros((cap, width), kind)
    change, extra = np.zeros((cap, width), kind), np.zeros((cap, width), kind)
    old_id, new_id = np.zeros(cap, np.int32), np.zeros(cap, np.int32)
    # candidates of a step
    scores, start = np.zeros(4 * cap), np.zeros(cap + 1, np.int64)
    y, y2 = np.zeros((BLOCK, width), kind), np.zeros((BLOCK, width), kind)
    block, seats = np.zeros(BLOCK, kind), np.zeros((16, 2))
    # history: children of all steps, one step after the other
    parents, choices = np.zeros(4 * cap, np.int32), np.zeros(4 * cap, np.int32)
    offsets = np.zeros(n_points + 1, np.int64)

    cluster[0] = -1
    join_pairs(w, sums, points[:1], rest[0], cluster, alone, 1, a, b, features, join, pair)
    sums[0], g_hat[0], total[0] = points[0], join[0, :width], join[0, :width]
    counts[0] = count
    n_rows = n_live = most_k = 1
    done[0] += 1
    for n in range(1, n_points):
        if stop[0]:
            return np.zeros((0, n_points), np.int64), counts[:0], log_q[:0], STOPPED
        # g of every live cluster with the point, and of the point alone
        n_pairs = n_live + 1
        cluster, alone = _room1(cluster, n_pairs), _room1(alone, n_pairs)
        a, b, features = _room(a, n_pairs), _room(b, n_pairs), _room(features, n_pairs)
        join, pair = _room(join, n_pairs), _room(pair, n_pairs)
        change, extra = _room(change, n_pairs), _room(extra, n_pairs)
        old_id, new_id = _room1(old_id, n_pairs), _room1(new_id, n_pairs)
        for i in range(n_live):
            cluster[i] = i
        cluster[n_live] = -1
        here = points[n : n + 1]
        join_pairs(w, sums, here, rest[n], cluster, alone, n_pairs, a, b, features, join, pair)
        _finish_pairs(join, pair, g_hat, cluster, n_pairs, change, extra)

        # f of every candidate
        start = _room1(start, n_rows + 1)
        for r in range(n_rows):
            start[r + 1] = start[r] + k[r] + 1
        scores = _room1(scores, start[n_rows])
        filled = at = 0
        for r in range(n_rows):
            for j in range(k[r] + 1):
                i = refs[r, j] if j < k[r] else n_live
                _first_layer(w, total, r, change, extra, i, base, n, max(k[r], j + 1), y, filled)
                filled += 1
                if filled == BLOCK:
                    score_candidates(w, y, y2, filled, block)
                    scores[at : at + filled] = block[:filled]
                    at += filled
                    filled = 0
        score_candidates(w, y, y2, filled, block)
        scores[at : at + filled] = block[:filled]
        for r in range(n_rows):
            if not _log_softmax(scores[start[r] :], start[r + 1] - start[r]):
                return np.zeros((0, n_points), np.int64), counts[:0], log_q[:0], OVERFLOW

        # the children
        most = start[n_rows] if beam > 0 else min(count, start[n_rows])
        parent, choice = _room1(parent, most), _room1(choice, most)
        counts2, log_q2, k2 = _room1(counts2, most), _room1(log_q2, most), _room1(k2, most)
        if beam > 0:
            n_children = _keep_best(
                scores, start, n_rows, counts, log_q, beam, parent, choice, counts2, log_q2
            )
        else:
            step = _child_key(key, np.uint64(n - 1))
            seats = _room(seats, most_k + 1)
            n_children = _split(
                scores, start, n_rows, counts, log_q, step, seats, parent, choice, counts2, log_q2
            )
        end = offsets[n] + n_children
        parents, choices = _room1(parents, end), _room1(choices, end)
        offsets[n + 1] = end

        # their state: clusters that somebody has, once each
        most_k = 0
        for child in range(n_children):
            parents[offsets[n] + child], choices[offsets[n] + child] = parent[child], choice[child]
            r = parent[child]
            k2[child] = max(k[r], choice[child] + 1)
            most_k = max(most_k, k2[child])
        if most_k > refs2.shape[1] or n_children > refs2.shape[0]:
            refs2 = np.zeros(
                (max(2 * n_children, refs2.shape[0]), max(2 * most_k, refs2.shape[1])), np.int32
            )
        total2 = _room(total2, n_children)
        sums2 = _room(sums2, 2 * n_live + 1)
        g_hat2 = _room(g_hat2, 2 * n_live + 1)
        old_id[:n_pairs] = -1
        new_id[:n_pairs] = -1
        n_new = 0
        for child in range(n_children):
            r = parent[child]
            for j in range(k2[child]):
                i = refs[r, j] if j < k[r] else n_live
                if j == choice[child]:
                    if new_id[i] < 0:
                        new_id[i] = n_new
                        for d in range(n_sums):
                            sums2[n_new, d] = points[n, d] + (sums[i, d] if i < n_live else 0)
                        g_hat2[n_new] = join[i, :width]
                        n_new += 1
                    refs2[child, j] = new_id[i]
                    for d in range(width):
                        total2[child, d] = total[r, d] + change[i, d]
                else:
                    if old_id[i] < 0:
                        old_id[i] = n_new
                        sums2[n_new] = sums[i]
                        g_hat2[n_new] = g_hat[i]
                        n_new += 1
                    refs2[child, j] = old_id[i]
        n_rows, n_live = n_children, n_new
        k, k2 = k2, k
        counts, counts2 = counts2, counts
        log_q, log_q2 = log_q2, log_q
        total, total2 = total2, total
        refs, refs2 = refs2, refs
        sums, sums2 = sums2, sums
        g_hat, g_hat2 = g_hat2, g_hat
        done[0] += 1
    labels = _read_labels(parents, choices, offsets, n_rows, order)
    return labels, counts[:n_rows].copy(), log_q[:n_rows].copy(), DONE


@njit
def _read_labels(parents, choices, offsets, n_rows, order):
    """Walk back from the final rows; labels by first appearance in the caller's order."""
    n_points = len(order)
    labels = np.zeros((n_rows, n_points), np.int64)
    new = np.empty(n_points, np.int64)
    for row in range(n_rows):
        r = row
        for n in range(n_points - 1, 0, -1):
            labels[row, order[n]] = choices[offsets[n] + r]
            r = parents[offsets[n] + r]
        labels[row, order[0]] = 0
        new[:] = -1
        n_seen = 0
        for i in range(n_points):
            old = labels[row, i]
            if new[old] < 0:
                new[old] = n_seen
                n_seen += 1
            labels[row, i] = new[old]
    return labels


# -- new points ---------------------------------------------------------------------------------


@njit
def score_new(w: Any, points: Any, static: Any, sums: Any, out: Any) -> Any:
    """log p(c = k) of new points, each as the last one after the clusters of a partition.

    Args:
        w: the network's `Weights`.
        points, static: the tables of `Points` of M new points.
        sums: of the K clusters, `(K, n_sums)`.
        out: `(M, K + 1)`; the last column is "a new cluster".

    Returns:
        False if a score is not finite.
    """
    n_clusters = len(sums)
    width, g_width = len(w.f_out), len(w.b_u)
    kind = points.dtype
    slots = n_clusters + 1
    at_once = max(1, BLOCK // slots)
    n = max(at_once * slots, n_clusters)
    cluster, point = np.zeros(n, np.int64), np.zeros(n, np.int64)
    a, b = np.zeros((n, g_width), kind), np.zeros((n, g_width), kind)
    features = np.zeros((n, w.w_pair.shape[0]), kind)
    join, pair = np.zeros((n, 2 * width), kind), np.zeros((n, width), kind)
    y, y2, logits = np.zeros((n, width), kind), np.zeros((n, width), kind), np.zeros(n, kind)
    change, extra = np.zeros((n, width), kind), np.zeros((n, width), kind)
    rest = np.zeros(max(w.codes, 1), kind)

    # g-hat of the clusters themselves: nothing joined by each
    for i in range(n_clusters):
        cluster[i], point[i] = -1, i
    join_pairs(w, sums, sums, rest, cluster, point, n_clusters, a, b, features, join, pair)
    g_hat = join[:n_clusters, :width].copy()
    total = np.zeros((1, width), kind)
    for i in range(n_clusters):
        total[0] += g_hat[i]
    for first in range(0, len(points), at_once):
        m = min(at_once, len(points) - first)
        for i in range(m):
            for j in range(slots):
                cluster[i * slots + j] = j if j < n_clusters else -1
                point[i * slots + j] = i
        here = points[first : first + m]
        n_pairs = m * slots
        join_pairs(w, sums, here, rest, cluster, point, n_pairs, a, b, features, join, pair)
        _finish_pairs(join, pair, g_hat, cluster, n_pairs, change, extra)
        for p in range(n_pairs):
            n_after = max(n_clusters, p % slots + 1)
            _first_layer(w, total, 0, change, extra, p, static, first + p // slots, n_after, y, p)
        score_candidates(w, y, y2, n_pairs, logits)
        for i in range(m):
            out[first + i] = logits[i * slots : (i + 1) * slots]
            if not _log_softmax(out[first + i], slots):
                return False
    return True
