"""The compiled loops behind `ncp.inference.mcmc.gibbs` (imported only when a chain is run).

Every exchangeable prior of the package has the product (Gibbs-type) form

    p(c_{1:N}) = V_N(K) prod_k W(n_k),

so that, given the labels of the other N - 1 points, a point joins a cluster of n_k points with
weight W(n_k + 1) / W(n_k) and opens a new one with weight V_N(K + 1) / V_N(K). The kernels get
these as tables over n and K and therefore know nothing of any particular prior:

    join[n] = log W(n + 1)/W(n),    open_[K] = log V_N(K + 1)/V_N(K),
    size[n] = log W(n),             number[K] = log V_N(K).

Clusters live in slots 0 .. N. `slots` is a permutation of them whose first K entries are in use,
and `place` is its inverse: opening and closing a cluster are O(1) and no point is ever relabelled
for it. A label of -1 means "not assigned yet": a first sweep from there is a sequential draw.
"""

from typing import no_type_check

import numpy as np

from ncp.compiled import njit

__all__ = [
    "assign_with_densities",
    "density_chain",
    "gaussian_chain",
    "gaussian_moves",
    "log_density",
    "log_prior",
    "wishart_chain",
    "wishart_moves",
]

# The import hook that checks shapes in the tests would wrap a function before numba sees it;
# `no_type_check` is the way to be left alone by it.

GAUSSIAN, LAPLACE, RING, WISHART = 0, 1, 2, 3  # the kinds of `density_chain`


@njit
@no_type_check
def draw(log_weights, n, rng):
    """An index in 0 .. n - 1 with probability proportional to exp(log_weights); overwrites them."""
    top = log_weights[0]
    for j in range(1, n):
        if log_weights[j] > top:
            top = log_weights[j]
    total = 0.0
    for j in range(n):
        total += np.exp(log_weights[j] - top)
        log_weights[j] = total
    u = rng.random() * total
    for j in range(n - 1):
        if u < log_weights[j]:
            return j
    return n - 1


@njit
@no_type_check
def write_canonical(labels, names, out):
    """Copy labels in order of appearance; `names` is scratch, one entry a slot."""
    names[:] = -1
    seen = 0
    for i in range(labels.size):
        slot = labels[i]
        if names[slot] < 0:
            names[slot] = seen
            seen += 1
        out[i] = names[slot]


@njit
@no_type_check
def first_slots(labels, slots, place, counts):
    """Count the points of each slot and put the slots in use first; returns K."""
    counts[:] = 0
    for i in range(labels.size):
        if labels[i] >= 0:
            counts[labels[i]] += 1
    k = 0
    for slot in range(slots.size):
        if counts[slot] > 0:
            slots[k] = slot
            place[slot] = k
            k += 1
    free = k
    for slot in range(slots.size):
        if counts[slot] == 0:
            slots[free] = slot
            place[slot] = free
            free += 1
    return k


@njit
@no_type_check
def close_slot(slot, slots, place, n_open):
    """Give a slot back; returns the new number of clusters."""
    last = slots[n_open - 1]
    p = place[slot]
    slots[p], slots[n_open - 1] = last, slot
    place[last], place[slot] = p, n_open - 1
    return n_open - 1


@njit
@no_type_check
def gaussian_sweep(
    x, labels, counts, slots, place, k, sums, means, join, open_, shrink, precision, constant,
    alone, weights, rng,
):  # fmt: skip
    """Draw every label given all others; returns the number of clusters afterwards."""
    n_points, dim = x.shape
    for i in range(n_points):
        old = labels[i]
        if old >= 0:
            counts[old] -= 1
            if counts[old] == 0:
                k = close_slot(old, slots, place, k)
            for d in range(dim):
                sums[old, d] = sums[old, d] - x[i, d] if counts[old] > 0 else 0.0
                means[old, d] = shrink[counts[old]] * sums[old, d]
        for j in range(k):
            slot = slots[j]
            n = counts[slot]
            square = 0.0
            for d in range(dim):
                delta = x[i, d] - means[slot, d]
                square += delta * delta
            weights[j] = join[n] + constant[n] - 0.5 * precision[n] * square
        weights[k] = open_[k] + alone[i]
        chosen = draw(weights, k + 1, rng)
        slot = slots[chosen]
        if chosen == k:
            k += 1
        labels[i] = slot
        counts[slot] += 1
        for d in range(dim):
            sums[slot, d] += x[i, d]
            means[slot, d] = shrink[counts[slot]] * sums[slot, d]
    return k


