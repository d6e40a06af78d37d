r"""Beside a Markov chain that had ten times the time: what is left to compare with where no
posterior is known.

The chain is Neal's algorithm 8, started cold. A second one, started at the truth and given a
hundred times the time, tells both how far their similarity matrices are off. With q(c | x) the
network's distribution and log p(c, x) known (for `Ring` by integration, `log_marginal`), the log
evidence comes from either side,

    log p(x) = log E_q [p(c, x) / q(c | x)] = -log E_p(c | x) [q(c | x) / p(c, x)].

A q that misses some of the posterior makes the first too low.
"""

from __future__ import annotations

import math
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
from ncp.generative.ring import Ring
from ncp.inference.mcmc import gibbs
from ncp.summary.estimate import point_estimate
from ncp.summary.similarity import similarity

TIMES = 10  # what the chain gets, in times of the sampler's; the reference gets as many times that
FEWEST_SWEEPS = 50
THIN = 5  # sweeps between the draws that are kept of the long chain
WEIGHED = 200  # distinct draws of each that the evidence is computed from, at most
DRAWS = 4096  # of a ring's parameters, for the marginal likelihood of a cluster
SHARES, SCALES = (0.7, 0.3), (1.2, 3.0)  # the proposal around a best fit: two normals
NATS = 10.0  # fits that are worse than the best by more do not count

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ChainComparison:
    """One entry for each data set; `chain` is algorithm 8, started cold.

    Attributes:
        ari, chain_ari: adjusted Rand index of the point estimate to the truth.
        error, chain_error: mean absolute error of the similarity matrix, against the long chain.
        log_evidence, chain_log_evidence: from the sampler's draws, and from the long chain's;
            NaN where log p(x | c) is not known.
        seconds, chain_seconds: wall-clock.
    """

    ari: Float64[np.ndarray, " datasets"]
    chain_ari: Float64[np.ndarray, " datasets"]
    error: Float64[np.ndarray, " datasets"]
    chain_error: Float64[np.ndarray, " datasets"]
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
        gap = similarity(draws.labels, draws.weights) - known
        line[f"{name}error"] = float(np.abs(gap).mean())
    line |= _evidence(log_prob, mixture, x, mine, reference, np.random.default_rng(seed))
    return line


def _evidence(
    log_prob: LogProb,
    mixture: Mixture,
    x: Tensor,
    mine: Draws,
    long: Draws,
    rng: np.random.Generator,
) -> dict[str, float]:
    """The log evidence from either side, if log p(x | c) is known."""
    names = ("log_evidence", "chain_log_evidence")
    if not isinstance(mixture.likelihood, Ring):
        return dict.fromkeys(names, math.nan)
    joint = RingJoint(mixture, x.double().numpy())
    found = []
    for (labels, weights, _), sign in ((mine, 1), (long, -1)):
        if len(labels) > WEIGHED:
            some = rng.choice(len(labels), WEIGHED, p=weights)
            labels, weights = labels[some], np.full(WEIGHED, 1 / WEIGHED)
        log_ratio = sign * (joint(labels) - evaluate(log_prob, x, torch.as_tensor(labels)))
        found.append(sign * float(logsumexp(log_ratio, b=weights)))
    return dict(zip(names, found, strict=True))


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


class RingJoint:
    """log p(c, x) of rings, with every distinct cluster integrated once."""

    def __init__(self, mixture: Mixture, x: Float64[np.ndarray, "n 2"]) -> None:
        self.mixture, self.x = mixture, x
        self.known: dict[bytes, float] = {}

    def __call__(self, labels: Int64[np.ndarray, "rows n"]) -> Float64[np.ndarray, " rows"]:
        assert isinstance(self.mixture.likelihood, Ring)
        totals = np.asarray(self.mixture.prior.log_prob(labels), dtype=float)
        for i, row in enumerate(labels):
            for k in range(int(row.max()) + 1):
                mask = row == k
                key = mask.tobytes()
                if key not in self.known:
                    self.known[key] = log_marginal(self.mixture.likelihood, self.x[mask])
                totals[i] += self.known[key]
        return totals


