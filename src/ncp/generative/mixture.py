"""The generative world: a prior of partitions and a likelihood of points.

    N ~ Uniform{sizes},    c_{1:N} ~ p(c),    mu_k ~ p(mu),    x_i ~ p(x | mu_{c_i})

`Mixture.sample` draws whole batches of data sets of one size N. For a conjugate likelihood
`Mixture.log_joint` is log p(c, x) = log p(c) + log p(x | c). `Mixture.to_dict` is the plain dict
that a checkpoint carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import (
    ConjugateLikelihood,
    DensityLikelihood,
    Likelihood,
    likelihood_from_dict,
)
from ncp.generative.priors import Prior, prior_from_dict, register
from ncp.partitions import ArrayLike, n_clusters

REDRAWS = 1000  # rounds of drawing again the partitions with more clusters than there can be


class Batch(NamedTuple):
    """Data sets of one size with their true partitions.

    Attributes:
        x: points of shape (B, N, *event).
        labels: canonical labels of shape (B, N).
        parameters: of shape (B, K, P) for the largest K in the batch plus the extra ones asked
            for; those past a data set's own K are further draws from their prior.
    """

    x: Float[Tensor, "b n *event"]
    labels: Int64[Tensor, "b n"]
    parameters: Float64[Tensor, "b k p"] | None


@dataclass(frozen=True)
class Mixture:
    """A mixture model of which data sets can be drawn.

    Args:
        prior: the prior of partitions.
        likelihood: the model of the points of a cluster.
        sizes: the smallest and the largest number of points of a data set.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(alpha=0.7), GaussianKnownVariance(dim=2))
        >>> batch = mixture.sample(3, n_points=20, generator=torch.Generator().manual_seed(0))
        >>> batch.x.shape, batch.labels.shape
        (torch.Size([3, 20, 2]), torch.Size([3, 20]))
        >>> mixture.log_joint(batch.x[0], batch.labels).shape
        torch.Size([3])
    """

    prior: Prior
    likelihood: Likelihood
    sizes: Sequence[int] = (5, 100)
    registry: ClassVar[dict[str, type[Mixture]]] = {}  # subclasses, named by a spec's "kind"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register(Mixture.registry, cls)

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise ValueError(f"Expected prior to be a Prior but got {self.prior!r}")
        if not isinstance(self.likelihood, Likelihood):
            raise ValueError(f"Expected likelihood to be a Likelihood but got {self.likelihood!r}")
        sizes = tuple(self.sizes)
        whole = len(sizes) == 2 and all(int(n) == n for n in sizes)
        if not whole or not 1 <= sizes[0] <= sizes[1]:
            raise ValueError(
                f"Expected sizes to be two integers 1 <= smallest <= largest but got {self.sizes}"
            )
        object.__setattr__(self, "sizes", (int(sizes[0]), int(sizes[1])))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one point."""
        return self.likelihood.event_shape

    @property
    def is_conjugate(self) -> bool:
        """Whether `log_joint` exists."""
        return isinstance(self.likelihood, ConjugateLikelihood)

    @property
    def has_density(self) -> bool:
        """Whether the likelihood has a `log_density` given the parameters."""
        return isinstance(self.likelihood, DensityLikelihood)

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Draw data sets of one common size.

        Args:
            n_datasets: the number of data sets B.
            n_points: their size N; by default drawn uniformly from ``sizes``.
            share_partition: whether all data sets have the same partition (as in the paper's
                mini-batches) and only parameters and points of their own.
            extra_parameters: how many cluster parameters to draw beyond the largest K.
            generator: the source of randomness.

        Returns:
            A `Batch`. When the likelihood allows only so many clusters, partitions with more are
            drawn again: the prior is then the one given K <= ``likelihood.max_clusters``.
        """
        if n_datasets < 1 or extra_parameters < 0:
            raise ValueError(
                "Expected n_datasets >= 1 and extra_parameters >= 0 "
                f"but got {n_datasets} and {extra_parameters}"
            )
        if n_points is None:
            low, high = self.sizes
            n_points = int(torch.randint(low, high + 1, (), generator=generator))
        labels = self._sample_labels(1 if share_partition else n_datasets, n_points, generator)
        labels = labels.expand(n_datasets, -1).contiguous()
        n_parameters = int(labels.max()) + 1 + extra_parameters
        parameters = self.likelihood.sample_parameters((n_datasets, n_parameters), generator)
        x = self.likelihood.sample_observations(parameters, labels, generator)
        return Batch(x, labels, parameters)

    def _sample_labels(
        self, n_datasets: int, n_points: int, generator: torch.Generator | None
    ) -> Int64[Tensor, "b n"]:
        labels = self.prior.sample(n_datasets, n_points, generator)
        limit = self.likelihood.max_clusters
        if limit is None:
            return labels
        for _ in range(REDRAWS):
            over = (n_clusters(labels) > limit).nonzero()[:, 0]
            if len(over) == 0:
                return labels
            labels[over] = self.prior.sample(len(over), n_points, generator)
        raise ValueError(
            f"Expected a prior that gives at most {limit} clusters now and then "
            f"but got more in {REDRAWS} draws in a row from {self.prior} with N = {n_points}"
        )

    def log_joint(self, x: ArrayLike, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(c, x) = log p(c) + log p(x | c), for many label rows of one data set.

        Args:
            x: points of shape (N, *event).
            labels: canonical labels of shape (..., N).

        Returns:
            Log probabilities of shape (...), in float64.
        """
        if not isinstance(self.likelihood, ConjugateLikelihood):
            raise ValueError(
                "Expected a conjugate likelihood, whose parameters can be integrated out, "
                f"but got {type(self.likelihood).__name__}"
            )
        return self.likelihood.log_marginal(x, labels) + self.prior.log_prob(labels)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `Mixture.from_dict` makes an equal mixture."""
        return {
            "prior": self.prior.to_dict(),
            "likelihood": self.likelihood.to_dict(),
            "sizes": list(self.sizes),
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Mixture:
        """The mixture that ``spec``, a dict from `to_dict`, describes."""
        named = Mixture.registry.get(spec.get("kind", "")) if isinstance(spec, Mapping) else None
        if named is not None and named is not cls:
            return named.from_dict(spec)
        if not isinstance(spec, Mapping) or set(spec) != {"prior", "likelihood", "sizes"}:
            got = sorted(spec) if isinstance(spec, Mapping) else spec
            raise ValueError(f"Expected a dict of prior, likelihood and sizes but got {got}")
        return cls(
            prior_from_dict(spec["prior"]),
            likelihood_from_dict(spec["likelihood"]),
            tuple(spec["sizes"]),
        )
