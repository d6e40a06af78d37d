r"""The Bayesian Gaussian mixture: any concentration, scale and dimension, unknown covariances.

    c ~ CRP(alpha),    Sigma_k ~ InverseWishart(dof, nu s^2 1),    nu = dof - d - 1,
    mu_k ~ N(m, r^2 Sigma_k),    x_i ~ N(mu_k, Sigma_k)

A cluster has the covariance s^2 1 on average: s is the standard deviation within clusters, r the
ratio of the one between clusters to it, and dof says how far covariances stray from their mean. At
dof = infinity they do not, which is the paper's model, with noise s and a prior of width r s.

**Units.** The model does not know the directions of the axes, and m and s only say where the origin
is and what the unit is: with any rotation R,

    y = R (x - m) / s    has    log p(c, x | m, s, ...) = log p(c, y | 0, 1, ...) - N d log s.

So a network need only know data in units of s, and in their principal axes (`standardise`), and
alpha, d, r and dof; nothing is approximated. In these units, with n points, sum S and sum of
products Q of a cluster, A = (Q - S S^T / (1 / r^2 + n)) / nu, the log marginal likelihood is

    log Gamma_d((dof + n) / 2) / Gamma_d(dof / 2) - n d / 2 log(pi nu) - d / 2 log(1 + n r^2)
    - (dof + n) / 2 log |1 + A|

and in the limit of dof = infinity  - n d / 2 log(2 pi) - d / 2 log(1 + n r^2) - nu tr(A) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from ncp.generative.conditioned import ConditionedModel, Range
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.likelihood import LOG_2PI, ConjugateLikelihood, check_dim, normal, take
from ncp.generative.mixture import Mixture
from ncp.generative.model import check_sizes
from ncp.generative.priors import CRP, Prior, numpy_generator
from ncp.generative.specs import Real, check_positive
from ncp.generative.wishart import NormalInverseWishart
from ncp.partitions import ArrayLike, as_tensor

__all__ = ["CRPs", "GaussianFamily", "SphericalWisharts", "Standardised", "standardise"]

UNIT = 16.0  # standard deviations within clusters that a network takes for one


class Standardised(NamedTuple):
    """A data set in units of the standard deviation within clusters, and in principal axes.

    Attributes:
        y: (N, d).
        axes: the rotation, one axis a column; the variance about the prior mean falls from axis
            to axis, and the third moment about it is not negative.
        location, noise_sd: m and s, in the units of the data.
        log_jacobian: what to add to log p(y) for log p(x), -N d log s.
    """

    y: Float64[Tensor, "n d"]
    axes: Float64[Tensor, "d d"]
    location: Float64[Tensor, " d"]
    noise_sd: float
    log_jacobian: float

    def apply(self, x: ArrayLike) -> Float64[Tensor, "m d"]:
        """Further rows of the same data."""
        return (as_tensor(x).double() - self.location) @ self.axes / self.noise_sd


def standardise(
    x: ArrayLike, noise_sd: Real = 1.0, location: ArrayLike | Real = 0.0
) -> Standardised:
    """Bring a data set to the units of the family: y = R (x - m) / s.

    Args:
        x: points of shape (N, d).
        noise_sd: s, the standard deviation within clusters, in the units of x.
        location: m, the prior mean, a number or one for each dimension.

    Example:
        >>> units = standardise([[3.0, 5.0], [5.0, 9.0]], noise_sd=2.0, location=[1.0, 1.0])
        >>> units.y.shape, round(units.log_jacobian, 4)  # -4 log 2
        (torch.Size([2, 2]), -2.7726)
    """
    points = as_tensor(x).double()
    if points.ndim != 2 or points.numel() == 0 or not bool(points.isfinite().all()):
        raise ValueError(f"Expected finite points (N, d) but got shape {tuple(points.shape)}")
    s = check_positive("noise_sd", noise_sd)
    m = torch.as_tensor(location, dtype=torch.float64).expand(points.shape[1])
    centred = (points - m) / s
    axes = principal_axes(centred)
    return Standardised(centred @ axes, axes, m, s, -points.numel() * math.log(s))


def principal_axes(y: Float64[Tensor, "*batch n d"]) -> Float64[Tensor, "*batch d d"]:
    """Rotations (columns are axes) to the principal axes about the origin, the largest first.

    Signs are such that third moments are not negative, so the axes depend on nothing but the data.
    """
    axes: Tensor = torch.linalg.eigh(y.mT @ y).eigenvectors.flip(-1)
    cubes = (y @ axes).pow(3).sum(dim=-2, keepdim=True)
    return axes * torch.where(cubes < 0, -1.0, 1.0)


# -- the family ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GaussianFamily(ConditionedModel):
    """Dirichlet process mixtures of Gaussians of unknown mean and covariance (see the module).

    Hyper-parameters, for each data set: ``alpha`` and ``ratio``, their logarithms uniform; ``dim``,
    uniform, the same for all data sets of a batch; and ``dof``, infinite with probability `known`,
    else the logarithm of dof - dim - 1 uniform.

    A network sees 2 D + 4 numbers of a point: its coordinates in units of the standard deviation
    within clusters, zeros after the first ``dim`` of D; the same in units of the prior's spread,
    their tails bent by asinh; and the codes of the four hyper-parameters.

    Args:
        max_dim: D, the largest dimension.
        alpha: the range of the concentration.
        ratio: the range of the ratio of standard deviations, between clusters to within.
        max_dof: the largest finite degrees of freedom; the smallest are dim + 2.
        known: how often covariances are known.
        sizes: the smallest and the largest number of points of a data set.

    Example:
        >>> family = GaussianFamily(sizes=(5, 50))
        >>> batch = family.sample(3, 20, generator=torch.Generator().manual_seed(0))
        >>> batch.x.shape, batch.hyperparameters.shape
        (torch.Size([3, 20, 20]), torch.Size([3, 4]))
        >>> family.condition(alpha=1.0, dim=1, ratio=5.0, dof=float("inf"), noise_sd=2.0).likelihood
        GaussianKnownVariance(dim=1, prior_sd=10.0, noise_sd=2.0)
    """

    max_dim: int = 8
    alpha: Sequence[Real] = (0.1, 10.0)
    ratio: Sequence[Real] = (1.5, 50.0)
    max_dof: Real = 100.0
    known: Real = 0.3
    sizes: Sequence[int] = (5, 500)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_dim", check_dim(self.max_dim))
        object.__setattr__(self, "sizes", check_sizes(tuple(self.sizes)))
        for name in ("alpha", "ratio"):
            low, high = (check_positive(name, value) for value in getattr(self, name))
            if not low < high:
                raise ValueError(f"Expected {name} to be lowest < highest but got {low} and {high}")
            object.__setattr__(self, name, (low, high))
        if not self.max_dim + 2 < self.max_dof < math.inf:
            raise ValueError(f"Expected max_dof > max_dim + 2 but got {self.max_dof!r}")
        if not 0 <= self.known <= 1:
            raise ValueError(f"Expected known between 0 and 1 but got {self.known!r}")

    @property
    def hyperparameters(self) -> Mapping[str, Range]:
        return {
            "alpha": Range(self.alpha[0], self.alpha[1]),
            "dim": Range(1, self.max_dim, log=False),
            "ratio": Range(self.ratio[0], self.ratio[1]),
            "dof": Range(3, math.inf),
        }

    def condition(
        self,
        *,
        alpha: Real,
        dim: Real,
        ratio: Real,
        dof: Real = math.inf,
        noise_sd: Real = 1.0,
    ) -> Mixture:
        """The mixture of points (d,) at these hyper-parameters, in or out of the family's range.

        Args:
            alpha: the concentration.
            dim: d.
            ratio: r, standard deviation between clusters in those within.
            dof: degrees of freedom, > d + 1; infinity for known covariances.
            noise_sd: s, the standard deviation within clusters; 1 in the units of a network.
        """
        d, s = check_dim(int(dim)), check_positive("noise_sd", noise_sd)
        r = check_positive("ratio", ratio)
        if not dof > d + 1:
            raise ValueError(f"Expected dof > dim + 1 = {d + 1} but got {dof!r}")
        likelihood: ConjugateLikelihood = GaussianKnownVariance(d, r * s, s)
        if dof < math.inf:
            likelihood = NormalInverseWishart(d, 0.0, r**-2, dof, s**2 * (dof - d - 1))
        return Mixture(CRP(alpha), likelihood, self.sizes)

    def setting(self, **values: Any) -> Float64[Tensor, " h"]:
        row = super().setting(**{"dof": math.inf} | values)
        dim, dof = float(row[1]), float(row[3])
        if dim != int(dim):
            raise ValueError(f"Expected dim to be a whole number but got {dim}")
        if not (dim + 2 <= dof <= self.max_dof or dof == math.inf):
            raise ValueError(
                f"Expected dof between dim + 2 = {int(dim) + 2} and {self.max_dof:g}, or infinity, "
                f"but got {dof}"
            )
        return row

    # -- what a network sees ----------------------------------------------------------------------

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (2 * self.max_dim + 4,)

    @property
    def location(self) -> float:
        return 0.0

    @property
    def scale(self) -> Tensor:
        scale = torch.ones(self.event_shape, dtype=torch.float64)
        scale[: self.max_dim] = UNIT
        return scale

    def encode(self, hyperparameters: Float64[Tensor, "*batch h"]) -> Float64[Tensor, "*batch h"]:
        alpha, dim, ratio, dof = hyperparameters.unbind(-1)
        spread = (dof - dim - 1).rsqrt()  # 0 for known covariances, 1 at dim + 2
        ranges = self.hyperparameters
        known = [ranges["alpha"].encode(alpha), ranges["ratio"].encode(ratio)]
        return torch.stack([*known, spread, dim / self.max_dim], dim=-1)

    def decode(self, codes: Float[Tensor, "*batch h"]) -> Float64[Tensor, "*batch h"]:
        alpha, ratio, spread, dim = codes.double().unbind(-1)
        ranges = self.hyperparameters
        dim = (dim * self.max_dim).round()
        dof = dim + 1 + spread.pow(-2)
        return torch.stack(
            [ranges["alpha"].decode(alpha), dim, ranges["ratio"].decode(ratio), dof], dim=-1
        )

    def points(self, x: Float[Tensor, "*batch n e"]) -> Float[Tensor, "*batch n d"]:
        return x[..., : self.max_dim]

    def events(
        self,
        points: Float[Tensor, "*batch n d"],
        hyperparameters: Float64[Tensor, "*batch h"] | None = None,
    ) -> Float[Tensor, "*batch n e"]:
        """What a network sees of points in units of the standard deviation within clusters.

        Args:
            points: of shape (..., N, d), with any d up to D; turned to their principal axes here.
            hyperparameters: of shape (..., H).
        """
        ratio = self._known(hyperparameters)[..., 2, None, None]
        y = torch.nn.functional.pad(points.double(), (0, self.max_dim - points.shape[-1]))
        y = y @ principal_axes(y)
        spread = (1 + ratio.square()).sqrt()
        return super().events(torch.cat([y, (y / spread).asinh()], dim=-1), hyperparameters)

    def unpack(self, x: ArrayLike) -> tuple[Mixture, Tensor]:
        mixture, points = super().unpack(x)
        return mixture, points[..., : mixture.event_shape[0]]

    # -- where data come from ---------------------------------------------------------------------

    @property
    def is_conjugate(self) -> bool:
        return True

    @property
    def has_density(self) -> bool:
        return False  # of use only where parameters cannot be integrated out

    def sample_hyperparameters(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, "b h"]:
        ranges = self.hyperparameters
        dim = int(torch.randint(1, self.max_dim + 1, (), generator=generator))
        excess = Range(1.0, self.max_dof - dim - 1).draw(n_datasets, generator)
        is_known = torch.rand(n_datasets, dtype=torch.float64, generator=generator) < self.known
        return torch.stack(
            [
                ranges["alpha"].draw(n_datasets, generator),
                torch.full_like(excess, dim),
                ranges["ratio"].draw(n_datasets, generator),
                torch.where(is_known, math.inf, dim + 1 + excess),
            ],
            dim=-1,
        )

    def given(self, hyperparameters: Float64[Tensor, "b h"] | None = None) -> Mixture:
        alpha, dim, ratio, dof = self._known(hyperparameters).unbind(-1)
        likelihood = SphericalWisharts(self.max_dim, dim.long(), ratio, dof)
        return Mixture(CRPs(alpha), likelihood, self.sizes)


# -- one prior and one likelihood for each data set ------------------------------------------------


def along(parameter: Shaped[Tensor, " b"], like: Tensor) -> Shaped[Tensor, " ..."]:
    """A parameter of each data set, along the first axis of a tensor (one without any is one's)."""
    return parameter.reshape(-1, *(1,) * (like.ndim - 1)) if like.ndim else parameter.reshape(())


@dataclass(frozen=True)
class CRPs(Prior):
    """A Chinese restaurant process for each data set.

    Args:
        alpha: the concentrations (B,), along the first axis of what methods are given.
    """

    alpha: Float64[Tensor, " b"]
    discount: Real = field(default=0.0, init=False, repr=False)

    def rows(self, index: Int64[Tensor, " m"]) -> CRPs:
        return CRPs(self.alpha[index])

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        n = torch.as_tensor(n_points, dtype=torch.float64)
        t = torch.as_tensor(n_clusters, dtype=torch.float64)
        alpha = along(self.alpha, n + t)
        return t * alpha.log() + torch.lgamma(alpha) - torch.lgamma(alpha + n)

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        assert n_datasets == len(self.alpha)
        return self.alpha

    def log_prob(self, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        labels = as_tensor(labels)
        reference = CRP(1.0)  # what is left is V
        n, k = labels.shape[-1], labels.amax(dim=-1) + 1
        return reference.log_prob(labels) + self.log_v(n, k) - reference.log_v(n, k)

    def _predictive_weights(
        self, n: Int64[Tensor, "*batch"], t: Int64[Tensor, "*batch"]
    ) -> tuple[Float64[Tensor, "*batch"], Float64[Tensor, "*batch"]]:
        join = torch.ones_like(n, dtype=torch.float64)
        return join, along(self.alpha, n) * join


@dataclass(frozen=True, eq=False)
class SphericalWisharts(ConjugateLikelihood):
    """The likelihood of the family for each data set, in units of the noise (see the module).

    Points have ``width`` coordinates; those after a data set's own dimension are zero. The P
    parameters of a cluster are its mean and the lower triangle of the Cholesky factor of its
    covariance, row by row, for the largest dimension among the data sets.

    Args:
        width: D, the number of coordinates of a point.
        dim: the dimensions (B,), along the first axis of what methods are given.
        ratio: r, standard deviations between clusters in those within (B,).
        dof: degrees of freedom (B,); infinity for known covariances.
    """

    width: int
    dim: Int64[Tensor, " b"]
    ratio: Float64[Tensor, " b"]
    dof: Float64[Tensor, " b"]
    index: Int64[Tensor, " m"] | None = None  # of the data sets meant; None for each once
    _tables: dict[str, Any] = field(default_factory=dict, repr=False)  # shared by `rows`

    def rows(self, index: Int64[Tensor, " m"]) -> SphericalWisharts:
        chosen = index if self.index is None else self.index[index]
        return SphericalWisharts(self.width, self.dim, self.ratio, self.dof, chosen, self._tables)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def _of(self, parameter: Tensor) -> Tensor:
        return parameter if self.index is None else parameter[self.index]

    @property
    def _crop(self) -> int:
        """The largest dimension: beyond it there are only zeros."""
        return int(self.dim.max())

    # -- samples ----------------------------------------------------------------------------------

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        # Bartlett with upper triangles, as in NormalInverseWishart, in each data set's dimension:
        # the first d rows of the factor, and chi-square numbers of its own degrees of freedom.
        c = self._crop
        dim, dof, ratio = (self._of(p)[:, None, None] for p in (self.dim, self.dof, self.ratio))
        inside = torch.arange(c) < dim  # (B, 1, c)
        known = dof.isinf()
        free = inside & ~known
        degrees = torch.where(free, dof - dim + 1 + torch.arange(c), 1.0).expand(*shape, c)
        diagonal = torch.from_numpy(numpy_generator(generator).chisquare(degrees.numpy())).sqrt()
        diagonal = torch.where(free, diagonal, 1.0)
        upper = normal((*shape, c, c), generator).triu(1) + torch.diag_embed(diagonal)
        eye = torch.eye(c, dtype=torch.float64)
        factor = torch.linalg.solve_triangular(upper.mT, eye.expand_as(upper), upper=False)
        factor = torch.where(known[..., None], eye, (dof - dim - 1).sqrt()[..., None] * factor)
        factor = factor * (inside[..., None] & inside[..., None, :])
        mean = ratio * (factor @ normal((*shape, c, 1), generator))[..., 0]
        rows, columns = torch.tril_indices(c, c)
        return torch.cat([mean, factor[..., rows, columns]], dim=-1)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        c = self._crop
        each = take(parameters, labels)
        factor = each.new_zeros((*labels.shape, c, c))
        rows, columns = torch.tril_indices(c, c)
        factor[..., rows, columns] = each[..., c:]
        x = each[..., :c] + (factor @ normal((*labels.shape, c, 1), generator))[..., 0]
        return torch.nn.functional.pad(x, (0, self.width - c))

    # -- densities --------------------------------------------------------------------------------

    def statistics(self, x: Float[Tensor, " ..."]) -> Float64[Tensor, "*batch t"]:
        y = x[..., : self._crop].double()
        rows, columns = torch.tril_indices(self._crop, self._crop)
        return torch.cat([torch.ones_like(y[..., :1]), y, y[..., rows] * y[..., columns]], dim=-1)

    def log_marginal_statistics(
        self, statistics: Float64[Tensor, "*batch t"]
    ) -> Float64[Tensor, "*batch"]:
        from ncp.generative.family_kernels import log_marginals

        n = statistics[..., 0]
        which = torch.arange(len(self.dim)) if self.index is None else self.index
        found = log_marginals(
            statistics.reshape(-1, statistics.shape[-1]).numpy(),
            along(which, n).expand(n.shape).reshape(-1).numpy(),
            self.dim.numpy(),
            self.ratio.numpy(),
            self.dof.numpy(),
            self._constants(int(n.max()) if n.numel() else 0).numpy(),
        )
        return torch.from_numpy(found).reshape(n.shape)

    def _constants(self, largest: int) -> Float64[Tensor, "b n"]:
        """What depends on the number of points of a cluster only, for up to so many."""
        if largest >= self._tables.get("size", 0):
            size = 2 * largest + 2
            self._tables.update(size=size, constants=self._table(size))
        constants: Tensor = self._tables["constants"]
        return constants

    def _table(self, size: int) -> Float64[Tensor, "b size"]:
        n = torch.arange(size, dtype=torch.float64)
        dim, dof = self.dim[:, None], self.dof[:, None]
        known = dof.isinf()
        finite = torch.where(known, dim + 2.0, dof)
        steps = torch.arange(self._crop)
        half = 0.5 * (finite[..., None] - steps)  # (B, 1, d)
        gamma = torch.lgamma(half + 0.5 * n[:, None]) - torch.lgamma(half)
        gamma = torch.where(steps < dim[..., None], gamma, 0.0).sum(dim=-1)
        unknown = gamma - 0.5 * n * dim * (math.pi * (finite - dim - 1)).log()
        constant = torch.where(known, -0.5 * n * dim * LOG_2PI, unknown)
        return constant - 0.5 * dim * torch.log1p(n * self.ratio[:, None].square())
