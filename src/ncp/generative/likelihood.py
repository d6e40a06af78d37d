"""Observation models: p(mu_k) and p(x_i | mu_{c_i}).

Every likelihood can be sampled: parameters of a cluster from their prior, then the points of the
cluster. More abilities are optional. A *density* likelihood evaluates p(x | mu); an *integrable*
one also the marginals of a few points, which gives training exact targets. A *conjugate* one
integrates the parameters out: with additive sufficient statistics T(x) of one point, the marginal
likelihood of a cluster depends on its points only through their sum,

    p(x_k) = int dmu p(mu) prod_{i in k} p(x_i | mu) = m(sum_{i in k} T(x_i)),

so that log p(x | c) = sum_k log m(T_k) for many label rows is a scatter-add of statistics.

A likelihood of one's own is a frozen dataclass with `sample_parameters` and
`sample_observations`; its class name makes it loadable from a checkpoint's spec.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.priors import split
from ncp.generative.specs import from_spec, register, to_spec
from ncp.partitions import ArrayLike, as_tensor, check_labels

__all__ = [
    "LOG_2PI",
    "ConjugateLikelihood",
    "DensityLikelihood",
    "IntegrableLikelihood",
    "Likelihood",
    "check_dim",
    "likelihood_from_dict",
    "log_normal",
    "normal",
    "sum_by_cluster",
    "take",
]

LOG_2PI = math.log(2 * math.pi)

AnyLikelihood = TypeVar("AnyLikelihood", bound="Likelihood")


class Likelihood(ABC):
    """What the points of a cluster look like: something that can be sampled.

    Attributes:
        event_shape: the shape of one point.
        location, scale: what a network subtracts from and divides the points by.
        max_clusters: the largest number of clusters that a data set can have, if there is one.
    """

    registry: ClassVar[dict[str, type[Likelihood]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register(Likelihood.registry, cls)

    @property
    @abstractmethod
    def event_shape(self) -> tuple[int, ...]: ...

    @property
    def location(self) -> float | Tensor:
        return 0.0

    @property
    def scale(self) -> float | Tensor:
        return 1.0

    @property
    def max_clusters(self) -> int | None:
        return None

    @abstractmethod
    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        """Parameters of clusters from their prior.

        Args:
            shape: (B, K) for K clusters in each of B data sets.
            generator: the source of randomness.

        Returns:
            P numbers for each cluster, of shape (B, K, P).
        """

    @abstractmethod
    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        """Points given the parameters of their clusters.

        Args:
            parameters: of shape (B, K, P).
            labels: the cluster of each point, of shape (B, N).
            generator: the source of randomness.

        Returns:
            Points of shape (B, N, *event).
        """

    def check_points(self, x: ArrayLike) -> Float64[Tensor, "*batch n *event"]:
        """The points in float64, or a ``ValueError`` unless they are finite and of event shape."""
        x = as_tensor(x)
        event = self.event_shape
        if x.ndim <= len(event) or tuple(x.shape[x.ndim - len(event) :]) != event:
            expected = ", ".join(map(str, event)) + ("," if len(event) == 1 else "")
            raise ValueError(
                f"Expected points of shape ({expected}) after the number of points "
                f"but got an array of shape {tuple(x.shape)}"
            )
        if x.numel() == 0:
            raise ValueError(f"Expected at least one point but got shape {tuple(x.shape)}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("Expected finite points but got NaN or infinity")
        return x.double()

    def rows(self: AnyLikelihood, index: Int64[Tensor, " m"]) -> AnyLikelihood:
        """The same for some data sets of a batch: itself, unless it differs between them.

        One that differs holds parameters of shape (B,), along the first axis of what its methods
        are given; ``index`` chooses among the B, and may repeat them.
        """
        return self

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `likelihood_from_dict` makes an equal likelihood."""
        return to_spec(self)


class DensityLikelihood(Likelihood):
    """A likelihood whose density given the parameters can be evaluated."""

    @abstractmethod
    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        """log p(x_i | mu_k) for every point and every cluster.

        Args:
            x: points of shape (B, N, *event).
            parameters: of shape (B, K, P).

        Returns:
            Log densities of shape (B, N, K).
        """

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        """log p(mu), as a density of the P numbers of a cluster; -infinity where mu cannot be.

        Optional: where it is missing, samplers can move parameters only by fresh draws.

        Args:
            parameters: of shape (..., P).

        Returns:
            Log densities of shape (...).
        """
        raise NotImplementedError(f"{type(self).__name__} does not give the density of its prior")

    def propose_parameters(
        self,
        points: Float64[Tensor, " c *event"],
        n_draws: int,
        generator: torch.Generator | None = None,
    ) -> Float64[Tensor, "c m p"]:
        """First guesses of the parameters of clusters of which one point is known.

        By default the prior. A likelihood whose points say where their cluster is may do better;
        it then gives `log_proposal` too, which must cover the prior where the points' density is
        not negligible.

        Args:
            points: one of each of C clusters, of shape (C, *event).
            n_draws: guesses for each.
            generator: the source of randomness.

        Returns:
            Parameters of shape (C, n_draws, P).
        """
        return self.sample_parameters((len(points), n_draws), generator)

    def log_proposal(
        self, points: Float64[Tensor, " c *event"], parameters: Float64[Tensor, "c m p"]
    ) -> Float64[Tensor, "c m"]:
        """The log density of `propose_parameters`."""
        return self.log_prior(parameters)


