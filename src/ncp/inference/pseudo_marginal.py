r"""Joint densities of mixtures whose parameters cannot be integrated out in closed form.

For a cluster with points x_S, a prior p(mu) and a density p(x | mu), the marginal likelihood

    m(S) = int dmu p(mu) prod_{i in S} p(x_i | mu)

is estimated without bias by M draws of any density r(mu) that covers the integrand,

    m_hat(S) = (1/M) sum_j p(mu_j) p(x_S | mu_j) / r(mu_j),    mu_j ~ r.

The estimates of different clusters are independent, so that p(c) prod_k m_hat(S_k) is an unbiased
estimate of p(c, x), and importance weights made of it remain exact: the expectation of w r(c) over
partitions *and* estimates is what it was (Andrieu and Roberts 2009). They vary more, and the
effective sample size and the error of the evidence see by how much. The same cluster occurs in many
samples; it is integrated once.

*The proposal r.* A population starts at a first guess r_0 (the prior, or what the likelihood knows
of clusters through a given point) and is tempered to the posterior of mu,

    pi_b(mu)  proportional to  r_0(mu)^(1 - b) (p(mu) p(x_S | mu))^b,    b from 0 to 1,

by resampling and random walks, with steps of b that keep half of the population. r is a tenth of
r_0 and nine tenths of a mixture of Student's t around its members: whatever has become of the
population, r covers what r_0 covers, and fresh draws of it make the estimate unbiased. All clusters
are worked on together. A likelihood without `log_prior` gets draws of its prior only, which is
unbiased as well and as good as the prior is near.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import DensityLikelihood
from ncp.generative.mixture import Mixture
from ncp.inference.exact import check_data_set
from ncp.partitions import ArrayLike, check_labels

__all__ = ["LogMarginals", "PseudoMarginal", "log_marginals"]

POPULATION = 128  # members that are tempered
CENTRES = 64  # of them, around which the proposal is
TAIL = 4.0  # degrees of freedom of the kernels: posteriors of few points have heavy tails
GUESSES = 0.1  # share of the proposal that is the first guess
STEPS = 100  # of tempering, at most; a narrow posterior takes about twenty
WALKS = 2  # random walks after each
AT_ONCE = 2**21  # densities held at once


class LogMarginals(NamedTuple):
    """Estimates of log m of some clusters.

    Attributes:
        value: of shape (C,).
        standard_error: of the same, from the spread of the draws, of shape (C,).
    """

    value: Float64[Tensor, " c"]
    standard_error: Float64[Tensor, " c"]


class PseudoMarginal:
    """log p(c, x) of a mixture whose likelihood has a density, every distinct cluster once.

    Args:
        mixture: the model.
        n_draws: M, of the parameters of each cluster.

    Example:
        >>> from ncp.generative.laplace import LaplaceNoise
        >>> from ncp.generative.priors import CRP
        >>> joint = PseudoMarginal(Mixture(CRP(0.7), LaplaceNoise(dim=1)))
        >>> near, far = joint.log_joint([[0.0], [0.5]], [[0, 0], [0, 1]])
        >>> bool(near > far)
        True
    """

    def __init__(self, mixture: Mixture, n_draws: int = 400) -> None:
        if not isinstance(mixture.likelihood, DensityLikelihood):
            raise ValueError(
                f"Expected a likelihood with a density but got {type(mixture.likelihood).__name__}"
            )
        self.mixture, self.likelihood = mixture, mixture.likelihood
        self.n_draws = n_draws
        self._of: bytes = b""
        self._known: dict[bytes, float] = {}

    def log_joint(self, x: ArrayLike, labels: ArrayLike) -> Float64[np.ndarray, "*batch"]:
        """log p(c) + sum_k log m_hat(S_k), for many label rows of one data set.

        Args:
            x: points of shape (N, *event).
            labels: canonical labels of shape (..., N).

        Returns:
            Estimates of shape (...).
        """
        points = check_data_set(x, self.mixture)
        rows = check_labels(labels, n_points=len(points))
        flat = rows.reshape(-1, len(points)).numpy()
        if points.numpy().tobytes() != self._of:
            self._of, self._known = points.numpy().tobytes(), {}
        keys = [[(row == k).tobytes() for k in range(row.max() + 1)] for row in flat]
        self._integrate(points, {key for row in keys for key in row} - self._known.keys())
        marginal = np.array([sum(self._known[key] for key in row) for row in keys])
        log_prior = self.mixture.prior.log_prob(rows).numpy()
        return np.asarray(log_prior + marginal.reshape(rows.shape[:-1]))

    def _integrate(self, points: Tensor, new: set[bytes]) -> None:
        if not new:
            return
        ordered = sorted(new)
        members = np.stack([np.frombuffer(key, dtype=bool) for key in ordered])
        generator = torch.Generator().manual_seed(len(self._known))
        found = log_marginals(self.likelihood, points, members, self.n_draws, generator)
        self._known.update(zip(ordered, found.value.tolist(), strict=True))


def log_marginals(
    likelihood: DensityLikelihood,
    x: Float64[Tensor, " n *event"],
    members: Bool[np.ndarray, "c n"],
    n_draws: int = 400,
    generator: torch.Generator | None = None,
) -> LogMarginals:
    """Estimates of log m(S) for subsets of the points; each m_hat is unbiased, all independent.

    Args:
        likelihood: with a density.
        x: points of shape (N, *event).
        members: which points each cluster has, at least one, of shape (C, N).
        n_draws: M, of the parameters of each.
        generator: the source of randomness.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> likelihood = GaussianKnownVariance(dim=1)
        >>> both = np.array([[True, True]])
        >>> found = log_marginals(likelihood, x, both, 4000, torch.Generator().manual_seed(0))
        >>> bool(abs(found.value[0] - likelihood.log_marginal(x, [0, 0])) < 0.1)
        True
    """
    value = torch.empty(len(members), dtype=torch.float64)
    error = torch.empty(len(members), dtype=torch.float64)
    for index in _chunks(members.sum(1), max(n_draws, POPULATION)):
        clusters = _Clusters(likelihood, x, members[index])
        log_w = _log_weights(clusters, n_draws, generator)
        top = log_w.amax(dim=1, keepdim=True)
        w = (log_w - top).exp()
        value[index] = top[:, 0] + w.mean(dim=1).log()
        error[index] = w.std(dim=1) / w.mean(dim=1) / math.sqrt(n_draws)
    return LogMarginals(value, error)


def _chunks(sizes: Int64[np.ndarray, " c"], n_draws: int) -> Iterator[Int64[np.ndarray, " chunk"]]:
    """Clusters of similar sizes together, so that little is padded, and not too many at once."""
    order, first = np.argsort(sizes, kind="stable"), 0
    while first < len(order):
        last = first + 1
        while last < len(order) and (last + 1 - first) * sizes[order[last]] * n_draws <= AT_ONCE:
            last += 1
        yield order[first:last]
        first = last


class _Clusters:
    """The points of some clusters, padded, and the densities of parameters (C, M, P) for them."""

    def __init__(
        self, likelihood: DensityLikelihood, x: Tensor, members: Bool[np.ndarray, "c n"]
    ) -> None:
        sizes = members.sum(1)
        # members first, in their order, then others that the mask leaves out
        order = np.argsort(~members, axis=1, kind="stable")[:, : sizes.max()]
        self.likelihood, self.x = likelihood, x[torch.as_tensor(order)]
        self.mask = torch.arange(int(sizes.max())) < torch.as_tensor(sizes)[:, None]  # (C, n)
        self.first = self.x[:, 0]
        self.has_prior = type(likelihood).log_prior is not DensityLikelihood.log_prior

    def guess(self, n: int, generator: torch.Generator | None) -> Float64[Tensor, "c m p"]:
        return self.likelihood.propose_parameters(self.first, n, generator)

    def log_guess(self, theta: Float64[Tensor, "c m p"]) -> Float64[Tensor, "c m"]:
        return self.likelihood.log_proposal(self.first, theta)

    def log_fit(self, theta: Float64[Tensor, "c m p"]) -> Float64[Tensor, "c m"]:
        """log p(x_S | mu)."""
        each = self.likelihood.log_density(self.x, theta)  # (C, n, M)
        return torch.where(self.mask[..., None], each, 0.0).sum(dim=1)

    def log_target(self, theta: Float64[Tensor, "c m p"]) -> Float64[Tensor, "c m"]:
        """log p(mu) p(x_S | mu); -infinity, and no density asked for, where mu cannot be."""
        log_prior = self.likelihood.log_prior(theta)
        possible = log_prior > -math.inf
        # a cluster's first possible member stands in for those that cannot be
        stand_in = theta.gather(
            1, _first_true(possible)[:, None, None].expand(-1, 1, theta.shape[2])
        )
        safe = torch.where(possible[..., None], theta, stand_in)
        return torch.where(possible, log_prior + self.log_fit(safe), -math.inf)


def _first_true(mask: Bool[Tensor, "c m"]) -> Int64[Tensor, " c"]:
    return mask.to(torch.uint8).argmax(dim=1)


def _log_weights(
    clusters: _Clusters, n_draws: int, generator: torch.Generator | None
) -> Float64[Tensor, "c m"]:
    """log p(mu_j) p(x_S | mu_j) / r(mu_j) of M draws of r."""
    if not clusters.has_prior:
        return clusters.log_fit(clusters.guess(n_draws, generator))
    kernels = _Kernels(_temper(clusters, generator), clusters.log_guess, generator)
    n_guesses = max(1, round(GUESSES * n_draws))
    guesses = clusters.guess(n_guesses, generator)
    theta = torch.cat([guesses, kernels.draw(n_draws - n_guesses)], dim=1)
    log_r = kernels.log_density(theta, n_guesses / n_draws)
    return clusters.log_target(theta) - log_r


class _Kernels:
    """A mixture of Student's t around members of a population (C, B, P), and the first guess."""

    def __init__(
        self,
        population: Float64[Tensor, "c b p"],
        log_guess: Any,
        generator: torch.Generator | None,
    ) -> None:
        self.centres, self.log_guess = population[:, :CENTRES], log_guess
        self.generator = generator
        n, p = self.centres.shape[1:]
        width = (4.0 / ((p + 2.0) * n)) ** (1.0 / (p + 4.0))  # Silverman's
        self.root = width * _root(population)  # (C, P, P), lower

    def draw(self, n: int) -> Float64[Tensor, "c n p"]:
        """As many around each centre as around every other, up to one."""
        c, b, p = self.centres.shape
        which = torch.arange(n) % b
        noise = torch.randn((c, n, p), dtype=torch.float64, generator=self.generator)
        stretch = (TAIL / _chi_square((c, n, 1), self.generator)).sqrt()
        drawn: Tensor = self.centres[:, which] + stretch * (noise @ self.root.mT)
        return drawn

    def log_density(
        self, theta: Float64[Tensor, "c m p"], guesses: float
    ) -> Float64[Tensor, "c m"]:
        b, p = self.centres.shape[1:]
        solve = torch.linalg.solve_triangular
        z = solve(self.root, theta.mT, upper=False)  # (C, P, M)
        centres = solve(self.root, self.centres.mT, upper=False)
        square = torch.cdist(z.mT, centres.mT).square()  # (C, M, B)
        log_volume = self.root.diagonal(dim1=1, dim2=2).log().sum(dim=1)[:, None]
        constant = math.lgamma(0.5 * (TAIL + p)) - math.lgamma(0.5 * TAIL)
        constant += math.log((1.0 - guesses) / b) - 0.5 * p * math.log(TAIL * math.pi)
        shape = -0.5 * (TAIL + p) * torch.log1p(square / TAIL)
        near = shape.logsumexp(dim=2) - log_volume + constant
        return torch.logaddexp(near, self.log_guess(theta) + math.log(guesses))


