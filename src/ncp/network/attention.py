r"""Attention over the data set: each point's encoding comes to depend on all the others.

The tokens t_i start as a projection of h_i and pass blocks of self-attention over all points of
the data set (no positions, so nothing depends on their order). Then

    h_i  becomes  h_i + W t_i,        and        z_i = sqrt(C) P t_i / |P t_i|

is the *code* of the point: what pair features and the pairwise loss compare. A data set has to be
encoded once, whatever the number of samples and orders, so this is where capacity is cheap.

Attention also goes by distances where points are vectors: kernels k_j(r) = exp(-r^2 4^j / 8), one
an octave, are added to the attention's logits with a weight for each head, and tokens start with
the logarithm of the number of points around. It costs N^2 a data set, and of more than `MOST_SEEN`
points so many are seen by all, so that it is linear from there on. With `link_octaves`, kernels
exp(-r / (2 4^j)) of how two points hang together (`ncp.network.links`) are added to these; ways
need all points, so all are seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ncp.network.blocks import Part, PReLU, linear_from_zero
from ncp.network.encoder import MOST_OCTAVES
from ncp.network.links import NEIGHBOURS, Links

__all__ = [
    "TILE",
    "Attention",
    "AttentionBlock",
    "AttentionLayers",
    "Kernels",
    "KeyValueCache",
    "made_up_to",
    "whole_tiles",
]

TILE = 16  # matrix products round a row alike whatever rows are around it, in multiples of this
GAIN = 10.0  # of biases by kernels: Adam moves a weight by little, and logits must move by much
MOST_SEEN = 1024  # points of a data set that the others attend to
FAR = 1e8  # squared distance, in units of the prior's scale, beyond which nothing changes


@dataclass(frozen=True)
class Attention(Part):
    """The spec of attention over the data set.

    Args:
        blocks: how many; four heads each.
        width: of the tokens, a multiple of four.
        codes: C, the size of a point's code.
        rbf_octaves: octaves of distances that attention sees; 0 for none.
        coordinates: of how many leading numbers of a point distances are taken; 0 for all.
        link_octaves: octaves of gaps on the way from point to point; 0 for none.
    """

    ZERO_ALLOWED: ClassVar[tuple[str, ...]] = ("rbf_octaves", "coordinates", "link_octaves")
    blocks: int = 3
    width: int = 64
    codes: int = 32
    rbf_octaves: int = 7
    coordinates: int = 0
    link_octaves: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % AttentionBlock.HEADS:
            raise ValueError(
                f"Expected a width that is a multiple of {AttentionBlock.HEADS} of Attention "
                f"but got {self.width}"
            )
        if self.rbf_octaves > MOST_OCTAVES:
            raise ValueError(f"Expected rbf_octaves <= {MOST_OCTAVES} but got {self.rbf_octaves}")
        if self.link_octaves > (MOST_OCTAVES if self.rbf_octaves else 0):
            raise ValueError(
                f"Expected link_octaves <= {MOST_OCTAVES}, and rbf_octaves with them, "
                f"but got {self.link_octaves}"
            )

    def n_coordinates(self, event_shape: tuple[int, ...]) -> int:
        """How many numbers of a point are its position: none without distances."""
        if not self.rbf_octaves:
            return 0
        if len(event_shape) != 1 or self.coordinates > event_shape[0]:
            raise ValueError(
                f"Expected vectors of at least {max(1, self.coordinates)} numbers for distances "
                f"but got event_shape {event_shape}"
            )
        return self.coordinates or event_shape[0]


def _squares(a: Float[Tensor, "... D"], b: Float[Tensor, "... D"]) -> Float[Tensor, ...]:
    # One coordinate after the other: faster by far than a sum over a short last axis.
    parts = zip(a.unbind(-1), b.unbind(-1), strict=True)
    return cast(Tensor, sum((p - q).square() for p, q in parts))


def scaled_squares(
    a: Float[Tensor, "... D"], b: Float[Tensor, "... D"], octaves: int
) -> Float[Tensor, "... octaves"]:
    """r^2 4^j / 8, j = 0, 1, ..., of the distances r: in widths 2, 1, 1/2, ..."""
    return in_octaves(_squares(a, b), octaves)


def in_octaves(squares: Float[Tensor, ...], octaves: int) -> Float[Tensor, "... octaves"]:
    """r^2 4^j / 8, j = 0, 1, ..."""
    return squares.clamp(max=FAR)[..., None] * _rates(octaves, squares)


def made_up_to(x: Float[Tensor, "B n ..."], rows: int) -> Float[Tensor, "B rows ..."]:
    """With rows of zeros after the n rows that there are."""
    if x.shape[1] == rows:
        return x
    return torch.cat([x, x.new_zeros(len(x), rows - x.shape[1], *x.shape[2:])], 1)


def whole_tiles(n: int) -> int:
    """How many rows n rows are made up to, so that their values do not depend on others."""
    return -(-n // TILE) * TILE


def _rates(octaves: int, like: Tensor) -> Float[Tensor, " octaves"]:
    return 4.0 ** torch.arange(octaves, device=like.device, dtype=like.dtype) / 8


def _falling(
    values: Float[Tensor, "B c m N"], rates: Float[Tensor, " octaves"]
) -> Float[Tensor, "B channels m N"]:
    """exp(-rate value) for each value and rate, which are powers of 4.

    Every third is an exponential; those between are fourth powers of their neighbours, which is
    faster and keeps six digits.
    """
    found: dict[int, Tensor] = {}
    slow_to_fast = rates.argsort().tolist()
    for i, j in enumerate(slow_to_fast):
        if i % 3:
            found[j] = found[slow_to_fast[i - 1]].square().square()
        else:
            found[j] = (values * -rates[j]).exp()
    return torch.stack([found[j] for j in range(len(rates))], 2).flatten(1, 2)


class Kernels:
    """How near the points of data sets are to some points, and how they hang together.

    Gaussian kernels of the distance, whose widths are 2, 1, 1/2, ... of the prior's scale, and
    kernels of the ratios of `Links`. They are given for a few rows of points at a time, since there
    are M x N x channels; without gradients, on a CPU, they are never kept at all
    (`ncp.network.distance_kernels`). Where `among` stands for more points, `stand_for` says for how
    many, and `own` which of the M points are among them.
    """

    ENTRIES = 2**25  # that are kept; of more than that a part at a time is computed again
    PART = 2**20
    CACHED = 2**11  # pairs at a time whose kernels stay in the cache

    def __init__(
        self,
        of: Float[Tensor, "B M D"],
        among: Float[Tensor, "B N D"],
        octaves: int,
        ratios: Float[Tensor, "B m M N"] | None = None,
        link_octaves: int = 0,
        own: Bool[Tensor, " M"] | None = None,
        stand_for: int = 0,
    ) -> None:
        self.own, self.stand_for = own, stand_for
        self.of, self.among, self.ratios = of, among, ratios
        self.octaves, self.link_octaves = octaves, link_octaves
        n_rows, n = of.shape[1], among.shape[1]
        self.channels = octaves + len(NEIGHBOURS) * link_octaves
        self.is_compiled = of.device.type == "cpu" and not torch.is_grad_enabled()
        row = len(of) * n * (AttentionBlock.HEADS if self.is_compiled else self.channels)
        step = n_rows if row * n_rows <= self.ENTRIES else max(1, self.PART // row)
        self.slices = [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]
        keep = len(self.slices) == 1 and not self.is_compiled
        self.known = self._kernels(self.slices[0]) if keep else None

    def rows(self, rows: slice) -> Float[Tensor, "B channels m N"]:
        """The kernels of some of the points."""
        return self._kernels(rows) if self.known is None else self.known[:, :, rows]

    def _kernels(self, rows: slice) -> Float[Tensor, "B channels m N"]:
        if self.of.device.type == "cpu" and not self.of.requires_grad:
            return self._compiled_kernels(rows)
        squares = _squares(self.of[:, rows, None], self.among[:, None]).clamp(max=FAR)
        channels = _falling(squares[:, None], _rates(self.octaves, squares))
        if self.ratios is None:
            return channels
        rates = 1 / _rates(self.link_octaves, squares) / 16  # 1/2, 1/8, 1/32, ...
        linked = _falling(self.ratios[:, :, rows], rates)
        return torch.cat([channels, linked], 1)

    def _compiled_kernels(self, rows: slice) -> Float[Tensor, "B channels m N"]:
        from ncp.network.distance_kernels import kernel_values

        given, n = self._arrays(rows), self.among.shape[1]
        n_sets, n_rows = given[0].shape[:2]
        out = self.of.new_empty(n_sets, self.channels, n_rows * n)
        kernel_values(*given, out.numpy())
        return out.view(n_sets, self.channels, n_rows, n)

    def density(self) -> Float[Tensor, "B M channels"]:
        """How many points are near, on a log scale."""
        if self.is_compiled:
            near = self._sums()
        else:
            near = torch.cat([self.rows(rows).sum(3) for rows in self.slices], 2).mT
        if self.own is not None:
            own = self.own.to(near.dtype)[:, None]
            near = 1 + (near - own) * ((self.stand_for - 1) / (self.among.shape[1] - own))
        return near.log1p()

    def _sums(self) -> Float[Tensor, "B M channels"]:
        from ncp.network.distance_kernels import kernel_sums

        out = self.of.new_empty(*self.of.shape[:2], self.channels)
        kernel_sums(*self._arrays(slice(None)), out.numpy())
        return out

    def _arrays(self, rows: slice) -> tuple[Any, Any, Any, int, Any, Any]:
        """What the compiled kernels take: points, ratios, and room for a few rows of pairs."""
        of, columns = self.of[:, rows].contiguous(), self.among.mT.contiguous()
        ratios = of.new_empty(len(of), 0, 0)
        if self.ratios is not None:
            ratios = self.ratios[:, :, rows].flatten(2).contiguous()
        n_rows, n = of.shape[1], columns.shape[2]
        room = of.new_zeros(self.channels + 1, n * max(1, min(n_rows, self.CACHED // n))).numpy()
        return of.numpy(), columns.numpy(), ratios.numpy(), self.octaves, room[0], room[1:]

    def bias(
        self, rows: slice, weight: Float[Tensor, "heads channels"]
    ) -> Float[Tensor, "B h m N"]:
        """The kernels' weighted sum for each head."""
        if self.is_compiled:
            return self._compiled_bias(rows, weight)
        kernels = self.rows(rows)
        shape = (len(kernels), len(weight), *kernels.shape[2:])
        # one product a data set, whatever number of them: the same rounding in any company
        weight = (GAIN * weight).expand(len(kernels), -1, -1)
        return torch.bmm(weight, kernels.flatten(2)).view(shape)

    def _compiled_bias(
        self, rows: slice, weight: Float[Tensor, "heads channels"]
    ) -> Float[Tensor, "B h m N"]:
        from ncp.network.distance_kernels import kernel_bias

        given = self._arrays(rows)
        n_sets, n_rows = given[0].shape[:2]
        n, weight = self.among.shape[1], (GAIN * weight).detach().contiguous()
        out = weight.new_empty(n_sets, len(weight), n_rows * n)
        weighted = weight.new_empty(len(weight), len(given[4]))
        kernel_bias(*given, weight.numpy(), weighted.numpy(), out.numpy())
        return out.view(n_sets, len(weight), n_rows, n)