@njit
@no_type_check
def gaussian_chain(
    x, labels, join, open_, size, number, shrink, precision, constant,
    marginal, quadratic, offset, n_jumps, burn_in, thin, rng, out_labels, out_log_joint,
):  # fmt: skip
    """Algorithm 3 for Gaussians of known variance. `labels` is the state and is overwritten.

    `n_jumps` splits or merges are proposed after every sweep.

    A cluster of n points with sum S predicts N(shrink[n] S, 1/precision[n]) in every coordinate;
    constant[n] is the normaliser's logarithm. Its log marginal likelihood is
    marginal[n] + quadratic[n] |S|^2, up to `offset`, which depends on all the points only.
    """
    n_points, dim = x.shape
    counts = np.zeros(n_points + 1, np.int64)
    slots = np.empty(n_points + 1, np.int64)
    place = np.empty(n_points + 1, np.int64)
    sums = np.zeros((n_points + 1, dim))
    means = np.zeros((n_points + 1, dim))
    weights = np.empty(n_points + 1)
    names = np.empty(n_points + 1, np.int64)
    members = np.empty(n_points, np.int64)
    halves = np.empty((2, dim))
    alone = np.empty(n_points)  # log density of a point under the prior predictive
    k = first_slots(labels, slots, place, counts)
    for i in range(n_points):
        square = 0.0
        for d in range(dim):
            square += x[i, d] * x[i, d]
            if labels[i] >= 0:
                sums[labels[i], d] += x[i, d]
        alone[i] = constant[0] - 0.5 * precision[0] * square
    for j in range(k):
        for d in range(dim):
            means[slots[j], d] = shrink[counts[slots[j]]] * sums[slots[j], d]

    draws = out_log_joint.size
    for sweep in range(burn_in + draws * thin):
        k = gaussian_sweep(
            x, labels, counts, slots, place, k, sums, means, join, open_, shrink, precision,
            constant, alone, weights, rng,
        )  # fmt: skip
        for _ in range(n_jumps):
            k = gaussian_jump(
                x, labels, counts, slots, place, k, sums, means, join, size, number, shrink,
                precision, constant, marginal, quadratic, members, halves, rng,
            )  # fmt: skip
        if sweep >= burn_in and (sweep - burn_in + 1) % thin == 0:
            t = (sweep - burn_in) // thin
            write_canonical(labels, names, out_labels[t])
            total = number[k] + offset
            for j in range(k):
                slot = slots[j]
                n = counts[slot]
                square = 0.0
                for d in range(dim):
                    square += sums[slot, d] * sums[slot, d]
                total += size[n] + marginal[n] + quadratic[n] * square
            out_log_joint[t] = total


@njit
@no_type_check
def gaussian_moves(
    x, rows, join, open_, size, number, shrink, precision, constant, marginal, quadratic, offset,
    n_jumps, rng,
):  # fmt: skip
    """A sweep and its jumps of every row of labels (R, N), which are overwritten."""
    after, log_joint = np.empty((1, x.shape[0]), np.int64), np.empty(1)
    for r in range(rows.shape[0]):
        gaussian_chain(
            x, rows[r], join, open_, size, number, shrink, precision, constant, marginal,
            quadratic, offset, n_jumps, 0, 1, rng, after, log_joint,
        )  # fmt: skip
        rows[r] = after[0]


@njit
@no_type_check
def update_factor(factor, v):
    """The lower Cholesky factor of L L^T + v v^T, by plane rotations; overwrites v."""
    dim = v.size
    for a in range(dim):
        pivot = factor[a, a]
        root = np.sqrt(pivot * pivot + v[a] * v[a])
        c, s = pivot / root, v[a] / root
        factor[a, a] = root
        for b in range(a + 1, dim):
            old = factor[b, a]
            factor[b, a] = c * old + s * v[b]
            v[b] = c * v[b] - s * old


@njit
@no_type_check
def downdate_factor(factor, v):
    """The factor of L L^T - v v^T, by hyperbolic rotations; overwrites v.

    Returns False when that would lose more than about six digits: the caller starts afresh.
    """
    dim = v.size
    for a in range(dim):
        s = v[a] / factor[a, a]
        square = (1.0 - s) * (1.0 + s)
        if square < 1e-6:
            return False
        c = np.sqrt(square)
        factor[a, a] *= c
        for b in range(a + 1, dim):
            factor[b, a] = (factor[b, a] - s * v[b]) / c
            v[b] = c * v[b] - s * factor[b, a]
    return True


@njit
@no_type_check
def half_log_det(factor):
    total = 0.0
    for a in range(factor.shape[0]):
        total += np.log(factor[a, a])
    return total


@njit
@no_type_check
def wishart_add(point, n, kappa, mean, factor, v):
    """Let a cluster of n points gain one: mean and scale factor of its posterior."""
    weight = np.sqrt((kappa + n) / (kappa + n + 1.0))
    for d in range(point.size):
        delta = point[d] - mean[d]
        v[d] = weight * delta
        mean[d] += delta / (kappa + n + 1.0)
    update_factor(factor, v)


@njit
@no_type_check
def wishart_remove(point, n, kappa, mean, factor, v):
    """The inverse: a cluster of n points loses one. False when precision would be lost."""
    weight = np.sqrt((kappa + n - 1.0) / (kappa + n))
    for d in range(point.size):
        mean[d] -= (point[d] - mean[d]) / (kappa + n - 1.0)
        v[d] = weight * (point[d] - mean[d])
    return downdate_factor(factor, v)


@njit
@no_type_check
def wishart_refresh(x, labels, slot, without, kappa, prior_mean, prior_factor, mean, factor, v):
    """A cluster's posterior from its members (all but the point `without`), one by one."""
    mean[:] = prior_mean
    factor[:, :] = prior_factor
    n = 0
    for i in range(x.shape[0]):
        if labels[i] == slot and i != without:
            wishart_add(x[i], n, kappa, mean, factor, v)
            n += 1


