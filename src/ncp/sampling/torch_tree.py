"""The prefix tree in torch, one sequence a call: for accelerators, and the oracle of the kernels.

The same steps as `ncp.sampling.kernels.run_sequence`, written with whole arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from ncp.network.layout import widest
from ncp.network.network import Folded, Network, Points
from ncp.partitions import canonical
from ncp.sampling.compiled_tree import Run
from ncp.sampling.constraints import Rules
from ncp.sampling.kernels import ENOUGH
from ncp.sampling.keys import child_keys

__all__ = ["State", "TorchTree"]

CHUNK = 8192  # candidates evaluated at once


class State(NamedTuple):
    """Rows are distinct prefixes, the arena is their distinct clusters."""

    counts: Tensor  # (rows,)
    log_q: Tensor  # (rows,)
    log_w: Tensor  # (rows,) the allowed mass of all steps, if there are constraints
    placed: Tensor  # (rows, groups) the slot of each group, -1 before it has one
    k: Tensor  # (rows,) number of clusters
    total: Tensor  # (rows, f.width) S
    refs: Tensor  # (rows, K) references into the arena; anything from k on
    sums: Tensor  # (clusters, n_sums)
    g_hat: Tensor  # (clusters, f.width)


class TorchTree:
    """A network on any device, ready to run."""

    def __init__(self, network: Network, folded: Folded) -> None:
        self.network, self.folded = network, folded
        self.width, self.g_width = network.spec.f.width, network.spec.g.width

    def run(
        self,
        points: Points,
        order: Int64[np.ndarray, " N"],
        count: int,
        key: np.uint64,
        beam: int,
        rules: Rules,
        stop: np.ndarray,
        done: np.ndarray,
    ) -> Run:
        """The samples of a data set's points in an order; see `kernels.run_sequence`."""
        where = torch.as_tensor(order, device=points.sums.device)
        points = Points(*(table[where] for table in points))
        base, rest = self.network.positions(points, self.folded)
        state = self._first(points, count, rules)
        history = []
        log_z = np.zeros(len(points.sums))
        for n in range(1, len(points.sums)):
            if stop[0]:
                break
            step = child_keys(np.asarray(key), np.asarray(n - 1, np.uint64))
            extended, g_hat, refs, scores = self._look(state, points.sums[n], base[n], rest[n])
            if rules.active:
                state, scores, log_z[n] = obey(state, scores, rules, n, count, step, beam > 0)
                if log_z[n] == -np.inf:
                    none = np.empty(0)
                    log_z[n:] = -np.inf
                    return Run(np.empty((0, len(order)), np.int64), none, none, none, log_z)
            if beam:
                children = keep_best(scores, state.counts, state.log_q, beam)
            else:
                children = split_counts(scores, state.counts, state.log_q, step)
            state = self._step(state, extended, g_hat, refs, children, int(rules.group[n]))
            history.append(children[:2])
            done[0] += 1
        done[0] += 1
        labels = state.counts.new_zeros(len(state.counts), len(points.sums))
        row = torch.arange(len(labels), device=labels.device)
        for n in range(len(history), 0, -1):
            parent, choice = history[n - 1]
            labels[:, n] = choice[row]
            row = parent[row]
        labels = canonical(torch.empty_like(labels).index_copy(1, where, labels))
        log_q, log_w = (of.cpu().numpy().astype(np.float64) for of in (state.log_q, state.log_w))
        return Run(labels.cpu().numpy(), state.counts.cpu().numpy(), log_q, log_w, log_z)

    def _first(self, points: Points, count: int, rules: Rules) -> State:
        one = points.sums[:1]
        _, g_hat = self._join(one)
        index = torch.zeros(1, dtype=torch.long, device=one.device)
        log_q = torch.zeros(1, dtype=widest(one.device), device=one.device)
        groups = torch.arange(len(rules.apart), device=one.device)
        placed = (groups == int(rules.group[0])).long()[None] - 1
        return State(
            index + count, log_q, log_q, placed, index + 1, g_hat, index[:, None], one, g_hat
        )

    def _join(
        self, sums: Float[Tensor, "clusters n_sums"]
    ) -> tuple[Float[Tensor, "clusters g_width"], Float[Tensor, "clusters width"]]:
        """g of clusters, but for its last layer, and ĝ."""
        v = self.network.into_g(sums[:, : self.g_width], sums[:, -1:], self.folded)
        inner = self.network.embed(v)
        return inner, torch.addmm(self.folded.b_g, inner, self.folded.w_g.T)

    def _look(
        self, state: State, point: Tensor, base: Tensor, rest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every cluster with the next point in it, ĝ of that, and log p of the choices."""
        extended = torch.cat([state.sums + point, point[None]])
        inner, g_hat = self._join(extended)
        return extended, g_hat, *self._score(state, inner, g_hat, point, base, rest)

    def _step(
        self,
        state: State,
        extended: Tensor,
        g_hat: Tensor,
        refs: Tensor,
        children: tuple[Tensor, Tensor, Tensor, Tensor],
        group: int,
    ) -> State:
        """The state after the next point of every row was assigned."""
        parent, choice, counts, log_q = children
        joined = refs[parent, choice]  # an existing cluster, or (past them) the point alone
        old = torch.cat([state.g_hat, state.g_hat.new_zeros(1, self.width)])
        total = state.total[parent] + (g_hat - old)[joined]
        k = torch.maximum(state.k[parent], choice + 1)
        # References now run over [old arena, extended arena]; then only what is used is kept.
        n_old, slots = len(state.sums), torch.arange(int(k.max()), device=k.device)
        refs = refs[parent, : len(slots)]
        refs[torch.arange(len(parent), device=k.device), choice] = n_old + joined
        real = slots < k[:, None]
        used, where = torch.unique(refs[real], return_inverse=True)
        refs = torch.zeros_like(refs).masked_scatter(real, where)
        sums = torch.cat([state.sums, extended])[used]
        g_hat = torch.cat([state.g_hat, g_hat])[used]
        placed = state.placed[parent]
        if group >= 0:
            placed[:, group] = choice
        return State(counts, log_q, state.log_w[parent], placed, k, total, refs, sums, g_hat)

    def _score(
        self, state: State, inner: Tensor, g_hat: Tensor, point: Tensor, base: Tensor, rest: Tensor
    ) -> tuple[Int[Tensor, "rows K"], Float[Tensor, "rows K"]]:
        """Log-probabilities of each row's candidates, and which cluster each would join."""
        net, n_old = self.network, len(state.sums)
        slots = torch.arange(int(state.k.max()) + 1, device=state.k.device)
        refs = torch.nn.functional.pad(state.refs, (0, len(slots) - state.refs.shape[1]))
        refs = refs.where(slots < state.k[:, None], n_old)
        alone, pairs = self._pairs(state, point, rest)
        old = torch.cat([state.g_hat, state.g_hat.new_zeros(1, self.width)])
        row, slot = (slots <= state.k[:, None]).nonzero(as_tuple=True)
        parts = []
        for r, s in zip(torch.split(row, CHUNK), torch.split(slot, CHUNK), strict=True):
            c = refs[r, s]
            k = torch.maximum(state.k[r], s + 1)
            g_sum = state.total[r] - old[c] + g_hat[c]
            seen = [part[c] for part in pairs]
            y = net.first_layer(base + alone[c], inner[c], g_sum, k, seen, self.folded)
            parts.append(net.logit(y))
        scores = g_hat.new_full(refs.shape, -torch.inf, dtype=widest(g_hat.device))
        scores[row, slot] = torch.cat(parts).to(scores.dtype)
        return refs, scores.log_softmax(1)

    def _pairs(
        self, state: State, point: Tensor, rest: Tensor
    ) -> tuple[Float[Tensor, "clusters width"], list[Float[Tensor, "clusters _"]]]:
        """What f sees of clusters, weighted, and of these and the point; last, of no cluster."""
        pairs, sums = self.network.pair_features, state.sums[:, self.g_width :]
        sums = torch.cat([sums, torch.zeros_like(sums[:1])])
        if pairs is None or self.folded.w_cluster is None:
            return sums.new_zeros(len(sums), self.width), []
        means, alone = pairs.of_cluster(sums)
        own = point[self.g_width :].expand(len(sums), -1)
        seen = pairs.of_pair(means, own, rest.expand(len(sums), -1))
        return alone @ self.folded.w_cluster.T, seen


def obey(
    state: State,
    scores: Float[Tensor, "rows K"],
    rules: Rules,
    n: int,
    count: int,
    key: np.ndarray,
    best: bool,
) -> tuple[State, Float[Tensor, "rows K"], float]:
    """Mask choices and keep the weights in order; the log mean weight, -inf if none is left."""
    scores = scores.masked_fill(~allowed(state, scores.shape[1], rules, n), -torch.inf)
    mass = scores.logsumexp(1).clamp(max=0.0)
    log_w = state.log_w + mass
    if best:  # by q, not by what was masked
        return state, scores, 0.0 if bool(mass.isfinite().any()) else -np.inf
    scores = (scores - mass[:, None]).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    top = float(log_w.max())
    if top == -np.inf:
        return state, scores, top
    weights = (log_w - top).exp() * state.counts
    mean = top + float((weights.sum() / count).log())
    lost = bool((log_w == -torch.inf).any())
    squares = float((weights * (log_w - top).exp()).sum())
    if not lost and float(weights.sum()) ** 2 >= ENOUGH * count * squares:
        return state._replace(log_w=log_w), scores, mean
    # Rows without samples have no children; they stay until the step is done.
    uniform = float(child_keys(key, np.asarray(2**63, np.uint64)) >> np.uint64(11)) * 2.0**-53
    edges = (weights.cumsum(0) / weights.sum() * count - uniform).ceil().clamp(0, count).long()
    edges[int(weights.nonzero()[-1]) :] = count
    return (
        state._replace(
            counts=edges.diff(prepend=edges.new_zeros(1)),
            log_q=state.log_q + log_w - mean,
            log_w=torch.full_like(log_w, mean),
        ),
        scores,
        mean,
    )


def allowed(state: State, n_slots: int, rules: Rules, n: int) -> Bool[Tensor, "rows K"]:
    """Which choices the constraints leave to each row; see `kernels._mask_row`."""
    slots = torch.arange(n_slots, device=state.k.device)
    k, group = state.k[:, None], int(rules.group[n])
    free = (slots < k) | ((slots == k) & (k < rules.most))
    free &= (slots >= k) | (rules.least - k < int(rules.left[n]))
    if group < 0:
        return free
    for other in np.flatnonzero(rules.apart[group]):
        free &= slots != state.placed[:, int(other), None]
    own = state.placed[:, group, None]
    return torch.where(own >= 0, slots == own, free)


def split_counts(
    scores: Float[Tensor, "rows K"],
    counts: Int[Tensor, " rows"],
    log_q: Float[Tensor, " rows"],
    key: np.ndarray,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each sample of a row chooses its child independently; ordered by parent and choice."""
    n_slots = scores.shape[1]
    cumulative = scores.exp().cumsum(1)
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    keys = child_keys(key, np.arange(len(row), dtype=np.uint64))
    uniform = (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
    kind = np.float64 if cumulative.dtype == torch.float64 else np.float32
    u = torch.from_numpy(uniform.astype(kind)).to(cumulative) * cumulative[row, -1]
    slot = torch.arange(n_slots, device=scores.device)
    last = torch.where(scores != -torch.inf, slot, 0).amax(1)  # u may be rounded up to 1
    choice = (u[:, None] >= cumulative[row]).sum(1).minimum(last[row])
    tally = torch.bincount(row * n_slots + choice, minlength=len(counts) * n_slots)
    child = tally.nonzero()[:, 0]
    parent, choice = child // n_slots, child % n_slots
    return parent, choice, tally[child], log_q[parent] + scores[parent, choice]


def keep_best(
    scores: Float[Tensor, "rows K"],
    counts: Int[Tensor, " rows"],
    log_q: Float[Tensor, " rows"],
    beam: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `beam` most probable children of all rows; ordered by parent and choice."""
    total = (log_q[:, None] + scores).view(-1)
    possible = (total != -torch.inf).nonzero()[:, 0]  # what is not a number is kept, to be seen
    best = possible[total[possible].argsort(descending=True, stable=True)]
    child = best[:beam].sort().values
    parent = child // scores.shape[1]
    return parent, child % scores.shape[1], counts[parent], total[child]
