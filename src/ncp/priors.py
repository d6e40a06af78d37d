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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ncp.partitions import ArrayLike, as_tensor, check_labels, counts

T = TypeVar("T")

BLOCK = 1 << 22  # numbers held at once when a batch is worked off in blocks of rows


def register(registry: dict[str, type[T]], cls: type[T]) -> None:
    """Remember a class by name, so that a spec can name it; two classes cannot share a name."""
    known = registry.get(cls.__name__)
    if known is not None and known.__qualname__ + known.__module__ != (
        cls.__qualname__ + cls.__module__
    ):
        raise ValueError(
            f"Expected a new class name but {cls.__name__} is already {known.__module__}."
            f"{known.__qualname__}"
        )
    registry[cls.__name__] = cls


def to_spec(thing: Any) -> dict[str, Any]:
    """A dataclass as a plain dict: its class name under ``kind`` and its arguments."""
    return {"kind": type(thing).__name__} | {
        f.name: getattr(thing, f.name) for f in fields(thing) if f.init
    }


def from_spec(spec: Mapping[str, Any], registry: Mapping[str, type[T]]) -> T:
    """The thing that `to_spec` described; unknown kinds and arguments are refused."""
    if not isinstance(spec, Mapping) or spec.get("kind") not in registry:
        kind = spec.get("kind") if isinstance(spec, Mapping) else spec
        raise ValueError(f"Expected kind to be one of {sorted(registry)} but got {kind!r}")
    arguments = {name: value for name, value in spec.items() if name != "kind"}
    try:
        return registry[spec["kind"]](**arguments)
    except TypeError as error:
        raise ValueError(f"Expected the arguments of {spec['kind']}: {error}") from error


def check_positive(name: str, value: float) -> float:
    """The value as a float, or a ``ValueError`` unless it is a positive finite number."""
    number = check_finite(name, value)
    if number <= 0:
        raise ValueError(f"Expected {name} > 0 but got {value!r}")
    return number


def check_finite(name: str, value: float) -> float:
    """The value as a float, or a ``ValueError`` unless it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"Expected {name} to be a finite number but got {value!r}")
    return number


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
    discount: float

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

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `prior_from_dict` makes an equal prior."""
        return to_spec(self)


def prior_from_dict(spec: Mapping[str, Any]) -> Prior:
    """The prior that ``spec``, a dict from `Prior.to_dict`, describes.

    Example:
        >>> prior_from_dict({"kind": "CRP", "alpha": 0.7})
        CRP(alpha=0.7)
    """
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

    alpha: float
    discount: float = field(default=0.0, init=False, repr=False)

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

    alpha: float
    discount: float

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


def split(rows: Tensor, width: int) -> tuple[Tensor, " ..."]:
    """The rows in blocks that need about `BLOCK` numbers when each row needs ``width``."""
    return torch.split(rows, max(1, BLOCK // max(1, width)))


def _log_rising(x: float, n: int, device: torch.device, step: float = 1.0) -> Tensor:
    """log of x (x + step) ... (x + (m - 1) step) for m = 0, ..., n.

    A sum of logs: differences of log-gammas would lose digits when x is large.
    """
    factors = x + step * torch.arange(n, dtype=torch.float64, device=device)
    return torch.cat([factors.new_zeros(1), factors.log().cumsum(0)])


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