@njit
@no_type_check
def wishart_log_density(point, n, kappa, dof, constant, mean, factor, half, v):
    """log p(point | cluster of n points): a multivariate t, through the factor's triangle."""
    dim = point.size
    square = 0.0
    for a in range(dim):
        value = point[a] - mean[a]
        for b in range(a):
            value -= factor[a, b] * v[b]
        v[a] = value / factor[a, a]
        square += v[a] * v[a]
    ratio = (kappa + n) / (kappa + n + 1.0)
    return constant[n] - half - 0.5 * (dof + n + 1.0) * np.log1p(ratio * square)


@njit
@no_type_check
def wishart_afresh(
    x, labels, counts, slots, k, means, factors, halves, kappa, prior_mean, prior_factor, v
):
    """Posteriors of all clusters from their members, and half their log determinants."""
    for j in range(k):
        means[slots[j]] = prior_mean
        factors[slots[j]] = prior_factor
        counts[slots[j]] = 0
    for i in range(x.shape[0]):
        slot = labels[i]
        if slot >= 0:
            wishart_add(x[i], counts[slot], kappa, means[slot], factors[slot], v)
            counts[slot] += 1
    for j in range(k):
        halves[slots[j]] = half_log_det(factors[slots[j]])


@njit
@no_type_check
def wishart_sweep(
    x, labels, counts, slots, place, k, means, factors, halves, join, open_, kappa, dof,
    prior_mean, prior_factor, constant, alone, weights, v, rng,
):  # fmt: skip
    """Draw every label given all others; returns the number of clusters afterwards."""
    for i in range(x.shape[0]):
        old = labels[i]
        if old >= 0:
            counts[old] -= 1
            if counts[old] == 0:
                k = close_slot(old, slots, place, k)
            else:
                if not wishart_remove(x[i], counts[old] + 1, kappa, means[old], factors[old], v):
                    wishart_refresh(
                        x, labels, old, i, kappa, prior_mean, prior_factor,
                        means[old], factors[old], v,
                    )  # fmt: skip
                halves[old] = half_log_det(factors[old])
        for j in range(k):
            slot = slots[j]
            n = counts[slot]
            weights[j] = join[n] + wishart_log_density(
                x[i], n, kappa, dof, constant, means[slot], factors[slot], halves[slot], v
            )
        weights[k] = open_[k] + alone[i]
        chosen = draw(weights, k + 1, rng)
        slot = slots[chosen]
        if chosen == k:
            k += 1
            means[slot] = prior_mean
            factors[slot] = prior_factor
        labels[i] = slot
        wishart_add(x[i], counts[slot], kappa, means[slot], factors[slot], v)
        counts[slot] += 1
        halves[slot] = half_log_det(factors[slot])
    return k


@njit
@no_type_check
def wishart_chain(
    x, labels, join, open_, size, number, kappa, dof, prior_mean, prior_factor, constant,
    marginal, refresh, n_jumps, burn_in, thin, rng, out_labels, out_log_joint,
):  # fmt: skip
    """Algorithm 3 for the Normal-inverse-Wishart. `labels` is the state and is overwritten.

    A cluster keeps the mean and the Cholesky factor of the scale matrix of its posterior. Its log
    predictive is constant[n] - log|Psi|/2 - (dof + n + 1)/2 log(1 + r q) and its log marginal
    likelihood is marginal[n] - (dof + n)/2 log|Psi|.
    """
    n_points, dim = x.shape
    counts = np.zeros(n_points + 1, np.int64)
    slots = np.empty(n_points + 1, np.int64)
    place = np.empty(n_points + 1, np.int64)
    means = np.zeros((n_points + 1, dim))
    factors = np.zeros((n_points + 1, dim, dim))
    halves = np.zeros(n_points + 1)  # half the log determinant of each cluster's scale
    weights = np.empty(n_points + 1)
    names = np.empty(n_points + 1, np.int64)
    v = np.empty(dim)
    members = np.empty(n_points, np.int64)
    half_means, half_factors = np.empty((2, dim)), np.empty((2, dim, dim))
    alone = np.empty(n_points)
    prior_half = half_log_det(prior_factor)
    for i in range(n_points):
        alone[i] = wishart_log_density(
            x[i], 0, kappa, dof, constant, prior_mean, prior_factor, prior_half, v
        )
    k = first_slots(labels, slots, place, counts)

    draws = out_log_joint.size
    for sweep in range(burn_in + draws * thin):
        if sweep % refresh == 0:  # rounding errors of many rank-one steps never accumulate
            wishart_afresh(
                x, labels, counts, slots, k, means, factors, halves, kappa, prior_mean,
                prior_factor, v,
            )  # fmt: skip
        k = wishart_sweep(
            x, labels, counts, slots, place, k, means, factors, halves, join, open_, kappa, dof,
            prior_mean, prior_factor, constant, alone, weights, v, rng,
        )  # fmt: skip
        for _ in range(n_jumps):
            k = wishart_jump(
                x, labels, counts, slots, place, k, means, factors, halves, join, size, number,
                kappa, dof, prior_mean, prior_factor, constant, marginal, members, half_means,
                half_factors, v, rng,
            )  # fmt: skip
        if sweep >= burn_in and (sweep - burn_in + 1) % thin == 0:
            t = (sweep - burn_in) // thin
            write_canonical(labels, names, out_labels[t])
            total = number[k]
            for j in range(k):
                n = counts[slots[j]]
                total += size[n] + marginal[n] - (dof + n) * halves[slots[j]]
            out_log_joint[t] = total


