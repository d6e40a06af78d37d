"""Sweeps of algorithm 8, one parameter a cluster: for each likelihood with a density."""

from __future__ import annotations

from math import lgamma, log, pi
from typing import NamedTuple

import numpy as np
import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import DensityLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference.mcmc.collapsed import wishart_prior
from ncp.inference.mcmc.prior_tables import PriorTables, prior_tables
from ncp.inference.mcmc.sweeper import Apply, ChainSweeper, Rngs, Sweeper, Sweeps
from ncp.partitions import canonical

__all__ = ["DensitySweeper", "ParameterSweeper", "density_sweeper"]


class ParameterState(NamedTuple):
    """Labels (N,) of slots, parameters (slots, P), and moves to make before the first sweep."""

    labels: np.ndarray
    parameters: np.ndarray
    pending: list[int]


class ParameterSweeper(ChainSweeper):
    """Algorithm 8 for the density likelihoods of the package, compiled."""

    def __init__(
        self,
        x: np.ndarray,
        likelihood: DensityLikelihood,
        tables: PriorTables,
        n_auxiliary: int,
        kind: int,
        hyper: np.ndarray,
    ):
        self.x, self.likelihood, self.tables = x, likelihood, tables
        self.kind, self.hyper, self.n_auxiliary = kind, hyper, n_auxiliary

    def start_chain(self, labels: np.ndarray, rng: np.random.Generator) -> ParameterState:
        given = _best_parameters(torch.as_tensor(self.x), self.likelihood, labels, _generator(rng))
        parameters = np.zeros((len(self.x) + self.n_auxiliary, given.shape[1]))
        parameters[: len(given)] = given.numpy()
        return ParameterState(labels.copy(), parameters, [20 if len(given) else 0])

    def run_chain(self, state: ParameterState, sweeps: Sweeps, rng: np.random.Generator) -> None:
        from ncp.inference.mcmc.kernels import density_chain

        burn_in, thin, labels, log_joint = sweeps
        n_moves, state.pending[0] = state.pending[0], 0
        density_chain(
            self.kind, self.hyper, self.x, state.labels, state.parameters, *self.tables,
            self.n_auxiliary, n_moves, burn_in, thin, rng, labels, log_joint,
        )  # fmt: skip


def _generator(rng: np.random.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(rng.integers(2**62)))


def _best_parameters(
    x: torch.Tensor, likelihood: DensityLikelihood, labels: np.ndarray, generator: torch.Generator
) -> torch.Tensor:
    """For each cluster of a start the best of a few hundred draws from the base measure, (K, P)."""
    draws = likelihood.sample_parameters((256,), generator)
    if labels.min() < 0:
        return draws[:0]
    own = torch.as_tensor(labels)
    densities = likelihood.log_density(x[None], draws[None])[0]
    totals = densities.new_zeros(int(own.max()) + 1, len(draws)).index_add_(0, own, densities)
    return draws[totals.argmax(dim=1)]


class DensityState:
    """Chains of algorithm 8: labels (chains, N) and parameters (chains, K, P).

    K is the largest number of clusters among the chains; rows past a chain's own are further
    draws from the base measure, which nothing looks at.
    """

    def __init__(self, labels: np.ndarray, parameters: torch.Tensor, generator: torch.Generator):
        self.labels, self.parameters, self.generator = labels, parameters, generator
        self.accepted = np.zeros(len(labels))
        self.proposed = np.zeros(len(labels))