def _chi_square(
    shape: tuple[int, ...], generator: torch.Generator | None
) -> Float64[Tensor, "*shape"]:
    """With `TAIL` degrees of freedom, as a sum of squares: torch's own takes no generator."""
    return (
        torch.randn((*shape, int(TAIL)), dtype=torch.float64, generator=generator).square().sum(-1)
    )


def _root(population: Float64[Tensor, "c m p"]) -> Float64[Tensor, "c p p"]:
    """The Cholesky factor of each population's covariance, never singular."""
    centred = population - population.mean(dim=1, keepdim=True)
    covariance = centred.mT @ centred / population.shape[1]
    scale = covariance.diagonal(dim1=1, dim2=2)
    covariance = covariance + torch.diag_embed(1e-6 * scale + 1e-12)
    root: Tensor = torch.linalg.cholesky(covariance)
    return root


def _temper(clusters: _Clusters, generator: torch.Generator | None) -> Float64[Tensor, "c m p"]:
    """A population from the first guess to the posterior of each cluster's parameters."""
    theta = clusters.guess(POPULATION, generator)
    state = _Population(theta, clusters.log_target(theta), clusters.log_guess(theta))
    power = torch.zeros(len(theta), dtype=torch.float64)
    for _ in range(STEPS):
        step = _step(state.log_target - state.log_guess, 1.0 - power)
        state = _resample(state, step, generator)
        power = power + step
        root = 2.38 / math.sqrt(theta.shape[2]) * _root(state.theta)
        for _ in range(WALKS):
            state = _walk(clusters, state, power, root, generator)
        if bool((power >= 1.0).all()):
            break
    return state.theta