@njit
@no_type_check
def wishart_moves(
    x, rows, join, open_, size, number, kappa, dof, prior_mean, prior_factor, constant, marginal,
    refresh, n_jumps, rng,
):  # fmt: skip
    """A sweep and its jumps of every row of labels (R, N), which are overwritten."""
    after, log_joint = np.empty((1, x.shape[0]), np.int64), np.empty(1)
    for r in range(rows.shape[0]):
        wishart_chain(
            x, rows[r], join, open_, size, number, kappa, dof, prior_mean, prior_factor, constant,
            marginal, refresh, n_jumps, 0, 1, rng, after, log_joint,
        )  # fmt: skip
        rows[r] = after[0]


# --- splits and merges ----------------------------------------------------------------------------
#
# Gibbs sweeps move one point at a time and cross slowly from one cluster to two. A jump (Dahl 2005)
# chooses two points. If they share a cluster it proposes to split it: each of the two founds a
# half, and the other members, in random order, join a half with their conditional probability given
# those already there. Otherwise it proposes to merge the two clusters, and the probability of the
# reverse split is found by walking the members in random order through the split that is there.
# With r the product of these conditional probabilities, a split is accepted with probability
# min(1, p(split, x) / (p(merged, x) r)), a merge with min(1, p(merged, x) r / p(split, x)).


@njit
@no_type_check
def two_points(n_points, rng):
    """Two different points, each pair alike."""
    i = int(rng.random() * n_points)
    j = int(rng.random() * (n_points - 1))
    return i, (j + 1 if j >= i else j)


@njit
@no_type_check
def other_members(labels, i, j, members, rng):
    """The other points of the clusters of i and j, in random order; returns how many."""
    a, b = labels[i], labels[j]
    n = 0
    for p in range(labels.size):
        if (labels[p] == a or labels[p] == b) and p != i and p != j:
            members[n] = p
            n += 1
    for m in range(n - 1, 0, -1):
        other = int(rng.random() * (m + 1))
        members[m], members[other] = members[other], members[m]
    return n


@njit
@no_type_check
def move_second_half(labels, j, members, n_others, slot):
    """Put point j and the members that are marked by their complements into a slot."""
    labels[j] = slot
    for m in range(n_others):
        if members[m] < 0:
            labels[-1 - members[m]] = slot


@njit
@no_type_check
def log_first(first, second):
    """log of exp(first) / (exp(first) + exp(second))."""
    gap = second - first
    return -np.log1p(np.exp(gap)) if gap < 30.0 else -gap


@njit
@no_type_check
def square_norm(v):
    total = 0.0
    for d in range(v.size):
        total += v[d] * v[d]
    return total


@njit
@no_type_check
def gaussian_side(point, n, total, join, shrink, precision, constant):
    """The log weight of a point joining n others with this sum."""
    square = 0.0
    for d in range(point.size):
        delta = point[d] - shrink[n] * total[d]
        square += delta * delta
    return join[n] + constant[n] - 0.5 * precision[n] * square


@njit
@no_type_check
def gaussian_halves(
    x, labels, i, j, members, n_others, join, shrink, precision, constant, halves, rng
):
    """Walk the members through a split, drawn or the one that is there: both sizes and log r.

    The half of the second point is marked in `members` by the complement of its members' numbers.
    """
    a, b = labels[i], labels[j]
    halves[0], halves[1] = x[i], x[j]
    n_first, n_second = 1, 1
    log_r = 0.0
    for m in range(n_others):
        p = members[m]
        first = gaussian_side(x[p], n_first, halves[0], join, shrink, precision, constant)
        second = gaussian_side(x[p], n_second, halves[1], join, shrink, precision, constant)
        log_chance = log_first(first, second)
        if a == b:
            to_first = np.log(1.0 - rng.random()) < log_chance
        else:
            to_first = labels[p] == a
        if to_first:
            log_r += log_chance
            n_first += 1
            halves[0] += x[p]
        else:
            log_r += log_first(second, first)
            n_second += 1
            halves[1] += x[p]
            members[m] = -1 - p
    return n_first, n_second, log_r


