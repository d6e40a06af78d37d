r"""The Neural Clustering Process: h, g and f, and their fused evaluation.

With H_k the sum of h(x_i) over cluster k, G_k the sum of g over the clusters once x_n has joined
cluster k, and Q the sum of h (or of an own encoder q) over the points after n, the paper's model is

    p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n),         k = 1 .. K+1.

Every boundary between the functions is linear, and that is where the arithmetic goes away:

* g's first layer acts on a sum: W_1 (H_k + h_n) + b_1. Project each point once, u_i = W_1 h_i, and
  a cluster is the running sum U_k of its u_i. What g then still has to do, per candidate, is
  `embed`: its inner layers, a(U_k + u_n + b_1).
* g's last layer W_L a + b_L meets only f's first layer, [V_G V_Q V_h V_C V_A]: fold V_G W_L into
  one small matrix. The state keeps sums of *folded* values ĝ(H) = V_G (W_L a + b_L), never G.
* f's first layer splits into the part in G, the part in Q and the part in h_n; the last two are
  computed once per point. With `candidate_in_f`, f also sees g(H_k + h_n), which folds into the
  same product: V_C W_L is added to V_G W_L. With `product_in_f` and `means_in_f`, f sees how alike
  the point and the cluster are, from U_k and u_n, which both are there already: V_A times that is
  added to the below.
* ĝ(H_k) of an existing cluster is the value computed when its last point joined.

So f's first layer, before its nonlinearity, is

    y(n, k) = (V_G + V_C) (W_L a(n, k) + b_L) - ĝ(H_k) + S(n) + V_Q Q(n) + V_h h_n + b,

with S(n) the sum of ĝ over the clusters that exist before n. In training the labels are known, so
nothing is sequential: every prefix sum and every "last point of cluster k before n" is index
arithmetic, and g and f each run once over one packed list of all candidates (sequence, n, k).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ncp.generative.model import GenerativeModel
from ncp.network.blocks import AttentionBlock, Context, build_encoder, mlp, scaled_squares
from ncp.partitions import as_tensor, canonical, check_labels
from ncp.posterior import Partitions

# Candidates evaluated at once: the activations of a chunk stay in the cache, which is worth a
# factor of two over one long list.
CHUNK = 4096
MOST_OCTAVES = 16  # octaves; float32 has no more to tell
LONG = 256  # points of a sequence beyond which prefix sums are not worth a matrix product


def widest(device: torch.device) -> torch.dtype:
    """The dtype for long sums and log-probabilities: float64, which Apple's MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class NCPConfig:
    """The architecture. The defaults are the paper's (appendix A) for two-dimensional data.

    Arguments:
        event_shape: Shape of one observation: `(2,)` (or just `2`), or `(28, 28)` for images.
        encoder: `"mlp"`, `"conv"`, or a name given to `ncp.network.blocks.register_encoder`.
        h_width, h_depth, h_dim: Width, number of layers and output size of the MLP encoder.
        conv_channels: Channels of the two convolutions of the image encoder.
        width: Width of g and f.
        g_depth, g_dim: Number of layers and output size of g.
        f_depth: Number of layers of f, whose output is one number. (A bias in the last layer
            would cancel in the softmax, so there is none.)
        separate_q: An encoder of its own for the unassigned points.
        point_in_f: f sees h_n, the encoding of the point being assigned.
        candidate_in_f: f sees g(H_k + h_n), the embedding of the cluster the point would join.
        product_in_f: f sees (W_1 H_k) * (W_1 h_n), number by number, with W_1 the first layer of g:
            how alike the point and the cluster are.
        means_in_f: f sees the means of W_1 h_i and of the context's tokens over the cluster that
            the point may join, their products with those of the point, and the cluster's size;
            with `distances` also how far the point is from the mean of the cluster's points. A
            sum over points tells a mean only to those who can divide. It takes a context.
        residual: Skip connections around the hidden layers of g, f and the MLP encoder.
        context: Blocks of self-attention over the data set that follow the encoder, so that h_i
            depends on all of x, whatever its order; 0 in the paper.
        distances: Octaves of distances between points that the context sees (vectors only); 0 in
            the paper.
        waves: Octaves of sines and cosines of the coordinates that the MLP encoder sees beside
            them; 0 in the paper.

    >>> NCPConfig(event_shape=3).event_shape
    (3,)
    """

    event_shape: Any = (2,)  # an int or any sequence of them; kept as a tuple
    encoder: str = "mlp"
    h_width: int = 128
    h_depth: int = 5
    h_dim: int = 256
    conv_channels: tuple[int, int] = (10, 20)
    width: int = 128
    g_depth: int = 6
    g_dim: int = 512
    f_depth: int = 6
    separate_q: bool = False
    point_in_f: bool = True
    candidate_in_f: bool = False
    product_in_f: bool = False
    means_in_f: bool = False
    residual: bool = False
    context: int = 0
    distances: int = 0
    waves: int = 0

    def __post_init__(self) -> None:
        given = self.event_shape
        shape = (given,) if isinstance(given, int) else tuple(int(side) for side in given)
        object.__setattr__(self, "event_shape", shape)
        if not shape or min(shape) < 1:
            raise ValueError(f"Expected event_shape of positive sizes but got {self.event_shape}")
        if len(self.conv_channels) != 2 or min(self.conv_channels) < 1:
            raise ValueError(f"Expected two positive conv_channels but got {self.conv_channels}")
        least = {"h_width": 1, "h_dim": 1, "width": 1, "g_dim": 1}
        least |= {"h_depth": 2, "g_depth": 2, "f_depth": 2, "context": 0}
        least |= {"distances": 0, "waves": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < bound:
                raise ValueError(f"Expected an integer {name} >= {bound} but got {value!r}")
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                value = getattr(self, field.name)
                raise ValueError(f"Expected {field.name} to be true or false but got {value!r}")
        if self.waves and self.encoder != "mlp":
            raise ValueError(f"Expected encoder 'mlp' for waves but got {self.encoder!r}")
        for name in ("waves", "distances"):
            if getattr(self, name) > MOST_OCTAVES:
                raise ValueError(f"Expected {name} <= {MOST_OCTAVES} but got {getattr(self, name)}")
        if self.distances and (not self.context or len(self.event_shape) != 1):
            raise ValueError(
                "Expected a context and a one-dimensional event_shape for distances "
                f"but got context {self.context} and {self.event_shape}"
            )
        if self.means_in_f and not self.context:
            raise ValueError("Expected context >= 1 for means_in_f but got 0")
        if self.context and self.width % AttentionBlock.HEADS:
            raise ValueError(
                f"Expected width to be a multiple of {AttentionBlock.HEADS} with context "
                f"but got {self.width}"
            )

    def f_inputs(self) -> dict[str, int]:
        """What f sees, in order, and how many numbers each is."""
        joint = {"G": self.g_dim, "Q": self.h_dim}
        joint |= {"point": self.h_dim * self.point_in_f}
        return joint | {"candidate": self.g_dim * self.candidate_in_f} | self.alike_inputs()

    def alike_inputs(self) -> dict[str, int]:
        """What f sees of a point and the cluster it may join, otherwise than by g."""
        coordinates = self.event_shape[0] if self.distances else 0
        inputs = {
            "mean": 2 * self.width,
            "mean of x": coordinates,
            "mean product": 2 * self.width,
            "mean product of x": coordinates,
            "size": 1,
            "near": self.distances,
            "apart": self.distances,
            "cosines": 2,
        }
        inputs = {name: size * self.means_in_f for name, size in inputs.items()}
        return {"product": self.width * self.product_in_f} | inputs

    @property
    def n_alike(self) -> int:
        """The size of `alike_inputs`."""
        return sum(self.alike_inputs().values())

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, as a checkpoint's header carries it."""
        plain = asdict(self)
        return plain | {k: list(v) for k, v in plain.items() if isinstance(v, tuple)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NCPConfig:
        """The inverse of `to_dict`; unknown keys are refused."""
        unknown = set(plain) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"Expected keys of NCPConfig but got {sorted(unknown)}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**values)


class Folded(NamedTuple):
    """The linear boundaries of h, g and f, multiplied out (see the module's docstring)."""

    w_u: Tensor  # (width, h_dim)    W_1: from h to g's first layer
    b_u: Tensor  # (width,)          b_1
    w_g: Tensor  # (width, width)    V_G W_L: from the inner value of g to f's first layer
    b_g: Tensor  # (width,)          V_G b_L
    w_join: Tensor  # (width, width) (V_G + V_C) W_L
    b_join: Tensor  # (width,)       (V_G + V_C) b_L
    w_q: Tensor  # (width, h_dim)    V_Q
    w_h: Tensor | None  # (width, h_dim) V_h
    w_a: Tensor | None  # (width, n_alike) V_A
    b_f: Tensor  # (width,)          b: the bias of f's first layer


class Points(NamedTuple):
    """What the scorer needs of each point, computed once: three projections of its encoding."""

    u: Tensor  # (points, width or more) u_i = W_1 h_i, then whatever else clusters sum up
    q: Tensor  # (points, width)      V_Q q_i
    static: Tensor  # (points, width) V_h h_i + b


class Layout(NamedTuple):
    """Index arithmetic of the teacher-forced pass over S sequences of at most N positions.

    Position (s, n) has the flat index s N + n; index S N stands for "no point", whose row is zero.
    The M candidates (s, n, k <= K_n) are listed in that order, without padding.
    """

    labels: Int[Tensor, "S N"]
    valid: Bool[Tensor, "S N"]
    candidate: Bool[Tensor, "S N K"]  # which (s, n, k) exist; K = largest K_n + 1
    here: Int[Tensor, " M"]  # flat position (s, n) of each candidate
    last: Int[Tensor, " M"]  # flat position of the last point of cluster k before n, or S N
    chosen: Int[Tensor, " P"]  # index of the realised candidate at each valid position


def layout(labels: Int[Tensor, "S N"], lengths: Int[Tensor, " S"]) -> Layout:
    """The packed list of all candidates of `labels`, canonical in each row up to its length."""
    n_sequences, n = labels.shape
    device = labels.device
    valid = torch.arange(n, device=device) < lengths[:, None]
    labels = labels.where(valid, 0)
    k_after = labels.cummax(1).values + 1
    k_before = torch.cat([torch.zeros_like(k_after[:, :1]), k_after[:, :-1]], 1)
    n_slots = int(k_after.max()) + 1

    positions = torch.arange(n, device=device).expand(n_sequences, n)
    last = torch.full((n_sequences, n + 1, n_slots), -1, device=device)
    last[:, 1:].scatter_(2, labels[..., None], positions[..., None])
    last = last.cummax(1).values[:, :n]  # before n: the scatter was one row down

    slots = torch.arange(n_slots, device=device)
    candidate = (slots <= k_before[..., None]) & valid[..., None]
    flat = torch.arange(n_sequences * n, device=device).view(n_sequences, n, 1)
    last_flat = (flat - flat % n + last).where(last >= 0, n_sequences * n)
    n_candidates = candidate.sum(2)
    first = n_candidates.view(-1).cumsum(0).view(n_sequences, n) - n_candidates
    return Layout(
        labels=labels,
        valid=valid,
        candidate=candidate,
        here=flat.expand_as(last)[candidate],
        last=last_flat[candidate],
        chosen=(first + labels)[valid],
    )


def prefix_sum(
    values: Float[Tensor, "S N d"], groups: Int[Tensor, "S N"] | None = None
) -> Float[Tensor, "S N d"]:
    """Sum over i <= n in the same sequence, and in the same group where groups are given.

    A product with a 0/1 matrix is fastest, and rounds least, for all but long sequences; these
    take one pass of cumulative sums in double precision, linear in N.

    >>> prefix_sum(torch.tensor([[[1.0], [10.0], [100.0]]]), torch.tensor([[0, 1, 0]])).squeeze()
    tensor([  1.,  10., 101.])
    """
    n_sequences, n, _ = values.shape
    if n <= LONG:
        mask = torch.ones(n, n, dtype=torch.bool, device=values.device).tril()
        mask = mask.expand(n_sequences, n, n)
        if groups is not None:
            mask = mask & (groups[:, :, None] == groups[:, None, :])
        with torch.autocast(values.device.type, enabled=False):  # sums are not to be rounded
            return mask.to(values.dtype) @ values
    if groups is None:
        groups = torch.zeros(n_sequences, n, dtype=torch.long, device=values.device)
    by_group = groups.argsort(dim=1, stable=True)
    sorted_groups = groups.gather(1, by_group)
    index = by_group[..., None].expand_as(values)
    # Transposed, so that the sum runs along contiguous memory.
    total = values.gather(1, index).to(widest(values.device)).transpose(1, 2).contiguous().cumsum(2)
    total = nn.functional.pad(total, (1, 0))  # (S, d, N + 1)
    start = torch.searchsorted(sorted_groups, sorted_groups)  # first position of the group
    start = start[:, None, :].expand(-1, total.shape[1], -1)
    within = total[:, :, 1:] - total.gather(2, start)
    return torch.empty_like(values).scatter(1, index, within.transpose(1, 2).to(values.dtype))


class NCP(nn.Module):
    """The neural clustering process, p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n).

    Arguments:
        config: The architecture.
        mixture: The generative model it is trained for. Its prior's location and scale become the
            input transform, so that callers pass raw data.

    >>> model = NCP(NCPConfig(event_shape=2))
    >>> x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0]])
    >>> model.conditionals(x, [0, 0, 1]).shape  # three points, two clusters or a new one
    torch.Size([3, 3])
    >>> model.sample(x, n_samples=20, seed=0).n_samples
    20
    """

    location: Tensor
    scale: Tensor

    def __init__(self, config: NCPConfig, mixture: GenerativeModel | None = None) -> None:
        super().__init__()
        if mixture is not None and tuple(mixture.event_shape) != config.event_shape:
            raise ValueError(
                f"Expected a mixture of event_shape {config.event_shape} "
                f"but got {tuple(mixture.event_shape)}"
            )
        self.config = config
        self.mixture = mixture
        self.h = build_encoder(config)
        self.q = build_encoder(config) if config.separate_q else None
        self.context = (
            Context(
                config.h_dim,
                config.width,
                config.context,
                codes=config.means_in_f,
                distances=config.distances,
            )
            if config.context
            else None
        )
        self.g = mlp(
            config.h_dim, config.width, config.g_depth, config.g_dim, residual=config.residual
        )
        n_in = sum(config.f_inputs().values())
        self.f = mlp(n_in, config.width, config.f_depth, 1, residual=config.residual, bias=False)
        for name, default in (("location", 0.0), ("scale", 1.0)):
            value = torch.as_tensor(getattr(mixture, name, default), dtype=torch.float32)
            self.register_buffer(name, value.clone())

    @property
    def device(self) -> torch.device:
        return self.location.device

    @property
    def dtype(self) -> torch.dtype:
        return self.location.dtype

    # -- the fused scorer ------------------------------------------------------------------------

    def fold(self) -> Folded:
        """Multiply out the linear boundaries. Gradients flow through."""
        first, last = cast(nn.Linear, self.g[0]), cast(nn.Linear, self.g[-1])
        into_f = cast(nn.Linear, self.f[0])
        c = self.config
        sizes = [*c.f_inputs().values()][:4]
        v_g, v_q, v_h, v_c, v_a = torch.split(into_f.weight, [*sizes, c.n_alike], dim=1)
        v_join = v_g + v_c if c.candidate_in_f else v_g
        return Folded(
            w_u=first.weight,
            b_u=first.bias,
            w_g=v_g @ last.weight,
            b_g=v_g @ last.bias,
            w_join=v_join @ last.weight,
            b_join=v_join @ last.bias,
            w_q=v_q,
            w_h=v_h if c.point_in_f else None,
            w_a=v_a if c.n_alike else None,
            b_f=into_f.bias,
        )

    def encode(
        self, x: Float[Tensor, "points ..."], sizes: Sequence[int], folded: Folded
    ) -> Points:
        """Encode the points of data sets of the given sizes (raw, one row each); project them."""
        h, q = self.features(x)
        if self.context is None:
            return self.project(h, q, folded)
        if len(set(sizes)) == 1:
            h = self.context(h.view(len(sizes), sizes[0], -1)).flatten(0, 1)
        else:
            h = torch.cat([self.context(part[None])[0] for part in torch.split(h, list(sizes))])
        return self.project(h, q, folded)

    def features(self, x: Float[Tensor, "points ..."]) -> tuple[Tensor, Tensor | None]:
        """h of each point by itself, and q where that has an encoder of its own.

        A context that looks at distances gets the coordinates behind h.
        """
        x = (x - self.location) / self.scale
        h = torch.cat([self.h(x), x], 1) if self.config.distances else self.h(x)
        return h, None if self.q is None else self.q(x)

    def summands(self, h: Float[Tensor, "*rows d"], folded: Folded) -> Float[Tensor, "*rows sums"]:
        """What a cluster is the sum of: W_1 h_i; with `means_in_f` also codes, x_i and a one."""
        c = self.config
        u = h[..., : c.h_dim] @ folded.w_u.T
        if not c.means_in_f:
            return u
        return torch.cat([u, h[..., c.h_dim :], torch.ones_like(u[..., :1])], -1)

    def alike(
        self, sums: Float[Tensor, "rows sums"], point: Float[Tensor, "rows sums"]
    ) -> Float[Tensor, "rows n_alike"]:
        """What f sees of clusters, by their sums, beside the point that may join them.

        Nothing (zero) of an empty one, whose sums are zero.
        """
        seen, w = [], self.config.width
        if self.config.product_in_f:
            seen.append(sums[:, :w] * point[:, :w])
        if self.config.means_in_f:
            size = sums[:, -1:]
            mean = sums[:, :-1] / size.clamp(min=1)
            seen += [mean, mean * point[:, :-1], size.log1p()]
            if self.config.distances:
                here, there = mean[:, 2 * w :], point[:, 2 * w : -1]
                apart = scaled_squares(here, there, self.config.distances)
                exists = size.clamp(max=1)
                seen += [apart.neg().exp() * exists, apart.log1p() * exists]
            # The cosines that `losses.pairwise_loss` reads, on average: with the point, within.
            code, other = mean[:, w : 2 * w], point[:, w : 2 * w]
            seen += [10 * (code * with_).mean(1, keepdim=True) for with_ in (other, code)]
        return torch.cat(seen, 1)

    def project(
        self, h: Float[Tensor, "points d"], q: Float[Tensor, "points d_h"] | None, folded: Folded
    ) -> Points:
        """Encodings as the scorer wants them."""
        u, h = self.summands(h, folded), h[:, : self.config.h_dim]
        static = folded.b_f.expand(len(h), -1)
        if folded.w_h is not None:
            static = torch.addmm(folded.b_f, h, folded.w_h.T)
        return Points(u=u, q=(h if q is None else q) @ folded.w_q.T, static=static)

    def embed(self, v: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """g between its first and its last linear layer."""
        inner: Tensor = self.g[1:-1](v)
        return inner

    def logit(self, y: Float[Tensor, "rows width"]) -> Float[Tensor, " rows"]:
        """f after its first linear layer."""
        out: Tensor = self.f[1:](y)
        return out.squeeze(1)

    def scores(
        self,
        points: Points,
        index: Int[Tensor, "S N"],
        lengths: Int[Tensor, " S"],
        labels: Int[Tensor, "S N"],
        folded: Folded,
    ) -> tuple[Float[Tensor, "S N K"], Bool[Tensor, "S N"]]:
        """log p(c_n = k | c_{1:n-1}, x) of S sequences, and which positions are real.

        Arguments:
            points: Encoded points of all data sets.
            index: Which point stands at each position of each sequence (anything beyond a
                sequence's length).
            lengths: Number of points of each sequence.
            labels: Canonical labels along each sequence.
        """
        plan = layout(labels, lengths)
        u, q, static = (table[index] for table in points)  # (S, N, width); u may be wider
        q = q * plan.valid[..., None]
        joined = _with_zero_row(prefix_sum(u, plan.labels))  # U of a cluster, its last point here
        alone = u.flatten(0, 1)
        w = self.config.width
        g_joined, u = joined[:, :w], alone[:, :w] + folded.b_u
        parts = list(zip(torch.split(plan.here, CHUNK), torch.split(plan.last, CHUNK), strict=True))
        inner = torch.cat(
            [
                self.embed(g_joined.index_select(0, last) + u.index_select(0, here))
                for here, last in parts
            ]
        )  # (M, width)
        where = plan.valid.view(-1).nonzero()[:, 0]
        realised = torch.addmm(folded.b_g, inner.index_select(0, plan.chosen), folded.w_g.T)
        zeros = realised.new_zeros(len(joined), realised.shape[1])
        g_hat = zeros.index_copy(0, where, realised)  # of a cluster, its last point here
        change = realised - g_hat.index_select(0, plan.last.index_select(0, plan.chosen))
        change = zeros[:-1].index_copy(0, where, change).view_as(q)
        before = prefix_sum(change) - change  # S(n)
        unassigned = prefix_sum(q.flip(1)).flip(1) - q  # V_Q Q(n)
        base = (before + unassigned + static + folded.b_join).flatten(0, 1)
        scored = []
        for (here, last), part in zip(parts, torch.split(inner, CHUNK), strict=True):
            rest = base.index_select(0, here) - g_hat.index_select(0, last)
            if folded.w_a is not None:
                seen = self.alike(joined.index_select(0, last), alone.index_select(0, here))
                rest = torch.addmm(rest, seen, folded.w_a.T)
            scored.append(self.logit(torch.addmm(rest, part, folded.w_join.T)))
        logits = torch.cat(scored)
        padded = logits.new_full(plan.candidate.shape, -torch.inf)
        padded[..., 0] = 0.0  # what is not a position gets a finite row, for the gradient's sake
        return padded.masked_scatter(plan.candidate, logits).log_softmax(2), plan.valid

    # -- the public likelihood -------------------------------------------------------------------

    def check_points(self, x: Any) -> Tensor:
        """One data set `(N, *event_shape)` in the model's dtype; anything else is refused."""
        points = as_tensor(x if isinstance(x, Tensor) else np.asarray(x))
        if points.is_complex() or points.dtype == torch.bool:
            raise ValueError(f"Expected real-valued data but got dtype {points.dtype}")
        if tuple(points.shape[1:]) != self.config.event_shape:
            expected = ", ".join(map(str, ("N", *self.config.event_shape)))
            raise ValueError(f"Expected data of shape ({expected}) but got {tuple(points.shape)}")
        if len(points) == 0:
            raise ValueError("Expected at least one point but got an empty data set")
        points = points.to(self.dtype).to(self.device)
        if not bool(points.isfinite().all()):
            raise ValueError("Expected finite data but got NaN or infinity")
        return points

    def conditionals(self, x: Any, labels: Any) -> Any:
        """log p(c_n = k | c_{1:n-1}, x) for every n and k, teacher-forced.

        Arguments:
            x: One data set `(N, *event)`, data sets of equal size `(B, N, *event)`, or a list of
                data sets of any sizes.
            labels: Canonical labels: `(N,)` or many rows `(R, N)` of one data set, `(B, N)`, or
                a list.

        Returns:
            `(N, K)`, `(R, N, K)`, `(B, N, K)` or a list of `(N_i, K_i)`; the last axis holds the
            clusters that exist and, after them, the new one; entries that cannot occur are -inf.
        """
        problem = self._problem(x, labels)
        parts = [log_p for _, log_p, _ in self._run(problem, keep=True)]
        if problem.kind == "list":
            rows = [row for log_p in parts for row in log_p]
            ends = zip(problem.lengths.tolist(), problem.n_clusters().tolist(), strict=True)
            return [row[:n, : k + 1] for row, (n, k) in zip(rows, ends, strict=True)]
        width = max(log_p.shape[2] for log_p in parts)
        padded = torch.cat([_pad_last(log_p, width) for log_p in parts])
        return padded[0] if problem.kind == "single" else padded

    def log_prob(self, x: Any, labels: Any, order: Any = None) -> Tensor:
        """log q(c | x), the sum over n of the realised conditionals.

        Arguments:
            x, labels: As for `conditionals`.
            order: Score the points of one data set in this order `(N,)` instead of the given one.

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
        problem = self._problem(x, labels)
        totals = torch.cat(
            [
                (realised(log_p, problem.labels[rows, : log_p.shape[1]]) * valid).sum(1)
                for rows, log_p, valid in self._run(problem, keep=False)
            ]
        )
        return totals[0] if problem.kind == "single" else totals

    def _problem(self, x: Any, labels: Any) -> _Problem:
        event = len(self.config.event_shape)
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
        return _Problem(kind, points, [len(points)], index, lengths, rows_2d)

    def _ragged(self, xs: Sequence[Any], labels: Sequence[Any], kind: str) -> _Problem:
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
        return _Problem(kind, torch.cat(data), lengths.tolist(), index, lengths, padded)

    def _check_memory(self, problem: _Problem, costs: Int[Tensor, " S"], keep: bool) -> None:
        """Refuse what will not fit: the layout and g of the largest row, and what is kept."""
        slots = problem.n_clusters() + 1
        size = self.location.element_size()
        value = size * self.config.width  # bytes of one layer's activations, of one candidate
        rows = 3 * 8 * problem.lengths * slots + 3 * value * costs
        largest = int(rows.argmax())
        one = int(rows[largest])
        check_memory(one, one // int(slots[largest]), "clusters")
        kept = problem.labels.numel() * int(slots.max()) * size if keep else 0
        with_gradients = torch.is_grad_enabled() and self.g[0].weight.requires_grad
        if with_gradients:  # what each layer, and each nonlinearity, keeps for the way back
            n_kept = 2 * (self.config.g_depth + self.config.f_depth - 2)
            kept += (n_kept * value + 2 * size * self.config.n_alike) * int(costs.sum())
            pairs = sum(n**2 for n in problem.sizes)
            kept += 8 * size * pairs * self.config.distances  # 9 were measured
        what = "rows of labels" + (" with gradients" if with_gradients else "")
        check_memory(one + kept, max(1, kept // len(costs)), what)

    def _run(self, problem: _Problem, keep: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, log p and which positions are real, group by group; the caller may `keep` log p."""
        costs = candidates_per_row(problem.labels, problem.lengths)
        self._check_memory(problem, costs, keep)
        folded = self.fold()
        points = self.encode(problem.points, problem.sizes, folded)
        for rows in groups_of(costs, CHUNK):
            n = int(problem.lengths[rows].max())
            log_p, valid = self.scores(
                points,
                problem.index[rows, :n],
                problem.lengths[rows],
                problem.labels[rows, :n],
                folded,
            )
            yield rows, log_p, valid

    # -- sampling: the code is in ncp.sampling.tree ---------------------------------------------

    def sample(
        self,
        x: Any,
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Partitions:
        """Exact iid samples of q(c | x); see `ncp.sampling.tree.sample`."""
        from ncp.sampling.tree import sample

        return sample(self, x, n_samples, orders=orders, seed=seed, progress=progress)

    def sample_many(
        self,
        xs: Sequence[Any],
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        engine: Any = None,
        address: str | None = None,
    ) -> list[Partitions]:
        """Samples for many data sets of any sizes at once; see `ncp.sampling.tree.sample_many`.

        With `engine="dask"` they are drawn on Dask, at `address` or on workers of this machine;
        the samples are the same. `ncp.engines.sample_stream` gives them as they come.
        """
        if engine is None and address is None:
            from ncp.sampling.tree import sample_many

            return sample_many(self, xs, n_samples, orders=orders, seed=seed, progress=progress)
        from ncp.engines import gather

        how: dict[str, Any] = {"orders": orders, "seed": seed, "progress": progress}
        return gather(self, xs, n_samples, engine=engine, address=address, **how)

    def map(self, x: Any, beam: int = 32) -> Partitions:
        """The most probable partitions by beam search; see `ncp.sampling.tree.beam_search`."""
        from ncp.sampling.tree import beam_search

        return beam_search(self, x, beam)

    def assign(self, x_new: Any, x: Any, labels: Any, *, mutual: bool = True) -> Tensor:
        """Probabilities `(M, K + 1)` of new points joining each cluster or a new one.

        See `ncp.sampling.tree.assign`.
        """
        from ncp.sampling.tree import assign

        return assign(self, x_new, x, labels, mutual=mutual)


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
class _Problem:
    """A likelihood call, brought to one form: packed points and padded integer rows."""

    kind: str  # "single" row, "batch" of rows, or "list" of data sets
    points: Tensor  # (points, *event)
    sizes: list[int]  # points of each data set
    index: Int[Tensor, "S N"]
    lengths: Int[Tensor, " S"]
    labels: Int[Tensor, "S N"]

    def n_clusters(self) -> Int[Tensor, " S"]:
        return self.labels.amax(1) + 1  # rows are padded with label 0


def realised(log_p: Float[Tensor, "S N K"], labels: Int[Tensor, "S N"]) -> Float[Tensor, "S N"]:
    """The entries of `log_p` at the labels."""
    return log_p.gather(2, labels[..., None]).squeeze(2)


def candidates_per_row(labels: Int[Tensor, "S N"], lengths: Int[Tensor, " S"]) -> Int[Tensor, " S"]:
    """The number of candidates (n, k <= K_n) of each sequence: what its evaluation costs.

    >>> candidates_per_row(torch.tensor([[0, 1, 0]]), torch.tensor([3]))
    tensor([6])
    """
    k_before = labels.cummax(1).values.roll(1, 1) + 1
    k_before[:, 0] = 0
    positions = torch.arange(labels.shape[1], device=labels.device)
    return (k_before + 1).where(positions < lengths[:, None], 0).sum(1)


def groups_of(costs: Int[Tensor, " S"], limit: int) -> list[slice]:
    """Consecutive slices whose costs add up to at most `limit` (or hold one single row)."""
    slices, start, total = [], 0, 0
    for i, cost in enumerate(costs.tolist()):
        if i > start and total + cost > limit:
            slices.append(slice(start, i))
            start, total = i, 0
        total += cost
    return [*slices, slice(start, len(costs))]


def _with_zero_row(table: Float[Tensor, "S N d"]) -> Float[Tensor, "rows d"]:
    flat = table.flatten(0, 1)
    return torch.cat([flat, flat.new_zeros(1, flat.shape[1])])


def _pad_last(log_p: Float[Tensor, "S N K"], width: int) -> Float[Tensor, "S N W"]:
    return nn.functional.pad(log_p, (0, width - log_p.shape[2]), value=-torch.inf)
