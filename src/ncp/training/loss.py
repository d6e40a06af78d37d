r"""The training objective (section 3 of the paper), and the pairwise term.

    L = - E_N E_{c, x} E_pi [ sum_n log p_theta(c_{pi_n} | c_{pi_1 : pi_{n-1}}, x) ]

Where exact targets are given, they take the place of the sampled labels (`ncp.training.targets`).
Data sets are worked through in pieces that fit the cache, with gradients accumulated, so a step's
memory does not grow with its size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ncp.network.layout import candidates_per_row, realised
from ncp.network.network import CHUNK, Network
from ncp.sampling.threads import denormals_are_zero, fast_products
from ncp.training.data import Sequences, micro_batches, on_device_of

__all__ = ["Objective", "Tally", "accumulate", "objective", "pairwise_loss"]

ACCELERATOR_CHUNK = 64 * CHUNK  # candidates of a piece where there is no cache to fit


class Objective(NamedTuple):
    """What one forward pass gives."""

    loss: Float[Tensor, ""]  # sum over sequences and n >= 2, in nats
    log_prob: Float[Tensor, "B R"]  # joint log-likelihood of each sequence, detached
    n_right: Int[Tensor, ""]  # labels that are the argmax, n >= 2


def objective(model: Network, data: Sequences, pairwise: float = 0.0) -> Objective:
    """Score all sequences of `data` in one fused pass; `pairwise` weighs the pairwise term."""
    n_datasets, n_orders, n = data.labels.shape
    folded = model.fold()
    points, codes, _ = model.encode(data.x, folded)
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
        loss = loss + pairwise * pairwise_loss(codes, data)
    n_right = (log_p[:, 1:].argmax(2) == labels[:, 1:]).sum()
    return Objective(loss, each.detach().sum(1).view(n_datasets, n_orders), n_right)


def pairwise_loss(codes: Float[Tensor, "B N d"], data: Sequences) -> Float[Tensor, ""]:
    """Warm-up of the encoder: "same cluster" from the cosine of two points' codes.

    The codes are the encodings h(x_i), or the attention's codes where there is attention.
    Binary cross-entropy with logit 10 cos - 5 over all pairs of a data set, against the sampled
    labels or, where they are given, the posterior probabilities of the pairs; averaged over pairs
    and multiplied by the number of points, so that it compares with the main loss. Without it,
    images do not leave the plateau at the prior's entropy: the encoder has no signal before
    clusters exist, and there are no clusters before the encoder has a signal.
    """
    n = data.labels.shape[2]
    codes = torch.nn.functional.normalize(codes, dim=2)
    logits = 10 * (codes @ codes.mT) - 5
    if data.same is None:
        first = data.labels[:, 0].gather(1, data.orders[:, 0].argsort(1))  # the data set's order
        same = (first[:, :, None] == first[:, None, :]).to(logits.dtype)
    else:
        same = data.same
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits
    total = cross_entropy(logits, same, reduction="sum")  # of (i, j), (j, i), and (i, i): always 5
    own, itself = (part.diagonal(dim1=1, dim2=2) for part in (logits.detach(), same))
    return (total - cross_entropy(own, itself, reduction="sum")) / max(1, n - 1)


@dataclass
class Tally:
    """Sums over the sequences of a step."""

    loss: float = 0.0
    points: int = 0
    right: int = 0
    scored: int = 0
    candidates: int = 0


def accumulate(
    model: Network,
    pieces: list[Sequences],
    pairwise: float = 0.0,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Tally:
    """Add the gradient of the summed negative log-likelihood of `pieces` to the parameters."""
    _keep_freed_memory()
    tally = Tally()
    limit = CHUNK if model.device.type == "cpu" else ACCELERATOR_CHUNK
    for data in micro_batches(pieces, limit):
        data = on_device_of(data, model)
        with denormals_are_zero(), fast_products():
            with autocast():
                result = objective(model, data, pairwise)
            result.loss.backward()  # type: ignore[no-untyped-call]
        n_datasets, n_orders, n = data.labels.shape
        tally.loss -= float(result.log_prob.sum())
        tally.points += n_datasets * n_orders * n
        tally.scored += n_datasets * n_orders * (n - 1)
        tally.right += int(result.n_right)
        flat = data.labels.flatten(0, 1)
        lengths = torch.full((len(flat),), n, device=flat.device)
        tally.candidates += int(candidates_per_row(flat, lengths).sum())
    return tally


@cache  # once a process
def _keep_freed_memory() -> None:
    """What a step frees stays with the process for the next one, half a GiB at most.

    glibc gives large arrays back at once, and the system clears their pages when they come again:
    a fifth of a step of the paper's network. Other libraries have no such option.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with suppress(AttributeError, OSError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(mmap_threshold, 2**25)
        set_option(trim_threshold, 2**29)