@njit
@no_type_check
def gaussian_jump(
    x, labels, counts, slots, place, k, sums, means, join, size, number, shrink,
    precision, constant, marginal, quadratic, members, halves, rng,
):  # fmt: skip
    """Propose one split or merge; returns the number of clusters afterwards."""
    n_points, dim = x.shape
    if n_points < 2:
        return k
    i, j = two_points(n_points, rng)
    a, b = labels[i], labels[j]
    n_others = other_members(labels, i, j, members, rng)
    n_first, n_second, log_r = gaussian_halves(
        x, labels, i, j, members, n_others, join, shrink, precision, constant, halves, rng
    )
    n = n_first + n_second
    whole = halves[0] + halves[1]
    log_split = size[n_first] + marginal[n_first] + quadratic[n_first] * square_norm(halves[0])
    log_split += size[n_second] + marginal[n_second] + quadratic[n_second] * square_norm(halves[1])
    log_whole = size[n] + marginal[n] + quadratic[n] * square_norm(whole)
    if a == b:
        log_ratio = log_split + number[k + 1] - log_whole - number[k] - log_r
        if np.log(1.0 - rng.random()) >= log_ratio:
            return k
        b = slots[k]
        k += 1
        move_second_half(labels, j, members, n_others, b)
        counts[a], counts[b] = n_first, n_second
        for d in range(dim):
            sums[a, d], sums[b, d] = halves[0, d], halves[1, d]
            means[a, d], means[b, d] = shrink[n_first] * sums[a, d], shrink[n_second] * sums[b, d]
        return k
    log_ratio = log_whole + number[k - 1] - log_split - number[k] + log_r
    if np.log(1.0 - rng.random()) >= log_ratio:
        return k
    move_second_half(labels, j, members, n_others, a)
    counts[a], counts[b] = n, 0
    for d in range(dim):
        sums[a, d], sums[b, d] = whole[d], 0.0
        means[a, d], means[b, d] = shrink[n] * whole[d], 0.0
    return close_slot(b, slots, place, k)


@njit
@no_type_check
def wishart_halves(
    x, labels, i, j, members, n_others, join, kappa, dof, prior_mean, prior_factor, constant,
    half_means, half_factors, v, rng,
):  # fmt: skip
    """Walk the members through a split, drawn or the one that is there: both sizes and log r."""
    a, b = labels[i], labels[j]
    for side in range(2):
        half_means[side] = prior_mean
        half_factors[side] = prior_factor
    wishart_add(x[i], 0, kappa, half_means[0], half_factors[0], v)
    wishart_add(x[j], 0, kappa, half_means[1], half_factors[1], v)
    n_first, n_second = 1, 1
    log_r = 0.0
    for m in range(n_others):
        p = members[m]
        first = join[n_first] + wishart_log_density(
            x[p], n_first, kappa, dof, constant, half_means[0], half_factors[0],
            half_log_det(half_factors[0]), v,
        )  # fmt: skip
        second = join[n_second] + wishart_log_density(
            x[p], n_second, kappa, dof, constant, half_means[1], half_factors[1],
            half_log_det(half_factors[1]), v,
        )  # fmt: skip
        log_chance = log_first(first, second)
        if a == b:
            to_first = np.log(1.0 - rng.random()) < log_chance
        else:
            to_first = labels[p] == a
        if to_first:
            log_r += log_chance
            wishart_add(x[p], n_first, kappa, half_means[0], half_factors[0], v)
            n_first += 1
        else:
            log_r += log_first(second, first)
            wishart_add(x[p], n_second, kappa, half_means[1], half_factors[1], v)
            n_second += 1
            members[m] = -1 - p
    return n_first, n_second, log_r


@njit
@no_type_check
def wishart_jump(
    x, labels, counts, slots, place, k, means, factors, logs, join, size, number, kappa, dof,
    prior_mean, prior_factor, constant, marginal, members, half_means, half_factors, v, rng,
):  # fmt: skip
    """The same for the Normal-inverse-Wishart; `logs` are half the log determinants."""
    n_points = x.shape[0]
    if n_points < 2:
        return k
    i, j = two_points(n_points, rng)
    a, b = labels[i], labels[j]
    n_others = other_members(labels, i, j, members, rng)
    n_first, n_second, log_r = wishart_halves(
        x, labels, i, j, members, n_others, join, kappa, dof, prior_mean, prior_factor, constant,
        half_means, half_factors, v, rng,
    )  # fmt: skip
    n = n_first + n_second
    log_1, log_2 = half_log_det(half_factors[0]), half_log_det(half_factors[1])
    log_split = size[n_first] + marginal[n_first] - (dof + n_first) * log_1
    log_split += size[n_second] + marginal[n_second] - (dof + n_second) * log_2
    if a == b:
        log_whole = size[n] + marginal[n] - (dof + n) * logs[a]
        log_ratio = log_split + number[k + 1] - log_whole - number[k] - log_r
        if np.log(1.0 - rng.random()) >= log_ratio:
            return k
        b = slots[k]
        k += 1
        move_second_half(labels, j, members, n_others, b)
        counts[a], counts[b] = n_first, n_second
        means[a], means[b] = half_means[0], half_means[1]
        factors[a], factors[b] = half_factors[0], half_factors[1]
        logs[a], logs[b] = log_1, log_2
        return k
    # the whole: the second half's points join the first half
    wishart_add(x[j], n_first, kappa, half_means[0], half_factors[0], v)
    added = n_first + 1
    for m in range(n_others):
        if members[m] < 0:
            wishart_add(x[-1 - members[m]], added, kappa, half_means[0], half_factors[0], v)
            added += 1
    log_det = half_log_det(half_factors[0])
    log_whole = size[n] + marginal[n] - (dof + n) * log_det
    log_ratio = log_whole + number[k - 1] - log_split - number[k] + log_r
    if np.log(1.0 - rng.random()) >= log_ratio:
        return k
    move_second_half(labels, j, members, n_others, a)
    counts[a], counts[b] = n, 0
    means[a], factors[a], logs[a] = half_means[0], half_factors[0], log_det
    return close_slot(b, slots, place, k)