class DensitySweeper(Sweeper):
    """Algorithm 8 for any likelihood with a density, all chains at once.

    The auxiliary parameters of a block of points are drawn, and the densities of all points under
    them computed, in one go: a few tensor operations a sweep, and a compiled pass over the labels.
    """

    def __init__(
        self,
        x: np.ndarray,
        likelihood: DensityLikelihood,
        tables: PriorTables,
        n_auxiliary: int,
        n_moves: int,
    ):
        self.x, self.likelihood, self.tables = torch.as_tensor(x), likelihood, tables
        self.n_auxiliary, self.n_moves = n_auxiliary, n_moves
        draws = likelihood.sample_parameters((1000,), torch.Generator().manual_seed(0))
        self.steps = draws.quantile(0.75, dim=0) - draws.quantile(0.25, dim=0)
        self.has_prior = type(likelihood).log_prior is not DensityLikelihood.log_prior

    def start(self, labels: np.ndarray, rngs: Rngs) -> DensityState:
        generator = _generator(rngs[0])
        given = [_best_parameters(self.x, self.likelihood, row, generator) for row in labels]
        state = DensityState(labels.copy(), self._pad(given, generator), generator)
        if labels.min() >= 0:
            for _ in range(5):
                self._move(state)
        state.accepted[:] = state.proposed[:] = 0.0
        return state

    def acceptance(self, state: DensityState) -> np.ndarray:
        return state.accepted / state.proposed

    def run(self, state: DensityState, sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        n_chains, n_points = state.labels.shape
        block = max(1, 2**22 // (n_chains * self.n_auxiliary * n_points))  # 32 MB of densities
        for sweep in range(sweeps.total):
            for first in range(0, n_points, block):
                self._assign(state, first, min(first + block, n_points), rngs)
            log_density = self._move(state)
            row = sweeps.row(sweep)
            if row is not None:
                sweeps.labels[:, row] = canonical(state.labels).numpy()
                sweeps.log_joint[:, row] = log_density + [
                    self.tables.log_prob(np.bincount(labels)) for labels in sweeps.labels[:, row]
                ]

    def _pad(self, rows: list[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        longest = max(len(row) for row in rows)
        padded = self.likelihood.sample_parameters((len(rows), longest), generator)
        for out, row in zip(padded, rows, strict=True):
            out[: len(row)] = row
        return padded

    def _log_densities(self, parameters: torch.Tensor) -> torch.Tensor:
        """(chains, N, K)"""
        return self.likelihood.log_density(
            self.x.expand(len(parameters), *self.x.shape), parameters
        )

    def _assign(self, state: DensityState, first: int, last: int, rngs: Rngs) -> None:
        from ncp.inference.mcmc.kernels import assign_with_densities

        n_chains, known = state.parameters.shape[:2]
        shape = (n_chains, (last - first) * self.n_auxiliary)
        fresh = self.likelihood.sample_parameters(shape, state.generator)
        parameters = torch.cat([state.parameters, fresh], dim=1)
        densities = self._log_densities(parameters).mT.contiguous().numpy()
        kept = []
        for chain, labels in enumerate(state.labels):
            slots = assign_with_densities(
                densities[chain], known, first, last, labels,
                self.tables.join, self.tables.open, self.n_auxiliary, rngs[chain],
            )  # fmt: skip
            names = np.full(parameters.shape[1] + 1, -1)  # the last entry: -1 stays -1
            names[slots] = np.arange(len(slots))
            labels[:] = names[labels]
            kept.append(parameters[chain, torch.as_tensor(slots)])
        state.parameters = self._pad(kept, state.generator)

    def _log_likelihoods(self, labels: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        """log p(x in k | theta_k), of shape (chains, K)."""
        own = self._log_densities(parameters).gather(2, labels[..., None])[..., 0]
        total = torch.zeros(parameters.shape[:2], dtype=torch.float64)
        return total.scatter_add_(1, labels, own)

    def _log_priors(self, parameters: torch.Tensor) -> torch.Tensor:
        if self.has_prior:
            return self.likelihood.log_prior(parameters)
        return torch.zeros(parameters.shape[:2], dtype=torch.float64)

    def _move(self, state: DensityState) -> np.ndarray:
        """Metropolis steps for all clusters; returns log p(theta) + log p(x | c, theta), (chains,).

        The first proposal is from the base measure, accepted by the likelihood alone. Where the
        base measure's density is known random walks follow, their scale drawn afresh over three
        decades, since clusters of many points have narrow posteriors.
        """
        labels, theta, generator = torch.as_tensor(state.labels), state.parameters, state.generator
        real = torch.arange(theta.shape[1]) <= labels.amax(1, keepdim=True)
        fits, prior = self._log_likelihoods(labels, theta), self._log_priors(theta)
        for move in range(self.n_moves):
            walk = move > 0 and self.has_prior
            proposal = self._propose(theta, walk, generator)
            new_prior = self._log_priors(proposal)
            allowed = real & (new_prior > -torch.inf)
            proposal = torch.where(allowed[..., None], proposal, theta)
            new_fits = self._log_likelihoods(labels, proposal)
            log_ratio = new_fits - fits + (new_prior - prior if walk else 0.0)
            uniform = torch.rand(allowed.shape, dtype=torch.float64, generator=generator)
            accepted = allowed & (uniform.log() < log_ratio)
            theta = torch.where(accepted[..., None], proposal, theta)
            fits = torch.where(accepted, new_fits, fits)
            prior = torch.where(accepted, new_prior, prior)
            state.accepted += accepted.sum(1).numpy()
            state.proposed += real.sum(1).numpy()
        state.parameters = theta
        return np.asarray(torch.where(real, fits + prior, 0.0).sum(1).numpy())

    def _propose(self, theta: torch.Tensor, walk: bool, generator: torch.Generator) -> torch.Tensor:
        if not walk:
            return self.likelihood.sample_parameters(tuple(theta.shape[:2]), generator)
        uniform = torch.rand((*theta.shape[:2], 1), dtype=torch.float64, generator=generator)
        normal = torch.randn(theta.shape, dtype=torch.float64, generator=generator)
        return theta + self.steps * 10.0 ** (-3.0 * uniform) * normal


def density_sweeper(x: np.ndarray, mixture: Mixture, n_auxiliary: int, n_moves: int) -> Sweeper:
    """The sweeper of algorithm 8 for one data set (N, *event)."""
    likelihood = mixture.likelihood
    if not isinstance(likelihood, DensityLikelihood):
        raise ValueError(
            f"Expected a likelihood with a density but got {type(likelihood).__name__}"
        )
    tables = prior_tables(mixture.prior, len(x))
    built_in = _built_in(likelihood)
    if built_in is None:
        return DensitySweeper(x, likelihood, tables, n_auxiliary, n_moves)
    return ParameterSweeper(x, likelihood, tables, n_auxiliary, *built_in)


def _built_in(likelihood: DensityLikelihood) -> tuple[int, np.ndarray] | None:
    """The kernels' number of a likelihood and its constants, or None for a user's own.

    The constants are the spread of the base measure, the noise, the two radii, and the
    normalisers of the density and of the base measure; see `_wishart_constants` for the last kind.
    """
    if type(likelihood) is GaussianKnownVariance:
        dim, prior, noise = likelihood.dim, likelihood.prior_sd, likelihood.noise_sd
        density, base = _log_normaliser(dim, noise), _log_normaliser(dim, prior)
        return 0, np.array([prior, noise, 0.0, 0.0, density, base])
    if type(likelihood) is LaplaceNoise:
        dim, prior, noise = likelihood.dim, likelihood.prior_sd, likelihood.noise_scale
        density, base = -dim * log(2.0 * noise), _log_normaliser(dim, prior)
        return 1, np.array([prior, noise, 0.0, 0.0, density, base])
    if type(likelihood) is Ring:
        (low, high), prior, noise = likelihood.radius, likelihood.prior_sd, likelihood.noise_sd
        density, base = _log_normaliser(2, noise), _log_normaliser(2, prior) - log(high - low)
        return 2, np.array([prior, noise, low, high, density, base])
    if type(likelihood) is NormalInverseWishart:
        return 3, _wishart_constants(likelihood)
    return None


def _wishart_constants(likelihood: NormalInverseWishart) -> np.ndarray:
    """kappa, dof, two zeros, the normalisers, the prior mean and the scale's Cholesky factor."""
    dim = likelihood.dim
    kappa, dof, mean, factor = wishart_prior(likelihood)
    log_gamma = 0.25 * dim * (dim - 1) * log(pi)
    log_gamma += sum(lgamma(0.5 * (dof - j)) for j in range(dim))
    base = dof * float(np.log(np.diag(factor)).sum()) - 0.5 * dof * dim * log(2.0) - log_gamma
    base += dim * log(2.0) + 0.5 * dim * log(kappa) + _log_normaliser(dim, 1.0)
    numbers = [kappa, dof, 0.0, 0.0, _log_normaliser(dim, 1.0), base]
    return np.concatenate([numbers, mean, factor.ravel()])


def _log_normaliser(dim: int, sd: float) -> float:
    return -0.5 * dim * log(2.0 * pi * sd**2)
