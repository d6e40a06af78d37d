"""The building blocks of h, g and f.

The paper's appendix A: multilayer perceptrons with PReLU between layers, and for images two
[convolution + max-pool + ReLU] followed by fully connected (256), ReLU, fully connected (d_h).

An encoder is any module that maps `(points, *event_shape)` to `(points, d_h)`; a user's own is
made known by name with `register_encoder`, so that a checkpoint can name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from ncp.model import NCPConfig


class Residual(nn.Module):
    """z -> z + PReLU(W z + b): a hidden layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = nn.PReLU()

    def forward(self, z: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        return torch.add(z, self.activation(self.linear(z)))


def mlp(
    n_in: int, width: int, depth: int, n_out: int, *, residual: bool = False, bias: bool = True
) -> nn.Sequential:
    """`depth` linear layers, `width` wide, with PReLU between them.

    The layout is Linear, PReLU, Linear, ..., PReLU, Linear; with `residual=True` the hidden
    (Linear, PReLU) pairs after the first are `Residual` blocks. `bias` is that of the last layer.

    >>> mlp(2, 128, 5, 256)[0].weight.shape
    torch.Size([128, 2])
    """
    layers: list[nn.Module] = [nn.Linear(n_in, width), nn.PReLU()]
    for _ in range(depth - 2):
        layers += [Residual(width)] if residual else [nn.Linear(width, width), nn.PReLU()]
    return nn.Sequential(*layers, nn.Linear(width, n_out, bias=bias))


class ConvEncoder(nn.Module):
    """The paper's image encoder: two [conv + max-pool + ReLU], fc, ReLU, fc to d_h.

    Images come as `(points, height, width)` or `(points, channels, height, width)`.
    """

    def __init__(
        self, event_shape: tuple[int, ...], n_out: int, channels: tuple[int, int], kernel: int = 5
    ) -> None:
        super().__init__()
        n_in = 1 if len(event_shape) == 2 else event_shape[0]
        height, width = ((side - kernel + 1) // 2 for side in event_shape[-2:])
        height, width = ((side - kernel + 1) // 2 for side in (height, width))
        if height < 1 or width < 1:
            raise ValueError(
                f"Expected images of at least {3 * kernel + 1} pixels a side for the "
                f"convolutional encoder but got event_shape {event_shape}"
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


EncoderFactory = Callable[["NCPConfig"], nn.Module]

_ENCODERS: dict[str, EncoderFactory] = {}


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Make `NCPConfig(encoder=name)` build `factory(config)`.

    The module maps `(points, *config.event_shape)` to `(points, config.h_dim)`.
    """
    _ENCODERS[name] = factory


def encoder_names() -> list[str]:
    """The encoders known by name."""
    return sorted(_ENCODERS)


def build_encoder(config: NCPConfig) -> nn.Module:
    """The encoder that `config.encoder` names."""
    if config.encoder not in _ENCODERS:
        raise ValueError(
            f"Expected encoder to be one of {encoder_names()} but got {config.encoder!r}"
        )
    return _ENCODERS[config.encoder](config)


def _build_mlp(config: NCPConfig) -> nn.Module:
    if len(config.event_shape) != 1:
        raise ValueError(
            f"Expected a one-dimensional event_shape for encoder='mlp' but got {config.event_shape}"
        )
    return mlp(
        config.event_shape[0],
        config.h_width,
        config.h_depth,
        config.h_dim,
        residual=config.residual,
    )


def _build_conv(config: NCPConfig) -> nn.Module:
    if len(config.event_shape) not in (2, 3):
        raise ValueError(
            "Expected event_shape (height, width) or (channels, height, width) for "
            f"encoder='conv' but got {config.event_shape}"
        )
    return ConvEncoder(config.event_shape, config.h_dim, config.conv_channels)


register_encoder("mlp", _build_mlp)
register_encoder("conv", _build_conv)
