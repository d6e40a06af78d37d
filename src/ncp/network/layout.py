"""Index arithmetic of the teacher-forced pass: with labels known, nothing is sequential."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = [
    "Layout",
    "candidates_per_row",
    "groups_of",
    "layout",
    "prefix_sum",
    "realised",
    "widest",
    "with_zero_row",
]

LONG = 256  # points of a sequence beyond which prefix sums are not worth a matrix product


def widest(device: torch.device) -> torch.dtype:
    """The dtype for long sums and log-probabilities: float64, which Apple's MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


class Layout(NamedTuple):
    """Index arithmetic of the teacher-forced pass over S sequences of at most N positions.

    Position (s, n) has the flat index s N + n; index S N stands for "no point", whose row is zero.
    The M candidates (s, n, k <= K_n) are listed in that order, without padding.
    """

    labels: Int[Tensor, "S N"]
    valid: Bool[Tensor, "S N"]
    candidate: Bool[Tensor, "S N K"]  # which (s, n, k) exist; K = largest K_n + 1
    here: Int[Tensor, " M"]  # flat position (s, n) of each candidate
    last: Int[Tensor, " M"]  # flat position of the last point of cluster k before n, or S N
    n_clusters: Int[Tensor, " M"]  # of each candidate's partition once its point has joined
    chosen: Int[Tensor, " P"]  # index of the realised candidate at each valid position


def layout(labels: Int[Tensor, "S N"], lengths: Int[Tensor, " S"]) -> Layout:
    """The packed list of all candidates of `labels`, canonical in each row up to its length."""
    n_sequences, n = labels.shape
    device = labels.device
    valid = torch.arange(n, device=device) < lengths[:, None]
    labels = labels.where(valid, 0)
    k_after = labels.cummax(1).values + 1
    k_before = torch.cat([torch.zeros_like(k_after[:, :1]), k_after[:, :-1]], 1)
    n_slots = int(k_after.max()) + 1

    positions = torch.arange(n, device=device).expand(n_sequences, n)
    last = torch.full((n_sequences, n + 1, n_slots), -1, device=device)
    last[:, 1:].scatter_(2, labels[..., None], positions[..., None])
    last = last.cummax(1).values[:, :n]  # before n: the scatter was one row down

    slots = torch.arange(n_slots, device=device)
    candidate = (slots <= k_before[..., None]) & valid[..., None]
    flat = torch.arange(n_sequences * n, device=device).view(n_sequences, n, 1)
    last_flat = (flat - flat % n + last).where(last >= 0, n_sequences * n)
    n_candidates = candidate.sum(2)
    first = n_candidates.view(-1).cumsum(0).view(n_sequences, n) - n_candidates
    return Layout(
        labels=labels,
        valid=valid,
        candidate=candidate,
        here=flat.expand_as(last)[candidate],
        last=last_flat[candidate],
        n_clusters=torch.maximum(k_before[..., None], slots + 1)[candidate],
        chosen=(first + labels)[valid],
    )


def prefix_sum(
    values: Float[Tensor, "S N d"], groups: Int[Tensor, "S N"] | None = None
) -> Float[Tensor, "S N d"]:
    """Sum over i <= n in the same sequence, and in the same group where groups are given.

    A product with a 0/1 matrix is fastest, and rounds least, for all but long sequences; these
    take one pass of cumulative sums in double precision, linear in N.

    >>> prefix_sum(torch.tensor([[[1.0], [10.0], [100.0]]]), torch.tensor([[0, 1, 0]])).squeeze()
    tensor([  1.,  10., 101.])
    """
    n_sequences, n, _ = values.shape
    if n <= LONG:
        mask = torch.ones(n, n, dtype=torch.bool, device=values.device).tril()
        mask = mask.expand(n_sequences, n, n)
        if groups is not None:
            mask = mask & (groups[:, :, None] == groups[:, None, :])
        with torch.autocast(values.device.type, enabled=False):  # sums are not to be rounded
            return mask.to(values.dtype) @ values
    if groups is None:
        groups = torch.zeros(n_sequences, n, dtype=torch.long, device=values.device)
    by_group = groups.argsort(dim=1, stable=True)
    sorted_groups = groups.gather(1, by_group)
    index = by_group[..., None].expand_as(values)
    # Transposed, so that the sum runs along contiguous memory.
    total = values.gather(1, index).to(widest(values.device)).transpose(1, 2).contiguous().cumsum(2)
    total = nn.functional.pad(total, (1, 0))  # (S, d, N + 1)
    start = torch.searchsorted(sorted_groups, sorted_groups)  # first position of the group
    start = start[:, None, :].expand(-1, total.shape[1], -1)
    within = total[:, :, 1:] - total.gather(2, start)
    return torch.empty_like(values).scatter(1, index, within.transpose(1, 2).to(values.dtype))


def realised(log_p: Float[Tensor, "S N K"], labels: Int[Tensor, "S N"]) -> Float[Tensor, "S N"]:
    """The entries of `log_p` at the labels."""
    return log_p.gather(2, labels[..., None]).squeeze(2)


def candidates_per_row(labels: Int[Tensor, "S N"], lengths: Int[Tensor, " S"]) -> Int[Tensor, " S"]:
    """The number of candidates (n, k <= K_n) of each sequence: what its evaluation costs.

    >>> candidates_per_row(torch.tensor([[0, 1, 0]]), torch.tensor([3]))
    tensor([6])
    """
    k_before = labels.cummax(1).values.roll(1, 1) + 1
    k_before[:, 0] = 0
    positions = torch.arange(labels.shape[1], device=labels.device)
    return (k_before + 1).where(positions < lengths[:, None], 0).sum(1)


def groups_of(costs: Int[Tensor, " S"], limit: int) -> list[slice]:
    """Consecutive slices whose costs add up to at most `limit` (or hold one single row)."""
    slices, start, total = [], 0, 0
    for i, cost in enumerate(costs.tolist()):
        if i > start and total + cost > limit:
            slices.append(slice(start, i))
            start, total = i, 0
        total += cost
    return [*slices, slice(start, len(costs))]


def with_zero_row(table: Float[Tensor, "S N d"]) -> Float[Tensor, "rows d"]:
    flat = table.flatten(0, 1)
    return torch.cat([flat, flat.new_zeros(1, flat.shape[1])])
