"""The compiled kernels as plain calls on a network: samples along a sequence, and new points."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.network.network import Folded, Network, Points
from ncp.sampling import kernels
from ncp.sampling.weights import compiled_weights

__all__ = ["CompiledTree"]


class CompiledTree:
    """A network on the CPU, ready to run."""

    def __init__(self, network: Network, folded: Folded) -> None:
        self.weights = compiled_weights(network, folded)

    def run(
        self,
        points: Points,
        order: Int64[np.ndarray, " N"],
        count: int,
        key: np.uint64,
        beam: int,
        stop: np.ndarray,
        done: np.ndarray,
    ) -> tuple[
        Int64[np.ndarray, "rows N"], Int64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]
    ]:
        """Canonical labels, counts and log q (NaN if a score overflows) of a sequence."""
        summands, q, static = [np.ascontiguousarray(table.detach().numpy()) for table in points]
        labels, counts, log_q, state = kernels.run_sequence(
            self.weights, summands, q, static, order, count, key, beam, stop, done
        )
        if state == kernels.OVERFLOW:
            log_q = np.full(1, np.nan)
        return labels, counts, log_q

    def score_new(
        self, points: Points, sums: Float64[np.ndarray, "K n_sums"] | np.ndarray
    ) -> Float64[Tensor, "M K1"]:
        """log p of new points joining the clusters of a partition, given by their sums."""
        table = np.ascontiguousarray(points.sums.detach().numpy())
        static = np.ascontiguousarray(points.static.detach().numpy())
        out = np.empty((len(table), len(sums) + 1))
        kernels.score_new(self.weights, table, static, np.ascontiguousarray(sums, table.dtype), out)
        return torch.from_numpy(out)
