"""The posterior of a statistic t: the table of ``P(t = v) = sum_u w_u [t(c_u) = v]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Num
from numpy.typing import ArrayLike

from ncp.summary.rows import as_rows, weighted_rows

__all__ = ["Discrete", "posterior_of", "posterior_of_k"]


class Discrete(NamedTuple):
    """The posterior of a statistic: its values, ascending, and their probabilities.

    Example:
        >>> posterior_of_k([[0, 0, 1], [0, 1, 2]], [3, 1]).mean
        2.25
    """

    values: Num[np.ndarray, " values"]
    probabilities: Float64[np.ndarray, " values"]

    @property
    def mean(self) -> float:
        return float(self.values @ self.probabilities)

    @property
    def sd(self) -> float:
        return float(np.sqrt((self.values - self.mean) ** 2 @ self.probabilities))

    @property
    def mode(self) -> float:
        return float(self.values[int(self.probabilities.argmax())])

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The central interval that holds at least `level` of the mass."""
        cumulative = np.cumsum(self.probabilities)
        low = int(np.searchsorted(cumulative, (1 - level) / 2 + 1e-12))
        high = int(np.searchsorted(cumulative, (1 + level) / 2 - 1e-12))
        last = len(self.values) - 1  # the sum may fall short of one by rounding
        return float(self.values[min(low, last)]), float(self.values[min(high, last)])

    def __repr__(self) -> str:
        pairs = zip(self.values, self.probabilities, strict=True)
        shown = [f"{v:g}: {p:.3f}" for v, p in pairs if p >= 5e-4]
        return "Discrete({" + ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "") + "})"


def posterior_of(
    statistic: Callable[[Int64[np.ndarray, " points"]], float] | ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
) -> Discrete:
    """P(t = v) = sum_u w_u [t(c_u) = v].

    Args:
        statistic: a function of one row of canonical labels, or its values, of shape (U,).
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.

    Example:
        >>> posterior_of(lambda c: (c == c[0]).sum(), [[0, 0, 1], [0, 1, 1]], [3, 1])
        Discrete({1: 0.250, 2: 0.750})
    """
    rows, w = weighted_rows(labels, weights)
    if callable(statistic):
        values = np.array([statistic(row) for row in rows])
    else:
        values = np.asarray(statistic)
    if values.shape != (len(rows),):
        raise ValueError(f"Expected one value for each of {len(rows)} rows but got {values.shape}")
    distinct, inverse = np.unique(values, return_inverse=True)
    return Discrete(distinct, np.bincount(inverse.ravel(), weights=w))


def posterior_of_k(labels: ArrayLike, weights: ArrayLike | None = None) -> Discrete:
    """The posterior of the number of clusters.

    Example:
        >>> posterior_of_k([[0, 0, 1], [0, 0, 0]], [3, 1])
        Discrete({1: 0.250, 2: 0.750})
    """
    rows = as_rows(labels)
    return posterior_of(rows.max(axis=1) + 1, rows, weights)
