"""Geweke's joint test.

Alternating x ~ p(x | c) and c ~ q(c | x) keeps p(c), so the number of clusters after several rounds
must still have its prior distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ncp.checks.simulation import LEVEL, Progress, SampleMany, as_draws, as_numpy, seeds_of, tell
from ncp.generative.mixture import Mixture
from ncp.generative.model import GenerativeModel

__all__ = ["GewekeResult", "geweke"]


@dataclass(frozen=True, eq=False)
class GewekeResult:
    """The number of clusters under the prior and after rounds of x | c and c | x."""

    prior: Float64[np.ndarray, " k"]  # frequencies of K = 1, 2, ...
    after: Float64[np.ndarray, " k"]
    chi_square_p: float
    mean_p: float

    @property
    def p_value(self) -> float:
        """The smaller of the two p-values, corrected for having looked at two."""
        return min(1.0, 2.0 * min(self.chi_square_p, self.mean_p))

    @property
    def passed(self) -> bool:
        return self.p_value >= LEVEL


def geweke(
    sample_many: SampleMany,
    mixture: GenerativeModel,
    *,
    n_chains: int = 1000,
    n_rounds: int = 5,
    n_points: int = 20,
    seed: int = 0,
    progress: Progress | None = None,
) -> GewekeResult:
    """Geweke's joint test: K ~ p(K) must survive `n_rounds` of x ~ p(x | c), c ~ q(c | x).

    The chains are independent, so no autocorrelation enters; errors of q add up over the rounds.

    Args:
        sample_many: the sampler on trial.
        mixture: the model; its likelihood supplies x | c.
        n_chains: independent chains.
        n_rounds: rounds of each.
        n_points: N.
        seed: of everything.
        progress: called as `progress(what, done, total)`.
    """
    seeds = seeds_of(seed, n_rounds + 3)
    generator = torch.Generator().manual_seed(seeds[0])
    rng = np.random.default_rng(seeds[1])
    labels, _, eta = mixture.sample(n_chains, n_points, generator=generator)[1:]
    known = mixture.given(eta)
    for n, round_seed in enumerate(seeds[3:], 1):
        x = mixture.events(_observations(known, labels, generator), eta)
        results = [as_draws(one) for one in sample_many(list(x), n_samples=1, seed=round_seed)]
        rows = [draws.labels[rng.choice(len(draws.labels), p=draws.weights)] for draws in results]
        labels = torch.as_tensor(np.stack(rows))
        tell(progress, "Geweke's joint test", n, n_rounds)
    reference = _prior_k(known, 50, n_chains, n_points, seeds[2])
    return _compare_k(reference, as_numpy(labels.amax(1)) + 1)


def _prior_k(mixture: Mixture, n_times: int, n_chains: int, n_points: int, seed: int) -> np.ndarray:
    """K under the prior, so many times for each chain, which may have a prior of its own."""
    generator = torch.Generator().manual_seed(seed)
    every = torch.arange(n_chains).repeat(n_times)
    prior = mixture.prior.rows(every)
    k = as_numpy(prior.sample(len(every), n_points, generator=generator).amax(1)) + 1
    limit = mixture.likelihood.max_clusters
    return k if limit is None else k[k <= limit]


def _observations(mixture: Mixture, labels: Tensor, generator: torch.Generator) -> Tensor:
    shape = (len(labels), int(labels.max()) + 1)
    parameters = mixture.likelihood.sample_parameters(shape, generator)
    return mixture.likelihood.sample_observations(parameters, labels, generator)


def _compare_k(prior: np.ndarray, after: np.ndarray) -> GewekeResult:
    from scipy.stats import chi2_contingency, norm

    width = max(prior.max(), after.max()) + 1
    table = np.stack([np.bincount(k, minlength=width)[1:] for k in (prior, after)])
    pooled = _pool(table, smallest=5.0)
    chi_square_p = float(chi2_contingency(pooled).pvalue) if pooled.shape[1] > 1 else 1.0
    variance = prior.var() * (1 / len(after) + 1 / len(prior))
    z = (after.mean() - prior.mean()) / np.sqrt(variance) if variance > 0 else 0.0
    frequencies = table / table.sum(1, keepdims=True)
    return GewekeResult(frequencies[0], frequencies[1], chi_square_p, float(2 * norm.sf(abs(z))))


def _pool(table: np.ndarray, smallest: float) -> np.ndarray:
    """Merge neighbouring columns until each expects at least `smallest` in every row."""
    share = table.sum(1).min() / table.sum()
    columns: list[np.ndarray] = []
    waiting = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        waiting = waiting + column
        if waiting.sum() * share >= smallest:
            columns.append(waiting)
            waiting = np.zeros_like(waiting)
    if waiting.any() and columns:
        columns[-1] = columns[-1] + waiting
    return np.stack(columns, 1) if columns else table.sum(1, keepdims=True)
