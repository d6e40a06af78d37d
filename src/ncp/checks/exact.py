r"""q against the exact posterior, where that is known.

Over all partitions at small N: Kullback-Leibler divergence and total variation. At any N: total
variation of the last conditional, p(c_N | c_{1:N-1}, x).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from ncp.checks.simulation import LogProb, Progress, evaluate, evaluate_rows, seeds_of, tell
from ncp.generative.model import GenerativeModel
from ncp.inference.exact import last_conditional, posterior

__all__ = ["Discrepancies", "ExactComparison", "exact_comparison", "last_point_tv"]


@dataclass(frozen=True, eq=False)
class Discrepancies:
    """Distances between q and the truth over many data sets, and the mean that still passes."""

    values: Float64[np.ndarray, " datasets"]
    max_mean: float
    max_p95: float = np.inf

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, over data sets."""
        return float(self.values.std(ddof=1) / np.sqrt(len(self.values)))

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        return float(np.quantile(self.values, 0.95))

    @property
    def passed(self) -> bool:
        return self.mean <= self.max_mean and self.p95 <= self.max_p95


@dataclass(frozen=True, eq=False)
class ExactComparison:
    """q against the posterior by enumeration."""

    kl: Discrepancies  # KL(p || q), nats
    tv: Discrepancies  # total variation
    normalisation_error: float  # largest |sum over partitions of q - 1|

    @property
    def passed(self) -> bool:
        return self.kl.passed and self.tv.passed


def exact_comparison(
    log_prob: LogProb,
    mixture: GenerativeModel,
    *,
    n_datasets: int = 100,
    n_points: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExactComparison:
    r"""Over all partitions of N points,

        KL(p || q) = \sum_c p(c | x) (log p(c | x) - log q(c | x)),
        TV(p, q) = 1/2 \sum_c |p(c | x) - q(c | x)|.

    Args:
        log_prob: log q(c | x).
        mixture: a conjugate model.
        n_datasets: data sets drawn from it.
        n_points: N, at most 12; the cost is Bell(N) rows a data set (4,140 at N = 8).
        seed: of the data.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(seeds_of(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    kl, tv, errors = [], [], []
    for n, x in enumerate(batch.x, 1):
        known, points = mixture.unpack(x)
        exact = posterior(points, known)
        log_q = evaluate(log_prob, x, torch.as_tensor(exact.labels))
        p, q = np.exp(exact.log_prob), np.exp(log_q)
        kl.append(float(p @ (exact.log_prob - log_q)))
        tv.append(0.5 * float(np.abs(p - q).sum()))
        errors.append(abs(float(q.sum()) - 1))
        tell(progress, f"all partitions of {n_points} points", n, n_datasets)
    return ExactComparison(
        Discrepancies(np.array(kl), 0.01), Discrepancies(np.array(tv), 0.05), max(errors)
    )


def last_point_tv(
    log_prob: LogProb,
    mixture: GenerativeModel,
    *,
    n_points: int = 50,
    n_datasets: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Discrepancies:
    r"""Total variation between q(c_N | c_{1:N-1}, x) and the exact conditional.

    The first N - 1 labels are the true ones. By the chain rule the conditional of the last point
    is q(c_{1:N-1}, k | x) normalised over k, so `log_prob` is all that is needed.

    Args:
        log_prob: log q(c | x).
        mixture: a conjugate model.
        n_points: N.
        n_datasets: data sets drawn from it.
        seed: of the data.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(seeds_of(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    known = mixture.given(batch.hyperparameters)
    exact = last_conditional(mixture.points(batch.x), batch.labels, known)  # (D, K + 1)
    n_candidates = batch.labels[:, :-1].amax(1) + 2
    row = torch.repeat_interleave(n_candidates)
    k = torch.arange(len(row)) - (n_candidates.cumsum(0) - n_candidates)[row]
    labels = torch.cat([batch.labels[row, :-1], k[:, None]], 1)
    log_q = evaluate_rows(log_prob, batch.x, row, labels, f"last point of {n_points}", progress)
    table = np.full(exact.shape, -np.inf)
    table[row.numpy(), k.numpy()] = log_q
    q = np.exp(table - table.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    return Discrepancies(0.5 * np.abs(exact - q).sum(1), 0.005, 0.02)