def log_marginal(ring: Ring, x: Float64[np.ndarray, "n 2"], seed: int = 0) -> float:
    """log p(x) of the points of one ring, by importance sampling over its centre and radius.

    The proposals are around the best fits; for less than four points, which leave the ring open,
    they are rings through the first one.

    Example:
        >>> round(log_marginal(Ring(), np.array([[0.0, 0.0], [2.0, 0.0]])), 1)
        -10.8
    """
    points = torch.as_tensor(x)
    engine = torch.quasirandom.SobolEngine(4, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    uniform = engine.draw(DRAWS, dtype=torch.float64)
    propose = _through_the_first if len(x) < 4 else _around_the_best
    draws, log_q = propose(ring, points, uniform.clamp(1e-12, 1 - 1e-12))
    log_w = (_ring_log_joint(ring, points, draws) - log_q).nan_to_num(nan=-math.inf)
    return float(log_w.logsumexp(0)) - math.log(DRAWS)


def _ring_log_joint(ring: Ring, points: Tensor, parameters: Tensor) -> Float64[Tensor, " draws"]:
    fits = ring.log_density(points[None], parameters[None])[0].sum(0)
    return fits + ring.log_prior(parameters)


def _through_the_first(ring: Ring, points: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Rings, and log q of them: at which radius, where the first point lies on it, the noise."""
    low, high = ring.radius
    radius = low + (high - low) * uniform[:, 0]
    turn = 2 * math.pi * uniform[:, 1]
    spoke = radius[:, None] * torch.stack([turn.cos(), turn.sin()], 1)
    centre = points[0] - spoke - ring.noise_sd * torch.special.ndtri(uniform[:, 2:])
    draws = torch.cat([centre, radius[:, None]], 1)
    return draws, ring.log_density(points[None, :1], draws[None])[0, 0] - math.log(high - low)


def _around_the_best(ring: Ring, points: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Rings, and log q of them: around each of the best fits two normals, one of them wide.

    Points on a short arc have one fit on either side of them, so the search starts on both.
    """
    from scipy.optimize import minimize

    def cost(parameters: np.ndarray) -> float:
        return -float(_ring_log_joint(ring, points, torch.as_tensor(parameters)[None]))

    low, high = ring.radius
    middle = points.mean(0)
    across = torch.linalg.svd(points - middle)[2][1]  # the direction in which they are narrow
    fits = [
        minimize(
            cost,
            np.array([*(middle + side * radius * across), radius]),
            method="Nelder-Mead",
            options={"xatol": 0.03 * ring.noise_sd, "fatol": 0.01},
        )
        for radius in low + (high - low) * np.array([0.1, 0.5, 0.9])
        for side in (-1, 0, 1)
    ]
    fits.sort(key=lambda fit: float(fit.fun))
    best: list[np.ndarray] = []
    for fit in fits:
        new = all(np.abs(fit.x - other).max() > 0.3 * ring.noise_sd for other in best)
        if new and fit.fun < fits[0].fun + NATS:
            best.append(fit.x)
    modes, roots = [torch.as_tensor(x) for x in best], []  # a root of each one's precision
    for mode in modes:
        hessian = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda p: -_ring_log_joint(ring, points, p[None])[0], mode
        )
        values, vectors = torch.linalg.eigh(hessian)
        roots.append(vectors * values.clamp_min(0.5).sqrt())
    which = (uniform[:, 3] * len(modes)).long()
    wide = (uniform[:, 3] * len(modes)) % 1 < SHARES[1]
    step = torch.special.ndtri(uniform[:, :3]) * torch.where(wide, SCALES[1], SCALES[0])[:, None]
    shift = torch.linalg.solve(torch.stack(roots).mT[which], step[..., None])[..., 0]
    draws = torch.stack(modes)[which] + shift
    parts = []
    for mode, root in zip(modes, roots, strict=True):
        square = ((draws - mode) @ root).square().sum(1)
        for share, scale in zip(SHARES, SCALES, strict=True):
            volume = 3 * math.log(scale) - torch.linalg.slogdet(root)[1]
            parts.append(math.log(share / len(modes)) - 0.5 * square / scale**2 - volume)
    return draws, torch.stack(parts).logsumexp(0) - 1.5 * math.log(2 * math.pi)