class KeyValueCache(NamedTuple):
    """What new points see of a data set: its coordinates, and each block's keys and values."""

    n: int  # points that there are
    x: Tensor  # (N, D) of those that are seen, without columns if there are no distances
    links: Links | None
    blocks: list[tuple[Tensor, Tensor]]


class Encoded(NamedTuple):
    """Encodings in the light of the data set."""

    h: Float[Tensor, "*rows d_h"]
    codes: Float[Tensor, "*rows C"]


class AttentionLayers(nn.Module):
    """The module of an `Attention`; W starts at zero: without training there is none."""

    def __init__(self, spec: Attention, d_h: int, n_coordinates: int) -> None:
        super().__init__()
        self.octaves = spec.rbf_octaves if n_coordinates else 0
        self.link_octaves = spec.link_octaves
        channels = self.octaves + len(NEIGHBOURS) * self.link_octaves
        self.into = nn.Linear(d_h, spec.width)
        self.density = linear_from_zero(channels, spec.width) if channels else None
        self.blocks = nn.ModuleList(
            AttentionBlock(spec.width, channels) for _ in range(spec.blocks)
        )
        self.norm = nn.LayerNorm(spec.width)
        self.out = linear_from_zero(spec.width, d_h)
        self.code = nn.Linear(spec.width, spec.codes, bias=False)

    def forward(
        self, h: Float[Tensor, "B M d_h"], x: Float[Tensor, "B M D"], n: int | None = None
    ) -> tuple[Encoded, KeyValueCache]:
        """Encodings of data sets of n points each, made up to M rows that nobody sees.

        And what new points see of the first data set.
        """
        x = x[:, :n]
        seen, links = self._seen(h[:, :n]), self._links(x)
        near = self._near(x, links, seen)
        where = slice(x.shape[1]) if seen is None else seen
        tokens, kept = self._start(h, near), []
        for block in cast(Iterable[AttentionBlock], self.blocks):
            q, k, v = block.heads(tokens)
            k, v = k[:, where], v[:, where]
            kept.append((k[0], v[0]))
            tokens = block.attend(tokens, q[:, :n], k, v, near)
        return self._finish(h, tokens), KeyValueCache(x.shape[1], x[0, where], links, kept)

    def _seen(self, h: Float[Tensor, "B N d_h"]) -> Int64[Tensor, " M"] | None:
        """Which points the others see; None for all, as in training.

        They are taken evenly along h, so nothing depends on the order of the points.
        """
        n = h.shape[1]
        if n <= MOST_SEEN or len(h) > 1 or self.link_octaves:
            return None
        along = h[0, :, 0].argsort(stable=True)
        return along[torch.arange(MOST_SEEN, device=h.device) * n // MOST_SEEN]

    def _links(self, x: Float[Tensor, "B N D"]) -> Links | None:
        return Links.among(x) if self.link_octaves else None

    def _near(
        self,
        x: Float[Tensor, "B N D"],
        links: Links | None,
        seen: Int64[Tensor, " M"] | None = None,
    ) -> Kernels | None:
        if not self.octaves:
            return None
        if seen is not None:
            own = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
            own[seen] = True
            return Kernels(x, x[:, seen], self.octaves, own=own, stand_for=x.shape[1])
        ratios = None if links is None else links.ratios()
        return Kernels(x, x, self.octaves, ratios, self.link_octaves)

    def _finish(
        self, h: Float[Tensor, "*rows d_h"], tokens: Float[Tensor, "*rows width"]
    ) -> Encoded:
        tokens = self.norm(tokens)
        codes = self.code(tokens)
        codes = codes.shape[-1] ** 0.5 * nn.functional.normalize(codes, dim=-1)
        return Encoded(torch.add(h, self.out(tokens)), codes)

    def _start(
        self, h: Float[Tensor, "B M d_h"], near: Kernels | None
    ) -> Float[Tensor, "B M width"]:
        tokens: Tensor = self.into(h)
        if self.density is None or near is None:
            return tokens
        return torch.add(tokens, self.density(made_up_to(near.density(), h.shape[1])))

    def encode_new(
        self, cache: KeyValueCache, h: Float[Tensor, "M d_h"], x: Float[Tensor, "M D"]
    ) -> Encoded:
        """Encodings of new points, each of which sees a data set and itself, but is not seen."""
        channels = self.octaves + len(NEIGHBOURS) * self.link_octaves
        among = len(cache.blocks[0][0]) * max(1, channels)
        rows = max(TILE, Kernels.ENTRIES // among // TILE * TILE)
        parts = zip(torch.split(h, rows), torch.split(x, rows), strict=True)
        encoded = [self._encode_part(cache, *part) for part in parts]
        return Encoded(*(torch.cat(column) for column in zip(*encoded, strict=True)))

    def _encode_part(
        self, cache: KeyValueCache, h: Float[Tensor, "M d_h"], x: Float[Tensor, "M D"]
    ) -> Encoded:
        near = None
        if self.octaves:
            among = torch.cat([cache.x.expand(len(x), -1, -1), x[:, None]], 1)
            ratios = None if cache.links is None else cache.links.ratios_of_new(cache.x, x)
            # each by itself: (M, 1, N + 1)
            own = torch.ones(1, dtype=torch.bool, device=x.device)
            near = Kernels(
                x[:, None], among, self.octaves, ratios, self.link_octaves, own, cache.n + 1
            )
        tokens = self._start(h[:, None], near)[:, 0]
        for block, (k, v) in zip(self.blocks, cache.blocks, strict=True):
            tokens = cast(AttentionBlock, block).attend_new(k, v, tokens, near)
        return self._finish(h, tokens)


def _look(
    q: Float[Tensor, "B h m p"],
    k: Float[Tensor, "B h n p"],
    v: Float[Tensor, "B h n p"],
    bias: Float[Tensor, "B h m n"],
) -> Float[Tensor, "B h m p"]:
    """Attention with a bias, which it may overwrite. Where that has a gradient, torch's own takes
    four passes more over all pairs, to find rows that see nothing; here there is none."""
    if not bias.requires_grad or bias.dtype != q.dtype:
        return nn.functional.scaled_dot_product_attention(q, k, v, bias)
    q, k, v = (part.flatten(0, 1) for part in (q * q.shape[-1] ** -0.5, k, v))
    weights = bias.flatten(0, 1).baddbmm_(q, k.mT).softmax(2)
    return (weights @ v).view(*bias.shape[:3], -1)


class AttentionBlock(nn.Module):
    """Attention with four heads, then a perceptron, each normalised and with a skip connection."""

    HEADS = 4

    def __init__(self, width: int, channels: int = 0) -> None:
        super().__init__()
        self.bias = linear_from_zero(channels, self.HEADS) if channels else None
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

    def attend(
        self,
        tokens: Float[Tensor, "B M width"],
        q: Float[Tensor, "B N heads part"],
        k: Float[Tensor, "B seen heads part"],
        v: Float[Tensor, "B seen heads part"],
        near: Kernels | None = None,
    ) -> Float[Tensor, "B M width"]:
        """The tokens after the block, from queries of the first N, and keys and values."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.bias is None or near is None:
            seen = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            weight = self.bias.weight
            parts = [_look(q[:, :, rows], k, v, near.bias(rows, weight)) for rows in near.slices]
            seen = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return self._finish(tokens, made_up_to(seen.transpose(1, 2), tokens.shape[1]))

    def attend_new(
        self,
        k: Float[Tensor, "N heads part"],
        v: Float[Tensor, "N heads part"],
        new: Float[Tensor, "M width"],
        near: Kernels | None = None,
    ) -> Float[Tensor, "M width"]:
        """New points attend to N points, by their keys and values, and to themselves."""
        q, own_k, own_v = self.heads(new)
        scale = q.shape[-1] ** -0.5
        scores = torch.einsum("mhp,nhp->mhn", q, k)
        own = (q * own_k).sum(-1, keepdim=True)
        scores = scale * torch.cat([scores, own], -1)
        if self.bias is not None and near is not None:
            scores = scores + near.bias(slice(None), self.bias.weight)[:, :, 0]
        weights = scores.softmax(-1)
        seen = torch.einsum("mhn,nhp->mhp", weights[..., :-1], v) + weights[..., -1:] * own_v
        return self._finish(new, seen)
