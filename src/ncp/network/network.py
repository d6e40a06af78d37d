r"""The Neural Clustering Process: h, g and f, and their fused evaluation.

With H_k the sum of h(x_i) over cluster k, G_k the sum of g over the clusters once x_n has joined
cluster k, and Q the sum of h (or of an own encoder q) over the points after n, the paper's model is

    p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n),         k = 1 .. K+1.

Every boundary between the functions is linear, and that is where the arithmetic goes away:

* g's first layer acts on a sum: W_1 (H_k + h_n) + b_1. Project each point once, u_i = W_1 h_i, and
  a cluster is the running sum U_k of its u_i. What g then still has to do, per candidate, is
  `embed`: its inner layers, a(U_k + u_n + b_1).
* g's last layer W_L a + b_L meets only f's first layer, [V_G V_Q V_h V_C V_A V_P]: fold V_G W_L
  into one small matrix. The state keeps sums of *folded* values ĝ(H) = V_G (W_L a + b_L), never G.
* f's first layer splits into the part in G, the part in Q and the part in h_n; the last two are
  computed once per point. Where f also sees the candidate g(H_k + h_n), that folds into V_C W_L.
  Where it sees pairs (`PairFeatures`), V_A times these is added, and V_P times those of the point.
* ĝ(H_k) of an existing cluster is the value computed when its last point joined.

So f's first layer, before its nonlinearity, is

    y(n, k) = ĝ(H_k + h_n) - ĝ(H_k) + S(n) + V_C g(H_k + h_n) + V_Q Q(n) + V_h h_n + V_A A + b,

with S(n) the sum of ĝ over the clusters that exist before n. In training the labels are known, so
nothing is sequential: every prefix sum and every "last point of cluster k before n" is index
arithmetic, and g and f each run once over one packed list of all candidates (sequence, n, k).

*Means instead of sums.* With `pooling = "mean"` the three sums H_k, G_k and Q are divided by the
number of their terms, and g and f get the logarithm of that number beside them: for data sets of
a thousand points sums would grow a hundredfold beyond those of ten. Everything above stays, with

    a(mean(u) + w log n + b_1),    (S(n) + ĝ(H_k + h_n) - ĝ(H_k)) / K' + w_K log K',
    V_Q Q(n) / (N - n) + w_Q log(1 + N - n),          K' = K (joining) or K + 1 (a new cluster).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ncp.generative.model import GenerativeModel
from ncp.network.attention import (
    Attention,
    AttentionLayers,
    KeyValueCache,
    made_up_to,
    whole_tiles,
)
from ncp.network.blocks import Perceptron, linear_from_zero, perceptron
from ncp.network.encoder import Encoder, MLPEncoder, encoder_from_dict
from ncp.network.layout import (
    candidates_per_row,
    groups_of,
    layout,
    prefix_sum,
    realised,
    with_zero_row,
)
from ncp.network.pair_features import PairFeatures
from ncp.partitions import as_tensor, canonical, check_labels, check_unmasked

__all__ = ["Network", "NetworkSpec", "Points", "check_memory"]

# Candidates evaluated at once: a layer's activations of so many stay in the cache. Of fewer, the
# hundreds of operations of a pass take longer than their arithmetic.
CHUNK = 16384
ROWS, PAIRS = 4096, 2**20  # points encoded at once, and pairs of points, for the same reason
LARGEST_EVENT = 2**18  # numbers of one observation; a header may come from a stranger
SEES = ("G", "Q", "point", "candidate", "pairs")
POOLINGS = ("sum", "mean")


@dataclass(frozen=True)
class NetworkSpec:
    """What a network is composed of. The defaults are the paper's (appendix A) for the plane.

    Args:
        event_shape: shape of one observation: `(2,)` (or just `2`), or `(28, 28)` for images.
        encoder: h.
        attention: over the data set, after h; None in the paper.
        g, f: their widths and depths; f's output is one number. (A bias in its last layer would
            cancel in the softmax, so there is none.)
        unassigned_encoder: an encoder of its own for Q, as the authors' public code has it.
        f_sees: what f's first layer sees, of `"G"`, `"Q"`, `"point"` (h_n), `"candidate"`
            (g(H_k + h_n)) and `"pairs"` (`PairFeatures`, which take attention).
        pooling: `"sum"` as in the paper, or `"mean"`.

    Example:
        >>> NetworkSpec(event_shape=3).event_shape
        (3,)
        >>> slim = NetworkSpec(
        ...     attention=Attention(blocks=3, width=64), g=Perceptron(64, 2, 64),
        ...     f=Perceptron(64, 3), f_sees=("G", "Q", "point", "candidate", "pairs"))
        >>> NetworkSpec.from_dict(slim.to_dict()) == slim
        True
    """

    event_shape: Any = (2,)  # an int or any sequence of them; kept as a tuple
    encoder: Encoder = MLPEncoder()  # noqa: RUF009  frozen
    attention: Attention | None = None
    g: Perceptron = Perceptron(128, 6, 512)  # noqa: RUF009
    f: Perceptron = Perceptron(128, 6, 1)  # noqa: RUF009
    unassigned_encoder: Encoder | None = None
    f_sees: tuple[str, ...] = ("G", "Q", "point")
    pooling: str = "sum"

    def __post_init__(self) -> None:
        given = self.event_shape
        shape = (given,) if isinstance(given, int) else tuple(int(side) for side in given)
        object.__setattr__(self, "event_shape", shape)
        if not shape or min(shape) < 1 or math.prod(shape) > LARGEST_EVENT:
            raise ValueError(
                f"Expected event_shape of positive sizes, {LARGEST_EVENT} numbers at most, "
                f"but got {self.event_shape}"
            )
        seen = tuple(self.f_sees)
        object.__setattr__(self, "f_sees", seen)
        if set(seen) - set(SEES) or len(set(seen)) < len(seen) or {"G", "Q"} - set(seen):
            raise ValueError(f"Expected f_sees of {SEES}, with G and Q, but got {seen}")
        if "pairs" in seen and self.attention is None:
            raise ValueError("Expected attention for f to see pairs but got none")
        if self.pooling not in POOLINGS:
            raise ValueError(f"Expected pooling {' or '.join(POOLINGS)} but got {self.pooling!r}")
        if self.f.out != 1:
            raise ValueError(f"Expected one output of f but got {self.f.out}")
        if self.attention is not None:
            self.attention.n_coordinates(shape)  # checks

    @property
    def pair_features(self) -> PairFeatures | None:
        """Sizes and values of what f sees of pairs."""
        if self.attention is None or "pairs" not in self.f_sees:
            return None
        coordinates = self.attention.n_coordinates(self.event_shape)
        return PairFeatures(self.attention.codes, coordinates, self.attention.rbf_octaves)

    def f_inputs(self) -> dict[str, int]:
        """What f sees, in the order of its weights, and how many numbers each is."""
        pairs = self.pair_features
        sizes = {
            "G": self.g.out,
            "Q": (self.unassigned_encoder or self.encoder).out,
            "point": self.encoder.out,
            "candidate": self.g.out,
            "pairs": pairs.n_pair if pairs else 0,
            "points": pairs.n_point if pairs else 0,
        }
        return {name: n for name, n in sizes.items() if name in (*self.f_sees, "points")}

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, as a checkpoint's header carries it."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in plain.items():
            if hasattr(value, "to_dict"):
                plain[name] = value.to_dict()
        return plain | {"event_shape": list(self.event_shape), "f_sees": list(self.f_sees)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NetworkSpec:
        """The inverse of `to_dict`; unknown keys are refused."""
        unknown = set(plain) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"Expected keys of NetworkSpec but got {sorted(unknown)}")
        if any(plain.get(key, key) is None for key in ("encoder", "g", "f")):
            raise ValueError("Expected an encoder, g and f of NetworkSpec but one of them is none")
        builders: dict[str, Any] = {
            "encoder": encoder_from_dict,
            "unassigned_encoder": encoder_from_dict,
            "attention": Attention.from_dict,
            "g": Perceptron.from_dict,
            "f": Perceptron.from_dict,
            "event_shape": lambda shape: shape,
            "f_sees": tuple,
            "pooling": str,
        }
        parts: dict[str, Any] = {k: None if v is None else builders[k](v) for k, v in plain.items()}
        return cls(**parts)


class Folded(NamedTuple):
    """The linear boundaries of h, g and f, multiplied out (see the module's docstring)."""

    w_u: Tensor  # (g.width, d_h)         W_1: from h to g's first layer
    b_u: Tensor  # (g.width,)             b_1
    w_g: Tensor  # (f.width, g.width)     V_G W_L
    b_g: Tensor  # (f.width,)             V_G b_L
    w_c: Tensor | None  # (f.width, g.width)  V_C W_L
    w_q: Tensor  # (f.width, d_q)         V_Q
    w_h: Tensor | None  # (f.width, d_h)  V_h
    w_cluster: Tensor | None  # (f.width, .)  V_A: of the cluster alone
    w_pair: Tensor | None  # (f.width, .)     V_A: of cluster and point
    w_point: Tensor | None  # (f.width, n_point) V_P
    b_f: Tensor  # (f.width,)             b + V_C b_L: the bias of f's first layer


class Points(NamedTuple):
    """What the scorer needs of each point, computed once."""

    sums: Tensor  # (points, n_sums)   what clusters sum up: u_i = W_1 h_i, then pair summands
    q: Tensor  # (points, f.width)     V_Q q_i
    static: Tensor  # (points, f.width) V_h h_i + b


class Network(nn.Module):
    """p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n), teacher-forced.

    Args:
        spec: what it is composed of.
        mixture: the generative model it is trained for. Its location and scale become the input
            transform, so that callers pass raw data.
    """

    location: Tensor
    scale: Tensor

    def __init__(self, spec: NetworkSpec, mixture: GenerativeModel | None = None) -> None:
        super().__init__()
        if mixture is not None and tuple(mixture.event_shape) != spec.event_shape:
            raise ValueError(
                f"Expected a generative model of event_shape {spec.event_shape} "
                f"but got {tuple(mixture.event_shape)}"
            )
        self.spec = spec
        self.mixture = mixture
        self.pair_features = spec.pair_features
        d_h, own = spec.encoder.out, spec.unassigned_encoder
        self.h = spec.encoder.build(spec.event_shape)
        self.q = None if own is None else own.build(spec.event_shape)
        self.attention = None
        self.n_coordinates = 0
        if spec.attention is not None:
            self.n_coordinates = spec.attention.n_coordinates(spec.event_shape)
            self.attention = AttentionLayers(spec.attention, d_h, self.n_coordinates)
        self.g = perceptron(d_h, spec.g)
        self.f = perceptron(sum(spec.f_inputs().values()), spec.f, bias=False)
        # The logarithms of the numbers of terms, where sums become means: n, K' and N - n.
        mean = spec.pooling == "mean"
        self.log_size = linear_from_zero(1, spec.g.width) if mean else None
        self.log_numbers = linear_from_zero(2, spec.f.width) if mean else None
        for name, default in (("location", 0.0), ("scale", 1.0)):
            value = torch.as_tensor(getattr(mixture, name, default), dtype=torch.float32)
            self.register_buffer(name, value.clone())

    @property
    def n_sums(self) -> int:
        """Numbers that a cluster sums up over its points."""
        pairs = self.pair_features
        return self.spec.g.width + (pairs.n_summands if pairs else 1)

    @property
    def device(self) -> torch.device:
        return self.location.device

    @property
    def dtype(self) -> torch.dtype:
        return self.location.dtype

    # -- encoding --------------------------------------------------------------------------------

    def fold(self) -> Folded:
        """Multiply out the linear boundaries. Gradients flow through."""
        first, last = cast(nn.Linear, self.g[0]), cast(nn.Linear, self.g[-1])
        into_f = cast(nn.Linear, self.f[0])
        sizes = self.spec.f_inputs()
        v = dict(zip(sizes, torch.split(into_f.weight, list(sizes.values()), 1), strict=True))
        v_c = v.get("candidate")
        w_cluster, w_pair = None, None
        if self.pair_features is not None:
            w_cluster, w_pair = self.pair_features.parts(v["pairs"])
        return Folded(
            w_u=first.weight,
            b_u=first.bias,
            w_g=v["G"] @ last.weight,
            b_g=v["G"] @ last.bias,
            w_c=None if v_c is None else v_c @ last.weight,
            w_q=v["Q"],
            w_h=v.get("point"),
            w_cluster=w_cluster,
            w_pair=w_pair,
            w_point=v["points"] if self.pair_features else None,
            b_f=into_f.bias if v_c is None else into_f.bias + v_c @ last.bias,
        )

    def encode(
        self,
        x: Float[Tensor, "B N ..."],
        folded: Folded,
        n_real: int | None = None,
    ) -> tuple[Points, Float[Tensor, "B N C"], KeyValueCache | None]:
        """Data sets of one size, each among its first `n_real` points: rows of `Points`, and codes.

        The codes are those of the attention, or h itself where there is none. With attention, also
        what new points see of the first data set.
        """
        n_datasets, n = x.shape[:2]
        x = (x - self.location) / self.scale
        h = self.h(x.flatten(0, 1)).view(n_datasets, n, -1)
        q = None if self.q is None else self.q(x.flatten(0, 1))
        codes, cache = h, None
        if self.attention is not None:
            (h, codes), cache = self.attention(h, self.coordinates(x), n_real)
        points = self.project(h.flatten(0, 1), q, self.pair_summands(codes, x), folded)
        return points, codes, cache

    def coordinates(self, x: Float[Tensor, ...]) -> Float[Tensor, "... D"]:
        """The part of scaled points that is their position; without columns if nothing is."""
        return x[..., : self.n_coordinates] if self.n_coordinates else x.new_zeros(*x.shape[:2], 0)

    def pair_summands(
        self, codes: Float[Tensor, "B N C"], x: Float[Tensor, "B N ..."]
    ) -> Float[Tensor, "points n"]:
        """What clusters sum up beside u: at least the number of their points."""
        if self.pair_features is None:
            return torch.ones_like(codes[..., :1]).flatten(0, 1)
        return self.pair_features.summands(codes, self.coordinates(x)).flatten(0, 1)

    def project(
        self,
        h: Float[Tensor, "points d_h"],
        q: Float[Tensor, "points d_q"] | None,
        summands: Float[Tensor, "points n"],
        folded: Folded,
    ) -> Points:
        """Encodings as the scorer wants them."""
        static = folded.b_f.expand(len(h), -1)
        if folded.w_h is not None:
            static = torch.addmm(folded.b_f, h, folded.w_h.T)
        sums = torch.cat([h @ folded.w_u.T, summands], 1)
        return Points(sums=sums, q=(h if q is None else q) @ folded.w_q.T, static=static)

    def encode_many(self, xs: Sequence[Tensor], folded: Folded) -> Points:
        """Data sets of any sizes, their points one after the other.

        Those of one size go together, each made up to whole tiles of rows: so a data set's
        values do not depend on the others.
        """
        rows: list[Points | None] = [None] * len(xs)
        sizes = [len(x) for x in xs]
        for n in sorted(set(sizes)):
            members = [i for i, size in enumerate(sizes) if size == n]
            padded = whole_tiles(n)
            at_once = max(1, min(ROWS // padded, PAIRS // padded**2))
            for start in range(0, len(members), at_once):
                some = members[start : start + at_once]
                x = made_up_to(torch.stack([xs[i] for i in some]), padded)
                encoded, *_ = self.encode(x, folded, n)
                tables = [table.view(len(some), padded, -1)[:, :n] for table in encoded]
                for i, *of_set in zip(some, *tables, strict=True):
                    rows[i] = Points(*of_set)
        found = cast(list[Points], rows)
        return Points(*(torch.cat(column) for column in zip(*found, strict=True)))

    # -- the fused scorer ------------------------------------------------------------------------

    def into_g(
        self, u: Float[Tensor, "rows width"], size: Float[Tensor, "rows 1"], folded: Folded
    ) -> Float[Tensor, "rows width"]:
        """g after its first linear layer, of clusters of some size by their sums."""
        if self.log_size is None:
            return u + folded.b_u
        of_size: Tensor = self.log_size(size.log())
        return torch.addcmul(of_size + folded.b_u, u, size.reciprocal())

    def embed(self, v: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """g between its first and its last linear layer."""
        inner: Tensor = self.g[1:-1](v)
        return inner

    def logit(self, y: Float[Tensor, "rows width"]) -> Float[Tensor, " rows"]:
        """f after its first linear layer."""
        out: Tensor = self.f[1:](y)
        return out.squeeze(1)

    def base(
        self,
        points: Points,
        unassigned_q: Float[Tensor, "rows width"],
        unassigned_codes: Float[Tensor, "rows C"],
        n_unassigned: Float[Tensor, " rows"],
        folded: Folded,
    ) -> Float[Tensor, "rows width"]:
        """What does not depend on clusters: V_Q Q(n) + V_h h_n + b, and features of the point.

        Args:
            points: the points being assigned.
            unassigned_q, unassigned_codes: sums over the points that are not assigned yet.
            n_unassigned: how many these are.
        """
        each = n_unassigned.clamp(min=1)[:, None]
        if self.log_numbers is not None:
            of_rest = self.log_numbers.weight[:, 1]
            unassigned_q = unassigned_q / each + n_unassigned.log1p()[:, None] * of_rest
        total = unassigned_q + points.static
        if self.pair_features is None or folded.w_point is None:
            return total
        own = points.sums[:, self.spec.g.width :]
        seen = self.pair_features.of_point(own, unassigned_codes / each, n_unassigned)
        return torch.addmm(total, seen, folded.w_point.T)

    def first_layer(
        self,
        rest: Float[Tensor, "rows width"],
        inner: Float[Tensor, "rows g_width"],
        g_sum: Float[Tensor, "rows width"],
        n_clusters: Int[Tensor, " rows"],
        seen: list[Float[Tensor, "rows _"]],
        folded: Folded,
    ) -> Float[Tensor, "rows width"]:
        """f's first layer y of candidates.

        Args:
            rest: what is the point's alone and the cluster's alone.
            inner: what `embed` gives of the cluster with the point in it.
            g_sum: S(n) - ĝ(H_k) + ĝ(H_k + h_n).
            n_clusters: K', the number of clusters once the point has joined.
            seen: of cluster and point, or nothing.
        """
        weights = [] if folded.w_pair is None else [folded.w_pair]
        if self.log_numbers is None:
            y = rest + g_sum
        else:
            k = n_clusters[:, None].to(g_sum.dtype)
            y = torch.addcmul(rest, g_sum, k.reciprocal())
            seen, weights = [*seen, k.log()], [*weights, self.log_numbers.weight[:, :1]]
        if folded.w_c is not None:
            y = torch.addmm(y, inner, folded.w_c.T)
        return torch.addmm(y, torch.cat(seen, 1), torch.cat(weights, 1).T) if seen else y

    def scores(
        self,
        points: Points,
        index: Int[Tensor, "S N"],
        lengths: Int[Tensor, " S"],
        labels: Int[Tensor, "S N"],
        folded: Folded,
    ) -> tuple[Float[Tensor, "S N K"], Bool[Tensor, "S N"]]:
        """log p(c_n = k | c_{1:n-1}, x) of S sequences, and which positions are real.

        Args:
            points: encoded points of all data sets.
            index: which point stands at each position of each sequence (anything beyond a
                sequence's length).
            lengths: number of points of each sequence.
            labels: canonical labels along each sequence.
        """
        plan = layout(labels, lengths)
        here = Points(*(table[index] for table in points))  # (S, N, ...)
        w, width, pairs = self.spec.g.width, self.spec.f.width, self.pair_features
        joined = with_zero_row(prefix_sum(here.sums, plan.labels))  # sums, the last point here
        # u and the rest apart: the gradient of a part of a table is as large as the table
        u, own = torch.split(here.sums.flatten(0, 1), [w, self.n_sums - w], 1)
        joined_u, joined_own = torch.split(joined, [w, self.n_sums - w], 1)
        size = joined_own[:, -1:].detach() + 1
        start = self.into_g(joined_u, size, folded)  # but for the point that joins
        each = size.reciprocal() if self.log_size is not None else torch.ones_like(size)
        parts = list(zip(torch.split(plan.here, CHUNK), torch.split(plan.last, CHUNK), strict=True))
        inner = []
        for at, last in parts:
            joins = u.index_select(0, at)
            v = torch.addcmul(start.index_select(0, last), joins, each.index_select(0, last))
            inner.append(self.embed(v))
        g = [torch.addmm(folded.b_g, a, folded.w_g.T) for a in inner]  # ĝ(H_k + h_n)

        where = plan.valid.view(-1).nonzero()[:, 0]
        chosen = (g[0] if len(g) == 1 else torch.cat(g)).index_select(0, plan.chosen)
        zeros = chosen.new_zeros(len(joined), width)
        left = zeros.index_copy(0, where, -chosen)  # -ĝ of a cluster, its last point here
        change = chosen + left.index_select(0, plan.last.index_select(0, plan.chosen))
        change = zeros[:-1].index_copy(0, where, change).view(*index.shape, width)
        before = (prefix_sum(change) - change).flatten(0, 1)  # S(n)
        base, rest = self._unassigned(here, plan.valid, lengths, folded)
        means = of_cluster = None
        if pairs is not None and folded.w_cluster is not None:
            means, alone = pairs.of_cluster(joined_own)
            of_cluster = alone @ folded.w_cluster.T
        scored = []
        for (at, last), a, g_hat, k in zip(
            parts, inner, g, torch.split(plan.n_clusters, CHUNK), strict=True
        ):
            g_sum = before.index_select(0, at) + left.index_select(0, last) + g_hat
            known, seen = base.index_select(0, at), []
            if pairs is not None and means is not None and of_cluster is not None:
                known = known + of_cluster.index_select(0, last)
                of_k, point, others = (
                    table.index_select(0, i) for table, i in ((means, last), (own, at), (rest, at))
                )
                seen = pairs.of_pair(of_k, point, others)
            scored.append(self.logit(self.first_layer(known, a, g_sum, k, seen, folded)))
        logits = torch.cat(scored)
        padded = logits.new_full(plan.candidate.shape, -torch.inf)
        padded[..., 0] = 0.0  # what is not a position gets a finite row, for the gradient's sake
        return padded.masked_scatter(plan.candidate, logits).log_softmax(2), plan.valid

    def _unassigned(
        self,
        here: Points,
        valid: Bool[Tensor, "S N"],
        lengths: Int[Tensor, " S"],
        folded: Folded,
    ) -> tuple[Float[Tensor, "positions width"], Float[Tensor, "positions C"]]:
        """`base` of every position, and the mean code of the points after it."""
        w, c = self.spec.g.width, self.pair_features.codes if self.pair_features else 0
        each = torch.cat([here.q, here.sums[..., w : w + c]], -1) * valid[..., None]
        after = prefix_sum(each.flip(1)).flip(1) - each
        q, codes = torch.split(after.flatten(0, 1), [here.q.shape[-1], c], 1)
        n = here.q.shape[1]
        number = lengths[:, None] - 1 - torch.arange(n, device=lengths.device)
        number = number.clamp(min=0).flatten().to(q.dtype)
        points = Points(*(table.flatten(0, 1) for table in here))
        base = self.base(points, q, codes, number, folded)
        return base, codes / number.clamp(min=1)[:, None]

    def positions(
        self, points: Points, folded: Folded
    ) -> tuple[Float[Tensor, "N width"], Float[Tensor, "N C"]]:
        """`base` of every position of one sequence, and the mean code of the points after it."""
        here = Points(*(table[None] for table in points))
        n = len(points.sums)
        real = torch.ones(1, n, dtype=torch.bool, device=points.sums.device)
        return self._unassigned(here, real, torch.tensor([n], device=real.device), folded)

    # -- the public likelihood -------------------------------------------------------------------

    def check_points(self, x: Any) -> Tensor:
        """One data set `(N, *event_shape)` in the model's dtype; anything else is refused."""
        check_unmasked(x)
        points = as_tensor(x if isinstance(x, Tensor) else np.asarray(x))
        if points.is_complex() or points.dtype == torch.bool:
            raise ValueError(f"Expected real-valued data but got dtype {points.dtype}")
        if tuple(points.shape[1:]) != self.spec.event_shape:
            expected = ", ".join(map(str, ("N", *self.spec.event_shape)))
            raise ValueError(f"Expected data of shape ({expected}) but got {tuple(points.shape)}")
        if len(points) == 0:
            raise ValueError("Expected at least one point but got an empty data set")
        points = points.to(self.dtype).to(self.device)
        if not bool(points.isfinite().all()):
            raise ValueError("Expected finite data but got NaN or infinity")
        return points

    def conditionals(self, x: Any, labels: Any) -> Any:
        """log p(c_n = k | c_{1:n-1}, x) for every n and k, teacher-forced.

        Args:
            x: one data set `(N, *event)`, data sets of equal size `(B, N, *event)`, or a list of
                data sets of any sizes.
            labels: canonical labels: `(N,)` or many rows `(R, N)` of one data set, `(B, N)`, or
                a list.

        Returns:
            `(N, K)`, `(R, N, K)`, `(B, N, K)` or a list of `(N_i, K_i)`; the last axis holds the
            clusters that exist and, after them, the new one; entries that cannot occur are -inf.
        """
        batch = self._batch(x, labels)
        parts = [log_p for _, log_p, _ in self._run(batch, keep=True)]
        if batch.kind == "list":
            rows = [row for log_p in parts for row in log_p]
            ends = zip(batch.lengths.tolist(), batch.n_clusters().tolist(), strict=True)
            return [row[:n, : k + 1] for row, (n, k) in zip(rows, ends, strict=True)]
        width = max(log_p.shape[2] for log_p in parts)
        padded = torch.cat([_pad_last(log_p, width) for log_p in parts])
        return padded[0] if batch.kind == "single" else padded

    def log_prob(self, x: Any, labels: Any, order: Any = None) -> Tensor:
        """log q(c | x), the sum over n of the realised conditionals.

        Args:
            x, labels: as for `conditionals`.
            order: score the points of one data set in this order `(N,)` instead of the given one.

        Returns:
            A scalar for one row of labels, else one number per row (or per data set).
        """
        if order is not None:
            points = self.check_points(x)
            order = torch.as_tensor(order, device=self.device)
            if order.shape != (len(points),) or not bool(
                (order.sort().values == torch.arange(len(points), device=self.device)).all()
            ):
                raise ValueError(f"Expected a permutation of {len(points)} points but got {order}")
            x = points[order]
            labels = canonical(check_labels(labels, len(points)).to(self.device)[..., order])
        batch = self._batch(x, labels)
        totals = torch.cat(
            [
                (realised(log_p, batch.labels[rows, : log_p.shape[1]]) * valid).sum(1)
                for rows, log_p, valid in self._run(batch, keep=False)
            ]
        )
        return totals[0] if batch.kind == "single" else totals

    def _batch(self, x: Any, labels: Any) -> _ScoringBatch:
        event = len(self.spec.event_shape)
        if isinstance(x, list | tuple) and (not x or np.ndim(x[0]) == event + 1):
            return self._ragged(x, labels, "list")
        if np.ndim(x) == event + 2:
            return self._ragged(list(x), list(check_labels(labels)), "batch")
        points = self.check_points(x)
        rows_2d = check_labels(labels, len(points)).to(self.device)
        if rows_2d.dim() not in (1, 2) or len(rows_2d) == 0:
            raise ValueError(f"Expected labels (N,) or (R, N) but got {tuple(rows_2d.shape)}")
        kind = "single" if rows_2d.dim() == 1 else "batch"
        rows_2d = rows_2d.view(-1, len(points))
        index = torch.arange(len(points), device=self.device).expand_as(rows_2d)
        lengths = torch.full((len(rows_2d),), len(points), device=self.device)
        return _ScoringBatch(kind, [points], index, lengths, rows_2d)

    def _ragged(self, xs: Sequence[Any], labels: Sequence[Any], kind: str) -> _ScoringBatch:
        data = [self.check_points(x) for x in xs]
        if not data:
            raise ValueError("Expected at least one data set but got none")
        if len(labels) != len(data):
            raise ValueError(f"Expected {len(data)} rows of labels but got {len(labels)}")
        rows = [
            check_labels(row, len(x)).to(self.device) for row, x in zip(labels, data, strict=True)
        ]
        if any(row.dim() != 1 for row in rows):
            raise ValueError("Expected one row of labels for each data set")
        lengths = torch.tensor([len(x) for x in data], device=self.device)
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        index = torch.arange(padded.shape[1], device=self.device)
        index = (index + (lengths.cumsum(0) - lengths)[:, None]).where(index < lengths[:, None], 0)
        return _ScoringBatch(kind, data, index, lengths, padded)

    def _check_memory(self, batch: _ScoringBatch, costs: Int[Tensor, " S"], keep: bool) -> None:
        """Refuse what will not fit: the layout and g of the largest row, and what is kept."""
        slots = batch.n_clusters() + 1
        size = self.location.element_size()
        g, f, pairs = self.spec.g, self.spec.f, self.pair_features
        value = size * (g.width + 2 * f.width)  # bytes of one candidate between g and f
        rows = 3 * 8 * batch.lengths * slots + 3 * value * costs
        largest = int(rows.argmax())
        one = int(rows[largest])
        check_memory(one, one // int(slots[largest]), "clusters")
        kept = batch.labels.numel() * int(slots.max()) * size if keep else 0
        with_gradients = torch.is_grad_enabled() and self.g[0].weight.requires_grad
        if with_gradients:  # what each layer, and each nonlinearity, keeps for the way back
            layers = size * 2 * (g.width * (g.depth - 1) + f.width * (f.depth + 1))
            kept += (layers + 2 * size * (pairs.n_pair if pairs else 0)) * int(costs.sum())
            octaves = 0 if self.attention is None else self.attention.octaves
            kept += 8 * size * sum(len(x) ** 2 for x in batch.data) * octaves  # 9 were measured
        what = "rows of labels" + (" with gradients" if with_gradients else "")
        check_memory(one + kept, max(1, kept // len(costs)), what)

    def _run(self, batch: _ScoringBatch, keep: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, log p and which positions are real, group by group; the caller may `keep` log p."""
        costs = candidates_per_row(batch.labels, batch.lengths)
        self._check_memory(batch, costs, keep)
        folded = self.fold()
        points = self.encode_many(batch.data, folded)
        for rows in groups_of(costs, CHUNK):
            n = int(batch.lengths[rows].max())
            log_p, valid = self.scores(
                points,
                batch.index[rows, :n],
                batch.lengths[rows],
                batch.labels[rows, :n],
                folded,
            )
            yield rows, log_p, valid


def check_memory(needed: int, each: int, what: str) -> None:
    """Refuse a call of too many bytes before any work is done; `each` one of `what` takes some."""
    available = _memory()
    if needed > available:
        raise ValueError(
            f"Expected a request that fits in {available / 2**30:.1f} GiB of memory but it may "
            f"need {needed / 2**30:.1f} GiB; ask for fewer {what} or points at a time: about "
            f"{available // each:,} {what} would fit"
        )


def _memory() -> int:
    """What the machine has, or what the process may take (`ulimit -v`) if that is less."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ImportError, AttributeError, ValueError, OSError):  # not a POSIX system
        return 2**34
    return physical if limit == resource.RLIM_INFINITY else min(physical, limit)


@dataclass(frozen=True)
class _ScoringBatch:
    """A likelihood call, brought to one form: data sets and padded integer rows."""

    kind: str  # "single" row, "batch" of rows, or "list" of data sets
    data: list[Tensor]  # (N_i, *event) each
    index: Int[Tensor, "S N"]
    lengths: Int[Tensor, " S"]
    labels: Int[Tensor, "S N"]

    def n_clusters(self) -> Int[Tensor, " S"]:
        return self.labels.amax(1) + 1  # rows are padded with label 0


def _pad_last(log_p: Float[Tensor, "S N K"], width: int) -> Float[Tensor, "S N W"]:
    return nn.functional.pad(log_p, (0, width - log_p.shape[2]), value=-torch.inf)
