"""The data of a step: data sets of a few sizes in random orders, with their targets.

Nothing of the random stream is state: the data of step t of rank r come from a generator seeded
with (seed, rollbacks, r, t). So a run that is killed and resumed repeats exactly the steps that
the last checkpoint had not seen, and later steps can be drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ncp.generative.model import Batch, GenerativeModel
from ncp.inference.exact import exact_similarity
from ncp.network.layout import candidates_per_row, groups_of
from ncp.network.network import CHUNK, PAIRS, Network
from ncp.partitions import canonical
from ncp.training.recipe import Phase, Recipe
from ncp.training.targets import tail_targets

__all__ = [
    "Sequences",
    "draw",
    "hard_examples",
    "micro_batches",
    "on_device_of",
    "sequences",
    "stream",
]

MOVED = 3  # last points of a hard example that are moved at most


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


def stream(*key: int) -> torch.Generator:
    """A generator that depends on nothing but the key."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


def draw(recipe: Recipe, *key: int) -> list[Sequences]:
    """The data of one step: a few sizes N, for each some data sets in random orders.

    The last number of the key is the step.
    """
    generator = stream(recipe.seed, *key)
    phase, _ = recipe.at(key[-1])
    return [_draw_size(recipe, phase, generator) for _ in range(phase.sizes_per_step)]


def _draw_size(recipe: Recipe, phase: Phase, generator: torch.Generator) -> Sequences:
    """Data sets of one size."""
    mixture = recipe.generative
    n, hard = _size(phase, recipe.sizes_of(phase), generator)
    is_small = n <= phase.exact_up_to
    r = n - 1 if is_small else phase.rao_blackwell
    batch = mixture.sample(
        _n_datasets(phase, n),
        n,
        share_partition=phase.share_partition,
        extra_parameters=r,
        generator=generator,
    )
    if hard and n > 1:
        piece = hard_examples(batch, mixture, min(r, n - 1), generator)
    else:
        piece = sequences(batch, phase.orders, mixture, r, generator)
    if phase.pairwise and is_small and mixture.is_conjugate:
        known = mixture.given(batch.hyperparameters)
        piece = piece._replace(same=exact_similarity(mixture.points(piece.x), known))
    return piece.map(Tensor.contiguous)  # as it is when it comes from another process


def _size(phase: Phase, sizes: tuple[int, int], generator: torch.Generator) -> tuple[int, bool]:
    """A size N, and whether its data sets are to be hard examples."""
    low, high = sizes
    n = int(torch.randint(low, high + 1, (), generator=generator))
    hard = phase.hard_examples > 0 and (
        float(torch.rand((), generator=generator)) < phase.hard_examples
    )
    if phase.small_sizes or hard:
        small, u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        if small < phase.small_sizes or hard:
            n = int(low * ((high + 1) / low) ** u)
    if phase.exact_sizes:
        exact, u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        if exact < phase.exact_sizes:
            n = low + int(u * (min(phase.exact_up_to, high) + 1 - low))
    return n, hard


def _n_datasets(phase: Phase, n: int) -> int:
    most = max(1, phase.datasets_per_step // phase.sizes_per_step)
    if not phase.points_per_step:
        return most
    share = phase.points_per_step / phase.sizes_per_step / phase.orders
    wanted = max(1, round(share / n))
    return min(wanted, most) if phase.datasets_per_step else wanted


def micro_batches(pieces: list[Sequences], limit: int = CHUNK) -> Iterator[Sequences]:
    """Groups of whole data sets whose candidates, and whose pairs of points, fit the cache."""
    for piece in pieces:
        n_orders, n = piece.labels.shape[1:]
        lengths = torch.full((len(piece.labels),), n)
        costs = candidates_per_row(piece.labels[:, 0], lengths) * n_orders
        costs = costs.clamp(min=n**2 * CHUNK // PAIRS)
        for rows in groups_of(costs, limit):
            yield piece.rows(rows)


def on_device_of(data: Sequences, model: Network) -> Sequences:
    """The same where the model is, in its floating-point type."""
    dtype = model.dtype
    return data.map(lambda t: t.to(model.device, dtype if t.is_floating_point() else t.dtype))


def sequences(
    batch: Batch,
    n_orders: int,
    mixture: GenerativeModel,
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


def hard_examples(
    batch: Batch, mixture: GenerativeModel, r: int, generator: torch.Generator | None = None
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
    points = mixture.points(batch.x)
    draws = torch.rand(n_datasets, n + 1, generator=generator, dtype=torch.float64).to(points)
    order = draws[:, :n].argsort(1)
    member = torch.nn.functional.one_hot(batch.labels).to(points)
    means = (member.mT @ points) / member.sum(1).clamp(min=1)[..., None]
    towards = points.mean(1, keepdim=True) - member @ means
    x = points + (1 - 10.0 ** -draws[:, n:, None]) * towards

    along = x.gather(1, order[..., None].expand_as(x))
    m = min(r, MOVED)
    u, chance = torch.rand(2, n_datasets, m, 1, generator=generator, dtype=torch.float64).to(x)
    start = torch.arange(m)
    first, second = along[:, start % (n - m)], along[:, (start + 1) % (n - m)]
    aside = first + (5 * u - 2) * (second - first)
    along[:, n - m :] = torch.where(chance < 0.5, aside, along[:, n - m :])
    x = mixture.events(x.scatter(1, order[..., None].expand_as(x), along), batch.hyperparameters)

    orders = order[:, None]
    targets = tail_targets(batch._replace(x=x), orders, mixture, r, exact_only=True)
    labels = canonical(batch.labels.gather(1, order))[:, None]
    return Sequences(x, labels, orders, targets, tail_only=True)
