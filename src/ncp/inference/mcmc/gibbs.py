"""Markov chains over partitions that are exact in the limit.

*Collapsed Gibbs* (Neal 2000, algorithm 3; conjugate likelihoods): a sweep draws every label from

    p(c_i = k | c_-i, x)  proportional to  p(c_i = k | c_-i) p(x_i | {x_j : j != i, c_j = k}),

with the parameters integrated out. *Algorithm 8* (any likelihood with a density) keeps one
parameter a cluster: a label chooses among the clusters there are and ``m`` parameters drawn afresh
from the base measure, each with 1/m of the new cluster's prior weight, and then every parameter
is moved by a step that leaves p(theta_k | x in k) invariant. *Independence Metropolis-Hastings*
proposes a whole partition c' from any sampler q and accepts it with probability

    min(1, p(c', x) q(c) / (p(c, x) q(c'))),

alternated with Gibbs sweeps: the sampler jumps between modes, the sweeps polish.

A sweep costs O(NK): clusters keep sufficient statistics, which change by one point at a time, and
the loops are compiled (`kernels`) for the likelihoods of the package. A prior enters
as tables (`ncp.inference.mcmc.engines.prior_tables`), so one kernel serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64

from ncp.generative.mixture import Mixture
from ncp.inference.exact import check_data_set
from ncp.inference.mcmc.engines import Engine, Sweeps, collapsed_engine, density_engine
from ncp.partitions import ArrayLike, check_labels

Progress = Callable[[int, int], object]
Propose = Callable[[int, np.random.Generator], tuple[Any, Any]]
STARTS = ("sequential", "one", "singletons", "prior")


# --- what a run returns ---------------------------------------------------------------------------


class ChainDiagnostics(NamedTuple):
    """How far the chains can be trusted, for K and for the log joint.

    Fields:
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
            effective_sample_size(k),
            effective_sample_size(joint),
            np.array([split_r_hat(chain[None]) for chain in k]),
            np.array([split_r_hat(chain[None]) for chain in joint]),
            np.array([effective_sample_size(chain[None]) for chain in k]),
            np.array([effective_sample_size(chain[None]) for chain in joint]),
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


def effective_sample_size(values: np.ndarray) -> float:
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
        >>> 1500 < effective_sample_size(rng.normal(size=(4, 500))) < 2500
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


# --- running chains -------------------------------------------------------------------------------


def gibbs(
    x: ArrayLike,
    mixture: Mixture,
    n_sweeps: int,
    *,
    burn_in: int = 0,
    n_chains: int = 1,
    thin: int = 1,
    start: str | ArrayLike = "sequential",
    seed: int | None = None,
    progress: Progress | None = None,
    n_jobs: int = 1,
) -> Chains:
    """Collapsed Gibbs sampling (algorithm 3) of a conjugate mixture.

    Args:
        x: one data set of shape (N, *event).
        mixture: the generative model; compiled for `GaussianKnownVariance` and
            `NormalInverseWishart`, slower for a likelihood of your own.
        n_sweeps: sweeps after the burn-in; every `thin`-th of them is kept.
        burn_in: sweeps before them, not kept.
        n_chains: independent chains.
        thin: how many sweeps a draw.
        start: "sequential" (each point given those before it), "one" cluster, "singletons", a
            draw from the "prior", or canonical labels of shape (N,) or (chains, N).
        seed: makes the run reproducible, whatever n_jobs and progress are.
        progress: called with (sweeps done, sweeps in all) now and then.
        n_jobs: chains run at the same time, in threads.

    Returns:
        `Chains` with n_sweeps // thin draws a chain.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> chains = gibbs([[0.0], [0.5], [9.0]], mixture, 500, burn_in=10, n_chains=2, seed=0)
        >>> chains
        Chains(2 chains of 500 draws, 3 points)
        >>> labels, counts = chains.unique()
        >>> labels[counts.argmax()].tolist()
        [0, 0, 1]
    """
    points = np.ascontiguousarray(check_data_set(x, mixture).numpy())
    engine = collapsed_engine(points, mixture)
    rngs = _generators(seed, n_chains)
    starts = _starts(start, len(points), n_chains, mixture, rngs)
    schedule = _Schedule(n_sweeps, burn_in, thin)
    return _run(engine, starts, schedule, rngs, progress, n_jobs)


