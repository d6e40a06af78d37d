"""The draws of several chains, and how far they can be trusted: split R-hat and effective size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["ChainDiagnostics", "Chains", "ess_of_chains", "split_r_hat"]


class ChainDiagnostics(NamedTuple):
    """How far the chains can be trusted, for K and for the log joint.

    Attributes:
        r_hat_k, r_hat_log_joint: split R-hat over all chains; above 1.01, run longer.
        ess_k, ess_log_joint: effective number of independent draws over all chains.
        chain_r_hat_k, chain_r_hat_log_joint: split R-hat of each chain's halves, (chains,).
        chain_ess_k, chain_ess_log_joint: effective number of draws of each chain, (chains,).
    """

    r_hat_k: float
    r_hat_log_joint: float
    ess_k: float
    ess_log_joint: float
    chain_r_hat_k: np.ndarray
    chain_r_hat_log_joint: np.ndarray
    chain_ess_k: np.ndarray
    chain_ess_log_joint: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Chains:
    """The draws of several chains on one data set.

    Args:
        labels: canonical labels of shape (chains, draws, N).
        log_joint: log p(c, x) of each draw, of shape (chains, draws); where a chain keeps
            parameters (`neal8`), log p(c, theta, x).
        acceptance: share of accepted proposals of each chain, of shape (chains,), or None when
            nothing is ever rejected.
    """

    labels: np.ndarray
    log_joint: np.ndarray
    acceptance: np.ndarray | None = None

    @property
    def n_clusters(self) -> np.ndarray:
        """The number of clusters of each draw, of shape (chains, draws)."""
        return np.asarray(self.labels.max(axis=-1) + 1)

    def unique(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows over all chains (U, N) and how often each occurs (U,)."""
        rows = self.labels.reshape(-1, self.labels.shape[-1])
        labels, counts = np.unique(rows, axis=0, return_counts=True)
        return labels, counts

    def diagnostics(self) -> ChainDiagnostics:
        """Split R-hat and effective sample size of K and of the log joint."""
        k, joint = self.n_clusters, self.log_joint
        return ChainDiagnostics(
            split_r_hat(k),
            split_r_hat(joint),
            ess_of_chains(k),
            ess_of_chains(joint),
            np.array([split_r_hat(chain[None]) for chain in k]),
            np.array([split_r_hat(chain[None]) for chain in joint]),
            np.array([ess_of_chains(chain[None]) for chain in k]),
            np.array([ess_of_chains(chain[None]) for chain in joint]),
        )

    def __repr__(self) -> str:
        n_chains, n_draws, n_points = self.labels.shape
        text = f"Chains({n_chains} chains of {n_draws} draws, {n_points} points"
        if self.acceptance is not None:
            text += f", acceptance {self.acceptance.mean():.2f}"
        return text + ")"


def _split(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 4:
        raise ValueError(
            f"Expected values of shape (chains, draws) with draws >= 4 but got {values.shape}"
        )
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def split_r_hat(values: np.ndarray) -> float:
    """The potential scale reduction of half chains (Gelman et al. 2013),

        R = sqrt(((n - 1)/n W + B/n) / W),

    with B/n the variance of the means of the 2C half chains and W the mean of their variances.

    Args:
        values: one number a draw, of shape (chains, draws).

    Returns:
        1 when all values are equal, infinity when every half chain is stuck at its own value.

    Example:
        >>> split_r_hat(np.array([[0, 1, 0, 1], [1, 0, 1, 0]])) < 1.01
        True
        >>> split_r_hat(np.array([[0, 0, 0, 0], [1, 1, 1, 1]]))
        inf
    """
    halves = _split(values)
    within = halves.var(axis=1, ddof=1).mean()
    between = halves.mean(axis=1).var(ddof=1)
    if within == 0.0:
        return 1.0 if between == 0.0 else float("inf")
    n = halves.shape[1]
    return float(np.sqrt((n - 1) / n + between / within))


def ess_of_chains(values: np.ndarray) -> float:
    """The number of independent draws with the same variance of the mean,

        ESS = C n / (1 + 2 sum_t rho_t),

    on half chains, with the sum cut where pairs of autocorrelations stop being positive and made
    monotone (Geyer 1992; Vehtari et al. 2021).

    Args:
        values: one number a draw, of shape (chains, draws).

    Returns:
        At most C n log10(C n); C n when all values are equal.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> 1500 < ess_of_chains(rng.normal(size=(4, 500))) < 2500
        True
    """
    halves = _split(values)
    n_chains, n = halves.shape
    if np.ptp(halves) == 0.0:
        return float(n_chains * n)
    centred = halves - halves.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 ** (2 * n - 1).bit_length(), axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n].mean(axis=0) / n
    variance = covariance[0] + halves.mean(axis=1).var(ddof=1)
    mean_variance = covariance[0] * n / (n - 1)
    rho = 1.0 - (mean_variance - covariance) / variance
    rho[0] = 1.0
    limit = n_chains * n
    return float(limit / max(_autocorrelation_time(rho), 1.0 / np.log10(limit)))


def _autocorrelation_time(rho: np.ndarray) -> float:
    """1 + 2 sum of rho, by Geyer's initial monotone sequence."""
    pairs = rho[: len(rho) // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0.0)
    stop = int(negative[0]) if len(negative) else len(pairs)
    kept = np.minimum.accumulate(pairs[:stop])
    tail = max(float(rho[2 * stop]), 0.0) if 2 * stop < len(rho) else 0.0
    return float(-1.0 + 2.0 * kept.sum() + tail)
