"""Reliability: among pairs said to share a cluster with probability s, a fraction s does.

The null distribution of the calibration error comes from putting one of the posterior draws in the
place of the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ncp.checks.simulation import Simulation, seeds_of

__all__ = ["Reliability", "reliability"]

MOST_PAIRS = 500  # of one data set, chosen at random
RESAMPLES = 400  # draws from the null distribution


@dataclass(frozen=True, eq=False)
class Reliability:
    """Said and seen frequencies of sharing a cluster, by bins of the said probability."""

    predicted: Float64[np.ndarray, " bins"]  # NaN where a bin is empty
    observed: Float64[np.ndarray, " bins"]
    counts: Int64[np.ndarray, " bins"]
    lower: Float64[np.ndarray, " bins"]  # a right posterior's `observed` is between these two
    upper: Float64[np.ndarray, " bins"]  # 95 times in 100
    error: float  # expected calibration error
    noise: float  # the error that a right posterior exceeds once in a hundred
    p_value: float
    max_error: float = 0.02

    @property
    def passed(self) -> bool:
        """The error is small, or no larger than chance makes that of a right posterior."""
        return self.error <= max(self.max_error, self.noise)


def reliability(
    simulation: Simulation,
    *,
    n_bins: int = 10,
    seed: int = 0,
) -> Reliability:
    r"""Calibration curve of the co-clustering probabilities s_ij, and the calibration error

        ECE = \sum_b (n_b / n) |mean of 1[c*_i = c*_j] - mean of s_ij|,   over the bins b.

    Pairs of one data set depend on each other, so the p-value does not count them as independent:
    its null distribution puts a posterior draw in the place of the truth, data set by data set.

    Args:
        simulation: data sets, truths and posterior draws.
        n_bins: equal bins of [0, 1].
        seed: of the choice of pairs and of the null distribution.
    """
    rng = np.random.default_rng(seeds_of(seed, 1)[0])
    n, said, seen = np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins)
    null = np.zeros((RESAMPLES, n_bins))
    for truth, draws in zip(simulation.labels, simulation.draws, strict=True):
        i, j = np.triu_indices(len(truth), 1)
        if len(i) > MOST_PAIRS:
            chosen = rng.choice(len(i), MOST_PAIRS, replace=False)
            i, j = i[chosen], j[chosen]
        together = (draws.labels[:, i] == draws.labels[:, j]).astype(np.float64)  # (U, pairs)
        similarity = draws.weights @ together
        bins = np.eye(n_bins)[np.minimum((similarity * n_bins).astype(int), n_bins - 1)]
        n += bins.sum(0)
        said += similarity @ bins
        seen += (truth[i] == truth[j]) @ bins
        null += (together @ bins)[rng.choice(len(together), RESAMPLES, p=draws.weights)]
    error, null_error = (np.abs(s - said).sum(-1) / n.sum() for s in (seen, null))
    with np.errstate(invalid="ignore"):
        lower, upper = np.quantile(null / n, [0.025, 0.975], axis=0)
        return Reliability(
            said / n,
            seen / n,
            n.astype(np.int64),
            lower,
            upper,
            float(error),
            float(np.quantile(null_error, 0.99)),
            float((1 + (null_error >= error).sum()) / (1 + RESAMPLES)),
        )
