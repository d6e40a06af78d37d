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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.priors import (
    Real,
    check_finite,
    check_positive,
    from_spec,
    numpy_generator,
    register,
    split,
    to_spec,
)
from ncp.partitions import ArrayLike, as_tensor, check_labels, counts

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

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        """log p(mu), as a density of the P numbers of a cluster; -infinity where mu cannot be.

        Optional: where it is missing, samplers can move parameters only by fresh draws.

        Args:
            parameters: of shape (..., P).

        Returns:
            Log densities of shape (...).
        """
        raise NotImplementedError(f"{type(self).__name__} does not give the density of its prior")


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
        summed = _sum_by_cluster(self.statistics(x).T, labels).movedim(0, -1)  # (R, K, T)
        return self.log_marginal_statistics(summed).sum(dim=-1)


def _sum_by_cluster(
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


def _log_normal(z: Tensor, sd: float) -> Float64[Tensor, " ..."]:
    """log N(z | 0, sd^2 1), summed over the last axis."""
    return -0.5 * (z / sd).square().sum(dim=-1) - z.shape[-1] * (math.log(sd) + 0.5 * LOG_2PI)


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
    prior_sd: Real = 10.0
    noise_sd: Real = 1.0

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
        dim = _check_dim(self.dim)
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
        upper = _normal((*shape, d, d), generator).triu(1)
        upper = upper + torch.diag_embed(torch.from_numpy(np.sqrt(diagonal)))
        psi_factor = torch.linalg.cholesky(self._psi)
        factor = torch.linalg.solve_triangular(upper.mT, psi_factor, upper=False, left=False)
        noise = _normal((*shape, d), generator) / math.sqrt(self.kappa)
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
        mean, factor = self._unpack(_take(parameters, labels))
        noise = _normal((*labels.shape, self.dim, 1), generator)
        return mean + (factor @ noise)[..., 0]

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        mean, factor = self._unpack(parameters)
        residual = x.double()[:, None] - mean[:, :, None]  # (B, K, N, d)
        z = torch.linalg.solve_triangular(factor, residual.mT, upper=False).mT
        log_det = _diagonal(factor).log().sum(dim=-1)
        return (_log_normal(z, 1.0) - log_det[..., None]).mT

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
        log_mean = _log_normal(z[..., 0], 1 / math.sqrt(self.kappa)) - log_det
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
        mean = _sum_by_cluster(x.T, labels) / n.clamp(min=1)  # (d, R, K)
        residual = [column - m.gather(1, labels) for column, m in zip(x.T, mean, strict=True)]
        pairs = torch.tril_indices(self.dim, self.dim).T.tolist()
        scatter = _sum_by_cluster((residual[i] * residual[j] for i, j in pairs), labels)
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
        object.__setattr__(self, "dim", _check_dim(self.dim))
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
        return self.prior_sd * _normal((*shape, self.dim), generator)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        mean = _take(parameters, labels)
        size = torch.empty_like(mean).exponential_(generator=generator)
        sign = 2 * torch.randint(0, 2, mean.shape, generator=generator) - 1
        return mean + self.noise_scale * sign * size

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        distance = (x.double()[:, :, None] - parameters[:, None]).abs().sum(dim=-1)
        return -distance / self.noise_scale - self.dim * math.log(2 * self.noise_scale)

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        return _log_normal(parameters, self.prior_sd)


@dataclass(frozen=True)
class Ring(DensityLikelihood):
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
        centre = self.prior_sd * _normal((*shape, 2), generator)
        u = torch.rand((*shape, 1), dtype=torch.float64, generator=generator)
        return torch.cat([centre, low + (high - low) * u], dim=-1)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        ring = _take(parameters, labels)
        turn = torch.rand(labels.shape, dtype=torch.float64, generator=generator)
        angle = 2 * math.pi * turn[..., None]
        circle = ring[..., :2] + ring[..., 2:] * torch.cat([angle.cos(), angle.sin()], dim=-1)
        return circle + self.noise_sd * _normal(tuple(circle.shape), generator)

    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        centre, radius = parameters[:, None, :, :2], parameters[:, None, :, 2]
        rho = torch.linalg.vector_norm(x.double()[:, :, None] - centre, dim=-1)
        variance = self.noise_sd**2
        bessel: Tensor = torch.special.i0e(rho * radius / variance).log()
        exponent: Tensor = (rho - radius).square() / (2 * variance)
        return bessel - exponent - LOG_2PI - math.log(variance)

    def log_prior(self, parameters: Float64[Tensor, "*batch p"]) -> Float64[Tensor, "*batch"]:
        low, high = self.radius
        r = parameters[..., 2]
        log_prior = _log_normal(parameters[..., :2], self.prior_sd) - math.log(high - low)
        return torch.where((low <= r) & (r <= high), log_prior, -math.inf)


class LabelledArrays(Likelihood):
    """Draws from an empirical data set given a label, as MNIST needs: no density at all.

        l_k ~ Uniform{labels},    x_i ~ Uniform{arrays with label l_{c_i}}

    A spec carries no arrays, only the name of their source, their shape and the options. After
    `likelihood_from_dict` the arrays are absent until `attach` brings them back.

    Args:
        arrays: of shape (M, *event); bytes become float32 in [0, 1] as they are drawn.
        labels: integers of shape (M,).
        distinct: whether the clusters of a data set have different labels; then a data set has
            at most as many clusters as there are labels. Otherwise labels are drawn
            independently, and two clusters may look the same.
        source: a name for where the arrays come from.
        distort: strength of small random rotations, scalings, shears and shifts of images as they
            are drawn; 1 is up to 12 degrees, 12 % and 2 pixels in 28. For training, where each
            image is met hundreds of times.
        shape, n_labels, location, scale: what the arrays would tell; only for a spec.

    The one parameter of a cluster is the position of its label in the sorted distinct labels.

    Example:
        >>> arrays = np.array([[0.0], [0.1], [5.0]])
        >>> likelihood = LabelledArrays(arrays, [3, 3, 8], source="three numbers")
        >>> likelihood.max_clusters, likelihood.event_shape
        (2, (1,))
    """

    def __init__(
        self,
        arrays: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        distinct: bool = True,
        source: str = "unnamed",
        shape: Sequence[int] | None = None,
        n_labels: int | None = None,
        location: Real | None = None,
        scale: Real | None = None,
        distort: Real = 0.0,
    ) -> None:
        if not 0 <= distort <= 2:
            raise ValueError(f"Expected distort between 0 and 2 but got {distort}")
        self.distort = float(distort)
        self._arrays: Tensor | None = None
        self.distinct, self.source = bool(distinct), str(source)
        self.shape = None if shape is None else tuple(int(size) for size in shape)
        self.n_labels = n_labels
        self._location, self._scale = location, scale
        if arrays is not None and labels is not None:
            self.attach(arrays, labels)
        elif arrays is not None or labels is not None:
            raise ValueError("Expected both arrays and labels but got only one of them")
        elif self.shape is None or n_labels is None:
            raise ValueError("Expected arrays and labels, or the shape and n_labels of a spec")

    def attach(self, arrays: ArrayLike, labels: ArrayLike) -> LabelledArrays:
        """Take these arrays from now on; they must be of the shape and number of labels known.

        Returns:
            The likelihood itself.
        """
        arrays, labels = as_tensor(arrays), as_tensor(labels)
        self._check(arrays, labels)
        values, label_ids = torch.unique(labels, return_inverse=True)
        shape = tuple(arrays.shape[1:])
        if self.shape not in (None, shape) or self.n_labels not in (None, len(values)):
            raise ValueError(
                f"Expected arrays of shape {self.shape} with {self.n_labels} labels "
                f"but got shape {shape} with {len(values)}"
            )
        self._arrays, self.shape, self.n_labels = arrays, shape, len(values)
        self._members = label_ids.argsort(stable=True)
        self._sizes = label_ids.bincount()
        if self._location is None or self._scale is None:
            self._location, self._scale = _location_and_scale(arrays)
        return self

    @staticmethod
    def _check(arrays: Tensor, labels: Tensor) -> None:
        if arrays.ndim < 2 or arrays.numel() == 0 or tuple(labels.shape) != (len(arrays),):
            raise ValueError(
                "Expected arrays of shape (M, *event) and labels of shape (M,) with M > 0 "
                f"but got {tuple(arrays.shape)} and {tuple(labels.shape)}"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"Expected integer labels but got {labels.dtype}")
        if arrays.is_floating_point() and not bool(torch.isfinite(arrays).all()):
            raise ValueError("Expected finite arrays but got NaN or infinity")

    @property
    def event_shape(self) -> tuple[int, ...]:
        assert self.shape is not None
        return self.shape

    @property
    def location(self) -> float:
        return self._location or 0.0

    @property
    def scale(self) -> float:
        return self._scale or 1.0

    @property
    def max_clusters(self) -> int | None:
        return self.n_labels if self.distinct else None

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        assert self.n_labels is not None
        if not self.distinct:
            return torch.randint(0, self.n_labels, (*shape, 1), generator=generator).double()
        if shape[-1] > self.n_labels:
            raise ValueError(
                f"Expected at most {self.n_labels} clusters, one for each label, "
                f"but got {shape[-1]}; distinct=False lifts the limit"
            )
        keys = torch.rand((*shape[:-1], self.n_labels), dtype=torch.float64, generator=generator)
        return keys.argsort(dim=-1)[..., : shape[-1], None].double()

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        if self._arrays is None:
            raise ValueError(
                f"Expected the arrays of {self.source!r} but they are absent, since a spec does "
                "not carry them; attach them with likelihood.attach(arrays, labels)"
            )
        label = _take(parameters, labels)[..., 0].long()
        size = self._sizes[label]
        u = torch.rand(labels.shape, dtype=torch.float64, generator=generator)
        rank = torch.minimum((u * size).long(), size - 1)
        start = self._sizes.cumsum(0) - self._sizes
        drawn = _as_floats(self._arrays[self._members[start[label] + rank]])
        return _distorted(drawn, self.distort, generator) if self.distort else drawn

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "source": self.source,
            "shape": list(self.event_shape),
            "n_labels": self.n_labels,
            "distinct": self.distinct,
            "location": self.location,
            "scale": self.scale,
            "distort": self.distort,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelledArrays) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.source, self.event_shape, self.n_labels, self.distinct))

    def __repr__(self) -> str:
        absent = ", arrays absent" if self._arrays is None else ""
        return (
            f"LabelledArrays({self.source!r}, shape={self.event_shape}, "
            f"n_labels={self.n_labels}, distinct={self.distinct}{absent})"
        )