# --- algorithm 8: clusters keep a parameter -----------------------------------------------------


@njit
@no_type_check
def assign_with_densities(
    densities, n_clusters, first, last, labels, join, open_, n_auxiliary, rng
):
    """Algorithm 8's labels of the points first .. last - 1, given all log densities.

    Slots are the rows of `densities`, of shape (slots, N): `n_clusters` clusters, then for each of
    these points `n_auxiliary` parameters drawn from the base measure, which it alone may choose. A
    point that leaves a cluster of its own keeps that cluster's parameter in place of its first
    auxiliary one. Returns the slots in use.
    """
    n_slots = densities.shape[0]
    counts = np.zeros(n_slots, np.int64)
    slots = np.empty(n_slots, np.int64)
    place = np.empty(n_slots, np.int64)
    weights = np.empty(n_slots)
    share = np.log(n_auxiliary)
    k = first_slots(labels, slots, place, counts)
    for i in range(first, last):
        fresh = n_clusters + (i - first) * n_auxiliary
        old = labels[i]
        kept = -1
        if old >= 0:
            counts[old] -= 1
            if counts[old] == 0:
                k = close_slot(old, slots, place, k)
                kept = old
        for j in range(k):
            weights[j] = join[counts[slots[j]]] + densities[slots[j], i]
        for a in range(n_auxiliary):
            row = kept if a == 0 and kept >= 0 else fresh + a
            weights[k + a] = open_[k] - share + densities[row, i]
        chosen = draw(weights, k + n_auxiliary, rng)
        if chosen < k:
            slot = slots[chosen]
        else:
            a = chosen - k
            slot = kept if a == 0 and kept >= 0 else fresh + a
            # bring the slot to the end of those in use
            p, other = place[slot], slots[k]
            slots[k], slots[p] = slot, other
            place[slot], place[other] = k, p
            k += 1
        labels[i] = slot
        counts[slot] += 1
    return slots[:k].copy()


@njit
@no_type_check
def draw_wishart(kappa, dof, mean, factor, rng, theta, triangle):
    """A mean and the Cholesky factor of a covariance from a Normal-inverse-Wishart.

    With T the transpose of Bartlett's upper triangle, the factor X solves X T = L, row by row;
    theta is the mean and then the rows of X. `triangle` is scratch for T.
    """
    dim = mean.size
    for c in range(dim):
        triangle[c, c] = np.sqrt(2.0 * rng.standard_gamma(0.5 * (dof - dim + 1.0 + c)))
        for b in range(c + 1, dim):
            triangle[b, c] = rng.standard_normal()
    row = dim
    for a in range(dim):
        for c in range(a, -1, -1):
            value = factor[a, c]
            for b in range(c + 1, a + 1):
                value -= theta[row + b] * triangle[b, c]
            theta[row + c] = value / triangle[c, c]
        row += a + 1
    theta[:dim] = mean
    for c in range(dim):
        noise = rng.standard_normal() / np.sqrt(kappa)
        row = dim
        for a in range(dim):
            if a >= c:
                theta[a] += noise * theta[row + c]
            row += a + 1


@njit
@no_type_check
def solve_packed(theta, dim, v):
    """Overwrite v by X^{-1} v for the factor packed in theta behind the mean; returns |v|^2."""
    square = 0.0
    row = dim
    for a in range(dim):
        for b in range(a):
            v[a] -= theta[row + b] * v[b]
        v[a] /= theta[row + a]
        square += v[a] * v[a]
        row += a + 1
    return square


@njit
@no_type_check
def wishart_log_prior(hyper, theta, work):
    """Inverse Wishart of the covariance, with the Jacobian of its factor, and normal mean."""
    dim = work.shape[0]
    kappa, dof = hyper[0], hyper[1]
    total = hyper[5]
    v = work[0]
    v[:] = theta[:dim] - hyper[6 : 6 + dim]
    total -= 0.5 * kappa * solve_packed(theta, dim, v)
    for c in range(dim):
        for a in range(dim):
            v[a] = hyper[6 + dim + a * dim + c]
        total -= 0.5 * solve_packed(theta, dim, v)
    row = dim
    for a in range(dim):
        total -= (dof + a + 2.0) * np.log(theta[row + a])
        row += a + 1
    return total


@njit
@no_type_check
def draw_parameter(kind, hyper, rng, theta, work):
    """A parameter from the base measure."""
    if kind == WISHART:
        dim = work.shape[0]
        mean = hyper[6 : 6 + dim]
        factor = hyper[6 + dim :].reshape((dim, dim))
        draw_wishart(hyper[0], hyper[1], mean, factor, rng, theta, work)
        return
    n_normal = 2 if kind == RING else theta.size
    for d in range(n_normal):
        theta[d] = hyper[0] * rng.standard_normal()
    if kind == RING:
        theta[2] = hyper[2] + (hyper[3] - hyper[2]) * rng.random()


