"""h: from a point to its encoding.

An encoder is any module that maps `(points, *event_shape)` to `(points, out)`. Its spec is a
subclass of `Encoder`, found by name in a checkpoint's header; a user's own is made known by being
defined (`class MyEncoder(Encoder)`) before the checkpoint is read.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ncp.generative.plugins import HOW_TO_IMPORT
from ncp.generative.specs import is_known
from ncp.network.blocks import Part, Perceptron, perceptron

__all__ = ["ConvEncoder", "Encoder", "MLPEncoder", "encoder_from_dict"]

MOST_OCTAVES = 16  # float32 has no more to tell


@dataclass(frozen=True)
class Encoder(Part):
    """The spec of an encoder.

    Args:
        out: d_h, the size of an encoding.
    """

    registry: ClassVar[dict[str, type[Encoder]]] = {}
    out: int = 256

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Encoder.registry[cls.__name__] = cls

    @abstractmethod
    def build(self, event_shape: tuple[int, ...]) -> nn.Module:
        """The module: `(points, *event_shape)` to `(points, out)`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values and the name of the class."""
        return {"kind": type(self).__name__, **super().to_dict()}


def encoder_from_dict(plain: Mapping[str, Any]) -> Encoder:
    """The encoder that a header names."""
    kind = plain.get("kind") if isinstance(plain, Mapping) else plain
    if not is_known(kind, Encoder.registry):
        raise ValueError(
            f"Expected an encoder of kind {sorted(Encoder.registry)} but got {kind!r}; "
            f"if it is a class of your own, {HOW_TO_IMPORT}"
        )
    assert isinstance(kind, str)
    return Encoder.registry[kind].from_dict({k: v for k, v in plain.items() if k != "kind"})


@dataclass(frozen=True)
class MLPEncoder(Encoder):
    """Vectors: a perceptron that may see waves of the coordinates beside them.

    Args:
        width, depth: of the perceptron; the paper's are 128 and 5.
        residual: skip connections around its hidden layers.
        fourier_octaves: octaves of sines and cosines of the coordinates; 0 in the paper.
    """

    ZERO_ALLOWED: ClassVar[tuple[str, ...]] = ("fourier_octaves",)
    width: int = 128
    depth: int = 5
    residual: bool = False
    fourier_octaves: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Perceptron(self.width, self.depth, self.out)  # checks
        if self.fourier_octaves > MOST_OCTAVES:
            raise ValueError(
                f"Expected fourier_octaves <= {MOST_OCTAVES} but got {self.fourier_octaves}"
            )

    def build(self, event_shape: tuple[int, ...]) -> nn.Module:
        if len(event_shape) != 1:
            raise ValueError(
                f"Expected a one-dimensional event_shape for an MLPEncoder but got {event_shape}"
            )
        spec = Perceptron(self.width, self.depth, self.out, self.residual)
        encoder = perceptron(event_shape[0], spec)
        if self.fourier_octaves:
            encoder[0] = FourierLinear(event_shape[0], self.width, self.fourier_octaves)
        return encoder


class FourierLinear(nn.Linear):
    """A first layer that also sees sines and cosines of its inputs, one pair an octave.

    The angles are pi/2 x, pi x, 2 pi x, ..., so that differences between points that are small
    beside the prior's scale are as plain to see as large ones. (An inner product of such features
    is a function of the difference of two points: what attention needs to find neighbours.)
    """

    def __init__(self, n_in: int, n_out: int, octaves: int) -> None:
        super().__init__(n_in * (1 + 2 * octaves), n_out)
        self.octaves = octaves

    def forward(self, x: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
        rates = math.pi / 2 * 2.0 ** torch.arange(self.octaves, device=x.device, dtype=x.dtype)
        angles = (x[..., None] * rates).flatten(-2)
        return super().forward(torch.cat([x, angles.sin(), angles.cos()], -1))


@dataclass(frozen=True)
class ConvEncoder(Encoder):
    """Images: two [convolution + max-pool + ReLU], fully connected (256), ReLU, fully connected.

    Args:
        channels: of the two convolutions.
    """

    channels: tuple[int, int] = (10, 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.channels
        if len(given) != 2 or not all(isinstance(c, int) and 1 <= c <= 2**14 for c in given):
            raise ValueError(f"Expected two positive channels but got {self.channels}")

    def build(self, event_shape: tuple[int, ...]) -> nn.Module:
        if len(event_shape) not in (2, 3):
            raise ValueError(
                "Expected event_shape (height, width) or (channels, height, width) for a "
                f"ConvEncoder but got {event_shape}"
            )
        return Convolutions(event_shape, self.out, self.channels)


class Convolutions(nn.Module):
    """The paper's image encoder, for `(points, height, width)` or `(points, channels, ...)`."""

    KERNEL = 5

    def __init__(self, event_shape: tuple[int, ...], n_out: int, channels: tuple[int, int]) -> None:
        super().__init__()
        kernel = self.KERNEL
        n_in = 1 if len(event_shape) == 2 else event_shape[0]
        height, width = ((side - kernel + 1) // 2 for side in event_shape[-2:])
        height, width = ((side - kernel + 1) // 2 for side in (height, width))
        if height < 1 or width < 1:
            raise ValueError(
                f"Expected images of at least {3 * kernel + 1} pixels a side for a "
                f"ConvEncoder but got event_shape {event_shape}"
            )
        self.conv1 = nn.Conv2d(n_in, channels[0], kernel)
        self.conv2 = nn.Conv2d(channels[0], channels[1], kernel)
        self.fc1 = nn.Linear(channels[1] * height * width, 256)
        self.fc2 = nn.Linear(256, n_out)

    def forward(self, x: Float[Tensor, "points ..."]) -> Float[Tensor, "points d_h"]:
        x = x.unsqueeze(1) if x.dim() == 3 else x
        # Channels last and few images at a time: two to three times faster on a CPU.
        x = x.contiguous(memory_format=torch.channels_last)
        return torch.cat([self._encode(part) for part in torch.split(x, 256)])

    def _encode(self, x: Float[Tensor, "points ..."]) -> Float[Tensor, "points d_h"]:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.fc1(x.flatten(1)))
        encoded: Tensor = self.fc2(x)
        return encoded
