"""Sweeps of algorithm 3, parameters integrated out: for each conjugate likelihood."""

from __future__ import annotations

from math import lgamma, log, pi

import numpy as np
import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.likelihood import ConjugateLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference.exact import conjugate_likelihood
from ncp.inference.mcmc.prior_tables import PriorTables, prior_tables
from ncp.inference.mcmc.sweeper import Apply, ChainSweeper, Rngs, Sweeper, Sweeps
from ncp.partitions import canonical

__all__ = [
    "GaussianSweeper",
    "StatisticsSweeper",
    "WishartSweeper",
    "collapsed_sweeper",
    "wishart_prior",
]


class GaussianSweeper(ChainSweeper):
    """Algorithm 3 for `GaussianKnownVariance`, compiled."""

    def __init__(
        self, x: np.ndarray, likelihood: GaussianKnownVariance, tables: PriorTables, n_jumps: int
    ):
        n = np.arange(len(x) + 1)
        noise, ratio = likelihood.noise_sd**2, (likelihood.prior_sd / likelihood.noise_sd) ** 2
        dim = x.shape[1]
        shrink = ratio / (1.0 + n * ratio)  # posterior mean = shrink * sum
        variance = noise * (1.0 + shrink)
        marginal = -0.5 * dim * (n * log(2.0 * pi * noise) + np.log1p(n * ratio))
        constant = -0.5 * dim * np.log(2.0 * pi * variance)
        offset = -0.5 * float((x**2).sum()) / noise
        self.arguments = (
            *tables, shrink, 1.0 / variance, constant, marginal, 0.5 * shrink / noise, offset,
            n_jumps,
        )  # fmt: skip
        self.x = x

    def run_chain(self, state: np.ndarray, sweeps: Sweeps, rng: np.random.Generator) -> None:
        from ncp.inference.mcmc.kernels import gaussian_chain

        burn_in, thin, labels, log_joint = sweeps
        gaussian_chain(self.x, state, *self.arguments, burn_in, thin, rng, labels, log_joint)

    def move(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        from ncp.inference.mcmc.kernels import gaussian_moves

        rows = labels.copy()
        gaussian_moves(self.x, rows, *self.arguments, rng)
        return rows


class WishartSweeper(ChainSweeper):
    """Algorithm 3 for `NormalInverseWishart`, compiled."""

    def __init__(
        self, x: np.ndarray, likelihood: NormalInverseWishart, tables: PriorTables, n_jumps: int
    ):
        self.x = x
        dim = x.shape[1]
        kappa, dof, mean, factor = wishart_prior(likelihood)
        n = np.arange(len(x) + 1)
        gammas = [lgamma(0.5 * (dof + m + 1)) - lgamma(0.5 * (dof + m + 1 - dim)) for m in n]
        constant = 0.5 * dim * (np.log1p(-1.0 / (kappa + n + 1)) - log(pi)) + np.array(gammas)
        marginal = dof * np.log(np.diag(factor)).sum() + np.append(0.0, np.cumsum(constant[:-1]))
        self.arguments = (*tables, kappa, dof, mean, factor, constant, marginal, 50, n_jumps)

    def run_chain(self, state: np.ndarray, sweeps: Sweeps, rng: np.random.Generator) -> None:
        from ncp.inference.mcmc.kernels import wishart_chain

        burn_in, thin, labels, log_joint = sweeps
        wishart_chain(self.x, state, *self.arguments, burn_in, thin, rng, labels, log_joint)

    def move(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        from ncp.inference.mcmc.kernels import wishart_moves

        rows = labels.copy()
        wishart_moves(self.x, rows, *self.arguments, rng)
        return rows


def wishart_prior(likelihood: NormalInverseWishart) -> tuple[float, float, np.ndarray, np.ndarray]:
    """kappa, dof, mean (d,) and the lower Cholesky factor of the scale matrix (d, d)."""
    dim = likelihood.dim
    assert likelihood.dof is not None
    mean = np.broadcast_to(np.asarray(likelihood.mean, dtype=np.float64), (dim,)).copy()
    scale = np.asarray(likelihood.scale_matrix, dtype=np.float64)
    scale = scale if scale.ndim else scale * np.eye(dim)
    return likelihood.kappa, likelihood.dof, mean, np.linalg.cholesky(scale)


class StatisticsSweeper(Sweeper):
    """Algorithm 3 for a user's own conjugate likelihood: not compiled, but all chains at once.

    The state is labels of shape (chains, N). A new cluster takes the lowest free slot, so that
    the slots to look at stay few.
    """

    def __init__(self, x: np.ndarray, likelihood: ConjugateLikelihood, tables: PriorTables):
        self.likelihood, self.tables = likelihood, tables
        self.statistics = likelihood.statistics(torch.as_tensor(x)).double().numpy()  # (N, T)

    def start(self, labels: np.ndarray, rngs: Rngs) -> np.ndarray:
        return labels.copy()

    def run(self, state: np.ndarray, sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        chains = np.arange(len(state))
        n_points = state.shape[1]
        sizes = np.zeros((len(state), n_points + 1), dtype=np.int64)
        sums = np.zeros((*sizes.shape, self.statistics.shape[1]))  # (chains, slots, T)
        for i in range(n_points if state.min() >= 0 else 0):
            sizes[chains, state[:, i]] += 1
            sums[chains, state[:, i]] += self.statistics[i]
        for sweep in range(sweeps.total):
            uniform = np.stack([rng.random(n_points) for rng in rngs], axis=1)
            for i in range(n_points):
                if state[0, i] >= 0:
                    sizes[chains, state[:, i]] -= 1
                    sums[chains, state[:, i]] -= self.statistics[i]
                    sums[chains, state[:, i]] *= sizes[chains, state[:, i], None] > 0
                state[:, i] = self._draw_labels(sizes, sums, self.statistics[i], uniform[i])
                sizes[chains, state[:, i]] += 1
                sums[chains, state[:, i]] += self.statistics[i]
            row = sweeps.row(sweep)
            if row is not None:
                sweeps.labels[:, row] = canonical(state).numpy()
                sweeps.log_joint[:, row] = self._log_joint(sizes, sums)

    def _log_marginal(self, statistics: np.ndarray) -> np.ndarray:
        return np.asarray(self.likelihood.log_marginal_statistics(torch.as_tensor(statistics)))

    def _draw_labels(
        self, sizes: np.ndarray, sums: np.ndarray, point: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        """A slot for one point in every chain, by inversion; (chains,)."""
        used = np.flatnonzero(sizes.any(axis=0))
        width = used[-1] + 2 if len(used) else 1
        sizes, sums = sizes[:, :width], sums[:, :width]
        weights = np.where(sizes > 0, self.tables.join[sizes], -np.inf)
        chains, free = np.arange(len(sizes)), (sizes == 0).argmax(axis=1)
        weights[chains, free] = self.tables.open[(sizes > 0).sum(axis=1)]
        weights += self._log_marginal(sums + point) - self._log_marginal(sums)
        cumulative = np.exp(weights - weights.max(axis=1, keepdims=True)).cumsum(axis=1)
        return np.asarray((cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1))

    def _log_joint(self, sizes: np.ndarray, sums: np.ndarray) -> np.ndarray:
        prior = [self.tables.log_prob(row[row > 0]) for row in sizes]
        marginal = np.where(sizes > 0, self._log_marginal(sums), 0.0)
        return np.asarray(prior + marginal.sum(axis=1))


def collapsed_sweeper(x: np.ndarray, mixture: Mixture, n_jumps: int = 0) -> Sweeper:
    """The sweeper of algorithm 3 for one data set (N, *event).

    Args:
        x: the points, of shape (N, *event).
        mixture: a conjugate model.
        n_jumps: splits or merges proposed after every sweep (where compiled).
    """
    likelihood = conjugate_likelihood(mixture)
    tables = prior_tables(mixture.prior, len(x))
    # exact types: a subclass may have changed the formulas that the kernels have built in
    if type(likelihood) is GaussianKnownVariance:
        return GaussianSweeper(x, likelihood, tables, n_jumps)
    if type(likelihood) is NormalInverseWishart:
        return WishartSweeper(x, likelihood, tables, n_jumps)
    return StatisticsSweeper(x, likelihood, tables)
