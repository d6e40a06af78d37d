"""Noisy circles in the plane."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import LOG_2PI, IntegrableLikelihood, log_normal, normal, take
from ncp.generative.specs import Real, check_finite, check_positive

__all__ = ["Ring"]

# Quadrature, in standard deviations of the noise. The trapezoid rule's error for a Gaussian of
# standard deviation s is about 2 exp(-2 (pi s / step)^2); eight points know the radius of their
# ring to s = 1 / sqrt(8), its centre to s = 1 / 2.
RADII = 0.7  # step of the radius
EDGE = 0.85  # of the centre, in each direction
TABLE = 1 / 60  # of the distances at which densities are tabulated
REACH = 4.5  # what is farther from its circle is not on it
FINE = 60  # a largest radius that needs too fine a grid


@dataclass(frozen=True)
class Ring(IntegrableLikelihood):
    """Noisy circles in the plane, a shape that no Gaussian mixture gets right.

        centre_k ~ N(0, prior_sd^2 1),  r_k ~ Uniform(radius),  angle_i ~ Uniform(0, 2 pi),
        x_i ~ N(centre_k + r_k (cos angle_i, sin angle_i), noise_sd^2 1)

    Integrating over the angle, at distance rho from the centre and with s = noise_sd,

        p(x | centre, r) = exp(-(rho - r)^2 / 2 s^2) I0e(rho r / s^2) / (2 pi s^2)

    with the exponentially scaled Bessel function I0e. The three parameters of a cluster are its
    centre and its radius.

    Args:
        prior_sd: the standard deviation of the centres, in each dimension.
        radius: the smallest and the largest radius, 0 <= smallest < largest.
        noise_sd: the standard deviation of the points about the circle, in each dimension.

    Example:
        >>> ring = Ring(noise_sd=0.1)
        >>> ring.sample_parameters((4, 2)).shape  # four data sets of two rings
        torch.Size([4, 2, 3])
    """

    prior_sd: Real = 10.0
    radius: Sequence[Real] = (1.0, 5.0)
    noise_sd: Real = 0.3

    def __post_init__(self) -> None:
        for name in ("prior_sd", "noise_sd"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        bounds = tuple(check_finite("radius", r) for r in self.radius)
        if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1]:
            raise ValueError(
                f"Expected radius to be 0 <= smallest < largest but got {self.radius!r}"
            )
        object.__setattr__(self, "radius", bounds)

    @property
    def few(self) -> int:
        return 8 if self.radius[1] < FINE * self.noise_sd else 0

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (2,)

    @property
    def scale(self) -> float:
        low, high = self.radius
        mean_square_radius = (low * low + low * high + high * high) / 3
        return math.sqrt(self.prior_sd**2 + mean_square_radius / 2 + self.noise_sd**2)

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        low, high = self.radius
        centre = self.prior_sd * normal((*shape, 2), generator)
        u = torch.rand((*shape, 1), dtype=torch.float64, generator=generator)
        return torch.cat([centre, low + (high - low) * u], dim=-1)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        ring = take(parameters, labels)
        turn = torch.rand(labels.shape, dtype=torch.float64, generator=generator)
        angle = 2 * math.pi * turn[..., None]
        circle = ring[..., :2] + ring[..., 2:] * torch.cat([angle.cos(), angle.sin()], dim=-1)
        return circle + self.noise_sd * normal(tuple(circle.shape), generator)

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        centre, radius = parameters[:, None, :, :2], parameters[:, None, :, 2]
        rho = torch.linalg.vector_norm(x.double()[:, :, None] - centre, dim=-1)
        variance = self.noise_sd**2
        bessel: Tensor = torch.special.i0e(rho * radius / variance).log()
        exponent: Tensor = (rho - radius).square() / (2 * variance)
        return bessel - exponent - LOG_2PI - math.log(variance)

    def propose_parameters(
        self,
        points: Float64[Tensor, " c *event"],
        n_draws: int,
        generator: torch.Generator | None = None,
    ) -> Float64[Tensor, "c m p"]:
        """Rings of any radius through the points, up to the noise."""
        low, high = self.radius
        shape = (len(points), n_draws, 1)
        u = torch.rand((2, *shape), dtype=torch.float64, generator=generator)
        radius, turn = low + (high - low) * u[0], 2 * math.pi * u[1]
        spoke = radius * torch.cat([turn.cos(), turn.sin()], dim=-1)
        noise = self.noise_sd * normal((len(points), n_draws, 2), generator)
        return torch.cat([points[:, None] - spoke - noise, radius], dim=-1)

    def log_proposal(
        self, points: Float64[Tensor, " c *event"], parameters: Float64[Tensor, "c m p"]
    ) -> Float64[Tensor, "c m"]:
        # a density of the centre given radius and point is that of the point given the ring
        low, high = self.radius
        r = parameters[..., 2]
        log_q = self.log_density(points[:, None], parameters)[:, 0] - math.log(high - low)
        return torch.where((low <= r) & (r <= high), log_q, -math.inf)

    def log_subset_marginals(
        self, x: Float64[Tensor, "b n *event"], n_points: Int64[Tensor, " b"]
    ) -> Float64[Tensor, "b subsets"]:
        """By quadrature, within a few per cent where the points may well be on one ring."""
        from ncp.generative.ring_kernels import subset_sums

        low, high = self.radius
        n_radii = math.ceil((high - low) / (RADII * self.noise_sd))
        radii = low + (high - low) * (torch.arange(n_radii, dtype=torch.float64) + 0.5) / n_radii
        per_unit = 1 / (TABLE * self.noise_sd)
        far = math.ceil((high + REACH * self.noise_sd) * per_unit)
        distance = torch.arange(far, dtype=torch.float64) / per_unit
        on_axis = torch.stack((distance, torch.zeros_like(distance)), dim=1)
        rings = torch.stack((torch.zeros_like(radii), torch.zeros_like(radii), radii), dim=1)
        density = self.log_density(on_axis[None], rings[None])[0].exp()
        edge = EDGE * self.noise_sd
        near = math.sqrt(2) * REACH * self.noise_sd
        sums = torch.from_numpy(
            subset_sums(
                x.numpy(), n_points.numpy(), self.prior_sd, edge, near, density.numpy(), per_unit
            )
        )
        log_m = sums.clamp(min=sys.float_info.min).log() + math.log(
            edge**2 / n_radii / (2 * math.pi * self.prior_sd**2)
        )
        log_m[:, 0] = 0.0
        return log_m

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        low, high = self.radius
        r = parameters[..., 2]
        log_prior = log_normal(parameters[..., :2], self.prior_sd) - math.log(high - low)
        return torch.where((low <= r) & (r <= high), log_prior, -math.inf)
