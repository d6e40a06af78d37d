"""Exact posteriors, for judging everything else.

*Enumeration.* For N points there are Bell(N) partitions, but only 2^N - 1 possible clusters. With
m(S) the marginal likelihood of the points in S,

    p(c | x)  proportional to  p(c) prod_k m({i : c_i = k}),

so every m(S) is computed once and a partition looks up its clusters. The sum of the right-hand
side is the evidence p(x).

*The last point.* At any N, in conjugate models,

    p(c_N = k | c_{1:N-1}, x)  proportional to  p(c_N = k | c_{1:N-1}) m(S_k and N) / m(S_k),

with m of the empty set equal to 1 for a new cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import ConjugateLikelihood
from ncp.generative.mixture import Mixture
from ncp.partitions import ArrayLike, as_tensor, check_labels, counts, enumerate_partitions

__all__ = [
    "ExactPosterior",
    "check_data_set",
    "conjugate_likelihood",
    "exact_similarity",
    "last_conditional",
    "posterior",
]


class ExactPosterior(NamedTuple):
    """All partitions of N points with their posterior probabilities.

    Attributes:
        labels: canonical labels of shape (Bell(N), N), in lexicographic order.
        log_prob: log p(c | x), of shape (Bell(N),).
        log_evidence: log p(x).
    """

    labels: np.ndarray
    log_prob: np.ndarray
    log_evidence: float


def check_data_set(x: ArrayLike, mixture: Mixture) -> Tensor:
    """One data set as a float64 tensor of shape (N, *event), or a ``ValueError``."""
    points = mixture.likelihood.check_points(x)
    if points.ndim != 1 + len(mixture.event_shape):
        wanted = ("N", *mixture.event_shape)
        raise ValueError(
            f"Expected one data set of shape ({', '.join(map(str, wanted))}) "
            f"but got {tuple(points.shape)}"
        )
    return points


def conjugate_likelihood(mixture: Mixture) -> ConjugateLikelihood:
    """The mixture's likelihood if marginal likelihoods are known in closed form."""
    likelihood = mixture.likelihood
    if not isinstance(likelihood, ConjugateLikelihood):
        raise ValueError(
            f"Expected a conjugate likelihood but got {type(likelihood).__name__}, whose marginal "
            "likelihood has no closed form"
        )
    return likelihood


def posterior(
    x: ArrayLike,
    mixture: Mixture,
    log_marginal: Callable[[np.ndarray], Any] | None = None,
) -> ExactPosterior:
    r"""The posterior by enumeration,

        p(c | x) = p(c) \prod_k m(S_k) / p(x).

    Args:
        x: one data set of shape (N, *event), N at most 12.
        mixture: the generative model.
        log_marginal: log m(S) for subsets given as booleans of shape (M, N), returning (M,). By
            default the closed form of a conjugate likelihood; give your own (for example by
            quadrature) for any other likelihood.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> exact = posterior([[0.0], [0.5], [9.0]], mixture)
        >>> exact.labels[exact.log_prob.argmax()].tolist()
        [0, 0, 1]
    """
    points = check_data_set(x, mixture)
    n_points = len(points)
    labels = enumerate_partitions(n_points)
    if log_marginal is None:
        conjugate_likelihood(mixture)
    subsets = _subsets(n_points)
    if log_marginal is None:
        table = _subset_log_marginals(points, subsets, mixture)
    else:
        table = torch.zeros(2**n_points, dtype=torch.float64)
        table[1:] = torch.as_tensor(np.asarray(log_marginal(subsets[1:].bool().numpy())))
    log_joint = _log_joint(table, labels, mixture)
    log_evidence = torch.logsumexp(log_joint, 0)
    return ExactPosterior(labels.numpy(), (log_joint - log_evidence).numpy(), float(log_evidence))


def exact_similarity(
    x: Float64[Tensor, "b n *event"], mixture: Mixture
) -> Float64[Tensor, "b n n"]:
    """The posterior probability that two points share a cluster, by enumeration.

    Args:
        x: data sets of one size N, at most 12.
        mixture: a conjugate model.
    """
    n_points = x.shape[1]
    labels = enumerate_partitions(n_points)
    table = _subset_log_marginals(x.double(), _subsets(n_points), mixture)
    p = _log_joint(table, labels, mixture).softmax(1)
    same = (labels[:, :, None] == labels[:, None, :]).double()
    return (p @ same.flatten(1)).view(-1, n_points, n_points)