def neal8(
    x: ArrayLike,
    mixture: Mixture,
    n_sweeps: int,
    *,
    burn_in: int = 0,
    n_chains: int = 1,
    thin: int = 1,
    start: str | ArrayLike = "sequential",
    n_auxiliary: int = 3,
    n_moves: int = 5,
    seed: int | None = None,
    progress: Progress | None = None,
    n_jobs: int = 1,
) -> Chains:
    """Neal's algorithm 8, for any mixture whose likelihood has a density.

    Compiled for the density likelihoods of the package, whose parameters are moved by slice
    sampling. A likelihood of your own runs through its `log_density`; its parameters are moved by
    Metropolis steps, which are far better when it has a `log_prior`.

    Args:
        n_auxiliary: parameters drawn from the base measure for every point, m >= 1. More of them
            cost more a sweep and mix better.
        n_moves: Metropolis steps for each parameter and sweep (not used where compiled).

    The other arguments are those of `gibbs`. The log joint of a draw is log p(c, theta, x), or
    log p(c, x | theta) where the likelihood has no `log_prior`.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> neal8([[0.0], [0.5], [9.0]], mixture, 100, n_chains=2, seed=0)
        Chains(2 chains of 100 draws, 3 points)
    """
    points = np.ascontiguousarray(check_data_set(x, mixture).numpy())
    _check_at_least("n_auxiliary", n_auxiliary, 1)
    _check_at_least("n_moves", n_moves, 1)
    engine = density_engine(points, mixture, n_auxiliary, n_moves)
    rngs = _generators(seed, n_chains)
    starts = _starts(start, len(points), n_chains, mixture, rngs)
    schedule = _Schedule(n_sweeps, burn_in, thin)
    return _run(engine, starts, schedule, rngs, progress, n_jobs)


