"""Clusters of labelled examples, of images say: likelihoods that can only be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.generative.likelihood import Likelihood, take
from ncp.generative.specs import Real
from ncp.partitions import ArrayLike, as_tensor

__all__ = ["LabelledArrays"]


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
        >>> arrays = torch.tensor([[0.0], [0.1], [5.0]])
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
        label = take(parameters, labels)[..., 0].long()
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
