"""Mixtures whose hyper-parameters the caller chooses.

For each data set hyper-parameters are drawn from a range, and the data set given them,

    eta ~ p(eta),    c, x | eta ~ the mixture at eta,

and a network that sees eta beside the points learns the posterior p(c | x, eta) of the whole
family. So that every network, sampler and check takes such data as it takes any other, eta rides
with the points: a network sees

    (x_i, encode(eta)),    i = 1, ..., N,

with encode(eta) the same for all points of a data set. The user picks eta when clustering. Nothing
is lost: `ConditionedModel.points` and `ConditionedModel.hyperparameters_of` read both off again,
which gives log p(c, x | eta) wherever the mixtures of the family have it.

A family of one's own says which hyper-parameters there are and what the mixture is at each:

    @dataclass(frozen=True)
    class NoisyRings(ConditionedModel):
        sizes: tuple[int, int] = (5, 100)

        @property
        def hyperparameters(self):
            return {"noise_sd": Range(0.1, 1.0)}

        def condition(self, noise_sd):
            return Mixture(CRP(0.7), Ring(noise_sd=noise_sd), self.sizes)
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import (
    ConjugateLikelihood,
    DensityLikelihood,
    IntegrableLikelihood,
    Likelihood,
)
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch, GenerativeModel, draw_size
from ncp.generative.priors import Prior
from ncp.generative.specs import Real
from ncp.partitions import ArrayLike, as_tensor

__all__ = ["ConditionedModel", "Range"]

AnyStack = TypeVar("AnyStack", bound="_Stack")


class Range(NamedTuple):
    """From where to where a hyper-parameter runs, uniformly or with its logarithm uniform.

    A network sees it as a number between -1 and 1.

    Example:
        >>> alpha = Range(0.1, 10.0)
        >>> alpha.encode(torch.tensor([0.1, 1.0, 10.0]))
        tensor([-1.,  0.,  1.])
    """

    low: Real
    high: Real
    log: bool = True

    def draw(self, n: int, generator: torch.Generator | None) -> Float64[Tensor, " n"]:
        """Independent values."""
        return self.decode(2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1)

    def encode(self, value: Tensor) -> Tensor:
        """-1 at the low end, 1 at the high end."""
        low, high = self._ends
        return (2 * (value.log() if self.log else value) - low - high) / (high - low)

    def decode(self, code: Tensor) -> Tensor:
        """The value that has this code."""
        low, high = self._ends
        value = 0.5 * (low + high + code * (high - low))
        return value.exp() if self.log else value

    def __contains__(self, value: object) -> bool:
        return isinstance(value, numbers.Real) and self.low <= float(value) <= self.high

    @property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)


class ConditionedModel(GenerativeModel):
    """A family of mixtures of vectors, one for each value of its hyper-parameters.

    Attributes:
        hyperparameters: the range of each, by name; their order is that of the columns of
            `Batch.hyperparameters`.
    """

    @property
    @abstractmethod
    def hyperparameters(self) -> Mapping[str, Range]: ...

    @abstractmethod
    def condition(self, *args: Any, **values: Any) -> Mixture:
        """The mixture at these hyper-parameters, by name."""

    # -- what a network sees ----------------------------------------------------------------------

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self._somewhere.event_shape[0] + len(self.hyperparameters),)

    @property
    def scale(self) -> float | Tensor:
        ones = torch.ones(self.event_shape, dtype=torch.float64)
        ones[: -len(self.hyperparameters)] = torch.as_tensor(self._somewhere.scale).double()
        return ones

    @property
    def location(self) -> float | Tensor:
        zeros = torch.zeros(self.event_shape, dtype=torch.float64)
        zeros[: -len(self.hyperparameters)] = torch.as_tensor(self._somewhere.location).double()
        return zeros

    def setting(self, **values: Any) -> Float64[Tensor, " h"]:
        """Hyper-parameters by name as a row; those outside the range are refused."""
        ranges = self.hyperparameters
        if set(values) != set(ranges):
            raise ValueError(f"Expected the hyper-parameters {[*ranges]} but got {[*values]}")
        for name, value in values.items():
            if value not in ranges[name]:
                low, high = ranges[name][:2]
                raise ValueError(f"Expected {name} between {low} and {high} but got {value!r}")
        return torch.tensor([float(values[name]) for name in ranges], dtype=torch.float64)

    def encode(self, hyperparameters: Float64[Tensor, "*batch h"]) -> Float64[Tensor, "*batch h"]:
        """What a network sees of hyper-parameters, of shape (..., H): numbers of order one."""
        columns = zip(self.hyperparameters.values(), hyperparameters.unbind(-1), strict=True)
        return torch.stack([a_range.encode(column) for a_range, column in columns], dim=-1)

    def decode(self, codes: Float[Tensor, "*batch h"]) -> Float64[Tensor, "*batch h"]:
        """The inverse of `encode`."""
        columns = zip(self.hyperparameters.values(), codes.double().unbind(-1), strict=True)
        return torch.stack([a_range.decode(column) for a_range, column in columns], dim=-1)

    def points(self, x: Float[Tensor, "*batch n e"]) -> Float[Tensor, "*batch n d"]:
        return x[..., : -len(self.hyperparameters)]

    def hyperparameters_of(self, x: Float[Tensor, "*batch n e"]) -> Float64[Tensor, "*batch h"]:
        """The hyper-parameters that ride with the points."""
        return self.decode(x[..., 0, -len(self.hyperparameters) :])

    def events(
        self,
        points: Float[Tensor, "*batch n d"],
        hyperparameters: Float64[Tensor, "*batch h"] | None = None,
    ) -> Float[Tensor, "*batch n e"]:
        codes = self.encode(self._known(hyperparameters)).to(points.dtype)[..., None, :]
        return torch.cat([points, codes.expand(*points.shape[:-1], -1)], dim=-1)

    # -- where data come from ---------------------------------------------------------------------

    @property
    def is_conjugate(self) -> bool:
        return self._somewhere.is_conjugate

    @property
    def has_density(self) -> bool:
        return self._somewhere.has_density

    @property
    def _somewhere(self) -> Mixture:
        return self.condition(**{name: float(r.low) for name, r in self.hyperparameters.items()})

    def sample_hyperparameters(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, "b h"]:
        """Hyper-parameters of data sets, one row for each."""
        drawn = [r.draw(n_datasets, generator) for r in self.hyperparameters.values()]
        return torch.stack(drawn, dim=-1)

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Draw data sets of one common size, each with hyper-parameters of its own."""
        if n_datasets < 1 or share_partition:
            raise ValueError(
                "Expected n_datasets >= 1 and share_partition=False where data sets have their own "
                f"hyper-parameters but got {n_datasets} and {share_partition}"
            )
        n = draw_size(self.sizes, generator) if n_points is None else n_points
        eta = self.sample_hyperparameters(n_datasets, generator)
        batch = self.given(eta).sample(
            n_datasets, n, extra_parameters=extra_parameters, generator=generator
        )
        return batch._replace(x=self.events(batch.x, eta), hyperparameters=eta)

    def given(self, hyperparameters: Float64[Tensor, "b h"] | None = None) -> Mixture:
        names = [*self.hyperparameters]
        rows = (dict(zip(names, row, strict=True)) for row in self._known(hyperparameters).tolist())
        return stacked([self.condition(**row) for row in rows], self.sizes)

    def _known(self, hyperparameters: Tensor | None) -> Float64[Tensor, "*batch h"]:
        names = [*self.hyperparameters]
        if hyperparameters is None or hyperparameters.shape[-1:] != (len(names),):
            got = None if hyperparameters is None else f"shape {tuple(hyperparameters.shape)}"
            raise ValueError(f"Expected the hyper-parameters {names} of data sets but got {got}")
        return hyperparameters.double()

    def unpack(self, x: ArrayLike) -> tuple[Mixture, Tensor]:
        x = as_tensor(x)
        eta = self.hyperparameters_of(x).tolist()
        values = dict(zip(self.hyperparameters, eta, strict=True))
        return self.condition(**values), self.points(x)

    def log_joint(self, x: ArrayLike, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(c, x | eta), for many label rows of one data set that carries its eta.

        Args:
            x: what a network sees, of shape (N, *event).
            labels: canonical labels of shape (..., N).
        """
        mixture, points = self.unpack(x)
        return mixture.log_joint(points, labels)


# -- one mixture for each data set -----------------------------------------------------------------


def stacked(mixtures: Sequence[Mixture], sizes: Sequence[int]) -> Mixture:
    """One mixture for each data set of a batch, as one mixture; of one data set it is its own.

    Methods go through the data sets one by one. A family that is often drawn from has a mixture of
    its own that takes them together.
    """
    if len(mixtures) == 1:
        return mixtures[0]
    likelihoods = tuple(mixture.likelihood for mixture in mixtures)
    kind = _StackedLikelihood
    if all(isinstance(likelihood, ConjugateLikelihood) for likelihood in likelihoods):
        kind = _StackedConjugate
    elif all(isinstance(likelihood, IntegrableLikelihood) for likelihood in likelihoods):
        kind = _StackedIntegrable
    elif all(isinstance(likelihood, DensityLikelihood) for likelihood in likelihoods):
        kind = _StackedDensity
    index = torch.arange(len(mixtures))
    prior = _StackedPrior(tuple(mixture.prior for mixture in mixtures), index)
    return Mixture(prior, kind(likelihoods, index), sizes)


class _Stack:
    """Parts, one for each data set, and which of them are meant."""

    parts: tuple[Any, ...]
    index: Tensor

    def rows(self: AnyStack, index: Int64[Tensor, " m"]) -> AnyStack:
        return type(self)(self.parts, self.index[index])  # type: ignore[call-arg]

    def _in_turn(self) -> Iterator[Any]:
        return (self.parts[i] for i in self.index.tolist())

    def _each(self, call: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """call(part, arguments of its data sets) for all parts, put together."""
        if len(self.index) == 1:
            return call(self.parts[int(self.index)], *arguments)
        pieces, where = [], []
        for part in sorted(set(self.index.tolist())):
            rows = (self.index == part).nonzero()[:, 0]
            pieces.append(call(self.parts[part], *(argument[rows] for argument in arguments)))
            where.append(rows)
        return torch.cat(pieces)[torch.cat(where).argsort()]


@dataclass(frozen=True)
class _StackedPrior(_Stack, Prior):
    parts: tuple[Prior, ...]
    index: Int64[Tensor, " b"]
    discount: Real = field(default=0.0, init=False, repr=False)

    def log_v(
        self, n_points: int | Int64[Tensor, " ..."], n_clusters: int | Int64[Tensor, " ..."]
    ) -> Float64[Tensor, " ..."]:
        n, t = torch.as_tensor(n_points), torch.as_tensor(n_clusters)
        if len(self.index) == 1:
            return self._each(lambda prior: prior.log_v(n, t))
        sizes = [
            m + torch.zeros((len(self.index), *(n + t).shape[1:]), dtype=torch.long) for m in (n, t)
        ]
        return self._each(lambda prior, n, t: prior.log_v(n, t), *sizes)

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        assert n_datasets == len(self.index)
        return torch.cat([prior.sample_concentration(1, generator) for prior in self._in_turn()])

    def sample(
        self, n_datasets: int, n_points: int, generator: torch.Generator | None = None
    ) -> Int64[Tensor, "n_datasets n_points"]:
        assert n_datasets == len(self.index)
        return torch.cat([prior.sample(1, n_points, generator) for prior in self._in_turn()])

    def log_prob(self, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        labels = as_tensor(labels)
        if len(self.index) > 1:
            labels = labels.expand(len(self.index), *labels.shape[1:])
        return self._each(lambda prior, rows: prior.log_prob(rows), labels)

    def predictive(self, counts: ArrayLike) -> Float64[Tensor, "*batch k1"]:
        return self._each(lambda prior, rows: prior.predictive(rows), as_tensor(counts))


@dataclass(frozen=True)
class _StackedLikelihood(_Stack, Likelihood):
    parts: tuple[Likelihood, ...]
    index: Int64[Tensor, " b"]

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.parts[0].event_shape

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        assert shape[0] == len(self.index)
        one = (1, *shape[1:])
        return torch.cat([part.sample_parameters(one, generator) for part in self._in_turn()])

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        return self._each(
            lambda part, p, c: part.sample_observations(p, c, generator), parameters, labels
        )


class _StackedDensity(_StackedLikelihood, DensityLikelihood):
    def log_density(
        self, x: Float[Tensor, "b n *event"], parameters: Float64[Tensor, "b k p"]
    ) -> Float64[Tensor, "b n k"]:
        return self._each(lambda part, x, p: part.log_density(x, p), x, parameters)


class _StackedIntegrable(_StackedDensity, IntegrableLikelihood):
    @property
    def few(self) -> int:
        return min(part.few for part in self.parts if isinstance(part, IntegrableLikelihood))

    def log_subset_marginals(
        self, x: Float64[Tensor, "b n *event"], n_points: Int64[Tensor, " b"]
    ) -> Float64[Tensor, "b subsets"]:
        return self._each(lambda part, x, n: part.log_subset_marginals(x, n), x, n_points)


class _StackedConjugate(_StackedDensity, ConjugateLikelihood):
    def statistics(self, x: Float[Tensor, " ..."]) -> Float64[Tensor, "*batch t"]:
        return self._each(lambda part, x: part.statistics(x), x)

    def log_marginal_statistics(
        self, statistics: Float64[Tensor, "*batch t"]
    ) -> Float64[Tensor, "*batch"]:
        return self._each(lambda part, t: part.log_marginal_statistics(t), statistics)
