r"""The training objective and its Rao-Blackwellised form (section 3 and appendix C of the paper).

    L = - E_N E_{c, x} E_pi [ sum_n log p_theta(c_{pi_n} | c_{pi_1 : pi_{n-1}}, x) ]

For the last r points of a sequence the sampled label c_n can be replaced by its distribution given
the sampled labels before it,

    sum_k  p(c_n = k | c_{1:n-1}, x)  log p_theta(c_n = k | c_{1:n-1}, x),

which has the same mean and a lower variance. The distribution comes from all completions of the
tail: a tree whose nodes at depth j are the possible labels of the first j tail points, in which a
child's weight is its parent's times

    p(c | counts) p(x_i | cluster c)         (conjugate: the predictive given the cluster's points)
    p(c | counts) p(x_i | mu_c)              (non-conjugate: given the sampled parameters)

Summing leaves upwards gives p(c_n | c_{1:n-1}, x) at every node of the realised path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ncp.generative.likelihood import ConjugateLikelihood, DensityLikelihood
from ncp.generative.mixture import Batch, Mixture
from ncp.model import NCP, groups_of, realised
from ncp.partitions import canonical

LEAVES = 2**20  # of one sequence's tree of completions; a larger one gets a shorter tail
PROBED = 3  # last points of a data set that are moved at most
BLOCK = 2**18  # leaves of the trees that are grown at the same time


class Sequences(NamedTuple):
    """Data sets of one size with the orders in which they are to be scored."""

    x: Float[Tensor, "B N *event"]
    labels: Int[Tensor, "B R N"]  # canonical along each order
    orders: Int[Tensor, "B R N"]
    targets: Float[Tensor, "B R r K"] | None  # soft targets of the last r positions
    same: Float[Tensor, "B N N"] | None = None  # probability that two points share a cluster
    tail_only: bool = False  # the labels before the last r positions are given, not scored

    def rows(self, rows: slice) -> Sequences:
        """Some of the data sets."""
        return self.map(lambda tensor: tensor[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> Sequences:
        """The same with every tensor changed."""
        return self._replace(
            x=change(self.x),
            labels=change(self.labels),
            orders=change(self.orders),
            targets=None if self.targets is None else change(self.targets),
            same=None if self.same is None else change(self.same),
        )


class Likelihoods(NamedTuple):
    """What one forward pass gives."""

    loss: Float[Tensor, ""]  # sum over sequences and n >= 2, in nats
    log_prob: Float[Tensor, "B R"]  # joint log-likelihood of each sequence, detached
    n_right: Int[Tensor, ""]  # labels that are the argmax, n >= 2


def sequences(
    batch: Batch,
    n_orders: int,
    mixture: Mixture,
    rao_blackwell: int = 0,
    generator: torch.Generator | None = None,
) -> Sequences:
    """Draw random orders for the data sets of a batch and, if asked for, soft targets."""
    n_datasets, n = batch.labels.shape
    keys = torch.rand(n_datasets, n_orders, n, generator=generator, dtype=torch.float64)
    orders = keys.argsort(2)
    along = batch.labels[:, None].expand(-1, n_orders, -1).gather(2, orders)
    labels = canonical(along)
    r = min(rao_blackwell, n - 1)
    targets = tail_targets(batch, orders, mixture, r) if r > 0 else None
    return Sequences(batch.x, labels, orders, targets)


def probes(
    batch: Batch, mixture: Mixture, r: int, generator: torch.Generator | None = None
) -> Sequences:
    """Data sets that the mixture seldom draws: near clusters, and last points in between or aside.

    An exact target is exact whatever the points are. So the data sets of a batch can be changed at
    will, into those that a network would rarely see and is wrong about, as long as nothing but
    the positions with exact targets is scored. Clusters are moved together by a factor between 1
    and 10, and of the last r points (three at most) about half go to lines through two others,
    between them or up to twice as far aside. It takes a conjugate mixture of vectors, whose
    targets need no parameters.
    """
    n_datasets, n = batch.labels.shape
    draws = torch.rand(n_datasets, n + 1, generator=generator, dtype=torch.float64).to(batch.x)
    order = draws[:, :n].argsort(1)
    member = torch.nn.functional.one_hot(batch.labels).to(batch.x)
    means = (member.mT @ batch.x) / member.sum(1).clamp(min=1)[..., None]
    towards = batch.x.mean(1, keepdim=True) - member @ means
    x = batch.x + (1 - 10.0 ** -draws[:, n:, None]) * towards

    along = x.gather(1, order[..., None].expand_as(x))
    m = min(r, PROBED)
    u, chance = torch.rand(2, n_datasets, m, 1, generator=generator, dtype=torch.float64).to(x)
    start = torch.arange(m)
    first, second = along[:, start % (n - m)], along[:, (start + 1) % (n - m)]
    aside = first + (5 * u - 2) * (second - first)
    along[:, n - m :] = torch.where(chance < 0.5, aside, along[:, n - m :])
    x = x.scatter(1, order[..., None].expand_as(x), along)

    orders = order[:, None]
    targets = tail_targets(batch._replace(x=x), orders, mixture, r, exact_only=True)
    labels = canonical(batch.labels.gather(1, order))[:, None]
    return Sequences(x, labels, orders, targets, tail_only=True)


def likelihoods(model: NCP, data: Sequences, pairwise: bool = False) -> Likelihoods:
    """Score all sequences of `data` in one fused pass; with `pairwise_loss` if that is wanted."""
    n_datasets, n_orders, n = data.labels.shape
    folded = model.fold()
    h, q = model.features(data.x.flatten(0, 1))
    codes = h.view(n_datasets, n, -1)
    if model.context is not None:
        codes = model.context.tokens(codes)
        h = model.context.encodings(h, codes.flatten(0, 1))
    points = model.project(h, q, folded)
    start = torch.arange(n_datasets, device=data.x.device)[:, None, None] * n
    index = (data.orders + start).flatten(0, 1)
    labels = data.labels.flatten(0, 1)
    lengths = torch.full((len(labels),), n, device=labels.device)
    log_p, _ = model.scores(points, index, lengths, labels, folded)
    each = realised(log_p, labels)
    r = 0 if data.targets is None else data.targets.shape[2]
    loss = each.new_zeros(()) if data.tail_only else -each[:, : n - r].sum()
    if data.targets is not None:
        soft = data.targets.flatten(0, 1)[..., : log_p.shape[2]]
        # 0 * -inf: an impossible candidate has target zero and adds nothing.
        loss = loss - (soft * log_p[:, n - r :].masked_fill(soft == 0, 0.0)).sum()
    if pairwise and (data.same is not None or not data.tail_only):
        loss = loss + pairwise_loss(codes, data)
    n_right = (log_p[:, 1:].argmax(2) == labels[:, 1:]).sum()
    return Likelihoods(loss, each.detach().sum(1).view(n_datasets, n_orders), n_right)


def pairwise_loss(codes: Float[Tensor, "B N d"], data: Sequences) -> Float[Tensor, ""]:
    """Warm-up of the encoder: "same cluster" from the cosine of two points' codes.

    The codes are the encodings h(x_i), or the context's tokens where there is a context.
    Binary cross-entropy with logit 10 cos - 5 over all pairs of a data set, against the sampled
    labels or, where they are given, the posterior probabilities of the pairs; averaged over pairs
    and multiplied by the number of points, so that it compares with the main loss. Without it,
    images do not leave the plateau at the prior's entropy: the encoder has no signal before
    clusters exist, and there are no clusters before the encoder has a signal.
    """
    n_datasets, n = data.labels.shape[0], data.labels.shape[2]
    codes = torch.nn.functional.normalize(codes, dim=2)
    logits = 10 * (codes @ codes.mT) - 5
    if data.same is None:
        first = data.labels[:, 0].gather(1, data.orders[:, 0].argsort(1))  # the data set's order
        same = (first[:, :, None] == first[:, None, :]).to(logits.dtype)
    else:
        same = data.same
    pairs = torch.ones(n, n, dtype=torch.bool, device=logits.device).tril(-1).expand_as(same)
    mean = torch.nn.functional.binary_cross_entropy_with_logits(logits[pairs], same[pairs])
    return mean * n_datasets * n


# -- Rao-Blackwellised targets ------------------------------------------------------------------


def tail_targets(
    batch: Batch,
    orders: Int[Tensor, "B R N"],
    mixture: Mixture,
    r: int,
    exact_only: bool = False,
) -> Float[Tensor, "B R r K"]:
    """p(c_n = k | c_{1:n-1}, x) (or with mu in the condition) for the last r positions.

    The tree has (K+1)(K+2)...(K+r) leaves, K clusters before the tail. A sequence whose tree would
    have more than `LEAVES` keeps its sampled labels at the first tail positions, until the rest of
    the tail fits. When that is depends only on the labels before it, so the mean stays the same.

    Arguments:
        batch: Data sets; a non-conjugate one needs parameters for K + r clusters.
        orders: The order of each sequence.
        mixture: Where the data come from; its likelihood must be conjugate or have a density.
        r: Length of the tail, 1 <= r < N.
        exact_only: Zeros, instead of the sampled label, where the tree is too large.

    Returns:
        Probabilities over the clusters that exist at each position and, after them, the new one,
        in float32, zero elsewhere.
    """
    n_orders, n = orders.shape[1:]
    if not 1 <= r < n:
        raise ValueError(f"Expected 1 <= r < {n} points but got r = {r}")
    flat_orders = orders.flatten(0, 1)
    along = batch.labels.repeat_interleave(n_orders, 0).gather(1, flat_orders)
    labels = canonical(along)
    data_set = torch.arange(len(batch.x)).repeat_interleave(n_orders)
    targets = torch.zeros(len(labels), r, int(labels.max()) + 1 + r, dtype=torch.float64)
    if not exact_only:
        targets.scatter_(2, labels[:, -r:, None], 1.0)
    for rows, length in _blocks(labels, r):
        x = batch.x[data_set[rows, None], flat_orders[rows]]
        parameters = None if batch.parameters is None else batch.parameters[data_set[rows]]
        tree = _grow(mixture, x, along[rows], labels[rows], parameters, length)
        exact = _tree_targets(tree, labels[rows], mixture.prior.predictive, length)
        targets[rows, -length:] = torch.nn.functional.pad(
            exact, (0, targets.shape[2] - exact.shape[2])
        )
    return targets.view(len(batch.x), n_orders, r, -1).float()


def _blocks(labels: Int[Tensor, "S N"], r: int) -> Iterator[tuple[Int[Tensor, " rows"], int]]:
    """Sequences of one length of tail (at most r) whose trees fit in memory together."""
    n = labels.shape[1]
    k = labels.cummax(1).values + 1
    length = torch.zeros(len(labels), dtype=torch.long)
    leaves = torch.ones(len(labels), dtype=torch.float64)
    for j in range(1, r + 1):
        count = (k[:, n - j - 1, None] + torch.arange(1, j + 1)).double().prod(1)
        length = torch.where(count <= LEAVES, j, length)
        leaves = torch.where(count <= LEAVES, count, leaves)
    for j in range(1, r + 1):
        rows = (length == j).nonzero()[:, 0]
        if len(rows) > 0:
            for block in groups_of(leaves[rows].long(), BLOCK):
                yield rows[block], j


def _grow(
    mixture: Mixture,
    x: Float[Tensor, "S N *event"],
    along: Int[Tensor, "S N"],
    labels: Int[Tensor, "S N"],
    parameters: Float64[Tensor, "S K P"] | None,
    r: int,
) -> _Predictive:
    likelihood = mixture.likelihood
    if isinstance(likelihood, ConjugateLikelihood):
        return _Conjugate(likelihood, x, labels, r)
    if isinstance(likelihood, DensityLikelihood) and parameters is not None:
        return _Given(likelihood, x, labels, _in_order_of_appearance(parameters, along, labels), r)
    raise ValueError(
        "Expected a likelihood that is conjugate or has a density for rao_blackwell > 0 "
        f"but got {type(likelihood).__name__}"
    )


class _Predictive:
    """log p(tail point j | cluster `choice` of node `parent`) for one level of the tree."""

    def level(self, j: int, parent: Tensor, choice: Tensor) -> Float64[Tensor, " children"]:
        raise NotImplementedError

    def descend(self, j: int, parent: Tensor, choice: Tensor) -> None:
        raise NotImplementedError


class _Conjugate(_Predictive):
    """Nodes carry the summed sufficient statistics of each of their clusters."""

    def __init__(self, likelihood: ConjugateLikelihood, x: Tensor, labels: Tensor, r: int) -> None:
        self.likelihood = likelihood
        statistics = likelihood.statistics(x.double())  # (S, N, T)
        self.tail = statistics[:, -r:]
        n_slots = int(labels.max()) + 1 + r
        sums = torch.zeros(len(x), n_slots, statistics.shape[2], dtype=torch.float64)
        index = labels[:, :-r, None].expand(-1, -1, statistics.shape[2])
        self.sums = sums.scatter_add_(1, index, statistics[:, :-r])
        self.root = torch.arange(len(x))

    def level(self, j: int, parent: Tensor, choice: Tensor) -> Float64[Tensor, " children"]:
        before = self.sums[parent, choice]
        marginal = self.likelihood.log_marginal_statistics
        return marginal(before + self.tail[self.root[parent], j]) - marginal(before)

    def descend(self, j: int, parent: Tensor, choice: Tensor) -> None:
        self.root = self.root[parent]
        self.sums = self.sums[parent]
        self.sums[torch.arange(len(parent)), choice] += self.tail[self.root, j]


class _Given(_Predictive):
    """The parameters are known: nodes carry nothing but where they come from."""

    def __init__(
        self,
        likelihood: DensityLikelihood,
        x: Tensor,
        labels: Tensor,
        parameters: Tensor,
        r: int,
    ) -> None:
        n_slots = int(labels.max()) + 1 + r
        if parameters.shape[1] < n_slots:
            raise ValueError(
                f"Expected parameters of {n_slots} clusters (K + r) but got {parameters.shape[1]}"
            )
        self.log_density = likelihood.log_density(x[:, -r:].double(), parameters[:, :n_slots])
        self.root = torch.arange(len(x))

    def level(self, j: int, parent: Tensor, choice: Tensor) -> Float64[Tensor, " children"]:
        return self.log_density[self.root[parent], j, choice]

    def descend(self, j: int, parent: Tensor, choice: Tensor) -> None:
        self.root = self.root[parent]


def _in_order_of_appearance(
    parameters: Float64[Tensor, "S K P"], along: Int[Tensor, "S N"], labels: Int[Tensor, "S N"]
) -> Float64[Tensor, "S K P"]:
    """Row k becomes the parameters of the k-th cluster to appear; unused ones stay behind."""
    n_sequences, n_slots = parameters.shape[:2]
    source = torch.arange(n_slots).expand(n_sequences, -1).clone()
    source.scatter_(1, labels, along)
    return parameters.gather(1, source[..., None].expand_as(parameters))


def _tree_targets(
    tree: _Predictive,
    labels: Int[Tensor, "S N"],
    predictive: Callable[[Tensor], Tensor],
    r: int,
) -> Float64[Tensor, "S r K"]:
    n_sequences = len(labels)
    n_slots = int(labels.max()) + 1 + r
    slots = torch.arange(n_slots)
    counts = torch.zeros(n_sequences, n_slots, dtype=torch.long)
    counts.scatter_add_(1, labels[:, :-r], torch.ones_like(labels[:, :-r]))
    path = torch.arange(n_sequences)  # the node of each sequence's own labels
    log_w = torch.zeros(n_sequences, dtype=torch.float64)
    levels: list[tuple[Tensor, Tensor, Tensor]] = []
    for j in range(r):
        k = (counts > 0).sum(1)
        parent, choice = (slots <= k[:, None]).nonzero(as_tuple=True)
        levels.append((parent, choice, path))
        prior = predictive(counts)  # the new cluster is the last column: put it at slot k
        prior = torch.where(slots == k[:, None], prior[:, -1:], prior[:, :-1])
        log_w = log_w[parent] + prior[parent, choice].log() + tree.level(j, parent, choice)
        if j == r - 1:
            break
        path = ((k + 1).cumsum(0) - (k + 1))[path] + labels[:, j - r]
        tree.descend(j, parent, choice)
        counts = counts[parent]
        counts[torch.arange(len(parent)), choice] += 1
    targets = torch.zeros(n_sequences, r, n_slots, dtype=torch.float64)
    for j in reversed(range(r)):
        parent, choice, path = levels[j]
        table = torch.full((int(parent[-1]) + 1, n_slots), -torch.inf, dtype=torch.float64)
        table[parent, choice] = log_w
        targets[:, j] = table[path].softmax(1)
        log_w = table.logsumexp(1)
    return targets
