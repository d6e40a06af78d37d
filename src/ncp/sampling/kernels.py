"""The prefix tree as one compiled loop per sequence (see `ncp.sampling.sample`).

Two functions do the arithmetic, for the tree and for new points alike:

* `join_point`: g of clusters that a point has joined, and what f sees of both (`PairFeatures`);
* `score_candidates`: f of (prefix, pair) candidates.

The rest keeps books, in the arrays of a `Workspace`: nothing here allocates. A sequence is worked
on by one thread, which holds no lock of Python's; matrix products go to BLAS with the same shapes
whatever else runs, so that the samples of a sequence depend on nothing but its own numbers.

Loops are written out where array expressions would do: they compile several times faster. Numbers
start as `np.int64(0)`: a literal 0 is a type of its own, for which a callee is compiled once more.
What a call does not need is not compiled: constraints and the beam's width are None without them.
A callee is optimised again in each caller on the way up, so large ones are called from the top.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from jaxtyping import Float, Float64, Int64

from ncp.compiled import FAST, INSIDE, compile_elsewhere, exp_minus, log1p, njit

__all__ = [
    "DONE",
    "IMPOSSIBLE",
    "MORE_CLUSTERS",
    "MORE_SLOTS",
    "OVERFLOW",
    "STOPPED",
    "Weights",
    "Workspace",
    "lay_out",
    "read_labels",
    "run_sequence",
    "score_new",
    "start_compiling",
]

BLOCK = 240  # candidates that go through f at once: their activations stay in the cache
COSINE = 10.0  # as in `ncp.network.pair_features`
FAR = 1e8  # as in `ncp.network.attention`
DONE, STOPPED, OVERFLOW, MORE_CLUSTERS, MORE_SLOTS, IMPOSSIBLE = range(6)
ENOUGH = 0.5  # effective share of the samples below which weighted ones are drawn anew

# Nothing allocates, so numba need not count who holds an array: a third of the code did that.
_plain = {"_nrt": False}
_inside = {**INSIDE, **_plain}
# A call hands over every field of its tuples, so what is called for each row or cluster is inlined.
_inline = {"forceinline": True, **_inside}
fast, fast_inline = njit(**FAST, **_inside), njit(**FAST, **_inline)
inner, inline = njit(**_inside), njit(**_inline)

Array = Float[np.ndarray, "..."]


class Weights(NamedTuple):
    """What the kernels need of a network: products as (in, out), hidden layers stacked."""

    b_u: Float[np.ndarray, " g"]
    size_u: Float[np.ndarray, " g"]  # weight of log n; zero for sums
    g_w: Float[np.ndarray, "hidden g g"]
    g_b: Float[np.ndarray, "hidden g"]
    g_slopes: Float[np.ndarray, " hidden+1"]
    w_gc: Float[np.ndarray, "g 2*f"]
    b_g: Float[np.ndarray, " f"]
    w_code: Float[np.ndarray, "3 codes f"]  # V_A of mean codes: alone, by the point, the others
    w_cluster: Float[np.ndarray, "n f"]  # V_A of the other features of a cluster
    w_point: Float[np.ndarray, "codes+2 f"]  # V_P
    k_f: Float[np.ndarray, " f"]  # weight of log K'
    rest_f: Float[np.ndarray, " f"]  # weight of log(1 + N - n)
    f_w: Float[np.ndarray, "hidden f f"]
    f_b: Float[np.ndarray, "hidden f"]
    f_slopes: Float[np.ndarray, " hidden+1"]
    f_out: Float[np.ndarray, " f"]
    codes: int
    coordinates: int
    octaves: int
    mean: bool
    g_residual: bool
    f_residual: bool


class Workspace(NamedTuple):
    """The arrays of a tree; a first axis of two holds the state before and after a step."""

    # rows: distinct prefixes
    k: Int64[np.ndarray, "2 rows"]  # number of clusters
    counts: Int64[np.ndarray, "2 rows"]
    log_q: Float64[np.ndarray, "2 rows"]
    total: Float[np.ndarray, "2 rows f"]  # S: the sum of g-hat over the row's clusters
    refs: Int64[np.ndarray, "2 rows slots"]  # references into the arena
    log_w: Float64[np.ndarray, "2 rows"]  # the allowed mass of all steps, if constrained
    placed: Int64[np.ndarray, "2 rows groups"]  # the slot of each group, -1 before it has one
    parent: Int64[np.ndarray, " rows"]
    choice: Int64[np.ndarray, " rows"]
    # arena: distinct live clusters
    sums: Float[np.ndarray, "2 clusters n_sums"]
    g_hat: Float[np.ndarray, "2 clusters f"]
    ids: Int64[np.ndarray, "2 pairs"]  # places after a step: clusters as they were, with the point
    # pairs of a step: every live cluster with the point, then the point alone
    a: Float[np.ndarray, "pairs g"]
    b: Float[np.ndarray, "pairs g"]
    features: Float[np.ndarray, "pairs n_features"]  # of `_cluster_features`
    folded: Float[np.ndarray, "n_features f"]  # V_A for a point; its end is `Weights.w_cluster`
    squares: Float64[np.ndarray, "3 pairs*octaves"]
    join: Float[np.ndarray, "pairs 2*f"]
    pair: Float[np.ndarray, "pairs f"]
    change: Float[np.ndarray, "pairs f"]
    extra: Float[np.ndarray, "pairs f"]
    # candidates of a step
    scores: Float64[np.ndarray, " rows*(slots+1)"]
    start: Int64[np.ndarray, " rows+1"]  # where each row's begin
    seats: Float64[np.ndarray, "2 slots+1"]  # cumulative probabilities and tallies of a row
    y: Float[np.ndarray, "BLOCK f"]
    y2: Float[np.ndarray, "BLOCK f"]
    # history: parents and choices of all steps, one step after the other
    parents: Int64[np.ndarray, " N*rows"]
    choices: Int64[np.ndarray, " N*rows"]
    offsets: Int64[np.ndarray, " N+1"]
    log_z: Float64[np.ndarray, " N"]  # log mean weight after each step


@njit(**INSIDE, _nrt=True)  # which products ask for
def _product(a, n, w, out):
    """The first n rows of `a`, times `w`."""
    np.dot(a[:n], w, out[:n])


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
        _product(a, n, w[layer], b)
        slope = slopes[layer + 1]
        keep = a.dtype.type(1 if residual else 0)
        for i in range(n):
            for j in range(width):
                v = b[i, j] + bias[layer, j]
                a[i, j] = keep * a[i, j] + max(v, zero) + slope * min(v, zero)


@fast
def _fold_point(w, point, rest, out):
    """V_A for one point, to be multiplied with what `_cluster_features` gives of each cluster.

    The rows after those of the codes are the same for all points: `Workspace.folded` has them.

    Of the features of `PairFeatures.of_pair`, those of a cluster's mean code z and of the point's
    (or the unassigned ones') are linear in z, so one product with z stands for all of them.
    """
    first = len(w.b_u)
    for j in range(w.codes):
        own, other = point[first + j], rest[j]
        for d in range(len(w.k_f)):
            out[j, d] = w.w_code[0, j, d] + own * w.w_code[1, j, d] + other * w.w_code[2, j, d]


@fast
def _cluster_features(w, sums, side, n, point, s):
    """What f sees of n clusters and a point: z, |z|^2, sizes, and distances if there are any."""
    c, d, octaves, first, last = w.codes, w.coordinates, w.octaves, len(w.b_u), len(point) - 1
    kind = point.dtype.type
    for i in range(n):
        inverse = 1 / sums[side, i, last]
        within = kind(0)
        for j in range(c):
            code = sums[side, i, first + j] * inverse
            s.features[i, j] = code
            within += code * code
        s.features[i, c] = COSINE / c * within
        s.features[i, c + 1] = log1p(sums[side, i, last])
        if octaves == 0:
            continue
        apart = norm = kind(0)
        for j in range(d):
            centre = sums[side, i, first + c + j] * inverse
            norm += centre * centre
            gap = centre - point[first + c + j]
            apart += gap * gap
        spread = max(sums[side, i, first + c + d] * inverse - norm, kind(0))
        apart = min(apart, kind(FAR)) / kind(8)
        spread = min(spread, kind(FAR)) / kind(8)
        at = i * octaves
        for j in range(octaves):
            s.squares[0, at + j] = apart
            s.squares[1, at + j] = spread
            apart *= kind(4)
            spread *= kind(4)
    for i in range(n * octaves):
        s.squares[2, i] = exp_minus(s.squares[0, i])
        s.squares[0, i] = log1p(s.squares[0, i])
        s.squares[1, i] = log1p(s.squares[1, i])
    at = c + 2
    for i in range(n):
        for j in range(octaves):
            s.features[i, at + j] = s.squares[2, i * octaves + j]
            s.features[i, at + octaves + j] = s.squares[0, i * octaves + j]
            s.features[i, at + 2 * octaves + j] = s.squares[1, i * octaves + j]


@fast
def join_point(w, sums, side, g_hat, point, base, rest, n_clusters, s):
    """A point in each of the first clusters, and last by itself: n_clusters + 1 pairs.

    Fills `s.join` with g-hat(H + h) and V_C g(H + h), side by side; `s.change` with
    g-hat(H + h) - g-hat(H); and `s.extra` with all that is not summed over clusters: V_C g, V_A
    times the pair features, and the point's `base`. `rest` is the mean code of the unassigned.
    """
    g_width, width, last, n = len(w.b_u), len(w.k_f), len(point) - 1, n_clusters + 1
    kind, none = point.dtype.type, point.dtype.type(0)
    for i in range(n):
        size = point[last] + (sums[side, i, last] if i < n_clusters else none)
        scale = kind(1 / size if w.mean else 1)
        log_size = kind(np.log(size))
        if i < n_clusters:
            for j in range(g_width):
                v = (point[j] + sums[side, i, j]) * scale
                s.a[i, j] = v + w.size_u[j] * log_size + w.b_u[j]
        else:
            for j in range(g_width):
                s.a[i, j] = point[j] * scale + w.size_u[j] * log_size + w.b_u[j]
    _hidden(s.a, s.b, n, w.g_w, w.g_b, w.g_slopes, w.g_residual)
    _product(s.a, n, w.w_gc, s.join)
    for i in range(n):
        for j in range(width):
            s.join[i, j] += w.b_g[j]
            s.change[i, j] = s.join[i, j]
            s.extra[i, j] = s.join[i, width + j] + base[j]
    for i in range(n_clusters):
        for j in range(width):
            s.change[i, j] -= g_hat[side, i, j]
    if w.codes > 0 and n_clusters > 0:
        _cluster_features(w, sums, side, n_clusters, point, s)
        _fold_point(w, point, rest, s.folded)
        _product(s.features, n_clusters, s.folded, s.pair)
        for i in range(n_clusters):
            for j in range(width):
                s.extra[i, j] += s.pair[i, j]


@fast_inline
def _first_layer(k_f, scale, log_k, total, side, r, change, extra, i, y, at):
    """y of a candidate: the prefix's sum with its cluster's value replaced, and all the rest."""
    for j in range(y.shape[1]):
        in_g = (total[side, r, j] + change[i, j]) * scale
        y[at, j] = in_g + (k_f[j] * log_k + extra[i, j])


@fast
def score_candidates(w, y, y2, n, scores, at):
    """f after its first layer, of n rows of `y`, to `scores` from `at` on."""
    _hidden(y, y2, n, w.f_w, w.f_b, w.f_slopes, w.f_residual)
    for i in range(n):
        total = y.dtype.type(0)
        for j in range(y.shape[1]):
            total += y[i, j] * w.f_out[j]
        scores[at + i] = total


@inline
def _log_softmax(scores, first, n):
    """In place, in double precision, from left to right. False if a score is not finite."""
    top = scores[first]
    for j in range(first, first + n):
        if not np.isfinite(scores[j]):
            return False
        top = max(top, scores[j])
    total = 0.0
    for j in range(first, first + n):
        total += np.exp(scores[j] - top)
    log_total = np.log(total)
    for j in range(first, first + n):
        scores[j] = (scores[j] - top) - log_total  # of scores of any size
    return True


@njit(**FAST)
def lay_out(  # type: ignore[no-untyped-def]
    first, mean, rest_f, w_point, order, sums, q, static, points, base, rest, seen, of_point, after
) -> None:
    """Points in an order, and what goes with their positions: `Network.positions`, compiled.

    Args:
        first: the column of the points' codes.
        mean, rest_f, w_point: of the network's `Weights`.
        order: which point stands at each position, `(N,)`.
        sums, q, static: the tables of `Points` of the N points.
        points, base, rest: to be filled, in the order.
        seen, of_point: room for what f sees of each point, and for V_P times that.
        after: zeros, one for each column of q and of the codes: their sums over what is left.
    """
    n_points, width, c = len(order), len(rest_f), rest.shape[1]
    for n in range(n_points - 1, -1, -1):
        at, left = order[n], n_points - 1 - n
        each, log_left = 1.0 / max(left, 1), np.log(left + 1.0)
        scale, of_number = (each, log_left) if mean else (1.0, 0.0)
        for j in range(sums.shape[1]):
            points[n, j] = sums[at, j]
        for j in range(width):
            base[n, j] = after[j] * scale + rest_f[j] * of_number + static[at, j]
            after[j] += q[at, j]
        cosine = 0.0
        for j in range(c):
            code = points[n, first + j]
            rest[n, j] = after[width + j] * each
            seen[n, j] = rest[n, j] * code
            cosine += seen[n, j]
            after[width + j] += code
        if c > 0:
            seen[n, c] = COSINE / c * cosine
            seen[n, c + 1] = log_left
    if c > 0:
        np.dot(seen, w_point, of_point)
        for n in range(n_points):
            for j in range(width):
                base[n, j] += of_point[n, j]


# -- the tree -----------------------------------------------------------------------------------


@inline
def _child_key(key, number):
    """SplitMix64 started at a key, its number-th output; see `ncp.sampling.keys.child_keys`."""
    z = key + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inline
def _uniform(key, number):
    return (_child_key(key, number) >> np.uint64(11)) * 2.0**-53


@inner
def _score_rows(w, s, side, n_rows, n_live):
    """log p of every candidate of every row, in `s.scores`. False if one is not finite."""
    filled = at = np.int64(0)
    kind = s.y.dtype.type
    s.start[0] = 0
    for r in range(n_rows):
        k = s.k[side, r]
        s.start[r + 1] = s.start[r] + k + 1
        scale, log_k = kind(1 / k if w.mean else 1), kind(np.log(k))
        for j in range(k + 1):
            i = s.refs[side, r, j] if j < k else n_live
            if j == k:
                scale, log_k = kind(1 / (k + 1) if w.mean else 1), kind(np.log(k + 1))
            _first_layer(w.k_f, scale, log_k, s.total, side, r, s.change, s.extra, i, s.y, filled)
            filled += 1
            if filled == BLOCK:
                score_candidates(w, s.y, s.y2, filled, s.scores, at)
                at += filled
                filled = np.int64(0)
    score_candidates(w, s.y, s.y2, filled, s.scores, at)
    for r in range(n_rows):
        if not _log_softmax(s.scores, s.start[r], s.start[r + 1] - s.start[r]):
            return False
    return True


@inner
def _split(s, side, n_rows, key):
    """Each sample of a row chooses its child independently; returns the number of children."""
    n_children = 0
    sample = np.uint64(0)
    other = 1 - side
    for r in range(n_rows):
        first, n_slots = s.start[r], s.start[r + 1] - s.start[r]
        cumulative = 0.0
        for j in range(n_slots):
            cumulative += np.exp(s.scores[first + j])
            s.seats[0, j] = cumulative
            s.seats[1, j] = 0.0
        for _ in range(s.counts[side, r]):
            u = _uniform(key, sample) * cumulative
            sample += np.uint64(1)
            j = 0
            while j < n_slots - 1 and u >= s.seats[0, j]:
                j += 1
            while s.scores[first + j] == -np.inf:  # rounding must not choose what is ruled out
                j -= 1
            s.seats[1, j] += 1.0
        for j in range(n_slots):
            if s.seats[1, j] > 0:
                s.parent[n_children] = r
                s.choice[n_children] = j
                s.counts[other, n_children] = np.int64(s.seats[1, j])
                s.log_q[other, n_children] = s.log_q[side, r] + s.scores[first + j]
                n_children += 1
    return n_children


@inner
def _keep_best(s, side, n_rows, beam):
    """The `beam` most probable children of all rows, in the order of their parents."""
    other = 1 - side
    n = 0  # kept so far, the best first
    for r in range(n_rows):
        for j in range(s.start[r], s.start[r + 1]):
            value = s.log_q[side, r] + s.scores[j]
            if value == -np.inf:
                continue
            if n == beam and value <= s.log_q[other, n - 1]:
                continue
            at = min(n, beam - 1)
            while at > 0 and s.log_q[other, at - 1] < value:
                s.log_q[other, at] = s.log_q[other, at - 1]
                s.parent[at] = s.parent[at - 1]
                s.choice[at] = s.choice[at - 1]
                at -= 1
            s.log_q[other, at] = value
            s.parent[at] = r
            s.choice[at] = j - s.start[r]
            n = min(n + 1, beam)
    for i in range(1, n):  # by parent and choice
        value, r, c = s.log_q[other, i], s.parent[i], s.choice[i]
        at = i
        while at > 0 and (s.parent[at - 1] > r or (s.parent[at - 1] == r and s.choice[at - 1] > c)):
            s.log_q[other, at] = s.log_q[other, at - 1]
            s.parent[at] = s.parent[at - 1]
            s.choice[at] = s.choice[at - 1]
            at -= 1
        s.log_q[other, at] = value
        s.parent[at] = r
        s.choice[at] = c
    for i in range(n):
        s.counts[other, i] = s.counts[side, s.parent[i]]
    return n


# -- constraints, see `ncp.sampling.constraints` ------------------------------------------------


@inner
def _place_first(s, group):
    """What the constraints know after the first point."""
    s.log_w[0, 0] = 0.0
    s.log_z[0] = 0.0
    for h in range(s.placed.shape[2]):
        s.placed[0, 0, h] = 0 if h == group else -1


@inline
def _mask_row(s, side, r, rules, n):
    """Rule out choices of a row: their scores are minus infinity."""
    first, k, group = s.start[r], s.k[side, r], rules.group[n]
    own = s.placed[side, r, group] if group >= 0 else -1
    if own >= 0:
        for j in range(k + 1):
            if j != own:
                s.scores[first + j] = -np.inf
        return
    if k >= rules.most:
        s.scores[first + k] = -np.inf
    if rules.least - k >= rules.left[n]:
        for j in range(k):
            s.scores[first + j] = -np.inf
    if group >= 0:
        for other in range(len(rules.apart)):
            if rules.apart[group, other] and s.placed[side, r, other] >= 0:
                s.scores[first + s.placed[side, r, other]] = -np.inf


@inner
def _mask(s, side, n_rows, rules, n):
    """Rule out choices, and move the mass that is left from the scores to the weights."""
    for r in range(n_rows):
        _mask_row(s, side, r, rules, n)
        first, end = s.start[r], s.start[r + 1]
        top = -np.inf
        for j in range(first, end):
            top = max(top, s.scores[j])
        if top == -np.inf:
            s.log_w[side, r] = -np.inf
            continue
        total = 0.0
        for j in range(first, end):
            total += np.exp(s.scores[j] - top)
        mass = min(top + np.log(total), 0.0)
        s.log_w[side, r] += mass
        for j in range(first, end):
            s.scores[j] -= mass


@inner
def _resample(s, side, n_rows, count, key):
    """The log mean weight; counts in proportion to the weights, if those are too unequal."""
    top = -np.inf
    for r in range(n_rows):
        top = max(top, s.log_w[side, r])
    if top == -np.inf:
        return top
    total = squares = lost = 0.0
    last = 0
    for r in range(n_rows):
        weight = np.exp(s.log_w[side, r] - top)
        total += s.counts[side, r] * weight
        squares += s.counts[side, r] * weight * weight
        if s.log_w[side, r] == -np.inf:
            lost += s.counts[side, r]
        else:
            last = r
    mean = top + np.log(total / count)
    if lost == 0 and total * total >= ENOUGH * count * squares:
        return mean
    offset = _uniform(key, np.uint64(0x8000000000000000))
    cumulative = 0.0
    below = np.int64(0)
    for r in range(n_rows):
        cumulative += s.counts[side, r] * np.exp(s.log_w[side, r] - top)
        edge = np.int64(np.ceil(cumulative / total * count - offset))
        edge = count if r >= last else max(below, min(edge, count))
        s.counts[side, r] = edge - below
        below = edge
        s.log_q[side, r] += s.log_w[side, r] - mean
        s.log_w[side, r] = mean
    return mean


@inner
def _obey(s, side, n_rows, rules, n, count, key, best):
    """Mask choices, keep the weights in order; False if no row has a choice left."""
    _mask(s, side, n_rows, rules, n)
    if not best:
        s.log_z[n] = _resample(s, side, n_rows, count, key)
        return s.log_z[n] > -np.inf
    alive = False
    for r in range(n_rows):  # the best by q, not by what was masked
        s.log_q[side, r] += s.log_w[side, r]
        alive = alive or s.log_w[side, r] > -np.inf
        s.log_w[side, r] = 0.0
    return alive


@inner
def _carry_over(s, side, n_children, group):
    """What children know of the constraints."""
    other = 1 - side
    for child in range(n_children):
        r = s.parent[child]
        s.log_w[other, child] = s.log_w[side, r]
        for h in range(s.placed.shape[2]):
            s.placed[other, child, h] = s.placed[side, r, h]
        if group >= 0:
            s.placed[other, child, group] = s.choice[child]


@inline
def _keep_cluster(s, side, i, n_live, points, n, joined, n_new):
    """Put cluster i (n_live: none), as it was or with point n in it, to place n_new."""
    other = 1 - side
    for d in range(points.shape[1]):
        value = points.dtype.type(0)
        if joined:
            value += points[n, d]
        if i < n_live:
            value += s.sums[side, i, d]
        s.sums[other, n_new, d] = value
    for d in range(s.total.shape[2]):
        s.g_hat[other, n_new, d] = s.join[i, d] if joined else s.g_hat[side, i, d]


@inner
def _advance(s, side, n_children, n_live, points, n):
    """The state after a step: the children, and the clusters that one of them has, once each.

    Returns the number of clusters, or -1 if there is no room for them.
    """
    other, most = 1 - side, s.sums.shape[1]
    for i in range(n_live + 1):
        s.ids[0, i] = -1
        s.ids[1, i] = -1
    n_new = np.int64(0)
    for child in range(n_children):
        r, choice = s.parent[child], s.choice[child]
        s.parents[s.offsets[n] + child] = r
        s.choices[s.offsets[n] + child] = choice
        k_before = s.k[side, r]
        k = max(k_before, choice + 1)
        s.k[other, child] = k
        for j in range(k):
            i = s.refs[side, r, j] if j < k_before else n_live
            joined = 1 if j == choice else 0
            if s.ids[joined, i] < 0:
                if n_new == most:
                    return -1
                _keep_cluster(s, side, i, n_live, points, n, joined == 1, n_new)
                s.ids[joined, i] = n_new
                n_new += 1
            s.refs[other, child, j] = s.ids[joined, i]
        i = s.refs[side, r, choice] if choice < k_before else n_live
        for d in range(s.total.shape[2]):
            s.total[other, child, d] = s.total[side, r, d] + s.change[i, d]
    s.offsets[n + 1] = s.offsets[n] + n_children
    return n_new


@inner
def _start(s, points, count):
    """The state after the first point, which was joined to nothing: a cluster of its own."""
    s.k[0, 0] = 1
    s.counts[0, 0] = count
    s.log_q[0, 0] = 0.0
    s.refs[0, 0, 0] = 0
    s.offsets[1] = 0
    for d in range(points.shape[1]):
        s.sums[0, 0, d] = points[0, d]
    for d in range(s.total.shape[2]):
        s.g_hat[0, 0, d] = s.join[0, d]
        s.total[0, 0, d] = s.join[0, d]


@njit(**_plain)
def run_sequence(  # type: ignore[no-untyped-def]
    w, s, points, base, rest, count, key, beam, rules, stop, done
) -> Any:
    """All samples of one data set in one order, left in the workspace.

    Args:
        w: the network's `Weights`.
        s: a `Workspace` with rows for all samples.
        points: what clusters sum up, `(N, n_sums)`, in the order of the sequence.
        base, rest: of `lay_out`.
        count: samples wanted.
        key: of the sequence's random numbers.
        beam: None to split samples, else the number of prefixes to keep.
        rules: of `ncp.sampling.constraints.Constraints`, along the sequence; None without them.
        stop: an array of one flag, that another thread may set.
        done: an array of one number, to which the positions that are finished are added.

    Returns:
        `DONE`, or why not; the number of rows (or the position where no choice was left); and
        which side of the workspace they are on.
    """
    side, n_rows, n_live = np.int64(0), np.int64(1), np.int64(0)
    most_slots, most_clusters = s.refs.shape[2], s.sums.shape[1]
    for n in range(len(points)):
        if stop[0]:
            return STOPPED, 0, 0
        if n_live == most_clusters:
            return MORE_CLUSTERS, 0, 0
        join_point(w, s.sums, side, s.g_hat, points[n], base[n], rest[n], n_live, s)
        if n == 0:
            _start(s, points, count)
            if rules is not None:
                _place_first(s, rules.group[0])
            n_live += 1
            done[0] += 1
            continue
        if not _score_rows(w, s, side, n_rows, n_live):
            return OVERFLOW, 0, 0
        step = _child_key(key, np.uint64(n - 1))
        by_q = beam is not None
        if rules is not None and not _obey(s, side, n_rows, rules, n, count, step, by_q):
            return IMPOSSIBLE, n, 0
        if beam is None:
            n_children = _split(s, side, n_rows, step)
        else:
            n_children = _keep_best(s, side, n_rows, beam)
        for child in range(n_children):
            if s.choice[child] >= most_slots:
                return MORE_SLOTS, 0, 0
        if rules is not None:
            _carry_over(s, side, n_children, rules.group[n])
        n_live = _advance(s, side, n_children, n_live, points, n)
        if n_live < 0:
            return MORE_CLUSTERS, 0, 0
        n_rows, side = n_children, 1 - side
        done[0] += 1
    return DONE, n_rows, side


def sequence_types() -> tuple[Any, ...]:
    """Of the arguments of `run_sequence`, in single precision, without beam or constraints."""
    from numba import float32, int64, none, uint8, uint64

    table, flags, counts = float32[:, ::1], uint8[::1], int64[::1]
    tuples = _numba_type(Weights), _numba_type(Workspace)
    return *tuples, table, table, table, int64, uint64, none, none, flags, counts


def _numba_type(kind: Any) -> Any:
    """The numba type of an annotation, or of a tuple with annotated fields."""
    from numba import types

    if fields := getattr(kind, "_fields", None):
        hints = get_type_hints(kind)
        return types.NamedTuple(tuple(_numba_type(hints[name]) for name in fields), kind)
    if not hasattr(kind, "dims"):
        return types.boolean if kind is bool else types.int64
    (only,) = kind.dtypes if len(kind.dtypes) == 1 else ("float32",)
    return types.Array(getattr(types, only), len(kind.dims), "C")


@cache
def start_compiling() -> None:
    """Have `run_sequence`, half of what a first call compiles, made by another process."""
    compile_elsewhere(run_sequence, sequence_types)


@njit
def read_labels(  # type: ignore[no-untyped-def]
    parents, choices, offsets, order, new, labels
) -> None:
    """Walk back from the final rows; labels by first appearance in the caller's order."""
    n_points = len(order)
    for row in range(len(labels)):
        r = row
        for n in range(n_points - 1, 0, -1):
            labels[row, order[n]] = choices[offsets[n] + r]
            r = parents[offsets[n] + r]
        labels[row, order[0]] = 0
        n_seen = 0
        for i in range(n_points):
            new[i] = -1
        for i in range(n_points):
            old = labels[row, i]
            if new[old] < 0:
                new[old] = n_seen
                n_seen += 1
            labels[row, i] = new[old]


# -- new points ---------------------------------------------------------------------------------


@njit
def score_new(w, s, points, static, sums, out) -> Any:  # type: ignore[no-untyped-def]
    """log p(c = k) of new points, each as the last one after the clusters of a partition.

    Args:
        w: the network's `Weights`.
        s: a `Workspace` of K clusters.
        points, static: the tables of `Points` of M new points.
        sums: of the K clusters, `(1, K, n_sums)`.
        out: `(M, K + 1)`; the last column is "a new cluster".

    Returns:
        False if a score is not finite.
    """
    n_clusters = sums.shape[1]
    slots = n_clusters + 1
    kind, zero = s.y.dtype.type, np.int64(0)
    rest = np.zeros(max(w.codes, 1), points.dtype)
    # g-hat of the clusters themselves: each as if it were a point, joining nothing
    none = np.zeros(len(w.k_f), points.dtype)
    for j in range(s.total.shape[2]):
        s.total[0, 0, j] = 0
    for i in range(n_clusters):
        join_point(w, sums, zero, s.g_hat, sums[0, i], none, rest, zero, s)
        for j in range(s.total.shape[2]):
            s.g_hat[0, i, j] = s.join[0, j]
            s.total[0, 0, j] += s.join[0, j]
    for m in range(len(points)):  # each by itself: its numbers do not depend on the others
        join_point(w, sums, zero, s.g_hat, points[m], static[m], rest, n_clusters, s)
        for i in range(slots):
            n_after = max(n_clusters, i + 1)
            scale, log_k = kind(1 / n_after if w.mean else 1), kind(np.log(n_after))
            _first_layer(w.k_f, scale, log_k, s.total, zero, zero, s.change, s.extra, i, s.y, i)
        score_candidates(w, s.y, s.y2, slots, s.scores, zero)
        if not _log_softmax(s.scores, zero, slots):
            return False
        for j in range(slots):
            out[m, j] = s.scores[j]
    return True