class IntegrableLikelihood(DensityLikelihood):
    """A likelihood that integrates the parameters of a few points out, in whatever way."""

    @property
    @abstractmethod
    def few(self) -> int:
        """Of how many points that is cheap enough to be done all the time."""

    @abstractmethod
    def log_subset_marginals(
        self, x: Float64[Tensor, "b n *event"], n_points: Int64[Tensor, " b"]
    ) -> Float64[Tensor, "b subsets"]:
        """log int dmu p(mu) prod_{i in S} p(x_i | mu) for every set S of points.

        Args:
            x: points of shape (B, N, *event), N small.
            n_points: how many of them count, of shape (B,).

        Returns:
            Finite numbers of shape (B, 2^N); point i is bit i of the set's number.
        """


class ConjugateLikelihood(Likelihood):
    """A likelihood whose parameters can be integrated out."""

    @abstractmethod
    def statistics(self, x: Float[Tensor, " ..."]) -> Float64[Tensor, "*batch t"]:
        """T(x), additive over the points of a cluster; the first entry is the count 1.

        Args:
            x: points of shape (..., *event).

        Returns:
            Statistics of shape (..., T).
        """

    @abstractmethod
    def log_marginal_statistics(
        self, statistics: Float64[Tensor, "*batch t"]
    ) -> Float64[Tensor, "*batch"]:
        """log m(T) of a cluster with summed statistics T; exactly 0 for an empty cluster.

        Args:
            statistics: of shape (..., T).

        Returns:
            Log marginal likelihoods of shape (...).
        """

    def log_marginal(self, x: ArrayLike, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(x | c) = sum_k log m(sum_{i in k} T(x_i)), for many label rows of one data set.

        Args:
            x: points of shape (N, *event).
            labels: canonical labels of shape (..., N).

        Returns:
            Log marginal likelihoods of shape (...), in float64.
        """
        x = self.check_points(x)
        if x.ndim != 1 + len(self.event_shape):
            raise ValueError(f"Expected the points of one data set but got {tuple(x.shape)}")
        labels = check_labels(labels, n_points=len(x))
        rows = labels.reshape(-1, len(x))
        log_marginal = torch.empty(len(rows), dtype=torch.float64)
        width = len(x) * self.statistics(x[:1]).shape[-1]  # numbers held at once for each row
        for block, out in zip(split(rows, width), split(log_marginal, width), strict=True):
            out.copy_(self._log_marginal_rows(x, block))
        return log_marginal.reshape(labels.shape[:-1])

    def _log_marginal_rows(
        self, x: Float64[Tensor, " n *event"], labels: Int64[Tensor, "r n"]
    ) -> Float64[Tensor, " r"]:
        summed = sum_by_cluster(self.statistics(x).T, labels).movedim(0, -1)  # (R, K, T)
        return self.log_marginal_statistics(summed).sum(dim=-1)


def sum_by_cluster(
    columns: Iterable[Float64[Tensor, " ..."]], labels: Int64[Tensor, "r n"]
) -> Float64[Tensor, "t r k"]:
    """Sums over the points of each cluster, of columns of shape (N,) or (R, N)."""
    n_rows, k = len(labels), int(labels.max()) + 1 if labels.numel() else 0
    sums = []
    for column in columns:
        zeros = torch.zeros((n_rows, k), dtype=torch.float64)
        sums.append(zeros.scatter_add_(1, labels, column.expand(labels.shape)))
    return torch.stack(sums)


def likelihood_from_dict(spec: Mapping[str, Any]) -> Likelihood:
    """The likelihood that ``spec``, a dict from `Likelihood.to_dict`, describes.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> likelihood_from_dict(GaussianKnownVariance(dim=3).to_dict())
        GaussianKnownVariance(dim=3, prior_sd=10.0, noise_sd=1.0)
    """
    return from_spec(spec, Likelihood.registry)


def take(parameters: Float64[Tensor, "b k p"], labels: Int64[Tensor, "b n"]) -> Tensor:
    """The parameters of each point's cluster, of shape (B, N, P)."""
    index = labels[..., None].expand(*labels.shape, parameters.shape[-1])
    return parameters.gather(1, index)


def normal(shape: tuple[int, ...], generator: torch.Generator | None) -> Float64[Tensor, " ..."]:
    """Standard normal numbers in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def log_normal(z: Tensor, sd: float) -> Float64[Tensor, " ..."]:
    """log N(z | 0, sd^2 1), summed over the last axis."""
    return -0.5 * (z / sd).square().sum(dim=-1) - z.shape[-1] * (math.log(sd) + 0.5 * LOG_2PI)


def check_dim(dim: int) -> int:
    """The dimension as an int, or a ``ValueError`` unless it is a whole number >= 1."""
    if isinstance(dim, bool) or int(dim) != dim or dim < 1:
        raise ValueError(f"Expected dim to be an integer >= 1 but got {dim!r}")
    return int(dim)
