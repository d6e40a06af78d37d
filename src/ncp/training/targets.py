r"""Exact soft targets: the Rao-Blackwellised objective (appendix C of the paper).

For the last r points of a sequence the sampled label c_n can be replaced by its distribution given
the sampled labels before it,

    sum_k  p(c_n = k | c_{1:n-1}, x)  log p_theta(c_n = k | c_{1:n-1}, x),

which has the same mean and a lower variance. The distribution comes from all completions of the
tail: a tree whose nodes at depth j are the possible labels of the first j tail points, in which a
child's weight is its parent's times

    p(c | counts) p(x_i | cluster c)         (conjugate: the predictive given the cluster's points)
    p(c | counts) p(x_i | mu_c)              (non-conjugate: given the sampled parameters)

where a likelihood that integrates the parameters of a few points out conditions on those of large
clusters only: as if conjugate, for all but these.

Summing leaves upwards gives p(c_n | c_{1:n-1}, x) at every node of the realised path.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ncp.generative.likelihood import ConjugateLikelihood, DensityLikelihood, IntegrableLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch, GenerativeModel
from ncp.generative.priors import Prior
from ncp.network.layout import groups_of
from ncp.partitions import canonical

__all__ = ["tail_targets"]

LEAVES = 2**20  # of one sequence's tree of completions; a larger one gets a shorter tail
BLOCK = 2**18  # leaves of the trees that are grown at the same time


def tail_targets(
    batch: Batch,
    orders: Int[Tensor, "B R N"],
    mixture: GenerativeModel,
    r: int,
    exact_only: bool = False,
) -> Float[Tensor, "B R r K"]:
    """p(c_n = k | c_{1:n-1}, x) (or with mu in the condition) for the last r positions.

    The tree has (K+1)(K+2)...(K+r) leaves, K clusters before the tail. A sequence whose tree would
    have more than `LEAVES` keeps its sampled labels at the first tail positions, until the rest of
    the tail fits. When that is depends only on the labels before it, so the mean stays the same.

    Args:
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
    known, points = mixture.given(batch.hyperparameters), mixture.points(batch.x)
    flat_orders = orders.flatten(0, 1)
    along = batch.labels.repeat_interleave(n_orders, 0).gather(1, flat_orders)
    labels = canonical(along)
    data_set = torch.arange(len(batch.x)).repeat_interleave(n_orders)
    targets = torch.zeros(len(labels), r, int(labels.max()) + 1 + r, dtype=torch.float64)
    if not exact_only:
        targets.scatter_(2, labels[:, -r:, None], 1.0)
    for rows, length in _blocks(labels, r):
        x = points[data_set[rows, None], flat_orders[rows]]
        parameters = None if batch.parameters is None else batch.parameters[data_set[rows]]
        own = known.rows(data_set[rows])
        tree = _predictive(own, x, along[rows], labels[rows], parameters, length)
        exact = _tree_targets(tree, labels[rows], own.prior, length)
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


def _predictive(
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
        parameters = _in_order_of_appearance(parameters, along, labels)
        if isinstance(likelihood, IntegrableLikelihood) and r <= likelihood.few:
            return _Integrated(likelihood, x, labels, parameters, r)
        return _Given(likelihood, x, labels, parameters, r)
    raise ValueError(
        "Expected a likelihood that is conjugate or has a density for rao_blackwell > 0 "
        f"but got {type(likelihood).__name__}"
    )


class _Predictive:
    """log p(tail point j | cluster `choice` of node `parent`) for one level of the tree."""

    root: Int[Tensor, " nodes"]  # the sequence of each node

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
        before, root = self.sums[parent, choice], self.root[parent]
        marginal = self.likelihood.rows(root).log_marginal_statistics
        return marginal(before + self.tail[root, j]) - marginal(before)

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


class _Integrated(_Given):
    """The parameters of large clusters are known, nodes carry the set of points of the others.

    Which clusters are large is a matter of the labels before the tail: all but the smallest, as
    many of them as have, together with the tail, few enough points.
    """

    def __init__(
        self,
        likelihood: IntegrableLikelihood,
        x: Tensor,
        labels: Tensor,
        parameters: Tensor,
        r: int,
    ) -> None:
        super().__init__(likelihood, x, labels, parameters, r)
        n_slots = int(labels.max()) + 1 + r
        before = labels[:, :-r]
        size = torch.zeros(len(x), n_slots, dtype=torch.long)
        size.scatter_add_(1, before, torch.ones_like(before))
        ordered, by_size = size.sort(dim=1, stable=True)
        fits = ordered.cumsum(1) + r <= likelihood.few
        self.small = torch.zeros_like(fits).scatter_(1, by_size, fits)
        # the tail's points are the lowest bits
        chosen = torch.cat((torch.ones_like(labels[:, -r:]), self.small.gather(1, before)), dim=1)
        n_chosen = chosen.sum(1)
        first = chosen.sort(dim=1, descending=True, stable=True).indices[:, : int(n_chosen.max())]
        points = torch.cat((x[:, -r:], x[:, :-r]), dim=1)[torch.arange(len(x))[:, None], first]
        self.log_marginal = likelihood.log_subset_marginals(points.double(), n_chosen)
        bit = torch.where(chosen > 0, 2 ** (chosen.cumsum(1) - 1), 0)[:, r:]
        self.members = torch.zeros_like(size).scatter_add_(1, before, bit)

    def level(self, j: int, parent: Tensor, choice: Tensor) -> Float64[Tensor, " children"]:
        members, root = self.members[parent, choice], self.root[parent]
        small = self.small[root, choice]
        grown = torch.where(small, members + 2**j, 0)
        integrated = self.log_marginal[root, grown] - self.log_marginal[root, members]
        return torch.where(small, integrated, super().level(j, parent, choice))

    def descend(self, j: int, parent: Tensor, choice: Tensor) -> None:
        super().descend(j, parent, choice)
        self.members = self.members[parent]
        self.members[torch.arange(len(parent)), choice] += 2**j


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
    urn: Prior,
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
        # The new cluster is the last column: put it at slot k.
        prior = urn.rows(tree.root).predictive(counts)
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