def _distorted(
    images: Float[Tensor, "b n *event"], strength: float, generator: torch.Generator | None
) -> Float[Tensor, "b n *event"]:
    """Small random affine maps of images (height, width) or (channels, height, width)."""
    if images.ndim not in (4, 5):
        raise ValueError(f"Expected images to distort but got events of shape {images.shape[2:]}")
    flat = images.reshape(-1, *((1,) * (5 - images.ndim)), *images.shape[2:])
    uniform = 2 * torch.rand(len(flat), 6, generator=generator).to(images.dtype) - 1
    angle = 0.21 * strength * uniform[:, 0]
    scale = 1 + 0.12 * strength * uniform[:, 1:3]
    shear = 0.12 * strength * uniform[:, 3]
    shift = 0.14 * strength * uniform[:, 4:6]  # of half the width
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([cos * scale[:, 0], shear - sin, shift[:, 0]], 1)
    second = torch.stack([sin, cos * scale[:, 1], shift[:, 1]], 1)
    grid = torch.nn.functional.affine_grid(
        torch.stack([first, second], 1), list(flat.shape), align_corners=False
    )
    moved = torch.nn.functional.grid_sample(flat, grid, align_corners=False)
    return moved.view(images.shape)


def _as_floats(arrays: Tensor) -> Float[Tensor, " ..."]:
    if arrays.dtype == torch.uint8:
        return arrays.float().div_(255)
    return arrays if arrays.dtype in (torch.float32, torch.float64) else arrays.float()


def _location_and_scale(arrays: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of all numbers; images are left as they are."""
    if arrays.dtype == torch.uint8:
        return 0.0, 1.0
    numbers = arrays.double()
    return float(numbers.mean()), float(numbers.std(correction=0)) or 1.0
