"""The building blocks of h, g and f.

The paper's appendix A: multilayer perceptrons with PReLU between layers, and for images two
[convolution + max-pool + ReLU] followed by fully connected (256), ReLU, fully connected (d_h).

An encoder is any module that maps `(points, *event_shape)` to `(points, d_h)`; a user's own is
made known by name with `register_encoder`, so that a checkpoint can name it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from ncp.model import NCPConfig


class _Leaky(torch.autograd.Function):
    """PReLU with one slope. On a CPU the backward pass of torch's own takes longer than two
    products of the layer; this one takes a tenth of that."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(z, slope)
        return nn.functional.leaky_relu(z, slope.item())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        z, slope = ctx.saved_tensors
        below = torch.dot(gradient.reshape(-1), z.clamp(max=0).view(-1))
        into_z = torch.ops.aten.leaky_relu_backward(gradient, z, slope.item(), False)
        return into_z, below.view_as(slope)


class PReLU(nn.PReLU):
    """`torch.nn.PReLU` with one slope, and a fast backward pass on the CPU."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, z: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        if z.device.type != "cpu" or z.dtype != self.weight.dtype:
            return super().forward(z)
        if not torch.is_grad_enabled():
            return nn.functional.leaky_relu(z, self.weight.item())
        out: Tensor = _Leaky.apply(z.contiguous(), self.weight)  # type: ignore[no-untyped-call]
        return out


class Residual(nn.Module):
    """z -> z + PReLU(W z + b): a hidden layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = PReLU()

    def forward(self, z: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        change: Tensor = self.activation(self.linear(z))
        return change + z if torch.is_grad_enabled() else change.add_(z)


def mlp(
    n_in: int, width: int, depth: int, n_out: int, *, residual: bool = False, bias: bool = True
) -> nn.Sequential:
    """`depth` linear layers, `width` wide, with PReLU between them.

    The layout is Linear, PReLU, Linear, ..., PReLU, Linear; with `residual=True` the hidden
    (Linear, PReLU) pairs after the first are `Residual` blocks. `bias` is that of the last layer.

    >>> mlp(2, 128, 5, 256)[0].weight.shape
    torch.Size([128, 2])
    """
    layers: list[nn.Module] = [nn.Linear(n_in, width), PReLU()]
    for _ in range(depth - 2):
        layers += [Residual(width)] if residual else [nn.Linear(width, width), PReLU()]
    return nn.Sequential(*layers, nn.Linear(width, n_out, bias=bias))


class WaveLinear(nn.Linear):
    """A first layer that also sees sines and cosines of its inputs, one pair an octave.

    The waves are pi/2 x, pi x, 2 pi x, ..., so that differences between points that are small
    beside the prior's scale are as plain to see as large ones. (An inner product of such features
    is a function of the difference of two points: what attention needs to find neighbours.)
    """

    def __init__(self, n_in: int, n_out: int, waves: int) -> None:
        super().__init__(n_in * (1 + 2 * waves), n_out)
        self.waves = waves

    def forward(self, x: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
        octaves = math.pi / 2 * 2.0 ** torch.arange(self.waves, device=x.device, dtype=x.dtype)
        angles = (x[..., None] * octaves).flatten(-2)
        return super().forward(torch.cat([x, angles.sin(), angles.cos()], -1))


FAR = 1e8  # squared distance, in units of the prior's scale, beyond which nothing changes


def scaled_squares(
    a: Float[Tensor, "... D"], b: Float[Tensor, "... D"], octaves: int
) -> Float[Tensor, "... octaves"]:
    """r^2 4^j / 8, j = 0, 1, ..., of the distances r: in widths 2, 1, 1/2, ..."""
    # One coordinate after the other: faster by far than a sum over a short last axis.
    squares = sum((p - q).square() for p, q in zip(a.unbind(-1), b.unbind(-1), strict=True))
    squares = cast(Tensor, squares).clamp(max=FAR)[..., None]
    rates = 4.0 ** torch.arange(octaves, device=squares.device, dtype=squares.dtype)
    return squares * (rates / 8)


class Near:
    """How near the points of data sets are to some points: Gaussian kernels, one an octave.

    Their widths are 2, 1, 1/2, ... of the prior's scale. They are given for a few rows of points
    at a time, since there are M x N x octaves.
    """

    ENTRIES = 2**22  # that are kept; of more than that a part at a time is computed again
    PART = 2**20

    def __init__(
        self,
        of: Float[Tensor, "B M D"],
        among: Float[Tensor, "B N D"],
        octaves: int,
        real: Bool[Tensor, " N"] | None = None,
    ) -> None:
        self.of, self.among, self.octaves, self.real = of, among, octaves, real
        n_rows, n = of.shape[1], among.shape[1]
        row = len(of) * n * octaves
        step = n_rows if row * n_rows <= self.ENTRIES else max(1, self.PART // row)
        self.slices = [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]
        self.known = self._kernels(self.slices[0]) if len(self.slices) == 1 else None

    def rows(self, rows: slice) -> Float[Tensor, "B m N octaves"]:
        return self._kernels(rows) if self.known is None else self.known[:, rows]

    def _kernels(self, rows: slice) -> Float[Tensor, "B m N octaves"]:
        apart = scaled_squares(self.of[:, rows, None], self.among[:, None], self.octaves)
        kernels = apart.neg_().exp()
        return kernels if self.real is None else kernels * self.real[:, None]

    def density(self) -> Float[Tensor, "B M octaves"]:
        """How many points are near, on a log scale."""
        return torch.cat([self.rows(rows).sum(2) for rows in self.slices], 1).log1p()


def linear_from_zero(n_in: int, n_out: int) -> nn.Linear:
    """A linear map that has no effect before it is trained."""
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


class Memory(NamedTuple):
    """What newcomers see of a data set: its coordinates, and the keys and values of each block."""

    x: Tensor  # (N, D), or without columns if the context does not look at distances
    blocks: list[tuple[Tensor, Tensor]]


class Context(nn.Module):
    """Lets each point's encoding depend on the whole data set, by self-attention.

    h_i becomes h_i + W t_i, where the tokens t start as a projection of h and pass `depth` blocks
    of attention over all points of the data set (no positions, so nothing depends on their order)
    and a small perceptron. W starts at zero: without training there is no context.

    A data set has to be encoded once only, whatever the number of samples and orders, so for
    hundreds of points this costs the sampler next to nothing (it grows with N^2). With `codes`,
    the tokens themselves, all of one length, stand behind the encodings: their products say how
    alike two points are.

    With `distances` h comes with the points' coordinates behind it. Attention then also goes by
    `Near`, and tokens start with the number of points around. Both start without effect.
    """

    def __init__(
        self, h_dim: int, width: int, depth: int, codes: bool = False, distances: int = 0
    ) -> None:
        super().__init__()
        self.h_dim, self.codes, self.distances = h_dim, codes, distances
        self.into = nn.Linear(h_dim, width)
        self.density = linear_from_zero(distances, width) if distances else None
        self.blocks = nn.ModuleList(AttentionBlock(width, distances) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = linear_from_zero(width, h_dim)

    def forward(
        self, h: Float[Tensor, "B N d_in"], real: Bool[Tensor, " N"] | None = None
    ) -> Float[Tensor, "B N d"]:
        """Encodings of data sets of equal size, each among its own points (the `real` ones)."""
        return self.encodings(h, self.tokens(h, real))

    def encodings(
        self, h: Float[Tensor, "*rows d_in"], tokens: Float[Tensor, "*rows width"]
    ) -> Float[Tensor, "*rows d"]:
        """h + W t; with `codes` also t at unit variance, and the coordinates that came with h."""
        encoded = torch.add(h[..., : self.h_dim], self.out(tokens))
        if not self.codes:
            return encoded
        codes = tokens.shape[-1] ** 0.5 * nn.functional.normalize(tokens, dim=-1)
        return torch.cat([encoded, codes, h[..., self.h_dim :]], -1)

    def tokens(
        self, h: Float[Tensor, "B N d_in"], real: Bool[Tensor, " N"] | None = None
    ) -> Float[Tensor, "B N width"]:
        """What the points are to each other, after all blocks."""
        x = h[..., self.h_dim :]
        near = Near(x, x, self.distances, real) if self.distances else None
        tokens = self._start(h, near)
        for block in self.blocks:
            tokens = block(tokens, real, near)
        final: Tensor = self.norm(tokens)
        return final

    def _start(self, h: Float[Tensor, "B N d_in"], near: Near | None) -> Float[Tensor, "B N width"]:
        tokens: Tensor = self.into(h[..., : self.h_dim])
        if self.density is None or near is None:
            return tokens
        return torch.add(tokens, self.density(near.density()))

    def memory(self, h: Float[Tensor, "N d_in"]) -> Memory:
        """What newcomers attend to in each block: the keys and values of a data set's points."""
        x = h[None, :, self.h_dim :]
        near = Near(x, x, self.distances) if self.distances else None
        tokens, remembered = self._start(h[None], near), []
        for block in self.blocks:
            q, k, v = cast(AttentionBlock, block).heads(tokens)
            remembered.append((k[0], v[0]))
            tokens = cast(AttentionBlock, block).attend(tokens, q, k, v, None, near)
        return Memory(x[0], remembered)

    def newcomers(self, memory: Memory, new: Float[Tensor, "M d_in"]) -> Float[Tensor, "M d"]:
        """Encodings of new points, each of which sees a data set and itself, but is not seen."""
        among = len(memory.x) * max(1, self.distances)
        parts = torch.split(new, max(1, Near.ENTRIES // among))
        return torch.cat([self._join(memory, part) for part in parts])

    def _join(self, memory: Memory, new: Float[Tensor, "M d_in"]) -> Float[Tensor, "M d"]:
        near = None
        if self.distances:
            x = new[:, None, self.h_dim :]
            among = torch.cat([memory.x.expand(len(new), -1, -1), x], 1)
            near = Near(x, among, self.distances)  # each new point by itself: (M, 1, N + 1)
        arriving = self._start(new[:, None], near)[:, 0]
        for block, (k, v) in zip(self.blocks, memory.blocks, strict=True):
            arriving = cast(AttentionBlock, block).join(k, v, arriving, near)
        return self.encodings(new, self.norm(arriving))


class AttentionBlock(nn.Module):
    """Attention with four heads, then a perceptron, each normalised and with a skip connection."""

    HEADS = 4

    def __init__(self, width: int, distances: int = 0) -> None:
        super().__init__()
        self.bias = linear_from_zero(distances, self.HEADS) if distances else None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.widen, self.activation = nn.Linear(width, 2 * width), PReLU()
        self.narrow = nn.Linear(2 * width, width)

    def heads(self, tokens: Float[Tensor, "*rows width"]) -> list[Float[Tensor, ...]]:
        """Queries, keys and values, `(*rows, heads, width / heads)` each."""
        parts = self.attention(self.norm1(tokens)).chunk(3, -1)
        return [part.unflatten(-1, (self.HEADS, -1)) for part in parts]

    def _finish(
        self, tokens: Float[Tensor, "*rows width"], seen: Float[Tensor, "*rows heads part"]
    ) -> Float[Tensor, "*rows width"]:
        tokens = tokens + self.project(seen.flatten(-2))
        wide = self.widen(self.norm2(tokens))
        out: Tensor = tokens + self.narrow(self.activation(wide))
        return out

    def forward(
        self,
        tokens: Float[Tensor, "B N width"],
        real: Bool[Tensor, " N"] | None = None,
        near: Near | None = None,
    ) -> Float[Tensor, "B N width"]:
        q, k, v = self.heads(tokens)
        return self.attend(tokens, q, k, v, real, near)

    def attend(
        self,
        tokens: Float[Tensor, "B N width"],
        q: Float[Tensor, "B N heads part"],
        k: Float[Tensor, "B N heads part"],
        v: Float[Tensor, "B N heads part"],
        real: Bool[Tensor, " N"] | None = None,
        near: Near | None = None,
    ) -> Float[Tensor, "B N width"]:
        """The tokens after the block, from their own queries, keys and values."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        look = nn.functional.scaled_dot_product_attention
        if self.bias is None or near is None:
            seen = look(q, k, v, None if real is None else real.expand(1, 1, len(real), -1))
            return self._finish(tokens, seen.transpose(1, 2))
        parts = []
        for rows in near.slices:
            bias = self.bias(near.rows(rows)).permute(0, 3, 1, 2)
            bias = bias if real is None else bias.masked_fill(~real, -torch.inf)
            parts.append(look(q[:, :, rows], k, v, bias))
        return self._finish(tokens, torch.cat(parts, 2).transpose(1, 2))

    def join(
        self,
        k: Float[Tensor, "N heads part"],
        v: Float[Tensor, "N heads part"],
        new: Float[Tensor, "M width"],
        near: Near | None = None,
    ) -> Float[Tensor, "M width"]:
        """New points attend to N points, by their keys and values, and to themselves."""
        q, own_k, own_v = self.heads(new)
        scale = q.shape[-1] ** -0.5
        scores = torch.einsum("mhp,nhp->mhn", q, k)
        own = (q * own_k).sum(-1, keepdim=True)
        scores = scale * torch.cat([scores, own], -1)
        if self.bias is not None and near is not None:
            scores = scores + self.bias(near.rows(slice(None)))[:, 0].transpose(1, 2)
        weights = scores.softmax(-1)
        seen = torch.einsum("mhn,nhp->mhp", weights[..., :-1], v) + weights[..., -1:] * own_v
        return self._finish(new, seen)


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
    n_in, width = config.event_shape[0], config.h_width
    encoder = mlp(n_in, width, config.h_depth, config.h_dim, residual=config.residual)
    if config.waves:
        encoder[0] = WaveLinear(n_in, width, config.waves)
    return encoder


def _build_conv(config: NCPConfig) -> nn.Module:
    if len(config.event_shape) not in (2, 3):
        raise ValueError(
            "Expected event_shape (height, width) or (channels, height, width) for "
            f"encoder='conv' but got {config.event_shape}"
        )
    return ConvEncoder(config.event_shape, config.h_dim, config.conv_channels)


register_encoder("mlp", _build_mlp)
register_encoder("conv", _build_conv)