@njit
@no_type_check
def log_prior(kind, hyper, theta, work):
    """Log density of the base measure."""
    if kind == WISHART:
        return wishart_log_prior(hyper, theta, work)
    if kind == RING and not hyper[2] <= theta[2] <= hyper[3]:
        return -np.inf
    total = hyper[5]
    n_normal = 2 if kind == RING else theta.size
    for d in range(n_normal):
        z = theta[d] / hyper[0]
        total -= 0.5 * z * z
    return total


@njit
@no_type_check
def log_i0e(z):
    """log of exp(-z) I_0(z), z >= 0: the power series, or beyond 18 the asymptotic one."""
    term, total = 1.0, 1.0
    if z < 18.0:
        quarter = 0.25 * z * z
        for k in range(1, 200):
            term *= quarter / (k * k)
            total += term
            if term < 1e-17 * total:
                break
        return np.log(total) - z
    for k in range(1, 30):
        term *= (2.0 * k - 1.0) * (2.0 * k - 1.0) / (8.0 * k * z)
        total += term
        if term < 1e-17:
            break
    return np.log(total / np.sqrt(2.0 * np.pi * z))


@njit
@no_type_check
def log_density(kind, hyper, point, theta, work):
    """log p(point | theta)."""
    if kind == WISHART:
        dim = point.size
        v = work[0]
        total = hyper[4]
        row = dim
        for a in range(dim):
            v[a] = point[a] - theta[a]
            total -= np.log(theta[row + a])
            row += a + 1
        return total - 0.5 * solve_packed(theta, dim, v)
    if kind == RING:
        a, b = point[0] - theta[0], point[1] - theta[1]
        distance = np.sqrt(a * a + b * b)
        z = (distance - theta[2]) / hyper[1]
        bessel = log_i0e(distance * theta[2] / (hyper[1] * hyper[1]))
        return hyper[4] + bessel - 0.5 * z * z
    total = 0.0
    if kind == LAPLACE:
        for d in range(point.size):
            total += abs(point[d] - theta[d])
        return hyper[4] - total / hyper[1]
    for d in range(point.size):
        z = (point[d] - theta[d]) / hyper[1]
        total += z * z
    return hyper[4] - 0.5 * total


@njit
@no_type_check
def cluster_log_density(kind, hyper, x, members, theta, work):
    """log p(theta) + sum over the members of log p(x_i | theta)."""
    total = log_prior(kind, hyper, theta, work)
    if total == -np.inf:
        return total
    for i in members:
        total += log_density(kind, hyper, x[i], theta, work)
    return total


@njit
@no_type_check
def slice_parameter(kind, hyper, x, members, theta, d, width, value, rng, work):
    """Slice sampling of one coordinate (Neal 2003): stepping out, then shrinking.

    `value` is the log density at theta; returns that of the new theta.
    """
    level = value + np.log(1.0 - rng.random())
    start = theta[d]
    left = start - width * rng.random()
    right = left + width
    steps_left = int(8 * rng.random())
    steps_right = 7 - steps_left
    theta[d] = left
    while steps_left > 0 and cluster_log_density(kind, hyper, x, members, theta, work) > level:
        steps_left -= 1
        left -= width
        theta[d] = left
    theta[d] = right
    while steps_right > 0 and cluster_log_density(kind, hyper, x, members, theta, work) > level:
        steps_right -= 1
        right += width
        theta[d] = right
    while True:
        theta[d] = left + (right - left) * rng.random()
        value = cluster_log_density(kind, hyper, x, members, theta, work)
        if value >= level:
            return value
        if theta[d] < start:
            left = theta[d]
        elif theta[d] > start:
            right = theta[d]
        else:  # the interval has shrunk to the point it started from
            return value


@njit
@no_type_check
def turn_ring(kind, hyper, x, members, theta, value, rng, work):
    """Two Metropolis moves along the ridge of a ring through few points.

    Turning the centre about a member by a uniform angle keeps the member's distance and has unit
    Jacobian. Scaling centre and radius about a member by a factor s, log s normal, keeps it on
    the ring; three coordinates scale, hence the Jacobian s^3.
    """
    proposal = np.empty(3)
    pivot = x[members[int(rng.random() * members.size)]]
    angle = 2.0 * np.pi * rng.random()
    c, s = np.cos(angle), np.sin(angle)
    a, b = theta[0] - pivot[0], theta[1] - pivot[1]
    proposal[0] = pivot[0] + c * a - s * b
    proposal[1] = pivot[1] + s * a + c * b
    proposal[2] = theta[2]
    new = cluster_log_density(kind, hyper, x, members, proposal, work)
    if np.log(1.0 - rng.random()) < new - value:
        theta[:] = proposal
        value = new
    log_factor = 0.5 * rng.standard_normal()
    factor = np.exp(log_factor)
    for d in range(2):
        proposal[d] = pivot[d] + factor * (theta[d] - pivot[d])
    proposal[2] = factor * theta[2]
    new = cluster_log_density(kind, hyper, x, members, proposal, work)
    if np.log(1.0 - rng.random()) < new - value + 3.0 * log_factor:
        theta[:] = proposal
        value = new
    return value