def independence_mh(
    x: ArrayLike,
    mixture: Mixture,
    propose: Propose,
    n_steps: int,
    *,
    log_q: Callable[[np.ndarray], Any] | None = None,
    n_chains: int = 4,
    gibbs_sweeps: int = 1,
    burn_in: int = 0,
    thin: int = 1,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Chains:
    """Independence Metropolis-Hastings from any sampler, alternated with Gibbs sweeps.

    Every chain starts at a sample of q. A step proposes c' ~ q, accepts it with probability

        min(1, p(c', x) q(c) / (p(c, x) q(c'))),

    and then runs Gibbs sweeps. The chains are exact in the limit for any q: where q is poor,
    proposals are rejected and the sweeps do the work.

    Args:
        x: one data set of shape (N, *event).
        mixture: the generative model, conjugate.
        propose: (n, rng) -> labels of shape (n, N), independent draws from q, and log q of
            shape (n,).
        n_steps: steps after the burn-in; every `thin`-th of them is kept.
        log_q: labels of shape (n, N) -> log q of shape (n,), the density of `propose`: when that
            draws in one order of the points, log q in that order; when it draws in an order
            chosen at random, the average of q over the orders. May be -infinity. Needed whenever
            gibbs_sweeps > 0, since the sweeps move to partitions that were not proposed.
        n_chains: chains, all in step.
        gibbs_sweeps: sweeps after each proposal.
        burn_in, thin, seed, progress: as in `gibbs`, counted in steps.

    Returns:
        `Chains`, with the acceptance rate of each chain's proposals.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> def one_cluster_or_two(n, rng):
        ...     return [[0, int(u < 0.5)] for u in rng.random(n)], [-0.6931472] * n
        >>> chains = independence_mh(
        ...     [[0.0], [9.0]], mixture, one_cluster_or_two, 100, seed=0,
        ...     log_q=lambda labels: [-0.6931472] * len(labels),
        ... )
        >>> bool(chains.n_clusters.mean() > 1.9)
        True
    """
    points = np.ascontiguousarray(check_data_set(x, mixture).numpy())
    _check_at_least("gibbs_sweeps", gibbs_sweeps, 0)
    if gibbs_sweeps > 0 and log_q is None:
        raise ValueError("Expected log_q, the density of propose, when gibbs_sweeps > 0")
    schedule = _Schedule(n_steps, burn_in, thin)
    rngs = _generators(seed, n_chains + 1)
    engine = collapsed_engine(points, mixture)
    target = _Target(points, mixture, propose, log_q, rngs.pop())
    return _metropolis(engine, target, schedule, gibbs_sweeps, rngs, progress)


class _Schedule:
    """What is run and what is kept."""

    def __init__(self, n_sweeps: int, burn_in: int, thin: int):
        _check_at_least("thin", thin, 1)
        _check_at_least("the number of sweeps or steps", n_sweeps, thin)
        _check_at_least("burn_in", burn_in, 0)
        self.n_draws, self.burn_in, self.thin = n_sweeps // thin, burn_in, thin
        self.total = burn_in + self.n_draws * thin

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """Burn-in sweeps and rows of the result, about fifty blocks: the pace of progress.

        They depend on nothing else, so that a run is the same with and without progress.
        """
        length = max(100, ceil(self.total / 50))
        for done in range(0, self.burn_in, length):
            yield min(length, self.burn_in - done), slice(0, 0)
        rows = max(1, length // self.thin)
        for first in range(0, self.n_draws, rows):
            yield 0, slice(first, min(first + rows, self.n_draws))


def _check_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or int(value) != value or value < least:
        raise ValueError(f"Expected {name} to be an integer >= {least} but got {value}")


def _generators(seed: int | None, n: int) -> list[np.random.Generator]:
    _check_at_least("n_chains", n, 1)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(n)]


def _starts(
    start: str | ArrayLike,
    n_points: int,
    n_chains: int,
    mixture: Mixture,
    rngs: list[np.random.Generator],
) -> Int64[np.ndarray, "chains n"]:
    shape = (n_chains, n_points)
    if isinstance(start, str):
        if start not in STARTS:
            raise ValueError(f"Expected start to be labels or one of {STARTS} but got {start!r}")
        if start == "prior":
            generator = torch.Generator().manual_seed(int(rngs[0].integers(2**62)))
            return mixture.prior.sample(n_chains, n_points, generator).numpy()
        row = {"sequential": np.full(n_points, -1), "one": np.zeros(n_points, np.int64)}
        return np.tile(row.get(start, np.arange(n_points)), (n_chains, 1))
    labels = check_labels(start, n_points=n_points).numpy()
    if labels.shape not in ((n_points,), shape):
        raise ValueError(f"Expected start of shape ({n_points},) or {shape} but got {labels.shape}")
    return np.broadcast_to(labels, shape).copy()


def _run(
    engine: Engine,
    starts: np.ndarray,
    schedule: _Schedule,
    rngs: list[np.random.Generator],
    progress: Progress | None,
    n_jobs: int,
) -> Chains:
    _check_at_least("n_jobs", n_jobs, 1)
    n_chains, n_points = starts.shape
    labels = np.empty((n_chains, schedule.n_draws, n_points), dtype=np.int64)
    log_joint = np.empty((n_chains, schedule.n_draws))
    state = engine.start(starts, rngs)
    done = 0
    with ThreadPoolExecutor(n_jobs) as pool:
        for burn_in, rows in schedule.blocks():
            sweeps = Sweeps(burn_in, schedule.thin, labels[:, rows], log_joint[:, rows])
            engine.run(state, sweeps, rngs, pool.map)
            done += sweeps.total
            if progress is not None:
                progress(done, schedule.total)
    return Chains(labels, log_joint, engine.acceptance(state))


class _Proposals(NamedTuple):
    labels: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray


class _Target:
    """The two densities of independence Metropolis-Hastings, and draws from the second."""

    def __init__(
        self,
        x: np.ndarray,
        mixture: Mixture,
        propose: Propose,
        log_q: Callable[[np.ndarray], Any] | None,
        rng: np.random.Generator,
    ):
        self.x, self.mixture, self.propose, self.rng = x, mixture, propose, rng
        self.density = log_q
        self.known: dict[bytes, float] = {}  # chains come back to the same partitions

    def draw(self, n: int) -> _Proposals:
        """n proposals. They are shuffled, since a sampler may return equal ones side by side."""
        labels, log_q = self.propose(n, self.rng)
        rows = check_labels(labels, n_points=len(self.x)).numpy()
        column = np.asarray(log_q, dtype=np.float64)
        if rows.shape != (n, len(self.x)) or column.shape != (n,):
            raise ValueError(
                f"Expected propose({n}, rng) to return labels of shape {(n, len(self.x))} and "
                f"log_q of shape {(n,)} but got {rows.shape} and {column.shape}"
            )
        if not np.isfinite(column).all():
            raise ValueError("Expected a finite log_q of every proposal but got infinity or NaN")
        order = self.rng.permutation(n)
        rows, column = rows[order], column[order]
        return _Proposals(rows, self.mixture.log_joint(self.x, rows).numpy(), column)

    def log_q(self, labels: np.ndarray) -> np.ndarray:
        """log q of each row, asked for once a partition."""
        assert self.density is not None
        keys = [row.tobytes() for row in labels]
        unknown = {key: row for key, row in zip(keys, labels, strict=True) if key not in self.known}
        if unknown:
            values = np.asarray(self.density(np.stack(list(unknown.values()))), dtype=np.float64)
            if values.shape != (len(unknown),) or np.isnan(values).any():
                raise ValueError(
                    f"Expected log_q to return {len(unknown)} numbers but got {values!r}"
                )
            self.known.update(zip(unknown, values.tolist(), strict=True))
        return np.array([self.known[key] for key in keys])

    def check(self, proposals: _Proposals) -> None:
        """That `log_q` is the density of `propose`, up to single precision."""
        if self.density is None:
            return
        values = self.log_q(proposals.labels)
        if not np.allclose(values, proposals.log_q, rtol=1e-3, atol=1e-2):
            worst = np.abs(values - proposals.log_q).argmax()
            raise ValueError(
                "Expected log_q to be the density of propose (in the same order of the points) "
                f"but got {values[worst]} for a proposal with log_q {proposals.log_q[worst]}"
            )


def _metropolis(
    engine: Engine,
    target: _Target,
    schedule: _Schedule,
    gibbs_sweeps: int,
    rngs: list[np.random.Generator],
    progress: Progress | None,
) -> Chains:
    n_chains, n_points = len(rngs), len(target.x)
    labels = np.empty((n_chains, schedule.n_draws, n_points), dtype=np.int64)
    log_joint = np.empty((n_chains, schedule.n_draws))
    accepted = np.zeros(n_chains)
    state = target.draw(n_chains)
    target.check(state)
    for step, proposals in enumerate(_rounds(target, schedule.total, n_chains)):
        state, jumped = _accept(state, proposals, target.rng)
        accepted += jumped
        if gibbs_sweeps:
            state = _polish(engine, target, state, gibbs_sweeps, rngs)
        row, rest = divmod(step + 1 - schedule.burn_in, schedule.thin)
        if row > 0 and rest == 0:
            labels[:, row - 1], log_joint[:, row - 1] = state.labels, state.log_p
        if progress is not None and (step + 1) % max(1, schedule.total // 50) == 0:
            progress(step + 1, schedule.total)
    return Chains(labels, log_joint, accepted / schedule.total)


def _rounds(target: _Target, n_rounds: int, n_chains: int) -> Iterator[_Proposals]:
    """One proposal a chain and step, drawn thousands at a time: samplers like large calls."""
    rounds = max(1, 2**13 // n_chains)
    for first in range(0, n_rounds, rounds):
        here = min(rounds, n_rounds - first)
        drawn = target.draw(here * n_chains)
        for r in range(here):
            yield _Proposals(*(column[r * n_chains : (r + 1) * n_chains] for column in drawn))


def _accept(
    state: _Proposals, proposals: _Proposals, rng: np.random.Generator
) -> tuple[_Proposals, np.ndarray]:
    log_ratio = (proposals.log_p - proposals.log_q) - (state.log_p - state.log_q)
    jumped = np.log1p(-rng.random(len(log_ratio))) < log_ratio
    return _Proposals(
        np.where(jumped[:, None], proposals.labels, state.labels),
        np.where(jumped, proposals.log_p, state.log_p),
        np.where(jumped, proposals.log_q, state.log_q),
    ), jumped


def _polish(
    engine: Engine,
    target: _Target,
    state: _Proposals,
    n_sweeps: int,
    rngs: list[np.random.Generator],
) -> _Proposals:
    labels, log_p = np.empty_like(state.labels), np.empty_like(state.log_p)
    sweeps = Sweeps(n_sweeps - 1, 1, labels[:, None], log_p[:, None])
    engine.run(engine.start(state.labels, rngs), sweeps, rngs)
    log_q = state.log_q.copy()
    moved = (labels != state.labels).any(axis=1)
    if moved.any():
        log_q[moved] = target.log_q(labels[moved])
    return _Proposals(labels, log_p, log_q)
