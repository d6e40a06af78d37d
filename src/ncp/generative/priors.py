"""Exchangeable priors of partitions.

All priors here are of *Gibbs type*: with n points in t clusters of sizes n_1, ..., n_t,

    p(c_{1:n}) = V_n(t) prod_k W(n_k),    W(m) = Gamma(m - d) / Gamma(1 - d),

for a discount d < 1 and numbers V_n(t) that obey V_n(t) = (n - t d) V_{n+1}(t) + V_{n+1}(t+1).
The next point therefore joins cluster k, or starts a new one, with probability

    p(join k) = (n_k - d) V_{n+1}(t) / V_n(t),    p(new) = V_{n+1}(t+1) / V_n(t),

so that a prior is defined by d and V alone. Each prior is also a mixture over a concentration a
of urns with p(new) = (a + t d) / (a + n), which is how it is sampled, many data sets at once:
write n_k - d = (n_k - 1) + (1 - d); then a point that joins either picks one of the t clusters
uniformly (weight 1 - d each) or copies the cluster of an earlier point that did not start one
(weight 1 each). Following these copies to their ends by pointer doubling needs no loop over
clusters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ncp.generative.specs import Real, check_finite, check_positive, from_spec, register, to_spec
from ncp.partitions import ArrayLike, as_tensor, check_labels, counts

__all__ = [
    "CRP",
    "GammaCRP",
    "Geometric",
    "MixtureOfFiniteMixtures",
    "NumberOfComponents",
    "PitmanYor",
    "Poisson",
    "Prior",
    "numpy_generator",
    "prior_from_dict",
    "split",
]

AnyPrior = TypeVar("AnyPrior", bound="Prior")
BLOCK = 1 << 22  # numbers held at once when a batch is worked off in blocks of rows
LOG_NEGLIGIBLE = 42.0  # exp(-42) is 6e-19, below the rounding of float64
QUADRATURE_STEPS = 512


def numpy_generator(generator: torch.Generator | None) -> np.random.Generator:
    """A numpy generator seeded from a torch one, for the distributions torch cannot seed."""
    seed = torch.randint(0, 2**63 - 1, (2,), generator=generator)
    return np.random.default_rng(seed.tolist())


class Prior(ABC):
    """An exchangeable prior of partitions of Gibbs type (see the module's docstring).

    A subclass is a frozen dataclass that sets ``discount`` and implements `log_v` and
    `sample_concentration`.
    """

    registry: ClassVar[dict[str, type[Prior]]] = {}
    discount: Real

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register(Prior.registry, cls)

    @abstractmethod
    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        """log V_n(t) for n >= t >= 1, broadcast over both arguments."""

    @abstractmethod
    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        """The concentration a of each data set's urn."""

    def sample(
        self, n_datasets: int, n_points: int, generator: torch.Generator | None = None
    ) -> Int64[Tensor, "n_datasets n_points"]:
        """Independent partitions, with canonical labels.

        Args:
            n_datasets: the number of partitions B.
            n_points: the number of points N of each.
            generator: the source of randomness.

        Returns:
            Labels of shape (B, N).
        """
        if n_datasets < 0 or n_points < 1:
            raise ValueError(
                f"Expected n_datasets >= 0 and n_points >= 1 but got {n_datasets} and {n_points}"
            )
        concentration = self.sample_concentration(n_datasets, generator)[:, None]
        if self.discount == 0:
            return _sample_urn(concentration, n_points, generator)
        return _sample_discounted_urn(concentration, self.discount, n_points, generator)

    def log_prob(self, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(c) = log V_N(K) + sum_k log W(n_k).

        Args:
            labels: canonical labels of shape (..., N).

        Returns:
            Log probabilities of shape (...), in float64.
        """
        labels = check_labels(labels)
        n_points = labels.shape[-1]
        rows = labels.reshape(-1, n_points)
        log_w = _log_rising(1 - self.discount, n_points - 1, labels.device)
        log_w = torch.cat([log_w.new_zeros(1), log_w])  # empty clusters count for nothing
        log_prob = torch.empty(len(rows), dtype=torch.float64, device=labels.device)
        for block, out in zip(split(rows, n_points), split(log_prob, n_points), strict=True):
            out.copy_(log_w[counts(block)].sum(dim=-1))
        k = rows.amax(dim=1) + 1
        distinct, inverse = torch.unique(k, return_inverse=True)
        return (log_prob + self.log_v(n_points, distinct)[inverse]).reshape(labels.shape[:-1])

    def predictive(self, counts: ArrayLike) -> Float64[Tensor, "*batch k1"]:
        """The distribution of the next point's cluster.

        Args:
            counts: cluster sizes of shape (..., K); a zero means that there is no such cluster.

        Returns:
            Probabilities of shape (..., K + 1), the last one for a new cluster.
        """
        sizes = _check_counts(counts)
        present = sizes > 0
        n, t = sizes.sum(dim=-1), present.sum(dim=-1)
        join, new = self._predictive_weights(n, t)
        weights = torch.where(present, (sizes.double() - self.discount) * join[..., None], 0.0)
        weights = torch.cat([weights, torch.where(n > 0, new, 1.0)[..., None]], dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True)

    def _predictive_weights(
        self, n: Int64[Tensor, "*batch"], t: Int64[Tensor, "*batch"]
    ) -> tuple[Float64[Tensor, "*batch"], Float64[Tensor, "*batch"]]:
        """V_{n+1}(t) and V_{n+1}(t + 1), up to a common factor."""
        n, t = n.clamp(min=1), t.clamp(min=1)
        return torch.ones_like(n, dtype=torch.float64), torch.exp(
            self.log_v(n + 1, t + 1) - self.log_v(n + 1, t)
        )

    def rows(self: AnyPrior, index: Int64[Tensor, " m"]) -> AnyPrior:
        """The same for some data sets of a batch: itself, unless it differs between them.

        One that differs holds parameters of shape (B,), along the first axis of what its methods
        are given; ``index`` chooses among the B, and may repeat them.
        """
        return self

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `prior_from_dict` makes an equal prior."""
        return to_spec(self)


def prior_from_dict(spec: Mapping[str, Any]) -> Prior:
    """The prior that ``spec``, a dict from `Prior.to_dict`, describes.

    Example:
        >>> prior_from_dict({"kind": "CRP", "alpha": 0.7})
        CRP(alpha=0.7)
    """
    if isinstance(spec, Mapping) and isinstance(spec.get("p_k"), Mapping):
        spec = {**spec, "p_k": from_spec(spec["p_k"], NumberOfComponents.registry)}
    return from_spec(spec, Prior.registry)


@dataclass(frozen=True)
class CRP(Prior):
    """The Chinese restaurant process: the partition of a Dirichlet process.

        p(c) = alpha^K prod_k (n_k - 1)! / prod_{i=0}^{N-1} (alpha + i)

    Args:
        alpha: the concentration, > 0; K grows like alpha log N.

    Example:
        >>> prior = CRP(alpha=0.7)
        >>> prior.log_prob([[0, 0], [0, 1]]).exp() * 1.7
        tensor([1.0000, 0.7000], dtype=torch.float64)
        >>> prior.predictive([2, 1]) * 3.7
        tensor([2.0000, 1.0000, 0.7000], dtype=torch.float64)
    """

    alpha: Real
    discount: Real = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", check_positive("alpha", self.alpha))

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        n, t = _check_sizes(n_points, n_clusters)
        rising = _log_rising(self.alpha, _largest(n), n.device)
        return t.double() * math.log(self.alpha) - rising[n]

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        return torch.full((n_datasets,), self.alpha, dtype=torch.float64)

    def _predictive_weights(
        self, n: Int64[Tensor, "*batch"], t: Int64[Tensor, "*batch"]
    ) -> tuple[Float64[Tensor, "*batch"], Float64[Tensor, "*batch"]]:
        join = torch.ones_like(n, dtype=torch.float64)
        return join, self.alpha * join


@dataclass(frozen=True)
class PitmanYor(Prior):
    """The two-parameter Chinese restaurant process.

        p(c) = prod_{i=0}^{K-1} (alpha + i d) / prod_{i=0}^{N-1} (alpha + i)
               prod_k Gamma(n_k - d) / Gamma(1 - d)

    Args:
        alpha: the concentration, > 0.
        discount: d in [0, 1); K grows like N^d. Zero gives `CRP`.

    Example:
        >>> PitmanYor(alpha=1.0, discount=0.5).predictive([2, 1]) * 4
        tensor([1.5000, 0.5000, 2.0000], dtype=torch.float64)
    """

    alpha: Real
    discount: Real

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", check_positive("alpha", self.alpha))
        object.__setattr__(self, "discount", check_finite("discount", self.discount))
        if not 0 <= self.discount < 1:
            raise ValueError(f"Expected discount in [0, 1) but got {self.discount!r}")

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        n, t = _check_sizes(n_points, n_clusters)
        largest = _largest(n)
        rising = _log_rising(self.alpha, largest, n.device)
        opened = _log_rising(self.alpha, largest, n.device, step=self.discount)
        return opened[t] - rising[n]

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        return torch.full((n_datasets,), self.alpha, dtype=torch.float64)

    def _predictive_weights(
        self, n: Int64[Tensor, "*batch"], t: Int64[Tensor, "*batch"]
    ) -> tuple[Float64[Tensor, "*batch"], Float64[Tensor, "*batch"]]:
        return torch.ones_like(n, dtype=torch.float64), self.alpha + self.discount * t.double()


class NumberOfComponents(ABC):
    """A prior p_K(k), k = 1, 2, ..., of the number of components of a finite mixture."""

    registry: ClassVar[dict[str, type[NumberOfComponents]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register(NumberOfComponents.registry, cls)

    @abstractmethod
    def log_pmf(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        """log p_K(k)."""

    @abstractmethod
    def log_ratio(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        """log p_K(k + 1) / p_K(k), which must not increase with k."""

    @abstractmethod
    def sample(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        """Independent draws of K."""


@dataclass(frozen=True)
class Poisson(NumberOfComponents):
    """K - 1 ~ Poisson(rate): at least one component, 1 + rate on average.

    Example:
        >>> Poisson(rate=2.0).log_pmf(torch.tensor([1.0], dtype=torch.float64))
        tensor([-2.], dtype=torch.float64)
    """

    rate: Real

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_positive("rate", self.rate))

    def log_pmf(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        return (k - 1) * math.log(self.rate) - self.rate - torch.lgamma(k)

    def log_ratio(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        return math.log(self.rate) - k.log()

    def sample(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        rate = torch.full((n_datasets,), self.rate, dtype=torch.float64)
        return 1 + torch.poisson(rate, generator=generator)


@dataclass(frozen=True)
class Geometric(NumberOfComponents):
    """p_K(k) = p (1 - p)^{k - 1}: 1 / p components on average.

    Example:
        >>> Geometric(p=0.5).log_pmf(torch.tensor([2.0], dtype=torch.float64)).exp()
        tensor([0.2500], dtype=torch.float64)
    """

    p: Real

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_finite("p", self.p))
        if not 0 < self.p < 1:
            raise ValueError(f"Expected p in (0, 1) but got {self.p!r}")

    def log_pmf(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        return math.log(self.p) + (k - 1) * math.log1p(-self.p)

    def log_ratio(self, k: Float64[Tensor, " ..."]) -> Float64[Tensor, " ..."]:
        return torch.full_like(k, math.log1p(-self.p))

    def sample(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        u = torch.rand(n_datasets, dtype=torch.float64, generator=generator)
        return 1 + (torch.log1p(-u) / math.log1p(-self.p)).floor()


@dataclass(frozen=True)
class MixtureOfFiniteMixtures(Prior):
    """A finite mixture with a random number of components (Miller & Harrison, 2018).

    K ~ p_K, weights ~ Dirichlet(gamma, ..., gamma) of K components, labels from the weights; the
    partition counts the components that have points. With falling and rising factorials,

        p(c) = V_n(t) prod_k gamma^(n_k),    V_n(t) = sum_{k >= t} k_(t) / (gamma k)^(n) p_K(k).

    Here V carries a factor gamma^t more, since Gamma(gamma + m) / Gamma(gamma) is
    gamma Gamma(m - d) / Gamma(1 - d) at d = -gamma. The sum is taken in log space, term by term
    (the recursion in n and t cancels), until a bound of the rest is below rounding: in k,
    k_(t) / (gamma k)^(n) is unimodal and rises more and more slowly before its mode, so that the
    ratio of neighbouring terms never again exceeds the larger of its present value and
    p_K(k + 1) / p_K(k).

    Args:
        gamma: the Dirichlet parameter, > 0.
        p_k: the prior of the number of components: `Poisson` (of K - 1) or `Geometric`.

    Example:
        >>> prior = MixtureOfFiniteMixtures(gamma=1.0, p_k=Poisson(rate=3.0))
        >>> prior.log_prob([[0, 0], [0, 1]]).exp()
        tensor([0.4555, 0.5445], dtype=torch.float64)
    """

    gamma: Real = 1.0
    p_k: NumberOfComponents = Geometric(p=0.1)
    discount: Real = field(default=-1.0, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_positive("gamma", self.gamma))
        object.__setattr__(self, "discount", -self.gamma)
        if not isinstance(self.p_k, NumberOfComponents):
            raise ValueError(f"Expected p_k to be Poisson or Geometric but got {self.p_k!r}")

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        return _by_distinct_pairs(self._log_v, *_check_sizes(n_points, n_clusters))

    def _log_v(self, n: Float64[Tensor, " m"], t: Float64[Tensor, " m"]) -> Float64[Tensor, " m"]:
        top = torch.full_like(n, -math.inf)
        total = torch.zeros_like(n)
        todo, first, width = torch.arange(len(n)), 0, 256
        while len(todo):
            k = t[todo, None] + torch.arange(first, first + width)
            terms = self._log_terms(n[todo, None], t[todo, None], k)
            new_top = torch.maximum(top[todo], terms.amax(dim=1))
            total[todo] = total[todo] * (top[todo] - new_top).exp() + (
                (terms - new_top[:, None]).exp().sum(dim=1)
            )
            top[todo] = new_top
            last = terms[:, -1]
            log_ratio = torch.maximum(last - terms[:, -2], self.p_k.log_ratio(k[:, -1]))
            rest = torch.where(log_ratio < 0, (last - new_top).exp() / -torch.expm1(log_ratio), 1)
            todo = todo[rest > 1e-17 * total[todo]]
            first, width = first + width, min(2 * width, 1 << 16)
        return top + total.log()

    def _log_terms(
        self, n: Float64[Tensor, "m 1"], t: Float64[Tensor, "m 1"], k: Float64[Tensor, "m k"]
    ) -> Float64[Tensor, "m k"]:
        falling = _log_rising_factorial(k - t + 1, t)
        rising = _log_rising_factorial(self.gamma * k, n)
        return t * math.log(self.gamma) + falling - rising + self.p_k.log_pmf(k)

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        return self.gamma * self.p_k.sample(n_datasets, generator)

    def to_dict(self) -> dict[str, Any]:
        return to_spec(self) | {"p_k": to_spec(self.p_k)}


@dataclass(frozen=True)
class GammaCRP(Prior):
    """The Chinese restaurant process with an unknown concentration, alpha ~ Gamma(shape, rate).

        p(c) = int dalpha Gamma(alpha | shape, rate) CRP(c | alpha)

    With u = log alpha and a = shape, the integral over alpha becomes

        V_n(t) = rate^a / Gamma(a) int du exp((t + a - 1) u) / (alpha + 1)^(n-1) exp(-rate alpha),

    whose integrand is log-concave in u. We find its mode and the ends beyond which it is below
    rounding, substitute u = mode + v - exp(-v), which makes the left tail fall off doubly
    exponentially however small the shape, and use the trapezoidal rule, whose error is
    exponentially small for such integrands.

    Args:
        shape: the shape of the Gamma prior, > 0.
        rate: its rate, > 0; alpha is shape / rate on average.

    Example:
        >>> GammaCRP(shape=1.0, rate=1.0).log_prob([[0, 0], [0, 1]]).exp()
        tensor([0.5963, 0.4037], dtype=torch.float64)
    """

    shape: Real
    rate: Real
    discount: Real = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("shape", "rate"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        return _by_distinct_pairs(self._log_v, *_check_sizes(n_points, n_clusters))

    def _log_v(self, n: Float64[Tensor, " m"], t: Float64[Tensor, " m"]) -> Float64[Tensor, " m"]:
        def log_f(u: Tensor) -> Tensor:  # of shape (..., M)
            rising = _log_rising_factorial(u.exp() + 1, n - 1)
            return (t - 1 + self.shape) * u - rising - self.rate * u.exp()

        mode = self._log_alpha_mode(n, t)
        sides = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        ends = sides * _distance_to_drop(lambda d: log_f(mode) - log_f(mode + sides * d), mode)
        v_low, v_high = _inverse_substitution(ends)
        step = (v_high - v_low) / QUADRATURE_STEPS
        v = v_low + step * torch.arange(QUADRATURE_STEPS + 1)[:, None]
        log_terms = log_f(mode + v - torch.exp(-v)) + torch.log1p(torch.exp(-v))
        log_integral: Tensor = torch.logsumexp(log_terms, dim=0) + step.log()
        return log_integral + self.shape * math.log(self.rate) - math.lgamma(self.shape)

    def _log_alpha_mode(
        self, n: Float64[Tensor, " m"], t: Float64[Tensor, " m"]
    ) -> Float64[Tensor, " m"]:
        """Where t - 1 + shape = rate alpha + sum_{i=1}^{n-1} alpha / (alpha + i)."""
        power = t - 1 + self.shape
        low, high = (power / (self.rate + n)).log(), (power / self.rate).log()
        for _ in range(25):  # near enough: only the middle of the grid
            middle = (low + high) / 2
            alpha = middle.exp()
            tables = alpha * (torch.digamma(alpha + n) - torch.digamma(alpha + 1))
            rising = power > self.rate * alpha + tables
            low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
        return (low + high) / 2

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        rng = numpy_generator(generator)
        return torch.from_numpy(rng.gamma(self.shape, 1 / self.rate, size=n_datasets))


def split(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """The rows in blocks that need about `BLOCK` numbers when each row needs ``width``."""
    return torch.split(rows, max(1, BLOCK // max(1, width)))


def _log_rising(x: float, n: int, device: torch.device, step: float = 1.0) -> Tensor:
    """log of x (x + step) ... (x + (m - 1) step) for m = 0, ..., n.

    A sum of logs: differences of log-gammas would lose digits when x is large.
    """
    factors = x + step * torch.arange(n, dtype=torch.float64, device=device)
    return torch.cat([factors.new_zeros(1), factors.log().cumsum(0)])


def _log_rising_factorial(x: Tensor, n: Tensor) -> Tensor:
    """log x (x + 1) ... (x + n - 1) for x > 0, broadcast, without the loss of digits at large x.

    From x = 16 on it is the difference of two Stirling series, with log(1 + n / x) for the
    difference of logs.
    """
    plain = torch.lgamma(x + n) - torch.lgamma(x)
    large = x.clamp(min=16.0)
    stirling = (
        (large - 0.5) * torch.log1p(n / large)
        + n * (torch.log(large + n) - 1)
        + _stirling_rest(large + n)
        - _stirling_rest(large)
    )
    return torch.where(x >= 16, stirling, plain)


def _stirling_rest(x: Tensor) -> Tensor:
    """log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2), for x >= 16."""
    y = 1 / x.square()
    series = 1 / 1188 - y * (691 / 360360)
    for coefficient in (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = coefficient + y * series
    return series / x


def _by_distinct_pairs(
    function: Callable[[Tensor, Tensor], Tensor],
    n: Int64[Tensor, " ..."],
    t: Int64[Tensor, " ..."],
) -> Float64[Tensor, " ..."]:
    """The function of n and t, evaluated once for each distinct pair, in blocks."""
    pairs, inverse = torch.unique(
        torch.stack([n.flatten(), t.flatten()]), dim=1, return_inverse=True
    )
    blocks = [function(*block.T) for block in split(pairs.T.double(), 4096)]
    values = torch.cat([torch.empty(0, dtype=torch.float64), *blocks])
    return values[inverse].reshape(n.shape)


def _distance_to_drop(drop: Callable[[Tensor], Tensor], mode: Tensor) -> Float64[Tensor, "2 m"]:
    """The distances on both sides at which a log-concave function drops by `LOG_NEGLIGIBLE`."""
    high = torch.full((2, len(mode)), 0.1, dtype=torch.float64)
    while bool((short := drop(high) < LOG_NEGLIGIBLE).any()):
        high = torch.where(short, 2 * high, high)
    low = torch.zeros_like(high)
    for _ in range(12):
        middle = (low + high) / 2
        short = drop(middle) < LOG_NEGLIGIBLE
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return high


def _inverse_substitution(u: Tensor) -> Tensor:
    """The v with v - exp(-v) = u, by Newton's method from a start to its left."""
    v = torch.where(u < -1, -torch.log(-u.clamp(max=-1.0)), torch.minimum(u, u * 0))
    for _ in range(12):
        v = v - (v - torch.exp(-v) - u) / (1 + torch.exp(-v))
    return v


def _check_sizes(
    n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
) -> tuple[Int64[Tensor, " ..."], Int64[Tensor, " ..."]]:
    n, t = torch.as_tensor(n_points), torch.as_tensor(n_clusters)
    n, t = n + torch.zeros_like(t), t + torch.zeros_like(n)
    if bool(((t < 1) | (t > n)).any()):
        raise ValueError("Expected 1 <= n_clusters <= n_points but got values that are not")
    return n, t


def _check_counts(counts: ArrayLike) -> Int64[Tensor, "*batch k"]:
    sizes = as_tensor(counts)
    if sizes.ndim == 0:
        raise ValueError("Expected counts of shape (..., K) but got a number")
    if sizes.numel() == 0:
        return sizes.long()
    if sizes.is_floating_point() or sizes.dtype == torch.bool or bool((sizes < 0).any()):
        raise ValueError(f"Expected integer counts >= 0 but got {sizes.flatten()[:10].tolist()}")
    return sizes.long()


def _sample_urn(
    concentration: Float64[Tensor, "b 1"], n_points: int, generator: torch.Generator | None
) -> Int64[Tensor, "b n"]:
    """The urn without discount: point n starts a cluster or copies a uniform earlier point."""
    before = torch.arange(n_points)  # points before each point
    u = torch.rand((len(concentration), n_points), dtype=torch.float64, generator=generator)
    u = u * (concentration + before) - concentration
    new = u < 0
    new[:, 0] = True
    parent = torch.minimum(u.long(), before - 1)
    return _follow(torch.where(new, before, parent), new)


def _sample_discounted_urn(
    concentration: Float64[Tensor, "b 1"],
    discount: float,
    n_points: int,
    generator: torch.Generator | None,
) -> Int64[Tensor, "b n"]:
    """The urn with discount: K is a Markov chain of its own; given it, all copies are parallel."""
    n_datasets = len(concentration)
    u = torch.rand((3, n_datasets, n_points), dtype=torch.float64, generator=generator)
    before = torch.arange(n_points)
    new = _sample_new(concentration[:, 0], discount, u[0])
    k = new.cumsum(dim=1) - new.long()  # clusters before each point
    pick_cluster = u[1] * (before - discount * k.double()) < (1 - discount) * k.double()
    founders_last = new.long().argsort(dim=1, stable=True)
    n_followers = n_points - new.sum(dim=1, keepdim=True)
    cluster = torch.minimum((u[2] * k).long(), k - 1)
    follower = torch.minimum((u[2] * (before - k)).long(), before - k - 1)
    rank = torch.where(pick_cluster, n_followers + cluster, follower)
    parent = founders_last.gather(1, torch.where(new, 0, rank))
    return _follow(torch.where(new, before, parent), new)


def _sample_new(
    concentration: Float64[Tensor, " b"], discount: float, u: Float64[Tensor, "b n"]
) -> Bool[Tensor, "b n"]:
    k = torch.zeros_like(concentration)
    new = []
    for n, u_n in enumerate(u.T.contiguous()):
        opens = u_n * (concentration + n) < concentration + discount * k
        new.append(opens)
        k += opens
    return torch.stack(new, dim=1)


def _follow(parent: Int64[Tensor, "b n"], new: Bool[Tensor, "b n"]) -> Int64[Tensor, "b n"]:
    """The labels when each point copies its parent and the new ones are their own parents."""
    while True:
        grandparent = parent.gather(1, parent)
        if torch.equal(grandparent, parent):
            return (new.cumsum(dim=1) - 1).gather(1, parent)
        parent = grandparent


def _largest(n: Tensor) -> int:
    return int(n.max()) if n.numel() else 0
