r"""The O(NK) sampler, as a tree of prefixes over an arena of clusters.

Algorithm 1 of the paper draws c_1, c_2, ... in turn. S iid samples of one data set in one order
share prefixes, so the state here is the list of *distinct* prefixes ("rows"), each with the number
of samples that went through it; at step n the samples of a row are split over its K + 1 children.
The result is S exact iid samples, and the cost follows the number of distinct prefixes.

Clusters are shared as well: a cluster is a subset of the first n points, and most prefixes consist
of the same few. Each distinct live cluster stands once in an arena with its sum U and its folded
value ĝ (see `ncp.model`), and a row holds integer references only. So at step n

* g runs once per live cluster:   a = embed(U + u_n + b_1),  ĝ' = V_G g,  D = (V_G + V_C) g - ĝ
* f runs once per (row, k):       logit(S_row + D_{ref(row, k)} + V_Q Q(n) + V_h h_n + b)

A *sequence* is one data set in one order. The rows of a call may belong to any number of sequences
of different lengths (sorted by length, longest first, so that the active ones are a prefix of every
array): one data set in many orders, or a thousand data sets at once, go through the same loop. How
the children of a row are chosen is a policy: split the samples (iid), or keep the B most probable
prefixes of each sequence (beam search).

**The same samples in any company.** The samples of a data set depend on the seed and on its number
in the list only: not on the data sets beside it, on how the work is cut into blocks, on threads or
on machines. Two things make it so. Random numbers are a hash of (seed, data set, sequence, point,
sample), so nobody's draws depend on how many others drew before. And matrix products round each
row in the same way whatever rows are around it as long as there are some multiple of 16 of them,
so rows are made up to that (`in_tiles`); sums over candidates run from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ncp.model import NCP, Folded, Points, check_memory, widest
from ncp.network.blocks import Context
from ncp.partitions import bell_number, canonical, check_labels
from ncp.posterior import Partitions

CHUNK = 8192  # candidates evaluated at once: small enough for the cache
TILE = 16  # rows of a matrix product are a multiple of this, and so are the columns of the last
BLOCK_SAMPLES = 32_768  # samples whose prefixes are held at once
BLOCK_POSITIONS = 16_777_216  # the same, times the length of their sequences
LABEL = 2 * 8  # bytes of a label of the result: it is there twice while rows are collected
ROW_VALUES = 10  # vectors of the network's width per row of a beam; 21 were measured

Progress = Callable[[int, int], None]


class Children(NamedTuple):
    """The rows that come after a step, ordered by parent."""

    parent: Int[Tensor, " rows"]
    choice: Int[Tensor, " rows"]  # the cluster that the parent's next point joins
    counts: Int[Tensor, " rows"]
    log_q: Float[Tensor, " rows"]


# log-probabilities (rows, K) of each row's candidates, then counts, log_q and sequence (rows,)
Policy = Callable[[Tensor, Tensor, Tensor, Tensor], Children]
Keys = Int[Tensor, "..."]  # 64 bits each; whoever knows a key can draw its random numbers


def child_keys(key: Keys, number: Keys) -> Keys:
    """Independent-looking keys below a key: SplitMix64 started there, at its number-th output.

    The 64-bit finaliser of Steele, Lea and Flood (2014), in wrapping signed integers.

    >>> child_keys(torch.tensor([0]), torch.tensor([0, 1])).tolist()
    [-2152535657050944081, 7960286522194355700]
    """
    z = key + (number + 1) * -0x61C8864680B583EB
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def uniforms(keys: Keys, dtype: torch.dtype) -> Tensor:
    """A number in [0, 1) for each key, from its highest bits."""
    bits = 53 if dtype == torch.float64 else 24
    highest: Tensor = (keys >> (64 - bits)) & (2**bits - 1)
    return highest.to(dtype) * 2.0**-bits


def split_counts(keys: Keys) -> Policy:
    """Each sample of a row chooses its child independently: one multinomial draw per row.

    `keys` are those of the sequences, of which the policy takes the n-th child at its n-th call.
    """
    steps = count()

    def policy(scores: Tensor, counts: Tensor, log_q: Tensor, sequence: Tensor) -> Children:
        n_slots = scores.shape[1]
        cumulative = scores.exp().cumsum(1)
        cumulative /= cumulative[:, -1:].clone()
        row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        owner = sequence[row]
        sample = torch.arange(len(row), device=row.device) - torch.searchsorted(owner, owner)
        step = child_keys(keys, torch.full_like(keys, next(steps)))
        uniform = uniforms(child_keys(step[owner], sample), scores.dtype)
        choice = (uniform[:, None] >= cumulative[row]).sum(1)
        tally = torch.bincount(row * n_slots + choice, minlength=len(counts) * n_slots)
        child = tally.nonzero()[:, 0]
        parent, choice = child // n_slots, child % n_slots
        return Children(parent, choice, tally[child], log_q[parent] + scores[parent, choice])

    return policy


def keep_best(beam: int) -> Policy:
    """The `beam` most probable prefixes of each sequence."""

    def policy(scores: Tensor, counts: Tensor, log_q: Tensor, sequence: Tensor) -> Children:
        n_slots = scores.shape[1]
        total = (log_q[:, None] + scores).view(-1)
        possible = total.isfinite().nonzero()[:, 0]
        best = possible[total[possible].argsort(descending=True, stable=True)]
        best = best[sequence[best // n_slots].argsort(stable=True)]
        owner = sequence[best // n_slots]
        rank = torch.arange(len(best), device=best.device) - torch.searchsorted(owner, owner)
        child = best[rank < beam].sort().values
        parent = child // n_slots
        return Children(parent, child % n_slots, counts[parent], total[child])

    return policy


@dataclass(frozen=True)
class _Sequences:
    """Data sets in orders, longest first."""

    points: Points
    index: Int[Tensor, "sequences N"]  # the point at each position, anything past the length
    lengths: Int[Tensor, " sequences"]
    counts: Int[Tensor, " sequences"]  # samples wanted of each
    unassigned: Float[Tensor, "sequences width"]  # V_Q times the sum of q over all points


@dataclass
class _Tree:
    """The state of the sampler after each sequence's first n points have labels."""

    # rows: distinct prefixes, ordered by sequence
    sequence: Tensor  # (rows,)
    counts: Tensor  # (rows,)
    log_q: Tensor  # (rows,) as precise as the device allows
    k: Tensor  # (rows,) number of clusters
    total: Tensor  # (rows, width) S: the sum of ĝ over the row's clusters
    refs: Tensor  # (rows, K) references into the arena; anything from k on
    # arena: distinct live clusters
    owner: Tensor  # (clusters,) sequence
    u: Tensor  # (clusters, sums)
    g_hat: Tensor  # (clusters, width)
    # history, one entry a step
    parents: list[Tensor] = field(default_factory=list)
    choices: list[Tensor] = field(default_factory=list)

    def cut(self, n_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Take off the rows from `n_rows` on; returns their sequence, counts and log q."""
        ended = self.sequence[n_rows:], self.counts[n_rows:], self.log_q[n_rows:]
        for name in ("sequence", "counts", "log_q", "k", "total", "refs"):
            setattr(self, name, getattr(self, name)[:n_rows])
        return ended


class _Grown(NamedTuple):
    """Every cluster of the arena with its sequence's next point in it, then that point alone."""

    u: Tensor  # (clusters + sequences, sums)
    g_hat: Tensor  # (clusters + sequences, width)
    change: Tensor  # (clusters + sequences, width) D


class Drawn(NamedTuple):
    """What a run over sequences gives: rows of labels along each row's own sequence."""

    sequence: Int[Tensor, " rows"]
    labels: Int[Tensor, "rows N"]
    counts: Int[Tensor, " rows"]
    log_q: Float[Tensor, " rows"]


class TreeSampler:
    """Runs a policy over sequences. `n_embed` and `n_logit` count evaluations of g and f."""

    def __init__(self, model: NCP) -> None:
        self.model = model
        self.folded: Folded = model.fold()
        last = cast(torch.nn.Linear, model.f[-1]).weight  # (1, width)
        self._last = torch.nn.functional.pad(last, (0, 0, 0, TILE - 1)).detach()
        self._inner_f = model.f[1:-1]
        self.n_embed = 0
        self.n_logit = 0

    def run(self, sequences: _Sequences, policy: Policy, tick: Callable[[int], None]) -> Drawn:
        tree = self._plant(sequences)
        lengths = sequences.lengths.tolist()
        n_max, active = lengths[0], len(lengths)
        unassigned = sequences.unassigned.clone()
        finished: list[tuple[tuple[Tensor, Tensor, Tensor], int]] = []  # rows, their length
        for n in range(n_max):
            while active and lengths[active - 1] == n:
                active -= 1
            n_rows = int(torch.searchsorted(tree.sequence, active))
            if n_rows < len(tree.sequence):
                finished.append((tree.cut(n_rows), n))
            point = sequences.index[:active, n]
            unassigned[:active] -= sequences.points.q[point]
            if n > 0:
                base = unassigned[:active].to(self.model.dtype) + sequences.points.static[point]
                self._grow(tree, sequences.points.u[point], base, policy)
                tick(active)
        finished.append((tree.cut(0), n_max))
        drawn = _read_labels(tree, finished, n_max)
        if not bool(drawn.log_q.isfinite().all()):
            raise ValueError(
                "Expected data within reach of the network but its values overflow; "
                "are the data in the units that it was trained for?"
            )
        return drawn

    def _plant(self, sequences: _Sequences) -> _Tree:
        n_sequences = len(sequences.lengths)
        device = sequences.index.device
        ids = torch.arange(n_sequences, device=device)
        u = sequences.points.u[sequences.index[:, 0]]
        g_hat = self.value(u)
        return _Tree(
            sequence=ids,
            counts=sequences.counts,
            log_q=torch.zeros(n_sequences, dtype=widest(device), device=device),
            k=torch.ones_like(ids),
            total=g_hat,
            refs=ids[:, None].clone(),
            owner=ids,
            u=u,
            g_hat=g_hat,
        )

    def _grow(self, tree: _Tree, u_n: Tensor, base: Tensor, policy: Policy) -> None:
        """Assign the next point of every row: score, let the policy choose, rebuild the state."""
        grown = self._join(tree, u_n)
        refs, scores = self._score(tree, grown.change, base)
        children = policy(scores, tree.counts, tree.log_q, tree.sequence)
        tree.parents.append(children.parent.to(torch.int32))
        tree.choices.append(children.choice.to(torch.int32))
        parent, choice = children.parent, children.choice
        rows = torch.arange(len(parent), device=parent.device)
        joined = refs[parent, choice]  # an existing cluster, or (past them) the point alone

        n_old = len(tree.u)
        old = torch.cat([tree.g_hat, tree.g_hat.new_zeros(len(u_n), tree.g_hat.shape[1])])
        tree.total = tree.total.index_select(0, parent)
        tree.total += (grown.g_hat - old).index_select(0, joined)
        tree.k = tree.k[parent] + (choice == tree.k[parent])
        tree.counts, tree.log_q = children.counts, children.log_q
        tree.sequence = tree.sequence[parent]
        # References now run over [old arena, grown arena]; then only what is used is kept.
        width = int(tree.k.max())
        refs = refs[parent, :width]
        refs[rows, choice] = n_old + joined
        owner = torch.cat([tree.owner, tree.owner, torch.arange(len(u_n), device=parent.device)])
        real = torch.arange(width, device=parent.device) < tree.k[:, None]
        used = torch.zeros(len(owner), dtype=torch.bool, device=parent.device)
        used[refs[real]] = True
        tree.refs = (used.cumsum(0) - 1)[refs].where(real, 0)
        tree.owner = owner[used]
        kept_old, kept_new = used[:n_old], used[n_old:]
        tree.u = torch.cat([tree.u[kept_old], grown.u[kept_new]])
        tree.g_hat = torch.cat([tree.g_hat[kept_old], grown.g_hat[kept_new]])

    def _join(self, tree: _Tree, u_n: Tensor) -> _Grown:
        live = tree.owner < len(u_n)  # clusters of finished sequences linger one step
        if not bool(live.all()):
            renumber = live.cumsum(0) - 1
            tree.refs = renumber[tree.refs].clamp_min(0)
            tree.owner, tree.u, tree.g_hat = tree.owner[live], tree.u[live], tree.g_hat[live]
        u = torch.cat([tree.u + u_n[tree.owner], u_n])
        parts = [in_tiles(self._two_values, part) for part in torch.split(u, CHUNK)]
        self.n_embed += len(u)
        g_hat, change = (torch.cat(part) for part in zip(*parts, strict=True))
        change[: len(tree.u)] -= tree.g_hat
        if self.folded.w_a is not None:
            change[: len(tree.u)] += self.alike(tree.u, u_n, tree.owner)
        return _Grown(u, g_hat, change)

    def alike(self, u: Tensor, points: Tensor, which: Tensor) -> Tensor:
        """V_A times what f sees of clusters, by their sums, and the points that may join them."""
        w_a = cast(Tensor, self.folded.w_a)

        def network(both: Tensor) -> Tensor:
            sums, point = both.chunk(2, 1)
            return self.model.alike(sums, point) @ w_a.T

        parts = zip(torch.split(u, CHUNK), torch.split(which, CHUNK), strict=True)
        return torch.cat([in_tiles(network, torch.cat([v, points[w]], 1)) for v, w in parts])

    def _score(
        self, tree: _Tree, change: Tensor, base: Tensor
    ) -> tuple[Int[Tensor, "rows K"], Float[Tensor, "rows K"]]:
        """Log-probabilities of each row's candidates, and which grown cluster each stands for."""
        n_rows, n_slots = len(tree.k), int(tree.k.max()) + 1
        slots = torch.arange(n_slots, device=tree.k.device)
        refs = torch.nn.functional.pad(tree.refs, (0, n_slots - tree.refs.shape[1]))
        alone = (len(tree.u) + tree.sequence)[:, None]
        refs = torch.where(slots == tree.k[:, None], alone, refs)
        row, slot = (slots <= tree.k[:, None]).nonzero(as_tuple=True)
        ref = refs[row, slot]
        start = tree.total + base[tree.sequence]
        logits = torch.cat(
            [
                in_tiles(self._logit, start.index_select(0, r).add_(change.index_select(0, c)))
                for r, c in zip(torch.split(row, CHUNK), torch.split(ref, CHUNK), strict=True)
            ]
        )
        self.n_logit += len(logits)
        scores = logits.new_full((n_rows, n_slots), -torch.inf, dtype=widest(row.device))
        scores[row, slot] = logits.to(scores.dtype)
        return refs, log_softmax(scores)

    def value(self, u: Float[Tensor, "clusters sums"]) -> Float[Tensor, "clusters width"]:
        """ĝ of clusters by their sums U."""
        self.n_embed += len(u)
        return in_chunks(lambda v: self._two_values(v)[0], u)

    def _two_values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """V_G g and (V_G + V_C) g of clusters by their sums U."""
        inner = self.model.embed(u[:, : self.model.config.width] + self.folded.b_u)
        g_hat = torch.addmm(self.folded.b_g, inner, self.folded.w_g.T)
        return g_hat, torch.addmm(self.folded.b_join, inner, self.folded.w_join.T)

    def _logit(self, y: Float[Tensor, "rows width"]) -> Float[Tensor, " rows"]:
        # A product with one column is another kernel, which rounds by the number of rows.
        return torch.nn.functional.linear(self._inner_f(y), self._last)[:, 0]


def in_tiles(network: Callable[[Tensor], Any], rows: Float[Tensor, "rows ..."]) -> Any:
    """A network's result for rows, evaluated with as many more as make a multiple of `TILE`."""
    extra = -len(rows) % TILE
    if extra == 0:
        return network(rows)
    result = network(torch.cat([rows, rows.new_zeros(extra, *rows.shape[1:])]))
    if isinstance(result, Tensor):
        return result[: len(rows)]
    return tuple(None if part is None else part[: len(rows)] for part in result)


def in_chunks(
    network: Callable[[Tensor], Tensor], rows: Float[Tensor, "rows ..."]
) -> Float[Tensor, "rows ..."]:
    """`in_tiles` for any number of rows, `CHUNK` at a time."""
    return torch.cat([in_tiles(network, part) for part in torch.split(rows, CHUNK)])


def log_softmax(scores: Float[Tensor, "rows K"]) -> Float[Tensor, "rows K"]:
    """As torch's, but summed from left to right: more columns of -inf change nothing."""
    scores = scores - scores.amax(1, keepdim=True)
    return scores - scores.exp().cumsum(1)[:, -1:].log()


def _read_labels(
    tree: _Tree, finished: list[tuple[tuple[Tensor, Tensor, Tensor], int]], n_max: int
) -> Drawn:
    """Walk back from the final rows of every sequence; the longest sequences come first."""
    waiting = finished[::-1]
    sequence, counts, log_q = (torch.cat([rows[i] for rows, _ in waiting]) for i in range(3))
    labels = torch.zeros(len(sequence), n_max, dtype=torch.int64, device=sequence.device)
    where = torch.zeros(0, dtype=torch.long, device=sequence.device)
    for n in range(n_max, 1, -1):
        choices, parents = tree.choices[n - 2], tree.parents[n - 2]
        if waiting and waiting[0][1] == n:
            # These stood at the end of the rows after n points, behind those that went on.
            ended = len(waiting.pop(0)[0][0])
            end = len(choices)
            where = torch.cat([where, torch.arange(end - ended, end, device=where.device)])
        labels[: len(where), n - 1] = choices[where].long()
        where = parents[where].long()
    return Drawn(sequence, labels, counts, log_q)


# -- the public functions -----------------------------------------------------------------------


def sample(
    model: NCP,
    x: Any,
    n_samples: int = 1000,
    *,
    orders: int | str = 1,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Partitions:
    """Exact iid samples of q(c | x).

    Arguments:
        model: A trained network.
        x: One data set, `(N, *event_shape)`.
        n_samples: S.
        orders: The number of random orders that the samples are spread over; 1 is the given order,
            `"each"` gives every sample an order of its own.
        seed: Makes the call reproducible.
        progress: Called with (points assigned, points in all).

    Returns:
        Distinct rows in the caller's order of points, with `log_q` in the order of the draw.
    """
    return sample_many(model, [x], n_samples, orders=orders, seed=seed, progress=progress)[0]


@torch.no_grad()
def sample_many(
    model: NCP,
    xs: Sequence[Any],
    n_samples: int = 1000,
    *,
    orders: int | str = 1,
    seed: int | None = None,
    streams: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[Partitions]:
    """Samples for many data sets of any sizes at once; arguments as for `sample`.

    The samples of a data set depend on the seed and its entry of `streams` (0, 1, ... by default),
    not on the other data sets.

    >>> from ncp.model import NCPConfig
    >>> model = NCP(NCPConfig(event_shape=1))
    >>> many = sample_many(model, [[[0.0], [1.0]], [[3.0]]], n_samples=10, seed=0)
    >>> [one.labels.shape[1] for one in many]
    [2, 1]
    """
    xs = list(xs)
    data = [model.check_points(x) for x in xs]
    sizes = [len(x) for x in data]
    n_orders = _check_orders(n_samples, orders)
    n_labels = sum(min(n_samples, bell_number(min(n, 30))) * n for n in sizes)
    check_memory(LABEL * n_labels, LABEL * max(1, sum(sizes)), "samples")
    keys = _data_set_keys(seed, range(len(xs)) if streams is None else streams)
    if len(keys) != len(xs):
        raise ValueError(f"Expected {len(xs)} streams but got {len(keys)}")
    pieces = [_pieces(d, n, n_samples, n_orders) for d, n in enumerate(sizes)]
    counter = _Counter(sum(n * len(p.counts) for n, p in zip(sizes, pieces, strict=True)), progress)
    results: list[list[_Rows]] = [[] for _ in data]
    sampler = TreeSampler(model)
    for block in _blocks(sizes, pieces):
        _run_block(sampler, data, block, keys, orders == 1, split_counts, counter, results)
    counter.finish()
    split = [len(p.counts) > n_orders for p in pieces]
    return [_collect(*one) for one in zip(results, xs, split, strict=True)]


@torch.no_grad()
def beam_search(model: NCP, x: Any, beam: int = 32) -> Partitions:
    """The most probable partitions found by beam search, best first.

    Arguments:
        model: A trained network.
        x: One data set, `(N, *event_shape)`.
        beam: Prefixes kept at each step, and partitions returned (fewer if there are fewer).

    >>> from ncp.model import NCPConfig
    >>> len(beam_search(NCP(NCPConfig(event_shape=1)), [[0.0], [1.0], [5.0]], beam=100))
    5
    """
    if isinstance(beam, bool) or not isinstance(beam, int | np.integer) or beam < 1:
        raise ValueError(f"Expected beam to be an integer >= 1 but got {beam!r}")
    data = [model.check_points(x)]
    n = len(data[0])
    row = LABEL * n + ROW_VALUES * model.location.element_size() * model.config.width
    check_memory(min(int(beam), bell_number(min(n, 30))) * row, row, "prefixes in the beam")
    results: list[list[_Rows]] = [[]]
    block = [_Pieces(0, np.array([0]), np.array([1]), 0)]
    _run_block(
        TreeSampler(model),
        data,
        block,
        torch.zeros(1, dtype=torch.int64),
        True,
        lambda keys: keep_best(int(beam)),
        _Counter(0, None),
        results,
    )
    found = _collect(results[0], x)
    return found[np.argsort(-found.log_q, kind="stable")]


@torch.no_grad()
def assign(
    model: NCP, x_new: Any, x: Any, labels: Any, *, mutual: bool = True
) -> Float[Tensor, "M K"]:
    """Probabilities of new points joining each cluster of a given partition, or a new one.

    Each new point is scored on its own, as the last one after the N given points:
    p(c_{N+1} = k | c_{1:N}, x_{1:N+1}).

    Arguments:
        model: A trained network.
        x_new: New points, `(M, *event_shape)`.
        x, labels: The data set `(N, *event_shape)` and its canonical labels `(N,)`.
        mutual: Matters for models with context. There the encodings of the N points depend on the
            new one too, so all of them are computed again for each new point; with `False` the
            new point sees them and they do not see it, which is what many new points need.

    Returns:
        `(M, K + 1)` probabilities; the last column is "a new cluster".

    >>> from ncp.model import NCPConfig
    >>> assign(NCP(NCPConfig(event_shape=1)), [[2.0]], [[0.0], [1.0], [5.0]], [0, 0, 1]).shape
    torch.Size([1, 3])
    """
    label = check_labels(labels, len(model.check_points(x)))
    if label.dim() != 1:
        raise ValueError(f"Expected labels of shape (N,) but got {tuple(label.shape)}")
    return assign_each(model, x_new, x, label[None], mutual=mutual)[0]


@torch.no_grad()
def assign_each(
    model: NCP, x_new: Any, x: Any, labels: Any, *, mutual: bool = True
) -> list[Float[Tensor, "M K"]]:
    """`assign` for several partitions `(R, N)`; points are encoded once."""
    points, new = model.check_points(x), model.check_points(x_new)
    rows = list(check_labels(labels, len(points)).to(model.device))
    sampler = TreeSampler(model)
    h = _features(model, points)[0]
    n_clusters = max(int(row.max()) + 1 for row in rows)
    again = model.context is not None and mutual
    memory = None
    if not again:
        h_in_context = h if model.context is None else _in_context(model.context, h)
        clusters = [_clusters(sampler, h_in_context[None], row) for row in rows]
        memory = None if model.context is None else model.context.memory(h)
    found: list[list[Tensor]] = [[] for _ in rows]
    for part in torch.split(new, max(1, CHUNK // (n_clusters + 1 + again * len(points)))):
        h_new, q = _features(model, part)
        if model.context is not None and memory is None:
            both = model.context(torch.cat([h.expand(len(part), -1, -1), h_new[:, None]], 1))
            h_new = both[:, -1]
            clusters = [_clusters(sampler, both[:, :-1], row) for row in rows]
        elif model.context is not None and memory is not None:
            h_new = model.context.newcomers(memory, h_new)
        joining = _project(model, h_new, q, sampler.folded)
        for (u, g_hat), column in zip(clusters, found, strict=True):
            joined = (u + joining.u[:, None]).flatten(0, 1)
            y = in_tiles(lambda v: sampler._two_values(v)[1], joined).view(
                len(part), u.shape[1], -1
            )
            y = y + (g_hat.sum(1, keepdim=True) - g_hat + joining.static[:, None])
            if sampler.folded.w_a is not None:
                each = u.expand(len(part), -1, -1).flatten(0, 1)
                which = torch.arange(len(part), device=u.device).repeat_interleave(u.shape[1])
                y = y + sampler.alike(each, joining.u, which).view_as(y)
            logits = in_tiles(sampler._logit, y.flatten(0, 1)).view(y.shape[:2])
            column.append(log_softmax(logits.to(widest(logits.device))).exp())
    return [torch.cat(column) for column in found]


def _clusters(
    sampler: TreeSampler, h: Float[Tensor, "B N d"], label: Int[Tensor, " N"]
) -> tuple[Float[Tensor, "B K sums"], Float[Tensor, "B K width"]]:
    """U and ĝ of the clusters of one partition of B data sets, and zeros for a new cluster."""
    summands = partial(sampler.model.summands, folded=sampler.folded)
    u = in_tiles(summands, h.flatten(0, 1)).view(*h.shape[:2], -1)
    sums = u.new_zeros(len(u), int(label.max()) + 2, u.shape[2], dtype=widest(u.device))
    sums = sums.index_add(1, label, u.to(sums.dtype)).to(u.dtype)
    g_hat = sampler.value(sums[:, :-1].flatten(0, 1)).view(len(u), sums.shape[1] - 1, -1)
    return sums, torch.nn.functional.pad(g_hat, (0, 0, 0, 1))


# -- from data sets to sequences and back -------------------------------------------------------


class _Rows(NamedTuple):
    """Final rows of one data set, in the caller's order of points."""

    order: Tensor  # which of the data set's orders a row was drawn in
    labels: Tensor
    counts: Tensor
    log_q: Tensor


class _Pieces(NamedTuple):
    """Sequences of one data set: which of its orders each follows, and how many samples of it."""

    data_set: int
    orders: np.ndarray
    counts: np.ndarray
    first: int  # how many of the data set's pieces come before


def _data_set_keys(seed: int | None, streams: Sequence[int]) -> Keys:
    """One key for each data set."""
    if seed is None:
        seed = torch.Generator().seed()
    root = torch.tensor([(int(seed) + 2**63) % 2**64 - 2**63])
    return child_keys(child_keys(root, root.new_zeros(1)), torch.as_tensor(list(streams)).long())


def _piece_keys(key: Keys, kind: int, numbers: np.ndarray) -> Keys:
    """Keys for the pieces (kind 0) or the orders (kind 1) of a data set."""
    below = child_keys(key, torch.full_like(key, kind))
    return child_keys(below, torch.as_tensor(numbers))


def numbered_orders(key: Keys, which: np.ndarray, n_points: int) -> Int[Tensor, "sequences N"]:
    """Random orders, by their numbers: those that sort random numbers."""
    keys = _piece_keys(key, 1, which)[:, None]
    return child_keys(keys, torch.arange(n_points)).argsort(1)


class _Counter:
    """Counts assigned points and tells the progress hook."""

    def __init__(self, total: int, hook: Progress | None) -> None:
        self.total, self.hook, self.done = total, hook, 0

    def __call__(self, n: int) -> None:
        self.done = min(self.done + n, self.total)
        if self.hook is not None:
            self.hook(self.done, self.total)

    def finish(self) -> None:
        if self.hook is not None:
            self.hook(self.total, self.total)


def _check_orders(n_samples: int, orders: int | str) -> int:
    if isinstance(n_samples, bool) or not isinstance(n_samples, int | np.integer) or n_samples < 1:
        raise ValueError(f"Expected n_samples to be an integer >= 1 but got {n_samples!r}")
    if orders == "each":
        return int(n_samples)
    if isinstance(orders, bool) or not isinstance(orders, int | np.integer) or orders < 1:
        raise ValueError(f"Expected orders to be an integer >= 1 or 'each' but got {orders!r}")
    return min(int(orders), int(n_samples))


def _pieces(d: int, n_points: int, n_samples: int, n_orders: int) -> _Pieces:
    """The samples of each order, in pieces that fit in a block."""
    limit = max(1, min(BLOCK_SAMPLES, BLOCK_POSITIONS // n_points))
    shares = n_samples // n_orders + (np.arange(n_orders) < n_samples % n_orders)
    parts = -(-shares // limit)
    orders = np.repeat(np.arange(n_orders), parts)
    nth = np.arange(len(orders)) - np.repeat(parts.cumsum() - parts, parts)
    counts = shares[orders] // parts[orders] + (nth < shares[orders] % parts[orders])
    return _Pieces(d, orders, counts, 0)


def _blocks(sizes: list[int], pieces: list[_Pieces]) -> list[list[_Pieces]]:
    """Split the work so that the rows of a block fit in memory.

    A data set may be in several blocks, but only once in each.
    """
    blocks: list[list[_Pieces]] = [[]]
    samples = positions = 0
    for n, (d, orders, counts, _) in zip(sizes, pieces, strict=True):
        at, done = 0, np.concatenate([[0], counts.cumsum()])
        while at < len(counts):
            room = min(BLOCK_SAMPLES - samples, (BLOCK_POSITIONS - positions) // n)
            end = int(np.searchsorted(done, done[at] + room, "right")) - 1
            if end <= at and blocks[-1]:
                blocks.append([])
                samples = positions = 0
                continue
            end = max(end, at + 1)
            blocks[-1].append(_Pieces(d, orders[at:end], counts[at:end], at))
            taken = int(done[end] - done[at])
            samples, positions, at = samples + taken, positions + n * taken, end
    return [block for block in blocks if block]


def _encode(model: NCP, xs: list[Tensor], folded: Folded) -> Points:
    h, q = _features(model, torch.cat(xs))
    parts = torch.split(h, [len(x) for x in xs])
    # One data set at a time: its values depend on nothing else.
    h = h if model.context is None else torch.cat([_in_context(model.context, p) for p in parts])
    return _project(model, h, q, folded)


def _in_context(context: Context, h: Float[Tensor, "N d_h"]) -> Float[Tensor, "N d"]:
    def among_themselves(rows: Tensor) -> Tensor:
        out: Tensor = context(rows[None], torch.arange(len(rows), device=h.device) < len(h))[0]
        return out

    result: Tensor = in_tiles(among_themselves, h)
    return result


def _features(model: NCP, x: Tensor) -> tuple[Tensor, Tensor | None]:
    parts = [in_tiles(model.features, part) for part in torch.split(x, CHUNK)]
    h, q = zip(*parts, strict=True)
    return torch.cat(h), None if model.q is None else torch.cat(q)


def _project(model: NCP, h: Tensor, q: Tensor | None, folded: Folded) -> Points:
    def project(rows: Tensor) -> tuple[Tensor, ...]:
        both = torch.split(rows, h.shape[1], 1)
        return tuple(model.project(both[0], None if q is None else both[1], folded))

    rows = h if q is None else torch.cat([h, q], 1)
    tables = zip(*(in_tiles(project, part) for part in torch.split(rows, CHUNK)), strict=True)
    return Points(*map(torch.cat, tables))


def _run_block(
    sampler: TreeSampler,
    data: list[Tensor],
    block: list[_Pieces],
    keys: Keys,
    in_given_order: bool,
    policy_of: Callable[[Keys], Policy],
    counter: _Counter,
    results: list[list[_Rows]],
) -> None:
    """Run the sequences of a block and file the rows under their data sets."""
    device = sampler.model.device
    block = sorted(block, key=lambda member: -len(data[member.data_set]))
    xs = [data[member.data_set] for member in block]
    sizes = torch.tensor([len(x) for x in xs], device=device)
    members = torch.tensor([len(member.counts) for member in block], device=device)
    of_set = [keys[member.data_set : member.data_set + 1] for member in block]
    orders = [
        torch.arange(len(x)).expand(len(member.orders), -1)
        if in_given_order
        else numbered_orders(key, member.orders, len(x))
        for member, key, x in zip(block, of_set, xs, strict=True)
    ]
    orders = [_pad(order.to(device), len(xs[0])) for order in orders]
    of_piece = [
        _piece_keys(key, 0, member.first + np.arange(len(member.counts)))
        for member, key in zip(block, of_set, strict=True)
    ]
    start = (sizes.cumsum(0) - sizes).tolist()
    encoded = _encode(sampler.model, xs, sampler.folded)
    total = encoded.q.new_zeros(len(xs), encoded.q.shape[1], dtype=widest(device))
    total.index_add_(0, torch.repeat_interleave(sizes), encoded.q.to(total.dtype))
    sequences = _Sequences(
        encoded,
        index=torch.cat([order + first for order, first in zip(orders, start, strict=True)]),
        lengths=torch.repeat_interleave(sizes, members),
        counts=torch.as_tensor(np.concatenate([member.counts for member in block]), device=device),
        unassigned=torch.repeat_interleave(total, members, 0),
    )
    drawn = sampler.run(sequences, policy_of(torch.cat(of_piece).to(device)), counter)
    ends = torch.searchsorted(drawn.sequence, members.cumsum(0)).tolist()
    first_row = first_sequence = 0
    for member, order, x, end in zip(block, orders, xs, ends, strict=True):
        along = drawn.labels[first_row:end, : len(x)]
        which = drawn.sequence[first_row:end] - first_sequence
        labels = torch.cat(
            [
                canonical(torch.empty_like(rows).scatter_(1, order[here, : len(x)], rows))
                for rows, here in zip(
                    torch.split(along, CHUNK), torch.split(which, CHUNK), strict=True
                )
            ]
        )
        names = torch.as_tensor(member.orders, device=device)[which]
        results[member.data_set].append(
            _Rows(names, labels, drawn.counts[first_row:end], drawn.log_q[first_row:end])
        )
        first_row, first_sequence = end, first_sequence + len(order)


def _pad(rows: Int[Tensor, "rows n"], width: int) -> Int[Tensor, "rows width"]:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def _collect(rows: list[_Rows], x: Any, merge: bool = False) -> Partitions:
    """One result of all blocks; equal rows of one order that several pieces drew are merged."""
    order, labels, counts, log_q = (
        torch.cat(column).cpu().numpy() for column in zip(*rows, strict=True)
    )
    if merge:
        keys = np.column_stack([order, labels])
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        counts = np.bincount(inverse.reshape(-1), weights=counts).astype(np.int64)
        labels, log_q = labels[first], log_q[first]
    data = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    return Partitions(labels, counts, log_q, x=data)
