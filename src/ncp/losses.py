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

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ncp.likelihoods import ConjugateLikelihood, DensityLikelihood
from ncp.mixture import Batch, Mixture
from ncp.model import NCP, realised
from ncp.partitions import canonical


class Sequences(NamedTuple):
    """Data sets of one size with the orders in which they are to be scored."""

    x: Float[Tensor, "B N *event"]
    labels: Int[Tensor, "B R N"]  # canonical along each order
    orders: Int[Tensor, "B R N"]
    targets: Float[Tensor, "B R r K"] | None  # soft targets of the last r positions

    def __getitem__(self, rows: slice) -> Sequences:  # type: ignore[override]
        targets = None if self.targets is None else self.targets[rows]
        return Sequences(self.x[rows], self.labels[rows], self.orders[rows], targets)


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


def likelihoods(model: NCP, data: Sequences) -> Likelihoods:
    """Score all sequences of `data` in one fused pass."""
    n_datasets, n_orders, n = data.labels.shape
    folded = model.fold()
    points = model.encode(data.x.flatten(0, 1), folded)
    start = torch.arange(n_datasets, device=data.x.device)[:, None, None] * n
    index = (data.orders + start).flatten(0, 1)
    labels = data.labels.flatten(0, 1)
    lengths = torch.full((len(labels),), n, device=labels.device)
    log_p, _ = model.scores(points, index, lengths, labels, folded)
    each = realised(log_p, labels)
    loss = -each.sum()
    if data.targets is not None:
        r = data.targets.shape[2]
        soft = data.targets.flatten(0, 1)[..., : log_p.shape[2]]
        # 0 * -inf: an impossible candidate has target zero and adds nothing.
        tail = (soft * log_p[:, -r:].masked_fill(soft == 0, 0.0)).sum(2)
        loss = loss + each[:, -r:].sum() - tail.sum()
    n_right = (log_p[:, 1:].argmax(2) == labels[:, 1:]).sum()
    return Likelihoods(loss, each.detach().sum(1).view(n_datasets, n_orders), n_right)


def pairwise_loss(model: NCP, data: Sequences) -> Float[Tensor, ""]:
    """Warm-up of the encoder: "same cluster" from the cosine of h(x_i) and h(x_j).

    Binary cross-entropy with logit 10 cos - 5 over all pairs of a data set, averaged over pairs
    and multiplied by the number of points, so that it compares with the main loss. Without it,
    images do not leave the plateau at the prior's entropy: the encoder has no signal before
    clusters exist, and there are no clusters before the encoder has a signal.
    """
    n_datasets, n = data.labels.shape[0], data.labels.shape[2]
    x = (data.x.flatten(0, 1) - model.location) / model.scale
    h = torch.nn.functional.normalize(model.h(x), dim=1).view(n_datasets, n, -1)
    logits = 10 * (h @ h.mT) - 5
    first = data.labels[:, 0].gather(1, data.orders[:, 0].argsort(1))  # in the data set's order
    same = (first[:, :, None] == first[:, None, :]).to(logits.dtype)
    pairs = torch.ones(n, n, dtype=torch.bool, device=logits.device).tril(-1).expand_as(same)
    mean = torch.nn.functional.binary_cross_entropy_with_logits(logits[pairs], same[pairs])
    return mean * n_datasets * n


# -- Rao-Blackwellised targets ------------------------------------------------------------------


def tail_targets(
    batch: Batch, orders: Int[Tensor, "B R N"], mixture: Mixture, r: int
) -> Float[Tensor, "B R r K"]:
    """p(c_n = k | c_{1:n-1}, x) (or with mu in the condition) for the last r positions.

    Arguments:
        batch: Data sets; a non-conjugate one needs parameters for K + r clusters.
        orders: The order of each sequence.
        mixture: Where the data come from; its likelihood must be conjugate or have a density.
        r: Length of the tail, 1 <= r < N. The tree has up to (K+1)(K+2)...(K+r) leaves.

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
    x = batch.x[data_set[:, None], flat_orders]
    likelihood = mixture.likelihood
    if isinstance(likelihood, ConjugateLikelihood):
        tree: _Predictive = _Conjugate(likelihood, x, labels, r)
    elif isinstance(likelihood, DensityLikelihood) and batch.parameters is not None:
        parameters = _in_order_of_appearance(batch.parameters[data_set], along, labels)
        tree = _Given(likelihood, x, labels, parameters, r)
    else:
        raise ValueError(
            "Expected a likelihood that is conjugate or has a density for rao_blackwell > 0 "
            f"but got {type(likelihood).__name__}"
        )
    targets = _tree_targets(tree, labels, mixture.prior.predictive, r)
    return targets.view(len(batch.x), n_orders, r, -1).float()


class _Predictive:
    """log p(tail point j | cluster k of a node) for the nodes of one level of the tree."""

    def level(self, j: int) -> Float64[Tensor, "nodes K"]:
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

    def level(self, j: int) -> Float64[Tensor, "nodes K"]:
        point = self.tail[self.root, j][:, None]
        marginal = self.likelihood.log_marginal_statistics
        return marginal(self.sums + point) - marginal(self.sums)

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

    def level(self, j: int) -> Float64[Tensor, "nodes K"]:
        return self.log_density[self.root, j]

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
    counts = torch.zeros(n_sequences, n_slots, dtype=torch.long)
    counts.scatter_add_(1, labels[:, :-r], torch.ones_like(labels[:, :-r]))
    path = torch.arange(n_sequences)  # the node of each sequence's own labels
    log_w = torch.zeros(n_sequences, dtype=torch.float64)
    levels: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for j in range(r):
        k = (counts > 0).sum(1)
        slots = torch.arange(n_slots)
        prior = predictive(counts)  # the new cluster is the last column: put it at slot k
        prior = torch.where(slots == k[:, None], prior[:, -1:], prior[:, :-1])
        weight = log_w[:, None] + prior.log() + tree.level(j)
        parent, choice = (slots <= k[:, None]).nonzero(as_tuple=True)
        levels.append((parent, choice, path, k))
        log_w = weight[parent, choice]
        child = torch.full((len(counts), n_slots), -1)
        child[parent, choice] = torch.arange(len(parent))
        path = child[path, labels[:, j - r]]
        tree.descend(j, parent, choice)
        counts = counts[parent]
        counts[torch.arange(len(parent)), choice] += 1
    targets = torch.zeros(n_sequences, r, n_slots, dtype=torch.float64)
    for j in reversed(range(r)):
        parent, choice, path, k = levels[j]
        table = torch.full((len(k), n_slots), -torch.inf, dtype=torch.float64)
        table[parent, choice] = log_w
        targets[:, j] = table[path].softmax(1)
        log_w = table.logsumexp(1)
    return targets
