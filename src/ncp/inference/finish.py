r"""The exact finish: what to do with draws of q whose weights are not enough.

Draws c_s ~ q(c | x) with weights p(c_s, x) / q(c_s | x) are exact up to Monte Carlo error where q
covers the posterior. Where it does not (`ncp.inference.importance.Report.verdict`), they still tell
where to look:

*A test of weights that seem good.* No weight tells of partitions that q never proposes. But draws
of the posterior stay such draws when each is moved by a kernel that leaves it invariant: `stays`
chooses draws by their weights, moves each by an exact sweep with splits and merges, and asks
whether any pair of points is together more often, or less, than before.

*Enumeration.* For a few points of a conjugate mixture the posterior is known, and draws of it cost
nothing.

*Chains.* Compiled Gibbs sweeps with splits and merges leave p(c | x) invariant and need no network.
A third of the chains start at draws chosen by their weights (resample, then move: right for many
draws however short the chains), a third at plain draws of q, and a third cold, at sequential draws
of the model, which know nothing of q: chains that start so differently and agree have forgotten
where they started. They run in rounds, each twice as long as the one before and judged alone, until

    split R-hat of K and of log p(c, x) <= max_r_hat   and   ESS >= min_ess

where the ESS is the smallest of those of K, of log p(c, x) and of the pairs [c_i = c_j], the last
ones from the spread of half chains: p (1 - p) / se^2. Or until the time is over, and the result
says so.

*What is known.* Draws of p(c | x) that obey a constraint C are draws of p(c | x, C). An enumeration
has all of them; of chains, which do not know C, those that obey are kept. They go on until these
are enough, and where they stay few there is no result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ncp.generative.mixture import Mixture
from ncp.inference.exact import check_data_set, posterior
from ncp.inference.importance import ess_of_means, resample_counts, some_pairs
from ncp.inference.mcmc.chains import ess_of_chains, split_r_hat
from ncp.inference.mcmc.collapsed import collapsed_sweeper
from ncp.inference.mcmc.density import density_sweeper
from ncp.inference.mcmc.schedule import Progress, spawn_generators
from ncp.inference.mcmc.sweeper import Rngs, Sweeper, Sweeps
from ncp.partitions import ArrayLike, check_labels

__all__ = ["Allow", "ExactDraws", "Finish", "Goal", "Judged", "finish", "judge", "stays"]

Method: TypeAlias = Literal["enumeration", "chains"]
Labels: TypeAlias = Int64[np.ndarray, "rows n"]
Allow: TypeAlias = Callable[[Labels], Bool[np.ndarray, " rows"]]

FEW_POINTS = 8  # of which all partitions are listed: 4,140
FIRST_ROUND = 100  # sweeps
BURN_IN = 20  # sweeps before the first round
KEPT = 500  # draws of a chain and round; longer rounds are thinned, unless more are needed
SHARE = 0.4  # of the samples that are asked for: what they are to be worth
LOOK = 0.5  # seconds, roughly, between looks at the clock
MOVED = 400  # draws that `stays` moves
MOVES = 4  # splits or merges of each, after a sweep
ENOUGH_OBEY = 100.0  # effective draws of chains that obey what is known
UNLIKELY = 4.0  # standard errors that a pair's probability may change by


@dataclass(frozen=True)
class Goal:
    """When chains are long enough, and when to stop anyway.

    Args:
        min_ess: effective number of draws of K, log joint and pairs.
        max_r_hat: split R-hat of K and log joint.
        time_limit: seconds of computing, so that a busy machine takes longer but says the same.
        n_chains: chains, at least 3.
        n_jumps: splits or merges proposed after every sweep.
    """

    min_ess: float = 400.0
    max_r_hat: float = 1.02
    time_limit: float = 5.0
    n_chains: int = 18
    n_jumps: int = 1

    def __post_init__(self) -> None:
        for name, least in (("min_ess", 1.0), ("max_r_hat", 1.0), ("n_chains", 3)):
            if not getattr(self, name) >= least:
                raise ValueError(f"Expected {name} >= {least} but got {getattr(self, name)}")
        if not self.time_limit > 0:
            raise ValueError(f"Expected time_limit > 0 but got {self.time_limit}")

    @classmethod
    def of(cls, n_samples: int | None, time_limit: float) -> Goal:
        """For so many samples: who asks for many wants small errors, and waits for them.

        Args:
            n_samples: how many the caller asks for; None if nobody said.
            time_limit: seconds of computing.

        Example:
            >>> Goal.of(1000, 5.0).min_ess, Goal.of(20_000, 5.0).min_ess
            (400.0, 8000.0)
        """
        return cls(min_ess=max(cls.min_ess, SHARE * (n_samples or 0)), time_limit=time_limit)

    @property
    def kept(self) -> int:
        """Draws of a chain and round, at most: enough for the effective number."""
        return max(KEPT, math.ceil(2 * self.min_ess / self.n_chains))


@dataclass(frozen=True)
class Finish:
    """How exact draws were obtained.

    Attributes:
        method: "enumeration" or "chains".
        converged: whether the goal was reached in time.
        ess: how many independent draws they are worth at least.
        r_hat: the larger split R-hat; 1 for an enumeration.
        n_sweeps: sweeps of all chains.
        seconds: of computing that it took.
        log_evidence: log p(x), which an enumeration knows.
    """

    method: Method
    converged: bool
    ess: float
    r_hat: float = 1.0
    n_sweeps: int = 0
    seconds: float = 0.0
    log_evidence: float | None = None


class ExactDraws(NamedTuple):
    """Draws of p(c | x), each distinct partition once.

    Attributes:
        labels: of shape (U, N).
        counts: how many draws each row stands for, of shape (U,).
        finish: how they were obtained.
    """

    labels: Labels
    counts: Int64[np.ndarray, " rows"]
    finish: Finish


def finish(
    x: ArrayLike,
    mixture: Mixture,
    labels: ArrayLike,
    weights: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    n_samples: int = 1000,
    goal: Goal | None = None,
    seed: int | None = None,
    allow: Allow | None = None,
    progress: Progress | None = None,
) -> ExactDraws:
    """Exact draws of p(c | x), seeded by draws of something near to it.

    Args:
        x: one data set of shape (N, *event).
        mixture: the model; its likelihood is conjugate or has a density.
        labels: canonical labels of the seeds, of shape (U, N).
        weights: their importance weights, in any scale, of shape (U,).
        counts: how often each was drawn, of shape (U,); once when left out.
        n_samples: the number of draws wanted.
        goal: when to stop.
        seed: makes the result reproducible unless the time runs out.
        allow: which rows of labels obey what is known; there are no draws if those of chains
            that do are worth less than `ENOUGH_OBEY`.
        progress: called with (sweeps done, sweeps of the round) now and then.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> draws = finish([[0.0], [0.5], [9.0]], mixture, [[0, 0, 0]], [1.0], seed=0)
        >>> draws.labels[draws.counts.argmax()].tolist(), draws.finish.method
        ([0, 0, 1], 'enumeration')
    """
    points = np.ascontiguousarray(check_data_set(x, mixture).numpy())
    rows = check_labels(labels, n_points=len(points)).numpy()
    goal = goal or Goal()
    if mixture.is_conjugate and len(points) <= FEW_POINTS:
        return _enumerate(points, mixture, n_samples, seed, allow)
    rngs = spawn_generators(seed, goal.n_chains + 1)
    choose = rngs.pop()
    sweeper = _sweeper(points, mixture, goal.n_jumps)
    seeds = _choose_seeds(rows, weights, counts, goal.n_chains - goal.n_chains // 3, choose)
    cold = _cold_starts(sweeper, len(points), rngs[: goal.n_chains // 3])
    started = time.thread_time()  # now that everything is compiled
    state = sweeper.start(np.concatenate([seeds, cold]), rngs)
    chains = _Rounds(sweeper, state, rngs, len(points), goal, progress, choose, allow)
    drawn, judged, n_sweeps, in_time = chains.run()
    converged = in_time and judged.reaches(goal)
    if allow is not None:
        drawn = _obeying(drawn, allow)[:, : None if judged.ess >= ENOUGH_OBEY else 0]
    found, n = _spread(drawn, n_samples)
    seconds = time.thread_time() - started
    how = Finish("chains", converged, judged.ess, judged.r_hat, n_sweeps, seconds)
    return ExactDraws(found, n, how)


def stays(
    x: ArrayLike,
    mixture: Mixture,
    labels: ArrayLike,
    weights: ArrayLike,
    seed: int | None = None,
) -> bool:
    """Whether weighted draws look the same after moves that leave p(c | x) invariant.

    Args:
        x: one data set of shape (N, *event).
        mixture: the model; its likelihood is conjugate or has a density.
        labels: canonical labels of the draws, of shape (U, N).
        weights: of the draws, in any scale, of shape (U,).
        seed: of the moves.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> stays([[0.0], [0.5], [9.0]], mixture, [[0, 0, 0]], [1.0], seed=0)
        False
    """
    points = np.ascontiguousarray(check_data_set(x, mixture).numpy())
    rows = check_labels(labels, n_points=len(points)).numpy()
    n = MOVED if mixture.is_conjugate else MOVED // 4  # parameters take their time
    rng = np.random.default_rng(seed)
    before = np.repeat(rows, resample_counts(weights, n, int(rng.integers(2**31))), axis=0)
    after = _sweeper(points, mixture, n_jumps=MOVES).move(before, rng)
    moved = (after != before).any(axis=1)  # often few
    before, after = before[moved], after[moved]
    i, j = some_pairs(len(points), rng)
    change = (after[:, i] == after[:, j]).astype(float) - (before[:, i] == before[:, j])
    mean = change.sum(axis=0) / n
    error = np.sqrt((np.square(change).sum(axis=0) / n - mean**2) / n + 1.0 / n**2)
    return bool((np.abs(mean) <= UNLIKELY * error).all())


def _sweeper(points: np.ndarray, mixture: Mixture, n_jumps: int) -> Sweeper:
    if mixture.is_conjugate:
        return collapsed_sweeper(points, mixture, n_jumps)
    return density_sweeper(points, mixture, n_auxiliary=3, n_moves=5)


def _enumerate(
    points: np.ndarray, mixture: Mixture, n_samples: int, seed: int | None, allow: Allow | None
) -> ExactDraws:
    started = time.thread_time()
    exact = posterior(points, mixture)
    labels, log_p, total = exact.labels, exact.log_prob, 0.0
    if allow is not None:
        obey = allow(labels)
        labels, log_p = labels[obey], log_p[obey]
        total = float(np.logaddexp.reduce(log_p))
    n = resample_counts(np.exp(log_p - total), n_samples, seed)
    seconds = time.thread_time() - started
    evidence = exact.log_evidence + total
    how = Finish("enumeration", True, float(n_samples), seconds=seconds, log_evidence=evidence)
    return ExactDraws(labels[n > 0], n[n > 0], how)


def _choose_seeds(
    rows: Labels,
    weights: ArrayLike,
    counts: ArrayLike | None,
    n: int,
    rng: np.random.Generator,
) -> Int64[np.ndarray, "chains n"]:
    """Half of them by their weights, half as they were drawn."""
    weighted = np.asarray(weights, dtype=np.float64)
    plain = np.ones(len(rows)) if counts is None else np.asarray(counts, dtype=np.float64)
    if weighted.shape != (len(rows),) or plain.shape != (len(rows),):
        raise ValueError(
            f"Expected {len(rows)} weights and counts but got {weighted.shape} and {plain.shape}"
        )
    first = resample_counts(weighted, n // 2, int(rng.integers(2**31)))
    second = resample_counts(plain, n - n // 2, int(rng.integers(2**31)))
    return np.concatenate([np.repeat(rows, first, axis=0), np.repeat(rows, second, axis=0)])


def _cold_starts(sweeper: Sweeper, n_points: int, rngs: Rngs) -> Int64[np.ndarray, "chains n"]:
    """Each point given those before it: one sweep from nothing."""
    nothing = np.full((len(rngs), n_points), -1)
    labels, log_joint = np.empty((len(rngs), 1, n_points), np.int64), np.empty((len(rngs), 1))
    sweeper.run(sweeper.start(nothing, rngs), Sweeps(0, 1, labels, log_joint), rngs)
    return labels[:, 0]


def _obeying(
    labels: Int64[np.ndarray, "chains draws n"], allow: Allow
) -> Int64[np.ndarray, "1 obeying n"]:
    """The draws of all chains that obey, as those of one."""
    rows = labels.swapaxes(0, 1).reshape(-1, labels.shape[2])
    return rows[allow(rows)][None]


def _spread(
    labels: Int64[np.ndarray, "chains draws n"], n_samples: int
) -> tuple[Labels, Int64[np.ndarray, " rows"]]:
    """So many draws, evenly from all chains and along each, as distinct rows with counts."""
    n_chains, n_draws, n_points = labels.shape
    each = min(n_draws, -(-n_samples // n_chains))
    along = np.linspace(0, n_draws - 1, each).round().astype(np.int64)
    rows = labels[:, along].swapaxes(0, 1).reshape(-1, n_points)[:n_samples]
    distinct, n = np.unique(rows, axis=0, return_counts=True)
    return distinct, n


class Judged(NamedTuple):
    """What the draws of one round are worth."""

    ess: float
    r_hat: float

    def reaches(self, goal: Goal) -> bool:
        return self.ess >= goal.min_ess and self.r_hat <= goal.max_r_hat


def judge(
    labels: Int64[np.ndarray, "chains draws n"],
    log_joint: Float64[np.ndarray, "chains draws"],
    rng: np.random.Generator,
) -> Judged:
    """Effective number and R-hat of the draws of chains, by K, log joint and pairs of points."""
    if log_joint.shape[1] < 4:
        return Judged(0.0, np.inf)
    k = labels.max(axis=2) + 1.0
    worth = [ess_of_chains(k), ess_of_chains(log_joint), _ess_of_pairs(labels, rng)]
    return Judged(min(worth), max(split_r_hat(k), split_r_hat(log_joint)))


def _ess_of_pairs(labels: Int64[np.ndarray, "chains draws n"], rng: np.random.Generator) -> float:
    """Of pairs, by the means of half chains."""
    n_chains, n_draws, n_points = labels.shape
    i, j = some_pairs(n_points, rng)
    half = n_draws // 2
    halves = np.concatenate([labels[:, :half], labels[:, -half:]])
    means = np.stack([(chain[:, i] == chain[:, j]).mean(axis=0) for chain in halves])
    return min(float(n_chains * n_draws), ess_of_means(means))


class _Rounds:
    """Rounds of sweeps of all chains, each twice as long as the one before, until judged good."""

    def __init__(
        self,
        sweeper: Sweeper,
        state: Any,
        rngs: Rngs,
        n_points: int,
        goal: Goal,
        progress: Progress | None,
        rng: np.random.Generator,
        allow: Allow | None,
    ) -> None:
        self.sweeper, self.state, self.rngs, self.goal = sweeper, state, rngs, goal
        self.n_points, self.progress, self.allow = n_points, progress, allow
        self.deadline = time.thread_time() + goal.time_limit
        self.rng, self.n_sweeps = rng, 0

    def run(self) -> tuple[Int64[np.ndarray, "chains draws n"], Judged, int, bool]:
        """Draws of the last round, what they are worth, sweeps in all, whether it ended in time."""
        kept: tuple[np.ndarray, np.ndarray] | None = None
        length, burn_in = FIRST_ROUND, BURN_IN
        while True:
            labels, log_joint, in_time = self._round(length, burn_in)
            # a round cut short by the clock counts if it is longer than the whole one before it
            if kept is None or in_time or log_joint.shape[1] >= kept[1].shape[1]:
                kept = labels, log_joint
            every = judge(*kept, self.rng)
            share = self._share(kept[0])
            judged = every._replace(ess=share * every.ess)
            # where chains agree and nothing obeys, no time that one would wait is enough
            hopeless = share == 0.0 and every.reaches(self.goal)
            if not in_time or hopeless or judged.reaches(self.goal):
                return kept[0], judged, self.n_sweeps, in_time or judged.reaches(self.goal)
            length, burn_in = 2 * length, 0

    def _share(self, labels: Int64[np.ndarray, "chains draws n"]) -> float:
        """Of draws that obey what is known."""
        if self.allow is None:
            return 1.0
        return float(self.allow(labels.reshape(-1, self.n_points)).mean())

    def _round(self, length: int, burn_in: int) -> tuple[np.ndarray, np.ndarray, bool]:
        thin = max(1, length // self.goal.kept)
        n_draws, n_chains = length // thin, len(self.rngs)
        labels = np.empty((n_chains, n_draws, self.n_points), dtype=np.int64)
        log_joint = np.empty((n_chains, n_draws))
        # by a fixed rate and not by the clock: what a chain draws depends on where a block ends
        rate = self.sweeper.point_rate / (n_chains * self.n_points)
        block = max(1, int(LOOK * rate) // thin)
        for first in range(0, n_draws, block):
            rows = slice(first, min(first + block, n_draws))
            sweeps = Sweeps(burn_in, thin, labels[:, rows], log_joint[:, rows])
            self.sweeper.run(self.state, sweeps, self.rngs)
            self.n_sweeps += sweeps.total * n_chains
            burn_in = 0
            if self.progress is not None:
                self.progress(rows.stop, n_draws)
            if time.thread_time() > self.deadline:
                return labels[:, : rows.stop], log_joint[:, : rows.stop], False
        return labels, log_joint, True