def _subsets(n_points: int) -> Int64[Tensor, "subsets n"]:
    """All subsets of N points, the empty one first; the bits of a row's number."""
    return (torch.arange(2**n_points)[:, None] >> torch.arange(n_points)) & 1


def _subset_log_marginals(
    points: Float64[Tensor, "*batch n *event"],
    subsets: Int64[Tensor, "subsets n"],
    mixture: Mixture,
) -> Float64[Tensor, "*batch subsets"]:
    likelihood = conjugate_likelihood(mixture)
    return likelihood.log_marginal_statistics(subsets.double() @ likelihood.statistics(points))


def _log_joint(
    table: Float64[Tensor, "*batch subsets"], labels: Int64[Tensor, "rows n"], mixture: Mixture
) -> Float64[Tensor, "*batch rows"]:
    """log p(c, x) of all rows of labels from log m(S) of all subsets S."""
    # one row of labels for all data sets, whose priors may differ
    log_joint = mixture.prior.log_prob(labels[(None,) * (table.ndim - 1)])
    bits = 2 ** torch.arange(labels.shape[1])
    for k in range(labels.shape[1]):
        log_joint = log_joint + table[..., ((labels == k) * bits).sum(-1)]
    return log_joint


def last_conditional(
    x: ArrayLike, labels: ArrayLike, mixture: Mixture
) -> Float64[np.ndarray, "*batch candidates"]:
    """p(c_N = k | c_{1:N-1}, x) for every k, for one or many data sets of a conjugate model.

    Args:
        x: data of shape (..., N, *event).
        labels: canonical labels of all N points (the last one is not used) or of the first
            N - 1, of shape (..., N) or (..., N - 1); the leading shapes broadcast.
        mixture: the generative model.

    Returns:
        Probabilities of shape (..., K + 1), with K the largest number of clusters among the rows.
        Column k is cluster k; the column after a row's last cluster is the new cluster, and the
        columns after that are zero.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> last_conditional([[0.0], [9.0], [0.5]], [0, 1, 0], mixture).round(2)
        array([0.91, 0.  , 0.09])
    """
    likelihood = conjugate_likelihood(mixture)
    points = mixture.likelihood.check_points(x)
    n_event = len(mixture.event_shape)
    batch, n_points = points.shape[: -1 - n_event], points.shape[points.ndim - 1 - n_event]
    given = as_tensor(labels)
    if n_points == 1:
        return np.ones((*batch, 1))
    if given.ndim == 0 or given.shape[-1] not in (n_points - 1, n_points):
        raise ValueError(
            f"Expected labels of {n_points} or {n_points - 1} points "
            f"but got shape {tuple(given.shape)}"
        )
    prefix = check_labels(given[..., : n_points - 1])
    statistics = likelihood.statistics(points).double()
    shape = np.broadcast_shapes(batch, prefix.shape[:-1])
    prefix = prefix.expand(*shape, n_points - 1)
    statistics = statistics.expand(*shape, *statistics.shape[-2:])
    sizes = counts(prefix)
    sums = statistics.new_zeros(*shape, sizes.shape[-1] + 1, statistics.shape[-1])  # last: empty
    index = prefix[..., None].expand(*prefix.shape, statistics.shape[-1])
    sums.scatter_add_(-2, index, statistics[..., :-1, :])
    with_last = sums + statistics[..., -1:, :]
    log_weights = likelihood.log_marginal_statistics(
        with_last
    ) - likelihood.log_marginal_statistics(sums)
    log_weights = log_weights + mixture.prior.predictive(sizes).log()
    return _new_cluster_next(log_weights.softmax(-1), sizes).numpy()


def _new_cluster_next(probabilities: Tensor, sizes: Tensor) -> Tensor:
    """Move the last column, the new cluster, to just behind each row's own clusters."""
    fresh = probabilities[..., -1:]
    moved = torch.cat([probabilities[..., :-1], torch.zeros_like(fresh)], dim=-1)
    return moved.scatter(-1, (sizes > 0).sum(-1, keepdim=True), fresh)
