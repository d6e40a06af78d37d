"""Gaussian clusters of unknown mean and covariance, by the conjugate prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import (
    ConjugateLikelihood,
    DensityLikelihood,
    check_dim,
    log_normal,
    normal,
    sum_by_cluster,
    take,
)
from ncp.generative.priors import numpy_generator
from ncp.generative.specs import Real, check_finite, check_positive
from ncp.partitions import ArrayLike, counts

__all__ = ["NormalInverseWishart"]


@dataclass(frozen=True)
class NormalInverseWishart(ConjugateLikelihood, DensityLikelihood):
    """Gaussian clusters of unknown mean and covariance.

        Sigma_k ~ InverseWishart(dof, Psi),   mu_k ~ N(mean, Sigma_k / kappa),
        x_i ~ N(mu_k, Sigma_k)

    With n points, mean xbar and scatter S of a cluster, kappa_n = kappa + n, dof_n = dof + n and

        Psi_n = Psi + S + (kappa n / kappa_n) (xbar - mean)(xbar - mean)^T,

    the marginal likelihood of the cluster is

        pi^(-n dim / 2) Gamma_dim(dof_n / 2) / Gamma_dim(dof / 2)
        |Psi|^(dof / 2) / |Psi_n|^(dof_n / 2) (kappa / kappa_n)^(dim / 2).

    In one dimension Sigma is InverseGamma(dof / 2, Psi / 2). The P parameters of a cluster are
    its mean and the lower triangle, row by row, of the Cholesky factor of its covariance.

    Args:
        dim: the dimension of a point.
        mean: the prior mean, a number or one for each dimension.
        kappa: how many points the prior mean is worth: means are spread 1 / sqrt(kappa) times as
            wide as clusters.
        dof: the degrees of freedom, > dim - 1; by default dim + 2.
        scale_matrix: Psi, positive definite; a number means that multiple of the identity. The
            mean of Sigma is Psi / (dof - dim - 1).

    Example:
        >>> likelihood = NormalInverseWishart(dim=1, kappa=1.0, dof=2.0, scale_matrix=2.0)
        >>> likelihood.log_marginal([[0.0]], [0])  # Student's t with 2 degrees of freedom
        tensor(-1.3863, dtype=torch.float64)
    """

    dim: int = 2
    mean: Real | ArrayLike = 0.0
    kappa: Real = 0.01
    dof: Real | None = None
    scale_matrix: Real | ArrayLike = 1.0

    def __post_init__(self) -> None:
        dim = check_dim(self.dim)
        dof = dim + 2.0 if self.dof is None else check_finite("dof", self.dof)
        if dof <= dim - 1:
            raise ValueError(f"Expected dof > dim - 1 = {dim - 1} but got {dof}")
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "kappa", check_positive("kappa", self.kappa))
        object.__setattr__(self, "dof", dof)
        object.__setattr__(self, "mean", _as_numbers("mean", self.mean, (dim,)))
        psi = _as_numbers("scale_matrix", self.scale_matrix, (dim, dim))
        object.__setattr__(self, "scale_matrix", psi)
        if bool((self._psi != self._psi.T).any()) or torch.linalg.cholesky_ex(self._psi).info:
            raise ValueError(f"Expected scale_matrix to be positive definite but got {psi}")

    @property
    def _dof(self) -> float:
        assert self.dof is not None
        return self.dof

    @property
    def _mean(self) -> Float64[Tensor, " d"]:
        return torch.as_tensor(self.mean, dtype=torch.float64).expand(self.dim)

    @property
    def _psi(self) -> Float64[Tensor, "d d"]:
        psi = torch.as_tensor(self.scale_matrix, dtype=torch.float64)
        return psi if psi.ndim else psi * torch.eye(self.dim, dtype=torch.float64)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def location(self) -> Tensor:
        return self._mean.clone()

    @property
    def scale(self) -> Tensor:
        # The prior variance of a point may be infinite (dof <= dim + 1); a width never is.
        variance = self._psi.diagonal() / max(self._dof - self.dim - 1, 1.0)
        return torch.sqrt(variance * (1 + 1 / self.kappa))

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        # Bartlett with upper triangles: U U^T ~ Wishart(dof, 1), and L U^{-T} is the Cholesky
        # factor of an inverse Wishart matrix when L is that of Psi.
        d = self.dim
        degrees = self._dof - d + 1 + np.arange(d)
        diagonal = numpy_generator(generator).chisquare(degrees, size=(*shape, d))
        upper = normal((*shape, d, d), generator).triu(1)
        upper = upper + torch.diag_embed(torch.from_numpy(np.sqrt(diagonal)))
        psi_factor = torch.linalg.cholesky(self._psi)
        factor = torch.linalg.solve_triangular(upper.mT, psi_factor, upper=False, left=False)
        noise = normal((*shape, d), generator) / math.sqrt(self.kappa)
        mean = self._mean + (factor @ noise[..., None])[..., 0]
        rows, columns = torch.tril_indices(d, d)
        return torch.cat([mean, factor[..., rows, columns]], dim=-1)

    def _unpack(self, parameters: Float64[Tensor, "*batch p"]) -> tuple[Tensor, Tensor]:
        """The means (..., d) and Cholesky factors (..., d, d) of clusters."""
        d = self.dim
        factor = parameters.new_zeros((*parameters.shape[:-1], d, d))
        rows, columns = torch.tril_indices(d, d)
        factor[..., rows, columns] = parameters[..., d:]
        return parameters[..., :d], factor

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        mean, factor = self._unpack(take(parameters, labels))
        noise = normal((*labels.shape, self.dim, 1), generator)
        return mean + (factor @ noise)[..., 0]

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        mean, factor = self._unpack(parameters)
        residual = x.double()[:, None] - mean[:, :, None]  # (B, K, N, d)
        z = torch.linalg.solve_triangular(factor, residual.mT, upper=False).mT
        log_det = _diagonal(factor).log().sum(dim=-1)
        return (log_normal(z, 1.0) - log_det[..., None]).mT

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        # The inverse Wishart density, times the Jacobian of Sigma = L L^T.
        mean, factor = self._unpack(parameters)
        diagonal = _diagonal(factor)
        possible = (diagonal > 0).all(dim=-1)
        eye = torch.eye(self.dim, dtype=torch.float64)
        factor = torch.where(possible[..., None, None], factor, eye)
        log_diagonal = _diagonal(factor).log()  # (..., d)
        log_det = log_diagonal.sum(dim=-1)
        psi_factor = torch.linalg.cholesky(self._psi)
        ratio = torch.linalg.solve_triangular(factor, psi_factor.expand_as(factor), upper=False)
        z = torch.linalg.solve_triangular(factor, (mean - self._mean)[..., None], upper=False)
        log_normaliser = (
            self._dof * _diagonal(psi_factor).log().sum()
            - 0.5 * self._dof * self.dim * math.log(2)
            - self._log_multigamma(torch.tensor(self._dof, dtype=torch.float64))
        )
        powers = torch.arange(self.dim, 0, -1)  # of L_ii in the Jacobian
        log_jacobian = self.dim * math.log(2) + (powers * log_diagonal).sum(dim=-1)
        log_wishart = log_normaliser - (self._dof + self.dim + 1) * log_det
        log_wishart = log_wishart - 0.5 * ratio.square().sum(dim=(-2, -1)) + log_jacobian
        log_mean = log_normal(z[..., 0], 1 / math.sqrt(self.kappa)) - log_det
        return torch.where(possible, log_wishart + log_mean, -math.inf)

    def _log_multigamma(self, dof: Tensor) -> Tensor:
        """log Gamma_dim(dof / 2) without the powers of pi, which cancel."""
        return torch.lgamma(0.5 * (dof[..., None] - torch.arange(self.dim))).sum(dim=-1) + (
            0.25 * self.dim * (self.dim - 1) * math.log(math.pi)
        )

    def statistics(self, x: Float[Tensor, " ..."]) -> Float64[Tensor, "*batch t"]:
        y = x.double() - self._mean
        rows, columns = torch.tril_indices(self.dim, self.dim)
        one = torch.ones_like(y[..., :1])
        return torch.cat([one, y, y[..., rows] * y[..., columns]], dim=-1)

    def log_marginal_statistics(
        self, statistics: Float64[Tensor, "*batch t"]
    ) -> Float64[Tensor, "*batch"]:
        n, total = statistics[..., 0], statistics[..., 1 : 1 + self.dim]
        rows, columns = torch.tril_indices(self.dim, self.dim)
        scatter = statistics[..., 1 + self.dim :] - total[..., rows] * total[..., columns] / (
            self.kappa + n[..., None]
        )
        return self._log_marginal_scatter(n, scatter)

    def _log_marginal_rows(
        self, x: Float64[Tensor, " n *event"], labels: Int64[Tensor, "r n"]
    ) -> Float64[Tensor, " r"]:
        # Two passes, means then scatter about them: sums of squares of points far from the
        # prior mean would cancel.
        n = counts(labels).double()
        mean = sum_by_cluster(x.T, labels) / n.clamp(min=1)  # (d, R, K)
        residual = [column - m.gather(1, labels) for column, m in zip(x.T, mean, strict=True)]
        pairs = torch.tril_indices(self.dim, self.dim).T.tolist()
        scatter = sum_by_cluster((residual[i] * residual[j] for i, j in pairs), labels)
        offset = (mean - self._mean[:, None, None]) * torch.sqrt(self.kappa * n / (self.kappa + n))
        rows, columns = torch.tril_indices(self.dim, self.dim)
        scatter = scatter + offset[rows] * offset[columns]
        return self._log_marginal_scatter(n, scatter.movedim(0, -1)).sum(dim=-1)

    def _log_marginal_scatter(self, n: Tensor, scatter: Float64[Tensor, "*batch t"]) -> Tensor:
        """log m of n points when the lower triangle of Psi_n - Psi is ``scatter``."""
        rows, columns = torch.tril_indices(self.dim, self.dim)
        log_det = self._log_det(self._psi[rows, columns] + scatter)
        log_det_prior = self._log_det(self._psi[rows, columns])
        sizes, size = torch.unique(n, return_inverse=True)
        prior_dof = torch.tensor(self._dof, dtype=torch.float64)
        constant = (
            self._log_multigamma(self._dof + sizes)
            - self._log_multigamma(prior_dof)
            - 0.5 * self.dim * (sizes * math.log(math.pi) + torch.log1p(sizes / self.kappa))
            + 0.5 * self._dof * log_det_prior
        )
        log_marginal = constant[size] - 0.5 * (self._dof + n) * log_det
        return torch.where(n > 0, log_marginal, 0.0)

    def _log_det(self, lower: Float64[Tensor, "*batch t"]) -> Float64[Tensor, "*batch"]:
        """log |Psi_n| by symmetric elimination, from the lower triangle.

        Psi_n is Psi plus something positive, so its pivots are at least those of Psi; we insist,
        since rounding does not.
        """
        least = torch.linalg.cholesky(self._psi).diagonal().square()
        entry = {
            (int(i), int(j)): lower[..., position]
            for position, (i, j) in enumerate(torch.tril_indices(self.dim, self.dim).T)
        }
        log_det = torch.zeros(lower.shape[:-1], dtype=torch.float64)
        for k in range(self.dim):
            pivot = entry[k, k].clamp(min=float(least[k]))
            log_det = log_det + pivot.log()
            for i in range(k + 1, self.dim):
                ratio = entry[i, k] / pivot
                for j in range(k + 1, i + 1):
                    entry[i, j] = entry[i, j] - ratio * entry[j, k]
        return log_det


def _diagonal(matrix: Tensor) -> Float64[Tensor, "*batch d"]:
    return matrix.diagonal(dim1=-2, dim2=-1)


def _as_numbers(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A finite number, or nested tuples of them of the given shape."""
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), shape) or not np.isfinite(array).all():
        raise ValueError(
            f"Expected {name} to be a finite number or an array of shape {shape} of them "
            f"but got {value!r}"
        )
    return _nested_tuples(array.tolist())


def _nested_tuples(value: Any) -> Any:
    return tuple(map(_nested_tuples, value)) if isinstance(value, list) else value
