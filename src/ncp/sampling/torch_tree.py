"""The prefix tree in torch, one sequence a call: for accelerators, and the oracle of the kernels.

The same steps as `ncp.sampling.kernels.run_sequence`, written with whole arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from ncp.network.layout import widest
from ncp.network.network import Folded, Network, Points
from ncp.partitions import canonical
from ncp.sampling.compiled_tree import Run
from ncp.sampling.keys import child_keys

__all__ = ["State", "TorchTree"]

CHUNK = 8192  # candidates evaluated at once


class State(NamedTuple):
    """Rows are distinct prefixes, the arena is their distinct clusters."""

    counts: Tensor  # (rows,)
    log_q: Tensor  # (rows,)
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
        stop: np.ndarray,
        done: np.ndarray,
    ) -> Run:
        """The samples of a sequence; see `kernels.run_sequence`."""
        base, rest = self.network.positions(points, self.folded)
        state = self._first(points, count)
        history = []
        for n in range(1, len(points.sums)):
            if stop[0]:
                break
            state, parent, choice = self._step(
                state, points.sums[n], base[n], rest[n], key, n, beam
            )
            history.append((parent, choice))
            done[0] += 1
        done[0] += 1
        labels = state.counts.new_zeros(len(state.counts), len(points.sums))
        row = torch.arange(len(labels), device=labels.device)
        for n in range(len(history), 0, -1):
            parent, choice = history[n - 1]
            labels[:, n] = choice[row]
            row = parent[row]
        where = torch.as_tensor(order, device=labels.device)
        labels = canonical(torch.empty_like(labels).index_copy(1, where, labels))
        log_q = state.log_q.cpu().numpy().astype(np.float64)
        return Run(labels.cpu().numpy(), state.counts.cpu().numpy(), log_q)

    def _first(self, points: Points, count: int) -> State:
        one = points.sums[:1]
        g_hat = self._join(one)[:, : self.width]
        index = torch.zeros(1, dtype=torch.long, device=one.device)
        log_q = torch.zeros(1, dtype=widest(one.device), device=one.device)
        return State(index + count, log_q, index + 1, g_hat, index[:, None], one, g_hat)

    def _join(self, sums: Float[Tensor, "clusters n_sums"]) -> Float[Tensor, "clusters two_widths"]:
        inner = self.network.embed(sums[:, : self.g_width], sums[:, -1:], self.folded)
        return torch.addmm(self.folded.b_gc, inner, self.folded.w_gc.T)

    def _step(
        self,
        state: State,
        point: Tensor,
        base: Tensor,
        rest: Tensor,
        key: np.uint64,
        n: int,
        beam: int,
    ) -> tuple[State, Tensor, Tensor]:
        """Assign the next point of every row: score, choose, rebuild the state."""
        extended = torch.cat([state.sums + point, point[None]])
        join = self._join(extended)
        refs, scores = self._score(state, join, point, base, rest)
        if beam:
            parent, choice, counts, log_q = keep_best(scores, state.counts, state.log_q, beam)
        else:
            step = child_keys(np.asarray(key), np.asarray(n - 1, np.uint64))
            parent, choice, counts, log_q = split_counts(scores, state.counts, state.log_q, step)
        joined = refs[parent, choice]  # an existing cluster, or (past them) the point alone
        old = torch.cat([state.g_hat, state.g_hat.new_zeros(1, self.width)])
        total = state.total[parent] + (join[:, : self.width] - old)[joined]
        k = torch.maximum(state.k[parent], choice + 1)
        # References now run over [old arena, extended arena]; then only what is used is kept.
        n_old, slots = len(state.sums), torch.arange(int(k.max()), device=k.device)
        refs = refs[parent, : len(slots)]
        refs[torch.arange(len(parent), device=k.device), choice] = n_old + joined
        real = slots < k[:, None]
        used, where = torch.unique(refs[real], return_inverse=True)
        refs = torch.zeros_like(refs).masked_scatter(real, where)
        sums = torch.cat([state.sums, extended])[used]
        g_hat = torch.cat([state.g_hat, join[:, : self.width]])[used]
        return State(counts, log_q, k, total, refs, sums, g_hat), parent, choice

    def _score(
        self, state: State, join: Tensor, point: Tensor, base: Tensor, rest: Tensor
    ) -> tuple[Int[Tensor, "rows K"], Float[Tensor, "rows K"]]:
        """Log-probabilities of each row's candidates, and which cluster each would join."""
        net, n_old = self.network, len(state.sums)
        slots = torch.arange(int(state.k.max()) + 1, device=state.k.device)
        refs = torch.nn.functional.pad(state.refs, (0, len(slots) - state.refs.shape[1]))
        refs = refs.where(slots < state.k[:, None], n_old)
        pair = join.new_zeros(n_old + 1, self.width)
        if net.pair_features is not None and self.folded.w_pair is not None:
            own = point[self.g_width :].expand(n_old, -1)
            seen = net.pair_features.of_pair(
                state.sums[:, self.g_width :], own, rest.expand(n_old, -1)
            )
            pair[:n_old] = seen @ self.folded.w_pair.T
        old = torch.cat([state.g_hat, state.g_hat.new_zeros(1, self.width)])
        row, slot = (slots <= state.k[:, None]).nonzero(as_tuple=True)
        parts = []
        for r, s in zip(torch.split(row, CHUNK), torch.split(slot, CHUNK), strict=True):
            c = refs[r, s]
            k = torch.maximum(state.k[r], s + 1)[:, None].to(join.dtype)
            y = net.first_layer(join[c], state.total[r] - old[c], k)
            parts.append(net.logit(y + pair[c] + base))
        scores = join.new_full(refs.shape, -torch.inf, dtype=widest(join.device))
        scores[row, slot] = torch.cat(parts).to(scores.dtype)
        return refs, scores.log_softmax(1)


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
    u = torch.from_numpy(uniform).to(cumulative) * cumulative[row, -1]
    choice = (u[:, None] >= cumulative[row]).sum(1)
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
