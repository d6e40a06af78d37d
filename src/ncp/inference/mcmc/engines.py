"""The engines behind `ncp.inference.mcmc.gibbs`: a prior as tables, sweeps for each likelihood.

An engine advances the states of several chains. Those of the package's own likelihoods hand each
chain to a compiled kernel. `StatisticsEngine` and `DensityEngine` run a user's own likelihood
through its methods: slower, but with nothing to write beyond the likelihood.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import lgamma, log, pi
from typing import Any, NamedTuple

import numpy as np
import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import ConjugateLikelihood, DensityLikelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import Prior
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference.exact import conjugate_likelihood
from ncp.partitions import canonical

Rngs = list[np.random.Generator]
Apply = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]


class PriorTables(NamedTuple):
    """A prior of product form, p(c) = V(K) prod_k W(n_k) for N points, as arrays of length N + 1.

    Fields:
        join: join[n] = log W(n + 1)/W(n), the weight of a cluster of n other points.
        open: open[K] = log V(K + 1)/V(K), the weight of a new cluster beside K others.
        size: size[n] = log W(n).
        number: number[K] = log V(K).
    """

    join: np.ndarray
    open: np.ndarray
    size: np.ndarray
    number: np.ndarray

    def log_prob(self, sizes: np.ndarray) -> float:
        """log p(c) of a partition with these cluster sizes (K,)."""
        return float(self.number[len(sizes)] + self.size[sizes].sum())


def prior_tables(prior: Prior, n_points: int) -> PriorTables:
    """The tables of a prior, whose W(n) is Gamma(n - d)/Gamma(1 - d) with d its discount.

    Args:
        prior: any prior of the package (or a user's own).
        n_points: N.

    Example:
        >>> from ncp.generative.priors import CRP
        >>> tables = prior_tables(CRP(0.7), 5)
        >>> np.exp(tables.join[1:5]).round(6)
        array([1., 2., 3., 4.])
        >>> np.exp(tables.open[1:5]).round(6)
        array([0.7, 0.7, 0.7, 0.7])
    """
    join, open_, size, number = np.zeros((4, n_points + 1))
    join[1:] = np.log(np.arange(1, n_points + 1) - prior.discount)
    size[2:] = np.cumsum(join[1:n_points])
    number[0] = -np.inf
    number[1:] = prior.log_v(n_points, torch.arange(1, n_points + 1)).numpy()
    with np.errstate(invalid="ignore"):  # V(K) = 0 beyond some K: nothing opens there
        open_[1:n_points] = np.where(np.isneginf(number[2:]), -np.inf, np.diff(number[1:]))
    return PriorTables(join, open_, size, number)


class Sweeps(NamedTuple):
    """How many sweeps to run and where to write them.

    Fields:
        burn_in: sweeps not kept.
        thin: sweeps a draw after them.
        labels: of shape (chains, draws, N), or (draws, N) for one chain.
        log_joint: of shape (chains, draws), or (draws,).
    """

    burn_in: int
    thin: int
    labels: np.ndarray
    log_joint: np.ndarray

    @property
    def total(self) -> int:
        return self.burn_in + self.thin * int(self.log_joint.shape[-1])

    def row(self, sweep: int) -> int | None:
        """Where the state after this sweep is written, if at all."""
        row, rest = divmod(sweep + 1 - self.burn_in, self.thin)
        return row - 1 if row > 0 and rest == 0 else None

    def chain(self, chain: int) -> Sweeps:
        return self._replace(labels=self.labels[chain], log_joint=self.log_joint[chain])


class Engine(ABC):
    """What a run needs: the state of some chains, made from labels, and sweeps of it."""

    @abstractmethod
    def start(self, labels: np.ndarray, rngs: Rngs) -> Any:
        """A state at labels of shape (chains, N); -1 means not assigned yet."""

    @abstractmethod
    def run(self, state: Any, sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        """Advance the state. `apply` may run several chains at the same time."""

    def acceptance(self, state: Any) -> np.ndarray | None:
        """The share of accepted moves of each chain, (chains,), if any can be rejected."""
        return None


class ChainEngine(Engine):
    """An engine that knows one chain at a time."""

    def start_chain(self, labels: np.ndarray, rng: np.random.Generator) -> Any:
        return labels.copy()

    @abstractmethod
    def run_chain(self, state: Any, sweeps: Sweeps, rng: np.random.Generator) -> None: ...

    def start(self, labels: np.ndarray, rngs: Rngs) -> list[Any]:
        return [self.start_chain(row, rng) for row, rng in zip(labels, rngs, strict=True)]

    def run(self, state: list[Any], sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        def run_chain(chain: int) -> None:
            self.run_chain(state[chain], sweeps.chain(chain), rngs[chain])

        for _ in apply(run_chain, range(len(state))):
            pass


class GaussianEngine(ChainEngine):
    """Algorithm 3 for `GaussianKnownVariance`, compiled."""

    def __init__(self, x: np.ndarray, likelihood: GaussianKnownVariance, tables: PriorTables):
        n = np.arange(len(x) + 1)
        noise, ratio = likelihood.noise_sd**2, (likelihood.prior_sd / likelihood.noise_sd) ** 2
        dim = x.shape[1]
        shrink = ratio / (1.0 + n * ratio)  # posterior mean = shrink * sum
        variance = noise * (1.0 + shrink)
        marginal = -0.5 * dim * (n * log(2.0 * pi * noise) + np.log1p(n * ratio))
        constant = -0.5 * dim * np.log(2.0 * pi * variance)
        offset = -0.5 * float((x**2).sum()) / noise
        self.arguments = (
            *tables, shrink, 1.0 / variance, constant, marginal, 0.5 * shrink / noise, offset
        )  # fmt: skip
        self.x = x

    def run_chain(self, state: np.ndarray, sweeps: Sweeps, rng: np.random.Generator) -> None:
        from ncp.inference.mcmc.kernels import gaussian_chain

        burn_in, thin, labels, log_joint = sweeps
        gaussian_chain(self.x, state, *self.arguments, burn_in, thin, rng, labels, log_joint)


class WishartEngine(ChainEngine):
    """Algorithm 3 for `NormalInverseWishart`, compiled."""

    def __init__(self, x: np.ndarray, likelihood: NormalInverseWishart, tables: PriorTables):
        self.x = x
        dim = x.shape[1]
        kappa, dof, mean, factor = _wishart_prior(likelihood)
        n = np.arange(len(x) + 1)
        gammas = [lgamma(0.5 * (dof + m + 1)) - lgamma(0.5 * (dof + m + 1 - dim)) for m in n]
        constant = 0.5 * dim * (np.log1p(-1.0 / (kappa + n + 1)) - log(pi)) + np.array(gammas)
        marginal = dof * np.log(np.diag(factor)).sum() + np.append(0.0, np.cumsum(constant[:-1]))
        self.arguments = (*tables, kappa, dof, mean, factor, constant, marginal, 50)

    def run_chain(self, state: np.ndarray, sweeps: Sweeps, rng: np.random.Generator) -> None:
        from ncp.inference.mcmc.kernels import wishart_chain

        burn_in, thin, labels, log_joint = sweeps
        wishart_chain(self.x, state, *self.arguments, burn_in, thin, rng, labels, log_joint)


def _wishart_prior(likelihood: NormalInverseWishart) -> tuple[float, float, np.ndarray, np.ndarray]:
    """kappa, dof, mean (d,) and the lower Cholesky factor of the scale matrix (d, d)."""
    dim = likelihood.dim
    assert likelihood.dof is not None
    mean = np.broadcast_to(np.asarray(likelihood.mean, dtype=np.float64), (dim,)).copy()
    scale = np.asarray(likelihood.scale_matrix, dtype=np.float64)
    scale = scale if scale.ndim else scale * np.eye(dim)
    return likelihood.kappa, likelihood.dof, mean, np.linalg.cholesky(scale)


class StatisticsEngine(Engine):
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


def collapsed_engine(x: np.ndarray, mixture: Mixture) -> Engine:
    """The engine of algorithm 3 for one data set (N, *event)."""
    likelihood = conjugate_likelihood(mixture)
    tables = prior_tables(mixture.prior, len(x))
    # exact types: a subclass may have changed the formulas that the kernels have built in
    if type(likelihood) is GaussianKnownVariance:
        return GaussianEngine(x, likelihood, tables)
    if type(likelihood) is NormalInverseWishart:
        return WishartEngine(x, likelihood, tables)
    return StatisticsEngine(x, likelihood, tables)


class ParameterState(NamedTuple):
    """Labels (N,) of slots, parameters (slots, P), and moves to make before the first sweep."""

    labels: np.ndarray
    parameters: np.ndarray
    pending: list[int]


class ParameterEngine(ChainEngine):
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


class DensityEngine(Engine):
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


def density_engine(
    x: np.ndarray, mixture: Mixture, n_auxiliary: int, n_moves: int, compiled: bool = True
) -> Engine:
    """The engine of algorithm 8 for one data set (N, *event)."""
    likelihood = mixture.likelihood
    if not isinstance(likelihood, DensityLikelihood):
        raise ValueError(
            f"Expected a likelihood with a density but got {type(likelihood).__name__}"
        )
    tables = prior_tables(mixture.prior, len(x))
    built_in = _built_in(likelihood) if compiled else None
    if built_in is None:
        return DensityEngine(x, likelihood, tables, n_auxiliary, n_moves)
    return ParameterEngine(x, likelihood, tables, n_auxiliary, *built_in)


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
    kappa, dof, mean, factor = _wishart_prior(likelihood)
    log_gamma = 0.25 * dim * (dim - 1) * log(pi)
    log_gamma += sum(lgamma(0.5 * (dof - j)) for j in range(dim))
    base = dof * float(np.log(np.diag(factor)).sum()) - 0.5 * dof * dim * log(2.0) - log_gamma
    base += dim * log(2.0) + 0.5 * dim * log(kappa) + _log_normaliser(dim, 1.0)
    numbers = [kappa, dof, 0.0, 0.0, _log_normaliser(dim, 1.0), base]
    return np.concatenate([numbers, mean, factor.ravel()])


def _log_normaliser(dim: int, sd: float) -> float:
    return -0.5 * dim * log(2.0 * pi * sd**2)
