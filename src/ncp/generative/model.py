"""The contract of a generative model: data sets with known clusters can be drawn from it.

That is all a network needs to be trained, so it is all that is asked:

    (x, c) ~ p(x, c | N),    N in {sizes},    each point of one ``event_shape``.

Three more abilities are optional, and are asked for by name, never by class:

* a joint density log p(c, x) in closed form (``is_conjugate``, then `GenerativeModel.log_joint`),
  which gives importance weights, evidence and exact targets;
* a density of points given the parameters of their clusters (``has_density``), which gives
  targets given the parameters and Markov chains;
* a preprocessing (`GenerativeModel.preprocessing`) that turns any numeric table into points.

Both densities are those of the `Mixture` that `GenerativeModel.given` returns, and are about the
points that `GenerativeModel.points` reads off what a network sees. A model of one's own is a frozen
dataclass with ``sizes``, ``event_shape`` and `sample`; its class name makes it loadable from a
checkpoint's spec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from ncp.generative.plugins import HOW_TO_IMPORT
from ncp.generative.specs import from_spec, is_known, register, to_spec
from ncp.partitions import ArrayLike, as_tensor

if TYPE_CHECKING:
    from ncp.generative.mixture import Mixture

__all__ = [
    "Batch",
    "FittedPreprocessing",
    "GenerativeModel",
    "Oddness",
    "Preprocessing",
    "check_sizes",
    "draw_size",
    "model_from_dict",
]


class Batch(NamedTuple):
    """Data sets of one size with their true partitions.

    Attributes:
        x: points of shape (B, N, *event).
        labels: canonical labels of shape (B, N).
        parameters: of shape (B, K, P) for the largest K in the batch plus the extra ones asked
            for; those past a data set's own K are further draws from their prior.
        hyperparameters: of shape (B, H), where the model draws them for each data set.
    """

    x: Float[Tensor, "b n *event"]
    labels: Int64[Tensor, "b n"]
    parameters: Float64[Tensor, "b k p"] | None = None
    hyperparameters: Float64[Tensor, "b h"] | None = None


@runtime_checkable
class FittedPreprocessing(Protocol):
    """A preprocessing fitted to one table.

    Attributes:
        features: the points (M, *event) of the rows kept.
        rows: which of the table's rows were kept.
        axes: of the columns, (P, d); d = 0 if no column varies.
        words: what was done, for people.
    """

    @property
    def features(self) -> NDArray[np.float32]: ...
    @property
    def rows(self) -> NDArray[np.bool_]: ...
    @property
    def axes(self) -> NDArray[np.float64]: ...
    @property
    def words(self) -> str: ...
    def apply(self, x: Any, /) -> NDArray[np.float32]:
        """Points of further rows of the table."""


@runtime_checkable
class Preprocessing(Protocol):
    """What turns a table into a model's points."""

    def fit(self, x: Any, categorical: Any = None, seed: int = 0) -> FittedPreprocessing:
        """Learn what there is to learn from a table (N, P), NaN for missing, and apply it.

        Args:
            x: the table.
            categorical: which of its columns are numbers of levels, (P,); none if left out.
            seed: of what fills in missing values.
        """


@runtime_checkable
class Oddness(Protocol):
    """How odd a data set is among those of a model: a p-value, and that in words."""

    @property
    def p_value(self) -> float: ...
    @property
    def words(self) -> str: ...