class _Population(NamedTuple):
    theta: Float64[Tensor, "c m p"]
    log_target: Float64[Tensor, "c m"]
    log_guess: Float64[Tensor, "c m"]

    def take(self, index: Int64[Tensor, "c m"]) -> _Population:
        wide = index[..., None].expand(*index.shape, self.theta.shape[2])
        return _Population(
            self.theta.gather(1, wide),
            self.log_target.gather(1, index),
            self.log_guess.gather(1, index),
        )


def _step(log_ratio: Float64[Tensor, "c m"], most: Float64[Tensor, " c"]) -> Float64[Tensor, " c"]:
    """The largest step at which weights exp(step log_ratio) are worth half of the population."""

    def worth(step: Float64[Tensor, " c"]) -> Float64[Tensor, " c"]:
        log_w = torch.where(log_ratio > -math.inf, step[:, None] * log_ratio, -math.inf)
        return (2 * log_w.logsumexp(dim=1) - (2 * log_w).logsumexp(dim=1)).exp()

    low, high = torch.zeros_like(most), most.clone()
    enough = 0.5 * log_ratio.shape[1]
    for _ in range(30):
        middle = 0.5 * (low + high)
        fine = worth(middle) >= enough
        low, high = torch.where(fine, middle, low), torch.where(fine, high, middle)
    # at least a little, where so many members cannot be that half of them never remain
    return torch.where(worth(most) >= enough, most, torch.minimum(low.clamp(min=1e-4), most))


