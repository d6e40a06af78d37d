r"""Chains over a partition and its hyper-parameters, which are among a few settings.

    c | eta, x  by Gibbs sweeps with splits and merges at the setting eta,
    eta | c, x  proportional to  p(eta) p(c, x | eta), over all settings.

Both leave p(c, eta | x) invariant, and no evidence of any setting is needed: how often a setting is
visited is its posterior probability (the average of p(eta | c, x) over the visited c has a smaller
error), and ratios of these are ratios of evidences. Chains start at draws that a network made for
different settings, run in rounds each twice as long as the one before, and stop as those of
`ncp.inference.finish` do: when K, log p(c, x | eta), pairs of points and the settings agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ncp.generative.mixture import Mixture
from ncp.inference.finish import Finish, Goal, Judged, judge
from ncp.inference.mcmc.chains import ess_of_chains, split_r_hat
from ncp.inference.mcmc.collapsed import collapsed_sweeper
from ncp.inference.mcmc.schedule import spawn_generators
from ncp.inference.mcmc.sweeper import Rngs, Sweeper, Sweeps

__all__ = ["GridDraws", "SettingGrid", "grid_chains"]

SAMPLES = 1000  # that are handed on
SWEEPS = 3  # of the partition for each draw of a setting
FIRST_ROUND = 60  # draws
BURN_IN = 15  # draws before the first round
MOST_KEPT = 400  # draws of a chain and round


class SettingGrid(NamedTuple):
    """The settings that hyper-parameters are among.

    Attributes:
        x: the data, of shape (N, d).
        mixtures: the conjugate model at each of G settings.
        log_joints: log p(c, x | eta) + log p(eta) of label rows (R, N), of shape (G, R).
        codes: numbers that tell the settings apart, of shape (G, F): chains must agree in them.
    """

    x: Float64[np.ndarray, "n d"]
    mixtures: Sequence[Mixture]
    log_joints: Callable[[Int64[np.ndarray, "r n"]], Float64[np.ndarray, "g r"]]
    codes: Float64[np.ndarray, "g f"]


class GridDraws(NamedTuple):
    """Draws of p(c, eta | x).

    Attributes:
        labels: of shape (S, N).
        which: the setting of each, of shape (S,).
        probabilities: of the settings, of shape (G,).
        finish: whether the chains converged.
    """

    labels: Int64[np.ndarray, "s n"]
    which: Int64[np.ndarray, " s"]
    probabilities: Float64[np.ndarray, " g"]
    finish: Finish


class _Round(NamedTuple):
    labels: Int64[np.ndarray, "chains draws n"]
    which: Int64[np.ndarray, "chains draws"]
    log_joint: Float64[np.ndarray, "chains draws"]
    probabilities: Float64[np.ndarray, " g"]


def grid_chains(
    grid: SettingGrid,
    labels: Int64[np.ndarray, "u n"],
    which: Int64[np.ndarray, " u"],
    *,
    goal: Goal | None = None,
    seed: int | None = None,
) -> GridDraws:
    """Draws of partitions and settings, seeded by draws of something near to them.

    Args:
        grid: the settings.
        labels: canonical labels to start from, of shape (U, N).
        which: the setting of each, of shape (U,).
        goal: when to stop.
        seed: makes the result reproducible unless the time runs out.
    """
    goal = goal or Goal()
    rngs = spawn_generators(seed, goal.n_chains + 1)
    choose = rngs.pop()
    start = choose.integers(len(labels), size=goal.n_chains)
    chains = _GridChains(grid, labels[start].copy(), which[start].copy(), rngs, goal)
    kept, judged, in_time = chains.run(choose)
    n_chains, n_draws = kept.which.shape
    each = min(n_draws, -(-SAMPLES // n_chains))
    along = np.linspace(0, n_draws - 1, each).round().astype(np.int64)
    rows = kept.labels[:, along].swapaxes(0, 1).reshape(-1, labels.shape[1])
    settings = kept.which[:, along].T.reshape(-1)
    converged = in_time and judged.reaches(goal)
    seconds = time.thread_time() - chains.started
    how = Finish("chains", converged, judged.ess, judged.r_hat, chains.n_sweeps, seconds)
    return GridDraws(rows[:SAMPLES], settings[:SAMPLES], kept.probabilities, how)


class _GridChains:
    def __init__(
        self, grid: SettingGrid, labels: np.ndarray, which: np.ndarray, rngs: Rngs, goal: Goal
    ) -> None:
        self.grid, self.labels, self.which = grid, labels, which
        self.rngs, self.goal = rngs, goal
        self.sweepers: dict[int, Sweeper] = {}
        self.n_sweeps = 0
        self._step()  # compiles what is not
        self.started = time.thread_time()
        self.deadline = self.started + goal.time_limit

    def run(self, rng: np.random.Generator) -> tuple[_Round, Judged, bool]:
        length, kept = FIRST_ROUND, None
        self._round(BURN_IN)
        while True:
            found, in_time = self._round(length)
            if kept is None or in_time or found.which.shape[1] >= kept.which.shape[1]:
                kept = found
            judged = self._judge(kept, rng)
            if not in_time or judged.reaches(self.goal):
                return kept, judged, in_time or judged.reaches(self.goal)
            length *= 2

    def _judge(self, kept: _Round, rng: np.random.Generator) -> Judged:
        judged = judge(kept.labels, kept.log_joint, rng)
        if kept.which.shape[1] < 4:
            return judged
        codes = self.grid.codes[kept.which]
        columns = [codes[..., f] for f in range(codes.shape[2]) if np.ptp(codes[..., f]) > 0]
        ess = [ess_of_chains(column) for column in columns]
        r_hat = [split_r_hat(column) for column in columns]
        return Judged(min([judged.ess, *ess]), max([judged.r_hat, *r_hat]))

    def _round(self, length: int) -> tuple[_Round, bool]:
        thin = max(1, length // MOST_KEPT)
        draws, total, in_time = [], np.zeros(len(self.grid.mixtures)), True
        for i in range(length):
            log_joint, probabilities = self._step()
            total += probabilities
            if (i + 1) % thin == 0:
                draws.append((self.labels.copy(), self.which.copy(), log_joint))
            if time.thread_time() > self.deadline and draws:
                in_time = False
                break
        columns = [np.stack(column, axis=1) for column in zip(*draws, strict=True)]
        return _Round(columns[0], columns[1], columns[2], total / total.sum()), in_time

    def _step(self) -> tuple[Float64[np.ndarray, " chains"], Float64[np.ndarray, " g"]]:
        """A few sweeps of all chains, and new settings."""
        for g in np.unique(self.which):
            self._sweep(int(g))
        joints = self.grid.log_joints(self.labels)
        p = np.exp(joints - joints.max(axis=0))
        p /= p.sum(axis=0)
        u = np.array([rng.random() for rng in self.rngs])
        self.which = np.minimum((p.cumsum(axis=0) < u).sum(axis=0), len(p) - 1)
        return joints[self.which, np.arange(len(u))], p.mean(axis=1)

    def _sweep(self, g: int) -> None:
        here = np.flatnonzero(self.which == g)
        if g not in self.sweepers:
            self.sweepers[g] = collapsed_sweeper(self.grid.x, self.grid.mixtures[g], n_jumps=1)
        sweeper, rngs = self.sweepers[g], [self.rngs[i] for i in here]
        after, log_joint = np.empty((len(here), 1, len(self.grid.x)), np.int64), np.empty(len(here))
        sweeps = Sweeps(SWEEPS - 1, 1, after, log_joint[:, None])
        sweeper.run(sweeper.start(self.labels[here], rngs), sweeps, rngs)
        self.labels[here] = after[:, 0]
        self.n_sweeps += SWEEPS * len(here)
