"""Observation models: p(mu_k) and p(x_i | mu_{c_i}).

Every likelihood can be sampled: parameters of a cluster from their prior, then the points of the
cluster. Two more abilities are optional. A *density* likelihood evaluates p(x | mu). A
*conjugate* one integrates the parameters out: with additive sufficient statistics T(x) of one
point, the marginal likelihood of a cluster depends on its points only through their sum,

    p(x_k) = int dmu p(mu) prod_{i in k} p(x_i | mu) = m(sum_{i in k} T(x_i)),

so that log p(x | c) = sum_k log m(T_k) for many label rows is a scatter-add of statistics.

A likelihood of one's own is a frozen dataclass with `sample_parameters` and
`sample_observations`; its class name makes it loadable from a checkpoint's spec.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.partitions import ArrayLike, as_tensor, check_labels
from ncp.priors import check_positive, from_spec, register, split, to_spec

LOG_2PI = math.log(2 * math.pi)


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
        statistics = self.statistics(x)  # (N, T)
        rows = labels.reshape(-1, len(x))
        log_marginal = torch.empty(len(rows), dtype=torch.float64)
        width = len(x) * statistics.shape[-1]
        for block, out in zip(split(rows, width), split(log_marginal, width), strict=True):
            summed = _sum_by_cluster(statistics, block)
            out.copy_(self.log_marginal_statistics(summed).sum(dim=-1))
        return log_marginal.reshape(labels.shape[:-1])


def _sum_by_cluster(
    statistics: Float64[Tensor, "n t"], labels: Int64[Tensor, "r n"]
) -> Float64[Tensor, "r k t"]:
    n_rows, k = len(labels), int(labels.max()) + 1 if labels.numel() else 0
    summed = torch.zeros((statistics.shape[1], n_rows, k), dtype=torch.float64)
    for column, out in zip(statistics.T, summed, strict=True):
        out.scatter_add_(1, labels, column.expand_as(labels))
    return summed.permute(1, 2, 0)


def likelihood_from_dict(spec: Mapping[str, Any]) -> Likelihood:
    """The likelihood that ``spec``, a dict from `Likelihood.to_dict`, describes.

    Example:
        >>> likelihood_from_dict(GaussianKnownVariance(dim=3).to_dict())
        GaussianKnownVariance(dim=3, prior_sd=10.0, noise_sd=1.0)
    """
    return from_spec(spec, Likelihood.registry)


def _take(parameters: Float64[Tensor, "b k p"], labels: Int64[Tensor, "b n"]) -> Tensor:
    """The parameters of each point's cluster, of shape (B, N, P)."""
    index = labels[..., None].expand(*labels.shape, parameters.shape[-1])
    return parameters.gather(1, index)


def _normal(shape: tuple[int, ...], generator: torch.Generator | None) -> Float64[Tensor, " ..."]:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _check_dim(dim: int) -> int:
    if isinstance(dim, bool) or int(dim) != dim or dim < 1:
        raise ValueError(f"Expected dim to be an integer >= 1 but got {dim!r}")
    return int(dim)


@dataclass(frozen=True)
class GaussianKnownVariance(ConjugateLikelihood, DensityLikelihood):
    """Gaussian clusters of known, equal variance (the paper's model).

        mu_k ~ N(0, prior_sd^2 1),    x_i ~ N(mu_k, noise_sd^2 1)

    With s^2 = noise_sd^2, l^2 = prior_sd^2, n points, sum S and sum of squares R of a cluster,
    and 1 / v = 1 / l^2 + n / s^2, the log marginal likelihood of the cluster is

        dim/2 (log(v / l^2) - n log(2 pi s^2)) + v |S|^2 / (2 s^4) - R / (2 s^2).

    Args:
        dim: the dimension of a point.
        prior_sd: the standard deviation of the cluster means, in each dimension.
        noise_sd: the standard deviation of the points of a cluster, in each dimension.

    Example:
        >>> likelihood = GaussianKnownVariance(dim=1, prior_sd=1.0, noise_sd=1.0)
        >>> likelihood.log_marginal([[0.0]], [0])  # N(0 | 0, 2)
        tensor(-1.2655, dtype=torch.float64)
    """

    dim: int = 2
    prior_sd: float = 10.0
    noise_sd: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", _check_dim(self.dim))
        for name in ("prior_sd", "noise_sd"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def scale(self) -> float:
        return math.hypot(self.prior_sd, self.noise_sd)

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        return self.prior_sd * _normal((*shape, self.dim), generator)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        mean = _take(parameters, labels)
        return mean + self.noise_sd * _normal(tuple(mean.shape), generator)

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        z = (x.double()[:, :, None] - parameters[:, None]) / self.noise_sd
        return -0.5 * z.square().sum(dim=-1) - self.dim * (math.log(self.noise_sd) + 0.5 * LOG_2PI)

    def statistics(self, x: Float[Tensor, " ..."]) -> Float64[Tensor, "*batch t"]:
        x = x.double()
        square = x.square().sum(dim=-1, keepdim=True)
        return torch.cat([torch.ones_like(square), x, square], dim=-1)

    def log_marginal_statistics(
        self, statistics: Float64[Tensor, "*batch t"]
    ) -> Float64[Tensor, "*batch"]:
        n, total, square = statistics[..., 0], statistics[..., 1:-1], statistics[..., -1]
        noise, ratio = self.noise_sd**2, (self.prior_sd / self.noise_sd) ** 2
        shrunk = ratio / (1 + n * ratio)  # v / s^2
        normaliser = torch.log1p(n * ratio) + n * (LOG_2PI + math.log(noise))
        exponent = shrunk * total.square().sum(dim=-1) - square
        return 0.5 * (exponent / noise - self.dim * normaliser)
