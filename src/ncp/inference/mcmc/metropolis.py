"""Independence Metropolis-Hastings: a whole partition c' is proposed by any sampler q and accepted
with probability

    min(1, p(c', x) q(c) / (p(c, x) q(c'))),

alternated with Gibbs sweeps: the sampler jumps between modes, the sweeps polish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ncp.generative.mixture import Mixture
from ncp.inference.exact import check_data_set
from ncp.inference.mcmc.chains import Chains
from ncp.inference.mcmc.collapsed import collapsed_sweeper
from ncp.inference.mcmc.schedule import Progress, Schedule, check_at_least, spawn_generators
from ncp.inference.mcmc.sweeper import Sweeper, Sweeps
from ncp.partitions import ArrayLike, check_labels

__all__ = ["Propose", "independence_mh"]

Propose = Callable[[int, np.random.Generator], tuple[Any, Any]]


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
    check_at_least("gibbs_sweeps", gibbs_sweeps, 0)
    if gibbs_sweeps > 0 and log_q is None:
        raise ValueError("Expected log_q, the density of propose, when gibbs_sweeps > 0")
    schedule = Schedule(n_steps, burn_in, thin)
    rngs = spawn_generators(seed, n_chains + 1)
    sweeper = collapsed_sweeper(points, mixture)
    target = _Target(points, mixture, propose, log_q, rngs.pop())
    return _metropolis(sweeper, target, schedule, gibbs_sweeps, rngs, progress)


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
    sweeper: Sweeper,
    target: _Target,
    schedule: Schedule,
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
            state = _polish(sweeper, target, state, gibbs_sweeps, rngs)
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
    sweeper: Sweeper,
    target: _Target,
    state: _Proposals,
    n_sweeps: int,
    rngs: list[np.random.Generator],
) -> _Proposals:
    labels, log_p = np.empty_like(state.labels), np.empty_like(state.log_p)
    sweeps = Sweeps(n_sweeps - 1, 1, labels[:, None], log_p[:, None])
    sweeper.run(sweeper.start(state.labels, rngs), sweeps, rngs)
    log_q = state.log_q.copy()
    moved = (labels != state.labels).any(axis=1)
    if moved.any():
        log_q[moved] = target.log_q(labels[moved])
    return _Proposals(labels, log_p, log_q)
