"""Gaussian clusters of known variance: the paper's model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import (
    LOG_2PI,
    ConjugateLikelihood,
    DensityLikelihood,
    check_dim,
    normal,
    take,
)
from ncp.generative.specs import Real, check_positive

__all__ = ["GaussianKnownVariance"]


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
    prior_sd: Real = 10.0
    noise_sd: Real = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", check_dim(self.dim))
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
        return self.prior_sd * normal((*shape, self.dim), generator)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        mean = take(parameters, labels)
        return mean + self.noise_sd * normal(tuple(mean.shape), generator)

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        z = (x.double()[:, :, None] - parameters[:, None]) / self.noise_sd
        return -0.5 * z.square().sum(dim=-1) - self.dim * (math.log(self.noise_sd) + 0.5 * LOG_2PI)

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        z = parameters / self.prior_sd
        return -0.5 * z.square().sum(dim=-1) - self.dim * (math.log(self.prior_sd) + 0.5 * LOG_2PI)

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
