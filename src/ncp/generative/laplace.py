"""Clusters with heavier tails than a Gaussian one has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import DensityLikelihood, check_dim, log_normal, normal, take
from ncp.generative.specs import Real, check_positive

__all__ = ["LaplaceNoise"]


@dataclass(frozen=True)
class LaplaceNoise(DensityLikelihood):
    """Gaussian cluster means with Laplace noise: heavier tails than a Gaussian cluster has.

        mu_k ~ N(0, prior_sd^2 1),    x_ij ~ Laplace(mu_kj, noise_scale) in each dimension j

    Args:
        dim: the dimension of a point.
        prior_sd: the standard deviation of the cluster means, in each dimension.
        noise_scale: the mean absolute deviation of the points, in each dimension.

    Example:
        >>> zero = torch.zeros((1, 1, 1), dtype=torch.float64)
        >>> LaplaceNoise(dim=1).log_density(zero, zero).exp()
        tensor([[[0.5000]]], dtype=torch.float64)
    """

    dim: int = 2
    prior_sd: Real = 10.0
    noise_scale: Real = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", check_dim(self.dim))
        for name in ("prior_sd", "noise_scale"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def scale(self) -> float:
        return math.hypot(self.prior_sd, math.sqrt(2) * self.noise_scale)

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
        size = torch.empty_like(mean).exponential_(generator=generator)
        sign = 2 * torch.randint(0, 2, mean.shape, generator=generator) - 1
        return mean + self.noise_scale * sign * size

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        distance = (x.double()[:, :, None] - parameters[:, None]).abs().sum(dim=-1)
        return -distance / self.noise_scale - self.dim * math.log(2 * self.noise_scale)

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        return log_normal(parameters, self.prior_sd)
