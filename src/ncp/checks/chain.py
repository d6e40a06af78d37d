r"""Beside a Markov chain that had ten times the time: what is left to compare with where no
posterior is known.

The chain is Neal's algorithm 8, started cold. A second one, started at the truth and given a
hundred times the time, tells both how far their similarity matrices are off. With q(c | x) the
network's distribution and an unbiased estimate of p(c, x) (`ncp.inference.pseudo_marginal`), the
log evidence comes from either side,

    log p(x) = log E_q [p(c, x) / q(c | x)] = -log E_p(c | x) [q(c | x) / p(c, x)].

A q that misses some of the posterior makes the first too low.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.special import logsumexp
from torch import Tensor

from ncp.checks.simulation import (
    Draws,
    LogProb,
    Progress,
    SampleMany,
    as_draws,
    evaluate,
    seeds_of,
    tell,
)
from ncp.generative.mixture import Mixture
from ncp.inference.mcmc import gibbs
from ncp.inference.pseudo_marginal import PseudoMarginal
from ncp.summary.estimate import point_estimate
from ncp.summary.similarity import similarity

__all__ = ["ChainComparison", "compare_with_chain"]

TIMES = 10  # what the chain gets, in times of the sampler's; the reference gets as many times that
FEWEST_SWEEPS = 50
THIN = 5  # sweeps between the draws that are kept of the long chain
WEIGHED = 200  # distinct draws of each that the evidence is computed from, at most
DRAWS = 2000  # of a cluster's parameters, for its marginal likelihood

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ChainComparison:
    """One entry for each data set; `chain` is algorithm 8, started cold.

    Attributes:
        ari, chain_ari: adjusted Rand index of the point estimate to the truth.
        error, chain_error: mean absolute error of the similarity matrix, against the long chain.
        weighted_error: that of the same draws with importance weights.
        log_evidence, chain_log_evidence: from the sampler's draws, and from the long chain's.
        seconds, chain_seconds: wall-clock.
    """

    ari: Float64[np.ndarray, " datasets"]
    chain_ari: Float64[np.ndarray, " datasets"]
    error: Float64[np.ndarray, " datasets"]
    chain_error: Float64[np.ndarray, " datasets"]
    weighted_error: Float64[np.ndarray, " datasets"]
    log_evidence: Float64[np.ndarray, " datasets"]
    chain_log_evidence: Float64[np.ndarray, " datasets"]
    seconds: Float64[np.ndarray, " datasets"]
    chain_seconds: Float64[np.ndarray, " datasets"]


def compare_with_chain(
    sample_many: SampleMany,
    log_prob: LogProb,
    mixture: Mixture,
    *,
    n_datasets: int = 6,
    n_points: int = 50,
    n_samples: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> ChainComparison:
    """Compare a sampler with algorithm 8, on data sets from the prior.

    Args:
        sample_many: the sampler on trial.
        log_prob: its log q(c | x), for the evidence.
        mixture: the model; its likelihood must have a density.
        n_datasets: data sets, each compared by itself.
        n_points: N.
        n_samples: draws of the sampler for each.
        seed: of everything.
        progress: called as `progress(what, done, total)`.
    """
    batch = mixture.sample(n_datasets, n_points, generator=torch.Generator().manual_seed(seed))
    sample_many([batch.x[0]], n_samples=2, seed=0)  # what is compiled or read once
    gibbs.neal8(batch.x[0], mixture, 1, seed=0)
    lines = []
    for x, labels, own in zip(batch.x, batch.labels, seeds_of(seed, n_datasets), strict=True):
        lines.append(_compare(sample_many, log_prob, mixture, x, labels, n_samples, own))
        tell(progress, "beside algorithm 8", len(lines), n_datasets)
    return ChainComparison(**{name: np.array([line[name] for line in lines]) for name in lines[0]})


def _compare(
    sample_many: SampleMany,
    log_prob: LogProb,
    mixture: Mixture,
    x: Tensor,
    labels: Int64[Tensor, " n"],
    n_samples: int,
    seed: int,
) -> dict[str, float]:
    from sklearn.metrics import adjusted_rand_score

    (drawn,), seconds = _timed(lambda: sample_many([x], n_samples=n_samples, seed=seed))
    truth = labels.numpy()
    sweeps = _sweeps_in(TIMES * seconds, mixture, x)
    burn_in = sweeps // 5
    chain, chain_seconds = _timed(
        lambda: gibbs.neal8(x, mixture, sweeps - burn_in, burn_in=burn_in, seed=seed)
    )
    long = gibbs.neal8(
        x, mixture, (TIMES - 1) * sweeps, burn_in=sweeps, start=truth, thin=THIN, seed=seed + 1
    )
    mine, theirs, reference = map(as_draws, (drawn, chain.unique(), long.unique()))
    line = {"seconds": seconds, "chain_seconds": chain_seconds}
    known = similarity(reference.labels, reference.weights)
    for name, draws in (("", mine), ("chain_", theirs)):
        estimate = point_estimate(draws.labels, draws.weights, "vi").labels
        line[f"{name}ari"] = float(adjusted_rand_score(truth, estimate))
        line[f"{name}error"] = _error(draws.labels, draws.weights, known)
    rng, joint = np.random.default_rng(seed), PseudoMarginal(mixture, DRAWS)
    rows, log_weights = _weighted(mine, log_prob, joint, x, rng)
    line["log_evidence"] = float(logsumexp(log_weights))
    line["weighted_error"] = _error(rows, np.exp(log_weights - line["log_evidence"]), known)
    _, log_weights = _weighted(reference, log_prob, joint, x, rng, sign=-1)
    line["chain_log_evidence"] = -float(logsumexp(log_weights))
    return line


def _error(
    labels: Int64[np.ndarray, "rows n"],
    weights: Float64[np.ndarray, " rows"],
    known: Float64[np.ndarray, "n n"],
) -> float:
    return float(np.abs(similarity(labels, weights) - known).mean())


def _weighted(
    draws: Draws,
    log_prob: LogProb,
    joint: PseudoMarginal,
    x: Tensor,
    rng: np.random.Generator,
    sign: int = 1,
) -> tuple[Int64[np.ndarray, "rows n"], Float64[np.ndarray, " rows"]]:
    """Draws, and the logarithms of their weights times p(c, x) / q(c | x), or times its inverse."""
    labels, weights, _ = draws
    if len(labels) > WEIGHED:
        labels = labels[rng.choice(len(labels), WEIGHED, p=weights)]
        weights = np.full(WEIGHED, 1 / WEIGHED)
    log_q = evaluate(log_prob, x, torch.as_tensor(labels))
    return labels, np.log(weights) + sign * (joint.log_joint(x, labels) - log_q)


def _sweeps_in(seconds: float, mixture: Mixture, x: Tensor) -> int:
    """How many sweeps take that time, from a trial of a tenth of it."""
    n_sweeps = FEWEST_SWEEPS
    while True:
        _, taken = _timed(partial(gibbs.neal8, x, mixture, n_sweeps, seed=0))
        if taken > seconds / 10:
            return max(FEWEST_SWEEPS, int(n_sweeps * seconds / taken))
        n_sweeps *= 2


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    begin = time.perf_counter()
    result = call()
    return result, time.perf_counter() - begin
