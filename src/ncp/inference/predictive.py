r"""What a conjugate mixture says of single points, given a partition of the others.

With T(x) the statistics of a point, S_k their sum over cluster k and m the marginal likelihood, a
new point x joins cluster k of a partition c with

    p(k, x | c) = p(k | c) m(S_k + T(x)) / m(S_k),

and a new cluster with m(T(x)). Summed over k and averaged over the posterior of c this is the
density of new data. For a point that is one of the data it is the density of the others' posterior
that is wanted,

    1 / p(x_i | x_{-i}) = E[ 1 / p(x_i | c_{-i}, x_{-i}) | x ],

by Bayes' rule: an average over the posterior given all points, bounded since a point can always
open a cluster of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.likelihood import ConjugateLikelihood, sum_by_cluster
from ncp.generative.mixture import Mixture
from ncp.generative.wishart import NormalInverseWishart
from ncp.inference.exact import conjugate_likelihood

__all__ = ["ClusterPosterior", "cluster_posteriors", "leave_one_out", "log_predictive"]


def log_predictive(
    x_new: Float64[np.ndarray, "m d"],
    x: Float64[np.ndarray, "n d"],
    labels: Int64[np.ndarray, " n"],
    mixture: Mixture,
) -> Float64[np.ndarray, "m k1"]:
    """log p(k, x_new | c, x) of each new point alone; the last column is a new cluster.

    Args:
        x_new: points of shape (M, d).
        x: the data, of shape (N, d).
        labels: their partition, of shape (N,).
        mixture: a conjugate model.

    Example:
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(1.0), GaussianKnownVariance(dim=1))
        >>> far = log_predictive(np.array([[9.0]]), np.array([[0.0]]), np.array([0]), mixture)
        >>> int(far.argmax())
        1
    """
    likelihood = conjugate_likelihood(mixture)
    sums, sizes = _sums(x, labels, likelihood)
    sums = torch.cat([sums, torch.zeros_like(sums[:1])])
    each = likelihood.statistics(torch.as_tensor(x_new)).double()
    marginal = likelihood.log_marginal_statistics
    joins = marginal(sums + each[:, None]) - marginal(sums)
    return np.asarray(joins + mixture.prior.predictive(sizes).log())


def _sums(
    x: np.ndarray, labels: np.ndarray, likelihood: ConjugateLikelihood
) -> tuple[Float64[Tensor, "k t"], Int64[Tensor, " k"]]:
    """Statistics of each cluster, and its size."""
    statistics = likelihood.statistics(torch.as_tensor(x)).double()
    rows = torch.as_tensor(np.asarray(labels)).long()
    return sum_by_cluster(statistics.T, rows[None])[:, 0].T.contiguous(), rows.bincount()


def leave_one_out(
    x: Float64[np.ndarray, "n d"],
    labels: Int64[np.ndarray, "rows n"],
    weights: Float64[np.ndarray, " rows"],
    mixtures: Sequence[Mixture],
) -> Float64[np.ndarray, " n"]:
    """log p(x_i | x_{-i}) of every point, from posterior partitions of all of them.

    Args:
        x: the data, of shape (N, d).
        labels: partitions, of shape (R, N).
        weights: of them, summing to one, of shape (R,).
        mixtures: the conjugate model of each.
    """
    inverse = np.stack(
        [-_without_each(x, row, mixture) for row, mixture in zip(labels, mixtures, strict=True)]
    )
    log_weights = np.log(np.maximum(weights, 1e-300))[:, None]
    return -np.asarray(np.logaddexp.reduce(inverse + log_weights, axis=0))


def _without_each(x: np.ndarray, labels: np.ndarray, mixture: Mixture) -> Float64[np.ndarray, " n"]:
    """log p(x_i | c_{-i}, x_{-i}) for one partition."""
    likelihood = conjugate_likelihood(mixture)
    sums, sizes = _sums(x, labels, likelihood)
    each = likelihood.statistics(torch.as_tensor(x)).double()
    rows, own = torch.arange(len(x)), torch.as_tensor(np.asarray(labels)).long()
    others = sums.expand(len(x), -1, -1).clone()
    others[rows, own] -= each
    left = sizes.expand(len(x), -1).clone()
    left[rows, own] -= 1
    others = torch.where(left[..., None] > 0, others, 0.0)
    others = torch.cat([others, torch.zeros_like(others[:, :1])], dim=1)
    marginal = likelihood.log_marginal_statistics
    joins = marginal(others + each[:, None]) - marginal(others)
    return np.asarray((joins + mixture.prior.predictive(left).log()).logsumexp(1))


class ClusterPosterior(NamedTuple):
    """Mean and covariance of a Gaussian cluster, given its points.

    The covariance is InverseWishart(dof, scale) (known, and equal to scale, at dof = infinity) and
    the mean N(mean, covariance / kappa).
    """

    mean: Float64[np.ndarray, " d"]
    kappa: float
    dof: float
    scale: Float64[np.ndarray, "d d"]

    @property
    def covariance(self) -> Float64[np.ndarray, "d d"]:
        """Its posterior mean."""
        if math.isinf(self.dof):
            return self.scale
        return np.asarray(self.scale / (self.dof - len(self.mean) - 1))

    def draw(self, n: int, rng: np.random.Generator) -> Float64[np.ndarray, "n d"]:
        """New points of the cluster: Student distributed, normal if the covariance is known."""
        d = len(self.mean)
        spread = self.scale * (1 + 1 / self.kappa)
        z = rng.standard_normal((n, d)) @ np.linalg.cholesky(spread).T
        if math.isinf(self.dof):
            return np.asarray(self.mean + z)
        free = self.dof - d + 1
        return np.asarray(self.mean + z / np.sqrt(rng.chisquare(free, (n, 1))))


def cluster_posteriors(
    x: Float64[np.ndarray, "n d"], labels: Int64[np.ndarray, " n"], mixture: Mixture
) -> list[ClusterPosterior]:
    """The posterior of each cluster's mean and covariance; the last is a cluster without points.

    Args:
        x: the data, of shape (N, d).
        labels: their partition, of shape (N,).
        mixture: of Gaussian clusters, of known variance or with a Wishart prior.
    """
    likelihood = mixture.likelihood
    members = [x[labels == k] for k in range(int(labels.max()) + 1)] + [x[:0]]
    if isinstance(likelihood, GaussianKnownVariance):
        return [_known(points, likelihood) for points in members]
    if isinstance(likelihood, NormalInverseWishart):
        return [_unknown(points, likelihood) for points in members]
    raise ValueError(f"Expected Gaussian clusters but got {type(likelihood).__name__}")


def _known(points: np.ndarray, likelihood: GaussianKnownVariance) -> ClusterPosterior:
    d = likelihood.dim
    kappa = (likelihood.noise_sd / likelihood.prior_sd) ** 2 + len(points)
    mean = points.sum(0) / kappa
    return ClusterPosterior(mean, kappa, math.inf, likelihood.noise_sd**2 * np.eye(d))


def _unknown(points: np.ndarray, likelihood: NormalInverseWishart) -> ClusterPosterior:
    d, n = likelihood.dim, len(points)
    assert likelihood.dof is not None
    prior = np.broadcast_to(np.asarray(likelihood.mean, dtype=np.float64), (d,))
    kappa = likelihood.kappa + n
    mean = (likelihood.kappa * prior + points.sum(0)) / kappa
    psi = np.asarray(likelihood.scale_matrix, dtype=np.float64)
    psi = psi if psi.ndim else psi * np.eye(d)
    from_mean, shift = points - mean, prior - mean
    scale = psi + from_mean.T @ from_mean + likelihood.kappa * np.outer(shift, shift)
    return ClusterPosterior(mean, kappa, likelihood.dof + n, scale)