class GenerativeModel(ABC):
    """Something that data sets with known clusters can be drawn from.

    Attributes:
        sizes: the smallest and the largest number of points of a data set.
        event_shape: the shape of one point.
        location, scale: what a network subtracts from and divides the points by.
        preprocessing: what turns a user's table into points; None if they are taken as they are.
        max_clusters: the largest number of clusters that a data set can have, if there is one.
        is_conjugate: whether `log_joint` exists, given the hyper-parameters if there are any.
        has_density: whether points have a density given the parameters of their clusters.
    """

    registry: ClassVar[dict[str, type[GenerativeModel]]] = {}
    sizes: Sequence[int]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register(GenerativeModel.registry, cls)

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
    def preprocessing(self) -> Preprocessing | None:
        return None

    @property
    def max_clusters(self) -> int | None:
        return None

    @property
    def is_conjugate(self) -> bool:
        return False

    @property
    def has_density(self) -> bool:
        return False

    @abstractmethod
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
            A `Batch`.
        """

    def given(self, hyperparameters: Float64[Tensor, "b h"] | None = None) -> Mixture:
        """The prior and likelihood of data sets whose hyper-parameters are known.

        Args:
            hyperparameters: as a `Batch` carries them, one row for each data set; None for a
                model that has none.

        Returns:
            A mixture whose methods broadcast over the data sets.
        """
        raise ValueError(
            "Expected a model with a prior and a likelihood "
            f"but {type(self).__name__} can only be sampled"
        )

    def points(self, x: Float[Tensor, "*batch n *event"]) -> Float[Tensor, "*batch n ..."]:
        """What the densities of `given` are about; by default all that a network sees."""
        return x

    def events(
        self,
        points: Float[Tensor, "*batch n ..."],
        hyperparameters: Float64[Tensor, "*batch h"] | None = None,
    ) -> Float[Tensor, "*batch n *event"]:
        """What a network sees of points: the inverse of `points`, up to symmetries of the model.

        Args:
            points: data sets of shape (..., N, *point).
            hyperparameters: theirs, of shape (..., H), if the model has any.
        """
        return points

    def unpack(self, x: ArrayLike) -> tuple[Mixture, Tensor]:
        """The mixture of one data set that a network sees, (N, *event), and its points.

        What is exact (enumeration, chains, weights) is about these.
        """
        return self.given(), as_tensor(x)

    def log_joint(self, x: ArrayLike, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        """log p(c, x), for many label rows of one data set; only if ``is_conjugate``.

        Args:
            x: points of shape (N, *event).
            labels: canonical labels of shape (..., N).

        Returns:
            Log probabilities of shape (...), in float64.
        """
        raise ValueError(
            "Expected a conjugate model, whose parameters can be integrated out, "
            f"but {type(self).__name__} can only be sampled"
        )

    def unusualness(self, fitted: FittedPreprocessing) -> Oddness | None:
        """How odd a preprocessed table is among this model's; None if it does not say."""
        return None

    def shortfall(self, n_points: int) -> float:
        """How much less than promised answers on data sets of a size agree with the truth."""
        return 0.0

    def calibrated(
        self, confidence: Float64[np.ndarray, " N"], n_points: int
    ) -> Float64[np.ndarray, " N"]:
        """The overlap that clusters have with the truth where samples promise this one."""
        return confidence

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `model_from_dict` makes an equal model."""
        return to_spec(self)

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> GenerativeModel:
        """The model of this class that ``spec``, a dict from `to_dict`, describes."""
        return from_spec(spec, {cls.__name__: cls})


def model_from_dict(spec: Mapping[str, Any]) -> GenerativeModel:
    """The model that ``spec`` describes, a `Mixture` unless its ``kind`` says otherwise.

    Example:
        >>> model_from_dict({"kind": "TabularMixture", "sizes": [10, 60]}).sizes
        (10, 60)
    """
    kind = spec.get("kind", "Mixture") if isinstance(spec, Mapping) else spec
    if not is_known(kind, GenerativeModel.registry):
        known = sorted(GenerativeModel.registry)
        raise ValueError(
            f"Expected a generative model of kind {known} but got {kind!r}; if it is a class of "
            f"your own, {HOW_TO_IMPORT}"
        )
    assert isinstance(kind, str)
    return GenerativeModel.registry[kind].from_dict(spec)


def check_sizes(sizes: Sequence[int]) -> tuple[int, int]:
    """The smallest and the largest size, or a ``ValueError`` unless they are such."""
    whole = len(sizes) == 2 and all(int(n) == n for n in sizes)
    if not whole or not 1 <= sizes[0] <= sizes[1]:
        raise ValueError(
            f"Expected sizes to be two integers 1 <= smallest <= largest but got {sizes}"
        )
    return int(sizes[0]), int(sizes[1])


def draw_size(sizes: Sequence[int], generator: torch.Generator | None) -> int:
    """A size N, uniform between the smallest and the largest."""
    return int(torch.randint(sizes[0], sizes[1] + 1, (), generator=generator))
