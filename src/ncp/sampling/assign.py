"""New points: the probability of joining each cluster of a given partition, or a new one."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ncp.network.attention import made_up_to, whole_tiles
from ncp.network.layout import widest
from ncp.network.network import Folded, Network, Points
from ncp.partitions import check_labels
from ncp.sampling.compiled_tree import CompiledTree
from ncp.sampling.sample import OUT_OF_REACH
from ncp.sampling.threads import single_threads
from ncp.sampling.torch_tree import State, TorchTree
from ncp.sampling.weights import fold_once

__all__ = ["assign", "assign_each"]

AT_ONCE = 8192  # points of new data sets that are encoded together


@torch.no_grad()
def assign(
    network: Network, x_new: Any, x: Any, labels: Any, *, mutual: bool = True
) -> Float[Tensor, "M K"]:
    """Probabilities of new points joining each cluster of a given partition, or a new one.

    Each new point is scored on its own, as the last one after the N given points:
    p(c_{N+1} = k | c_{1:N}, x_{1:N+1}).

    Args:
        network: a trained network.
        x_new: new points, `(M, *event_shape)`.
        x, labels: the data set `(N, *event_shape)` and its canonical labels `(N,)`.
        mutual: matters for networks with attention. There the encodings of the N points depend on
            the new one too, so all of them are computed again for each new point; with `False` the
            new point sees them and they do not see it, which is what many new points need.

    Returns:
        `(M, K + 1)` probabilities; the last column is "a new cluster".
    """
    label = check_labels(labels, len(network.check_points(x)))
    if label.dim() != 1:
        raise ValueError(f"Expected labels of shape (N,) but got {tuple(label.shape)}")
    return assign_each(network, x_new, x, label[None], mutual=mutual)[0]


@torch.no_grad()
def assign_each(
    network: Network, x_new: Any, x: Any, labels: Any, *, mutual: bool = True
) -> list[Float[Tensor, "M K"]]:
    """`assign` for several partitions `(R, N)`; points are encoded once."""
    points, new = network.check_points(x), network.check_points(x_new)
    rows = list(check_labels(labels, len(points)).to(network.device))
    with single_threads():
        folded = fold_once(network)
        score = _Scorer(network, folded)
        if network.attention is not None and mutual:
            return _one_by_one(network, folded, score, points, new, rows)
        known, arriving = _encode(network, folded, points, new)
        return [score(arriving, _cluster_sums(known.sums, row)).exp() for row in rows]


class _Scorer:
    """log p of new points given cluster sums, compiled on the CPU and in torch elsewhere."""

    def __init__(self, network: Network, folded: Folded) -> None:
        self.network, self.folded = network, folded
        on_cpu = network.device.type == "cpu"
        self.compiled = CompiledTree(network, folded) if on_cpu else None

    def __call__(self, points: Points, sums: Float[Tensor, "K n_sums"]) -> Float[Tensor, "M K1"]:
        if self.compiled is not None:
            log_p = self.compiled.score_new(points, sums)
        else:
            log_p = torch.cat([self._in_torch(points, sums, m) for m in range(len(points.sums))])
        if not bool(log_p.isfinite().all()):
            raise ValueError(OUT_OF_REACH)
        return log_p

    def _in_torch(self, points: Points, sums: Tensor, m: int) -> Float[Tensor, "1 K1"]:
        tree = TorchTree(self.network, self.folded)
        k = len(sums)
        _, g_hat = tree._join(sums)
        index = torch.arange(k, device=sums.device)
        one = index.new_ones(1)
        state = State(
            counts=one,
            log_q=one.to(widest(one.device)),
            log_w=one.to(widest(one.device)),
            placed=index[None, :0],
            k=one * k,
            total=g_hat.sum(0)[None],
            refs=index[None],
            sums=sums,
            g_hat=g_hat,
        )
        joined = tree._join(torch.cat([sums + points.sums[m], points.sums[m : m + 1]]))
        codes = 0 if self.network.pair_features is None else self.network.pair_features.codes
        rest = sums.new_zeros(codes)
        return tree._score(state, *joined, points.sums[m], points.static[m], rest)[1]


def _encode(network: Network, folded: Folded, x: Tensor, new: Tensor) -> tuple[Points, Points]:
    """The data set's points among themselves, and new points that see them unseen."""
    if network.attention is None:
        return network.encode_many([x], folded), network.encode_many([new], folded)
    padded, padded_new = (made_up_to(part[None], whole_tiles(len(part))) for part in (x, new))
    known, _, cache = network.encode(padded, folded, len(x))
    assert cache is not None
    scaled_new = (padded_new[0] - network.location) / network.scale
    h, codes = network.attention.encode_new(
        cache, network.h(scaled_new), network.coordinates(scaled_new[None])[0]
    )
    q = None if network.q is None else network.q(scaled_new)
    summands = network.pair_summands(codes[None], scaled_new[None])
    arriving = network.project(h, q, summands, folded)
    return (
        Points(*(table[: len(x)] for table in known)),
        Points(*(table[: len(new)] for table in arriving)),
    )


def _one_by_one(
    network: Network,
    folded: Folded,
    score: _Scorer,
    x: Tensor,
    new: Tensor,
    rows: list[Tensor],
) -> list[Tensor]:
    """Each new point with all others, encoded anew."""
    found: list[list[Tensor]] = [[] for _ in rows]
    n = len(x)
    for part in torch.split(new, max(1, AT_ONCE // (n + 1))):
        together = [torch.cat([x, point[None]]) for point in part]
        encoded = network.encode_many(together, folded)
        for m in range(len(part)):
            start = m * (n + 1)
            last = Points(*(table[start + n : start + n + 1] for table in encoded))
            for row, column in zip(rows, found, strict=True):
                column.append(score(last, _cluster_sums(encoded.sums[start : start + n], row)))
    return [torch.cat(column).exp() for column in found]


def _cluster_sums(
    summands: Float[Tensor, "N n_sums"], label: Int[Tensor, " N"]
) -> Float[Tensor, "K n_sums"]:
    wide = summands.to(widest(summands.device))
    sums = wide.new_zeros(int(label.max()) + 1, wide.shape[1])
    return sums.index_add(0, label, wide).to(summands.dtype)
