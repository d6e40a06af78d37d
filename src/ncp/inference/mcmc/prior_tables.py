"""A prior of partitions as tables over cluster sizes and K, which is all that the kernels see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ncp.generative.priors import Prior

__all__ = ["PriorTables", "prior_tables"]


class PriorTables(NamedTuple):
    """A prior of product form, p(c) = V(K) prod_k W(n_k) for N points, as arrays of length N + 1.

    Attributes:
        join: join[n] = log W(n + 1)/W(n), the weight of a cluster of n other points.
        open: open[K] = log V(K + 1)/V(K), the weight of a new cluster beside K others.
        size: size[n] = log W(n).
        number: number[K] = log V(K).
    """

    join: np.ndarray
    open: np.ndarray
    size: np.ndarray
    number: np.ndarray

    def log_prob(self, sizes: np.ndarray) -> float:
        """log p(c) of a partition with these cluster sizes (K,)."""
        return float(self.number[len(sizes)] + self.size[sizes].sum())


def prior_tables(prior: Prior, n_points: int) -> PriorTables:
    """The tables of a prior, whose W(n) is Gamma(n - d)/Gamma(1 - d) with d its discount.

    Args:
        prior: any prior of the package (or a user's own).
        n_points: N.

    Example:
        >>> from ncp.generative.priors import CRP
        >>> tables = prior_tables(CRP(0.7), 5)
        >>> np.exp(tables.join[1:5]).round(6)
        array([1., 2., 3., 4.])
        >>> np.exp(tables.open[1:5]).round(6)
        array([0.7, 0.7, 0.7, 0.7])
    """
    join, open_, size, number = np.zeros((4, n_points + 1))
    join[1:] = np.log(np.arange(1, n_points + 1) - prior.discount)
    size[2:] = np.cumsum(join[1:n_points])
    number[0] = -np.inf
    number[1:] = prior.log_v(n_points, torch.arange(1, n_points + 1)).numpy()
    with np.errstate(invalid="ignore"):  # V(K) = 0 beyond some K: nothing opens there
        open_[1:n_points] = np.where(np.isneginf(number[2:]), -np.inf, np.diff(number[1:]))
    return PriorTables(join, open_, size, number)
