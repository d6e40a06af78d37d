"""The generative world: a prior of partitions and a likelihood of points.

    N ~ Uniform{sizes},    c_{1:N} ~ p(c),    mu_k ~ p(mu),    x_i ~ p(x | mu_{c_i})

`Mixture.sample` draws whole batches of data sets of one size N. For a conjugate likelihood
`Mixture.log_joint` is log p(c, x) = log p(c) + log p(x | c). `Mixture.to_dict` is the plain dict
that a checkpoint carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import (
    ConjugateLikelihood,
    DensityLikelihood,
    Likelihood,
    likelihood_from_dict,
)
from ncp.generative.model import Batch, GenerativeModel, check_sizes, draw_size
from ncp.generative.priors import CRP, Prior, prior_from_dict
from ncp.partitions import ArrayLike, n_clusters

__all__ = ["Mixture", "as_model"]

REDRAWS = 1000  # rounds of drawing again the partitions with more clusters than there can be


@dataclass(frozen=True)
class Mixture(GenerativeModel):
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

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise ValueError(f"Expected prior to be a Prior but got {self.prior!r}")
        if not isinstance(self.likelihood, Likelihood):
            raise ValueError(f"Expected likelihood to be a Likelihood but got {self.likelihood!r}")
        object.__setattr__(self, "sizes", check_sizes(self.sizes))

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.likelihood.event_shape

    @property
    def location(self) -> float | Tensor:
        return self.likelihood.location

    @property
    def scale(self) -> float | Tensor:
        return self.likelihood.scale

    @property
    def max_clusters(self) -> int | None:
        return self.likelihood.max_clusters

    @property
    def is_conjugate(self) -> bool:
        return isinstance(self.likelihood, ConjugateLikelihood)

    @property
    def has_density(self) -> bool:
        return isinstance(self.likelihood, DensityLikelihood)

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Draw data sets of one common size; see `GenerativeModel.sample`.

        When the likelihood allows only so many clusters, partitions with more are drawn again:
        the prior is then the one given K <= ``max_clusters``.
        """
        if n_datasets < 1 or extra_parameters < 0:
            raise ValueError(
                "Expected n_datasets >= 1 and extra_parameters >= 0 "
                f"but got {n_datasets} and {extra_parameters}"
            )
        if n_points is None:
            n_points = draw_size(self.sizes, generator)
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
        limit = self.max_clusters
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

    def given(self, hyperparameters: Float64[Tensor, "b h"] | None = None) -> Mixture:
        """The mixture itself, which has no hyper-parameters to know."""
        if hyperparameters is not None:
            raise ValueError("Expected no hyper-parameters for a mixture, which is one already")
        return self

    def rows(self, index: Int64[Tensor, " m"]) -> Mixture:
        """The same for some of the data sets, where prior or likelihood differ between them."""
        prior, likelihood = self.prior.rows(index), self.likelihood.rows(index)
        if prior is self.prior and likelihood is self.likelihood:
            return self
        return replace(self, prior=prior, likelihood=likelihood)

    def log_joint(self, x: ArrayLike, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(c, x) = log p(c) + log p(x | c), for many label rows of one data set."""
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
        if not isinstance(spec, Mapping) or set(spec) != {"prior", "likelihood", "sizes"}:
            got = sorted(spec) if isinstance(spec, Mapping) else spec
            raise ValueError(f"Expected a dict of prior, likelihood and sizes but got {got}")
        return cls(
            prior_from_dict(spec["prior"]),
            likelihood_from_dict(spec["likelihood"]),
            tuple(spec["sizes"]),
        )


def as_model(thing: Any) -> GenerativeModel:
    """A generative model of what somebody has written: itself, or a mixture of a likelihood.

    Args:
        thing: A generative model, a likelihood (with a CRP(0.7) prior), or a class of either that
            takes no arguments.

    Example:
        >>> from ncp.generative.ring import Ring
        >>> as_model(Ring).prior
        CRP(alpha=0.7)
    """
    try:
        thing = thing() if isinstance(thing, type) else thing
    except TypeError as error:
        raise ValueError(f"Expected a class that needs no arguments but got: {error}") from error
    if isinstance(thing, Likelihood):
        return Mixture(CRP(alpha=0.7), thing)
    if not isinstance(thing, GenerativeModel):
        raise ValueError(f"Expected a generative model or a likelihood but got {thing!r}")
    return thing