@njit
@no_type_check
def move_parameter(kind, hyper, x, members, theta, rng, work):
    """Leave p(theta | members) invariant; returns log p(theta) + log p(members | theta)."""
    n = members.size
    if kind == GAUSSIAN:  # conjugate: an exact draw
        precision = 1.0 / (hyper[0] * hyper[0]) + n / (hyper[1] * hyper[1])
        for d in range(theta.size):
            total = 0.0
            for i in members:
                total += x[i, d]
            mean = total / (hyper[1] * hyper[1]) / precision
            theta[d] = mean + rng.standard_normal() / np.sqrt(precision)
        return cluster_log_density(kind, hyper, x, members, theta, work)
    if kind == WISHART:
        dim = x.shape[1]
        mean = hyper[6 : 6 + dim].copy()
        factor = hyper[6 + dim :].copy().reshape((dim, dim))
        for j in range(n):
            wishart_add(x[members[j]], j, hyper[0], mean, factor, work[0])
        draw_wishart(hyper[0] + n, hyper[1] + n, mean, factor, rng, theta, work)
        return cluster_log_density(kind, hyper, x, members, theta, work)
    value = cluster_log_density(kind, hyper, x, members, theta, work)
    width = 3.0 * hyper[1] / np.sqrt(n)
    if rng.random() < 0.25:  # now and then look further away, for other modes
        width *= 10.0
    for d in range(theta.size):
        value = slice_parameter(kind, hyper, x, members, theta, d, width, value, rng, work)
    if kind == RING:
        value = turn_ring(kind, hyper, x, members, theta, value, rng, work)
    return value


@njit
@no_type_check
def move_parameters(kind, hyper, x, labels, counts, slots, k, thetas, order, ends, rng, work):
    """Move the parameter of every cluster; returns log p(theta) + log p(x | c, theta)."""
    total = 0.0
    end = 0
    for j in range(k):
        end += counts[slots[j]]
        ends[slots[j]] = end
    for i in range(labels.size - 1, -1, -1):  # a counting sort of the points by slot
        ends[labels[i]] -= 1
        order[ends[labels[i]]] = i
    for j in range(k):
        first = ends[slots[j]]
        members = order[first : first + counts[slots[j]]]
        total += move_parameter(kind, hyper, x, members, thetas[slots[j]], rng, work)
    return total


@njit
@no_type_check
def density_chain(
    kind, hyper, x, labels, thetas, join, open_, size, number, n_auxiliary, n_moves,
    burn_in, thin, rng, out_labels, out_log_joint,
):  # fmt: skip
    """Algorithm 8. `labels` and `thetas` (one row a slot) are the state and are overwritten.

    The slots behind the K in use hold the auxiliary parameters, so that a cluster that loses its
    last point is by itself the first of them.
    """
    n_points = x.shape[0]
    n_slots = thetas.shape[0]
    counts = np.zeros(n_slots, np.int64)
    slots = np.empty(n_slots, np.int64)
    place = np.empty(n_slots, np.int64)
    weights = np.empty(n_slots)
    names = np.empty(n_slots, np.int64)
    order = np.empty(n_points, np.int64)
    ends = np.empty(n_slots, np.int64)
    work = np.zeros((x.shape[1], x.shape[1]))
    share = np.log(n_auxiliary)
    k = first_slots(labels, slots, place, counts)
    total = 0.0
    for _ in range(n_moves):  # settle the parameters of a given start
        move_parameters(kind, hyper, x, labels, counts, slots, k, thetas, order, ends, rng, work)

    draws = out_log_joint.size
    for sweep in range(burn_in + draws * thin):
        for i in range(n_points):
            old = labels[i]
            kept = 0
            if old >= 0:
                counts[old] -= 1
                if counts[old] == 0:
                    k = close_slot(old, slots, place, k)
                    kept = 1
            for a in range(kept, n_auxiliary):
                draw_parameter(kind, hyper, rng, thetas[slots[k + a]], work)
            for j in range(k + n_auxiliary):
                slot = slots[j]
                prior = join[counts[slot]] if j < k else open_[k] - share
                weights[j] = prior + log_density(kind, hyper, x[i], thetas[slot], work)
            chosen = draw(weights, k + n_auxiliary, rng)
            slot = slots[chosen]
            if chosen >= k:
                other = slots[k]
                slots[k], slots[chosen] = slot, other
                place[slot], place[other] = k, chosen
                k += 1
            labels[i] = slot
            counts[slot] += 1
        total = move_parameters(
            kind, hyper, x, labels, counts, slots, k, thetas, order, ends, rng, work
        )
        if sweep >= burn_in and (sweep - burn_in + 1) % thin == 0:
            t = (sweep - burn_in) // thin
            write_canonical(labels, names, out_labels[t])
            out_log_joint[t] = total + number[k]
            for j in range(k):
                out_log_joint[t] += size[counts[slots[j]]]