def _resample(
    state: _Population, step: Float64[Tensor, " c"], generator: torch.Generator | None
) -> _Population:
    """Systematic, by weights (target / guess)^step."""
    log_ratio = state.log_target - state.log_guess
    log_w = torch.where(log_ratio > -math.inf, step[:, None] * log_ratio, -math.inf)
    edges = log_w.softmax(dim=1).cumsum(dim=1)
    c, m = edges.shape
    offset = torch.rand((c, 1), dtype=torch.float64, generator=generator)
    places = (torch.arange(m) + offset) / m * edges[:, -1:]
    return state.take(torch.searchsorted(edges, places).clamp(max=m - 1))


def _walk(
    clusters: _Clusters,
    state: _Population,
    power: Float64[Tensor, " c"],
    root: Float64[Tensor, "c p p"],
    generator: torch.Generator | None,
) -> _Population:
    """One Metropolis step of every member, its length drawn afresh over a decade."""
    shape = state.theta.shape
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    length = 10.0 ** -torch.rand((*shape[:2], 1), dtype=torch.float64, generator=generator)
    theta = state.theta + length * (noise @ root.mT)
    new = _Population(theta, clusters.log_target(theta), clusters.log_guess(theta))
    b = power[:, None]
    log_ratio = b * (new.log_target - state.log_target)
    log_ratio = log_ratio + (1 - b) * (new.log_guess - state.log_guess)
    u = torch.rand(shape[:2], dtype=torch.float64, generator=generator)
    accepted = (u.log() < log_ratio) & (new.log_target > -math.inf)
    return _Population(
        torch.where(accepted[..., None], new.theta, state.theta),
        torch.where(accepted, new.log_target, state.log_target),
        torch.where(accepted, new.log_guess, state.log_guess),
    )
