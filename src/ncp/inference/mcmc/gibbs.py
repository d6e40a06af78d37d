"""Markov chains over partitions that are exact in the limit.

*Collapsed Gibbs* (Neal 2000, algorithm 3; conjugate likelihoods): a sweep draws every label from

    p(c_i = k | c_-i, x)  proportional to  p(c_i = k | c_-i) p(x_i | {x_j : j != i, c_j = k}),

with the parameters integrated out. *Algorithm 8* (any likelihood with a density) keeps one
parameter a cluster: a label chooses among the clusters there are and ``m`` parameters drawn afresh
from the base measure, each with 1/m of the new cluster's prior weight, and then every parameter
is moved by a step that leaves p(theta_k | x in k) invariant.

A sweep costs O(NK): clusters keep sufficient statistics, which change by one point at a time, and
the loops are compiled (`kernels`) for the likelihoods of the package. A prior enters
as tables (`ncp.inference.mcmc.prior_tables`), so one kernel serves them all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Int64

from ncp.generative.mixture import Mixture
from ncp.inference.exact import check_data_set
from ncp.inference.mcmc.chains import Chains
from ncp.inference.mcmc.collapsed import collapsed_sweeper
from ncp.inference.mcmc.density import density_sweeper
from ncp.inference.mcmc.schedule import Progress, Schedule, check_at_least, spawn_generators
from ncp.inference.mcmc.sweeper import Sweeper, Sweeps
from ncp.partitions import ArrayLike, check_labels

__all__ = ["gibbs", "neal8"]

STARTS = ("sequential", "one", "singletons", "prior")


def gibbs(
    x: ArrayLike,
    mixture: Mixture,
    n_sweeps: int,
    *,
    burn_in: int = 0,
    n_chains: int = 1,
    thin: int = 1,
    start: str | ArrayLike = "sequential",
    n_jumps: int = 0,
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
        n_jumps: splits or merges of whole clusters proposed after every sweep (Dahl 2005), for
            the compiled likelihoods: they cross between modes that sweeps hardly ever cross.
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
    check_at_least("n_jumps", n_jumps, 0)
    sweeper = collapsed_sweeper(points, mixture, n_jumps)
    rngs = spawn_generators(seed, n_chains)
    starts = _starts(start, len(points), n_chains, mixture, rngs)
    schedule = Schedule(n_sweeps, burn_in, thin)
    return _run(sweeper, starts, schedule, rngs, progress, n_jobs)


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
    check_at_least("n_auxiliary", n_auxiliary, 1)
    check_at_least("n_moves", n_moves, 1)
    sweeper = density_sweeper(points, mixture, n_auxiliary, n_moves)
    rngs = spawn_generators(seed, n_chains)
    starts = _starts(start, len(points), n_chains, mixture, rngs)
    schedule = Schedule(n_sweeps, burn_in, thin)
    return _run(sweeper, starts, schedule, rngs, progress, n_jobs)


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
    sweeper: Sweeper,
    starts: np.ndarray,
    schedule: Schedule,
    rngs: list[np.random.Generator],
    progress: Progress | None,
    n_jobs: int,
) -> Chains:
    check_at_least("n_jobs", n_jobs, 1)
    n_chains, n_points = starts.shape
    labels = np.empty((n_chains, schedule.n_draws, n_points), dtype=np.int64)
    log_joint = np.empty((n_chains, schedule.n_draws))
    state = sweeper.start(starts, rngs)
    done = 0
    with ThreadPoolExecutor(n_jobs) as pool:
        for burn_in, rows in schedule.blocks():
            sweeps = Sweeps(burn_in, schedule.thin, labels[:, rows], log_joint[:, rows])
            sweeper.run(state, sweeps, rngs, pool.map)
            done += sweeps.total
            if progress is not None:
                progress(done, schedule.total)
    return Chains(labels, log_joint, sweeper.acceptance(state))
