"""How useful the samples are: worth as importance weights, and close to the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ncp.checks.simulation import (
    Draws,
    LogProb,
    Progress,
    Simulation,
    as_numpy,
    evaluate_rows,
    seeds_of,
    tell,
)
from ncp.generative.model import GenerativeModel
from ncp.inference.importance import effective_sample_size
from ncp.summary.estimate import point_estimate
from ncp.summary.rand_index import expected_agreement

__all__ = [
    "Efficiency",
    "agreement",
    "efficiency",
    "k_mode_accuracy",
    "nll_per_point",
    "point_estimate_ari",
    "reweighted",
]


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Effective sample sizes of importance weights, as fractions of the number of samples."""

    fractions: Float64[np.ndarray, " datasets"]
    n_samples: int
    min_median: float

    @property
    def median(self) -> float:
        return float(np.median(self.fractions))

    @property
    def lowest_decile(self) -> float:
        return float(np.quantile(self.fractions, 0.1))

    @property
    def passed(self) -> bool:
        return self.median >= self.min_median


def efficiency(
    simulation: Simulation, mixture: GenerativeModel, *, min_median: float = 0.7
) -> Efficiency:
    r"""ESS / L of the weights w = p(c, x) / q(c | x) for every data set,

        ESS = (\sum_u n_u w_u)^2 / \sum_u n_u w_u^2,   n_u how often row u was drawn.

    Args:
        simulation: posterior draws with log q.
        mixture: a conjugate model.
        min_median: the median fraction that still passes.
    """
    fractions = []
    for x, draws in zip(simulation.x, simulation.draws, strict=True):
        log_w = _log_weights(x, draws, mixture)
        drawn = np.rint(draws.weights * simulation.n_samples).astype(np.int64)
        fractions.append(effective_sample_size(log_w, drawn) / simulation.n_samples)
    return Efficiency(np.array(fractions), simulation.n_samples, min_median)


def reweighted(simulation: Simulation, mixture: GenerativeModel) -> Simulation:
    """The same draws with importance weights, as `ncp.cluster` uses them.

    Args:
        simulation: posterior draws with log q.
        mixture: a conjugate model.
    """
    draws = []
    for x, drawn in zip(simulation.x, simulation.draws, strict=True):
        log_w = _log_weights(x, drawn, mixture)
        weights = drawn.weights * np.exp(log_w - log_w.max())
        draws.append(drawn._replace(weights=weights / weights.sum()))
    return replace(simulation, draws=tuple(draws))


def _log_weights(x: Tensor, draws: Draws, mixture: GenerativeModel) -> Float64[np.ndarray, " rows"]:
    if draws.log_q is None:
        raise ValueError("Expected draws with log q but the sampler gave none")
    return np.asarray(as_numpy(mixture.log_joint(x, draws.labels)) - draws.log_q)


def k_mode_accuracy(simulation: Simulation) -> float:
    """How often the posterior mode of K is the true K."""
    hits = [
        np.bincount(draws.labels.max(1), draws.weights).argmax() == truth.max()
        for truth, draws in zip(simulation.labels, simulation.draws, strict=True)
    ]
    return float(np.mean(hits))


def point_estimate_ari(
    simulation: Simulation, progress: Progress | None = None
) -> Float64[np.ndarray, " datasets"]:
    """Adjusted Rand index of the point estimate against the truth, for every data set, (D,)."""
    from sklearn.metrics import adjusted_rand_score

    scores = []
    for truth, draws in zip(simulation.labels, simulation.draws, strict=True):
        found = point_estimate(draws.labels, draws.weights)
        scores.append(adjusted_rand_score(truth, found.labels))
        tell(progress, "point estimates", len(scores), len(simulation))
    return np.array(scores)


def agreement(
    simulation: Simulation, progress: Progress | None = None
) -> Float64[np.ndarray, "datasets 2"]:
    """The agreement with the truth that samples promise of their best estimate, and what it has.

    Both are adjusted Rand indices of the estimate by the expected index ("pear").
    """
    from sklearn.metrics import adjusted_rand_score

    found = []
    for truth, draws in zip(simulation.labels, simulation.draws, strict=True):
        estimate = point_estimate(draws.labels, draws.weights, "pear").labels
        promised = expected_agreement(estimate, draws.labels, draws.weights)
        found.append((promised, adjusted_rand_score(truth, estimate)))
        tell(progress, "agreement", len(found), len(simulation))
    return np.array(found)


def nll_per_point(
    log_prob: LogProb,
    mixture: GenerativeModel,
    *,
    n_datasets: int = 200,
    n_points: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
) -> Float64[np.ndarray, " datasets"]:
    """-log q(c* | x) / N of the true partition, for every data set, (D,)."""
    generator = torch.Generator().manual_seed(seeds_of(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    every = torch.arange(n_datasets)
    what = f"likelihood of {n_points} points"
    return -evaluate_rows(log_prob, batch.x, every, batch.labels, what, progress) / n_points
