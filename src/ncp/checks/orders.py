"""Order dependence: a posterior does not depend on the order of the points; q may."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from ncp.checks.simulation import LogProb, Progress, evaluate_rows, seeds_of
from ncp.generative.model import GenerativeModel
from ncp.partitions import canonical, random_orders

__all__ = ["OrderDependence", "order_dependence"]


@dataclass(frozen=True, eq=False)
class OrderDependence:
    """How much q(c | x) changes with the order of the points; a posterior does not."""

    variance: Float64[np.ndarray, " datasets"]  # of log q over orders
    relative: Float64[np.ndarray, " datasets"]  # sd of q over orders, divided by its mean
    max_median: float = 0.02

    @property
    def median_relative(self) -> float:
        return float(np.median(self.relative))

    @property
    def median_variance(self) -> float:
        return float(np.median(self.variance))

    @property
    def passed(self) -> bool:
        return self.median_relative <= self.max_median


def order_dependence(
    log_prob: LogProb,
    mixture: GenerativeModel,
    *,
    n_datasets: int = 100,
    n_points: int = 50,
    n_orders: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> OrderDependence:
    r"""Var_\pi[log q(c_\pi | x_\pi)] and sd_\pi[q] / mean_\pi[q] over random orders \pi.

    Args:
        log_prob: log q(c | x).
        mixture: where data sets and their true partitions c come from.
        n_datasets: their number D.
        n_points: N.
        n_orders: random orders of each.
        seed: of data and orders.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(seeds_of(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    orders = random_orders(n_datasets * n_orders, n_points, generator)
    row = torch.arange(n_datasets).repeat_interleave(n_orders)
    labels = canonical(batch.labels[row].gather(1, orders))
    log_q = evaluate_rows(
        log_prob, batch.x, row, labels, "random orders of the points", progress, orders
    ).reshape(n_datasets, n_orders)
    q = np.exp(log_q - log_q.max(1, keepdims=True))
    relative = q.std(1, ddof=1) / q.mean(1)
    return OrderDependence(log_q.var(1, ddof=1), relative)
