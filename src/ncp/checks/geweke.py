"""Geweke's joint test.

Alternating x ~ p(x | c) and c ~ q(c | x) keeps p(c), so the number of clusters K, which begins with
its prior distribution, must still have it after several rounds. Each chain is compared with its own
beginning: K' - K and (K' - m)^2 - (K - m)^2, with m the mean at the start, have mean zero. (Beside
other draws of the prior, a test would also see how unusual the first draws happened to be.)
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

    prior: Float64[np.ndarray, " k"]  # frequencies of K = 1, 2, ... at the start
    after: Float64[np.ndarray, " k"]
    mean_p: float
    spread_p: float

    @property
    def p_value(self) -> float:
        """The smaller of the two p-values, corrected for having looked at two."""
        return min(1.0, 2.0 * min(self.mean_p, self.spread_p))

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
    seeds = seeds_of(seed, n_rounds + 2)
    generator = torch.Generator().manual_seed(seeds[0])
    rng = np.random.default_rng(seeds[1])
    labels, _, eta = mixture.sample(n_chains, n_points, generator=generator)[1:]
    known, before = mixture.given(eta), labels
    for n, round_seed in enumerate(seeds[2:], 1):
        x = mixture.events(_observations(known, labels, generator), eta)
        results = [as_draws(one) for one in sample_many(list(x), n_samples=1, seed=round_seed)]
        rows = [draws.labels[rng.choice(len(draws.labels), p=draws.weights)] for draws in results]
        labels = torch.as_tensor(np.stack(rows))
        tell(progress, "Geweke's joint test", n, n_rounds)
    return _compare_k(as_numpy(before.amax(1)) + 1, as_numpy(labels.amax(1)) + 1)


def _observations(mixture: Mixture, labels: Tensor, generator: torch.Generator) -> Tensor:
    shape = (len(labels), int(labels.max()) + 1)
    parameters = mixture.likelihood.sample_parameters(shape, generator)
    return mixture.likelihood.sample_observations(parameters, labels, generator)


def _compare_k(before: np.ndarray, after: np.ndarray) -> GewekeResult:
    width = max(before.max(), after.max()) + 1
    prior, now = (np.bincount(k, minlength=width)[1:] / len(k) for k in (before, after))
    middle = before.mean()
    spread_p = _zero_p((after - middle) ** 2 - (before - middle) ** 2)
    return GewekeResult(prior, now, _zero_p(after - before), spread_p)


def _zero_p(differences: np.ndarray) -> float:
    """p-value: is their mean zero?"""
    from scipy.stats import norm

    error = differences.std() / np.sqrt(len(differences))
    return float(2 * norm.sf(abs(differences.mean()) / error)) if error > 0 else 1.0
