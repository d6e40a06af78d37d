r"""The Neural Clustering Process: h, g and f, and their fused evaluation.

With H_k the sum of h(x_i) over cluster k, G_k the sum of g over the clusters once x_n has joined
cluster k, and Q the sum of h (or of an own encoder q) over the points after n, the paper's model is

    p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n),         k = 1 .. K+1.

Every boundary between the functions is linear, and that is where the arithmetic goes away:

* g's first layer acts on a sum: W_1 (H_k + h_n) + b_1. Project each point once, u_i = W_1 h_i, and
  a cluster is the running sum U_k of its u_i. What g then still has to do, per candidate, is
  `embed`: its inner layers, a(U_k + u_n + b_1).
* g's last layer W_L a + b_L meets only f's first layer V = [V_G V_Q V_h V_C]: fold V_G W_L into one
  small matrix. The state keeps sums of *folded* values ĝ(H) = V_G (W_L a + b_L), never G itself.
* f's first layer splits into the part in G, the part in Q and the part in h_n; the last two are
  computed once per point. With `candidate_in_f`, f also sees g(H_k + h_n), which folds into the
  same product: V_C W_L is added to V_G W_L.
* ĝ(H_k) of an existing cluster is the value computed when its last point joined.

So f's first layer, before its nonlinearity, is

    y(n, k) = (V_G + V_C) (W_L a(n, k) + b_L) - ĝ(H_k) + S(n) + V_Q Q(n) + V_h h_n + b,

with S(n) the sum of ĝ over the clusters that exist before n. In training the labels are known, so
nothing is sequential: every prefix sum and every "last point of cluster k before n" is index
arithmetic, and g and f each run once over one packed list of all candidates (sequence, n, k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ncp.mixture import Mixture
from ncp.networks import build_encoder, mlp
from ncp.partitions import Partitions, canonical, check_labels

# Candidates evaluated at once: the activations of a chunk stay in the cache, which is worth a
# factor of two over one long list.
CHUNK = 4096


@dataclass(frozen=True)
class NCPConfig:
    """The architecture. The defaults are the paper's (appendix A) for two-dimensional data.

    Arguments:
        event_shape: Shape of one observation: `(2,)` (or just `2`), or `(28, 28)` for images.
        encoder: `"mlp"`, `"conv"`, or a name given to `ncp.networks.register_encoder`.
        h_width, h_depth, h_dim: Width, number of layers and output size of the MLP encoder.
        conv_channels: Channels of the two convolutions of the image encoder.
        width: Width of g and f.
        g_depth, g_dim: Number of layers and output size of g.
        f_depth: Number of layers of f, whose output is one number. (A bias in the last layer
            would cancel in the softmax, so there is none.)
        separate_q: An encoder of its own for the unassigned points.
        point_in_f: f sees h_n, the encoding of the point being assigned.
        candidate_in_f: f sees g(H_k + h_n), the embedding of the cluster the point would join.
        residual: Skip connections around the hidden layers of g, f and the MLP encoder.

    >>> NCPConfig(event_shape=3).event_shape
    (3,)
    """

    event_shape: tuple[int, ...] = (2,)
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
    residual: bool = False

    def __post_init__(self) -> None:
        shape = self.event_shape
        shape = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        object.__setattr__(self, "event_shape", shape)
        object.__setattr__(self, "conv_channels", tuple(int(c) for c in self.conv_channels))
        if not shape or min(shape) < 1:
            raise ValueError(f"Expected event_shape of positive sizes but got {self.event_shape}")
        if len(self.conv_channels) != 2 or min(self.conv_channels) < 1:
            raise ValueError(f"Expected two positive conv_channels but got {self.conv_channels}")
        for name in ("h_width", "h_dim", "width", "g_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1 but got {getattr(self, name)}")
        for name in ("h_depth", "g_depth", "f_depth"):
            if getattr(self, name) < 2:
                raise ValueError(f"Expected {name} >= 2 but got {getattr(self, name)}")

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
        return cls(**plain)


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
    b_f: Tensor  # (width,)          b: the bias of f's first layer


class Points(NamedTuple):
    """What the scorer needs of each point, computed once: three projections of its encoding."""

    u: Tensor  # (points, width)      u_i = W_1 h_i
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
    """
    n_sequences, n, _ = values.shape
    if n <= 256:
        mask = torch.ones(n, n, dtype=torch.bool, device=values.device).tril().expand(n_sequences, n, n)
        if groups is not None:
            mask = mask & (groups[:, :, None] == groups[:, None, :])
        return mask.to(values.dtype) @ values
    if groups is None:
        groups = torch.zeros(n_sequences, n, dtype=torch.long, device=values.device)
    by_group = groups.argsort(dim=1, stable=True)
    sorted_groups = groups.gather(1, by_group)
    index = by_group[..., None].expand_as(values)
    # Transposed, so that the sum runs along contiguous memory.
    total = values.gather(1, index).transpose(1, 2).double().contiguous().cumsum(2)
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
    >>> model.conditionals(x, [0, 0, 1]).exp().sum(1)  # doctest: +ELLIPSIS
    tensor([1.0..., 1.0..., 1.0...], grad_fn=...)
    """

    location: Tensor
    scale: Tensor

    def __init__(self, config: NCPConfig, mixture: Mixture | None = None) -> None:
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
        self.g = mlp(
            config.h_dim, config.width, config.g_depth, config.g_dim, residual=config.residual
        )
        n_in = config.g_dim * (1 + config.candidate_in_f) + config.h_dim * (1 + config.point_in_f)
        self.f = mlp(n_in, config.width, config.f_depth, 1, residual=config.residual, bias=False)
        likelihood = None if mixture is None else mixture.likelihood
        for name, default in (("location", 0.0), ("scale", 1.0)):
            value = torch.as_tensor(getattr(likelihood, name, default), dtype=torch.float32)
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
        sizes = [c.g_dim, c.h_dim, c.h_dim * c.point_in_f, c.g_dim * c.candidate_in_f]
        v_g, v_q, v_h, v_c = into_f.weight.split(sizes, dim=1)
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
            b_f=into_f.bias,
        )

    def encode(self, x: Float[Tensor, "points ..."], folded: Folded) -> Points:
        """Encode points (raw, one row each) and project them once."""
        x = (x - self.location) / self.scale
        h = self.h(x)
        q = h if self.q is None else self.q(x)
        static = folded.b_f.expand(len(x), -1)
        if folded.w_h is not None:
            static = torch.addmm(folded.b_f, h, folded.w_h.T)
        return Points(u=h @ folded.w_u.T, q=q @ folded.w_q.T, static=static)

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
        n_sequences, n = labels.shape
        plan = layout(labels, lengths)
        u, q, static = (table[index] for table in points)  # (S, N, width)
        if not bool(plan.valid.all()):
            q = q * plan.valid[..., None]
        joined = _with_zero_row(prefix_sum(u, plan.labels))  # U of a cluster, its last point here
        u = (u + folded.b_u).flatten(0, 1)
        chunks = range(0, len(plan.here), CHUNK if not torch.is_grad_enabled() else len(plan.here))
        step = chunks.step
        inner = torch.cat(
            [
                self.embed(
                    joined.index_select(0, plan.last[i : i + step])
                    + u.index_select(0, plan.here[i : i + step])
                )
                for i in chunks
            ]
        )  # (M, width)
        realised = torch.addmm(folded.b_g, inner.index_select(0, plan.chosen), folded.w_g.T)
        zeros = realised.new_zeros(n_sequences * n + 1, realised.shape[1])
        g_hat = zeros.index_copy(0, plan.valid.view(-1).nonzero()[:, 0], realised)
        change = realised - g_hat.index_select(0, plan.last.index_select(0, plan.chosen))
        change = zeros[:-1].index_copy(0, plan.valid.view(-1).nonzero()[:, 0], change)
        change = change.view(n_sequences, n, -1)
        before = prefix_sum(change) - change  # S(n)
        unassigned = prefix_sum(q.flip(1)).flip(1) - q  # V_Q Q(n)
        base = (before + unassigned + static + folded.b_join).flatten(0, 1)
        logits = torch.cat(
            [
                self.logit(
                    torch.addmm(
                        base.index_select(0, plan.here[i : i + step])
                        - g_hat.index_select(0, plan.last[i : i + step]),
                        inner[i : i + step],
                        folded.w_join.T,
                    )
                )
                for i in chunks
            ]
        )
        padded = logits.new_full(plan.candidate.shape, -torch.inf)
        padded = padded.masked_scatter(plan.candidate, logits)
        padded = torch.cat([padded[..., :1].masked_fill(~plan.valid[..., None], 0.0), padded[..., 1:]], 2)
        return padded.log_softmax(2), plan.valid

    # -- the public likelihood -------------------------------------------------------------------

    def check_points(self, x: Any) -> Tensor:
        """One data set `(N, *event_shape)` in the model's dtype; anything else is refused."""
        x = torch.as_tensor(x)
        if x.is_complex() or x.dtype == torch.bool:
            raise ValueError(f"Expected real-valued data but got dtype {x.dtype}")
        if tuple(x.shape[1:]) != self.config.event_shape or x.dim() == 0:
            expected = ("N", *self.config.event_shape)
            raise ValueError(
                f"Expected data of shape ({', '.join(map(str, expected))}) but got {tuple(x.shape)}"
            )
        if len(x) == 0:
            raise ValueError("Expected at least one point but got an empty data set")
        x = x.to(device=self.device, dtype=self.dtype)
        if not bool(x.isfinite().all()):
            raise ValueError("Expected finite data but got NaN or infinity")
        return x

    def conditionals(self, x: Any, labels: Any) -> Any:
        """log p(c_n = k | c_{1:n-1}, x) for every n and k, teacher-forced.

        Arguments:
            x: One data set `(N, *event)`, data sets of equal size `(B, N, *event)`, or a list of
                data sets of any sizes.
            labels: Canonical labels: `(N,)` or many rows `(R, N)` of one data set; `(B, N)`; a list.

        Returns:
            `(N, K)`, `(R, N, K)`, `(B, N, K)` or a list of `(N_i, K_i)`; the last axis holds the
            clusters that exist and, after them, the new one; entries that cannot occur are -inf.
        """
        problem = self._problem(x, labels)
        parts = [(log_p, valid) for _, log_p, valid in self._run(problem)]
        width = max(log_p.shape[2] for log_p, _ in parts)
        rows = [row for log_p, _ in parts for row in _pad_last(log_p, width)]
        if problem.kind == "list":
            return [
                row[:n, : int(c.max()) + 2]
                for row, n, c in zip(
                    rows, problem.lengths.tolist(), problem.labels.where(problem.mask(), 0), strict=True
                )
            ]
        stacked = torch.stack(rows)
        stacked = stacked[..., : int(problem.labels.max()) + 2]
        return stacked[0] if problem.kind == "single" else stacked

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
                for rows, log_p, valid in self._run(problem)
            ]
        )
        return totals[0] if problem.kind == "single" else totals

    def _problem(self, x: Any, labels: Any) -> _Problem:
        event = len(self.config.event_shape)
        is_list = isinstance(x, Sequence) and not hasattr(x, "shape") and _looks_ragged(x, labels)
        if is_list:
            data = [self.check_points(one) for one in x]
            if not data:
                raise ValueError("Expected at least one data set but got none")
            if len(labels) != len(data):
                raise ValueError(f"Expected {len(data)} label rows but got {len(labels)}")
            rows = [check_labels(c, len(one)) for c, one in zip(labels, data, strict=True)]
            if any(row.dim() != 1 for row in rows):
                raise ValueError("Expected one row of labels for each data set of a list")
            return _Problem.ragged(data, rows, self.device)
        x = torch.as_tensor(x)
        if x.dim() == event + 2:
            data = [self.check_points(one) for one in x]
            if not data:
                raise ValueError("Expected at least one data set but got none")
            rows_2d = check_labels(labels, x.shape[1])
            if rows_2d.shape != x.shape[:2]:
                raise ValueError(
                    f"Expected labels of shape {tuple(x.shape[:2])} but got {tuple(rows_2d.shape)}"
                )
            return _Problem.ragged(data, list(rows_2d), self.device, kind="batch")
        points = self.check_points(x)
        rows_2d = check_labels(labels, len(points)).to(self.device)
        if rows_2d.dim() not in (1, 2):
            raise ValueError(f"Expected labels (N,) or (R, N) but got {tuple(rows_2d.shape)}")
        kind = "single" if rows_2d.dim() == 1 else "batch"
        rows_2d = rows_2d.view(-1, len(points))
        index = torch.arange(len(points), device=self.device).expand_as(rows_2d)
        lengths = torch.full((len(rows_2d),), len(points), device=self.device)
        return _Problem(kind, points, index, lengths, rows_2d)

    def _run(self, problem: _Problem) -> Iterator[tuple[slice, Tensor, Tensor]]:
        folded = self.fold()
        points = self.encode(problem.points, folded)
        for rows in groups_of(candidates_per_row(problem.labels, problem.lengths), CHUNK):
            n = int(problem.lengths[rows].max())
            log_p, valid = self.scores(
                points,
                problem.index[rows, :n],
                problem.lengths[rows],
                problem.labels[rows, :n],
                folded,
            )
            yield rows, log_p, valid

    # -- sampling: the code is in ncp.sampling ---------------------------------------------------

    def sample(
        self,
        x: Any,
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Partitions:
        """Exact iid samples of q(c | x); see `ncp.sampling.sample`."""
        from ncp.sampling import sample

        return sample(self, x, n_samples, orders=orders, seed=seed, progress=progress)

    def sample_many(
        self,
        xs: Sequence[Any],
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Partitions]:
        """Samples for many data sets of any sizes at once; see `ncp.sampling.sample_many`."""
        from ncp.sampling import sample_many

        return sample_many(self, xs, n_samples, orders=orders, seed=seed, progress=progress)

    def map(self, x: Any, beam: int = 32) -> Partitions:
        """The most probable partitions by beam search; see `ncp.sampling.beam_search`."""
        from ncp.sampling import beam_search

        return beam_search(self, x, beam)

    def assign(self, x_new: Any, x: Any, labels: Any) -> Tensor:
        """Probabilities `(M, K + 1)` of new points joining each cluster; see `ncp.sampling.assign`."""
        from ncp.sampling import assign

        return assign(self, x_new, x, labels)


@dataclass(frozen=True)
class _Problem:
    """A likelihood call, brought to one form: packed points and padded integer rows."""

    kind: str  # "single" row, "batch" of rows, or "list" of data sets
    points: Tensor  # (points, *event)
    index: Int[Tensor, "S N"]
    lengths: Int[Tensor, " S"]
    labels: Int[Tensor, "S N"]

    @classmethod
    def ragged(
        cls, data: list[Tensor], rows: list[Tensor], device: torch.device, kind: str = "list"
    ) -> _Problem:
        lengths = torch.tensor([len(row) for row in rows], device=device)
        labels = nn.utils.rnn.pad_sequence([row.to(device) for row in rows], batch_first=True)
        index = torch.arange(labels.shape[1], device=device)
        index = (index + (lengths.cumsum(0) - lengths)[:, None]).where(index < lengths[:, None], 0)
        return cls(kind, torch.cat(data), index, lengths, labels)

    def mask(self) -> Bool[Tensor, "S N"]:
        positions = torch.arange(self.labels.shape[1], device=self.labels.device)
        return positions < self.lengths[:, None]


def realised(
    log_p: Float[Tensor, "S N K"], labels: Int[Tensor, "S N"]
) -> Float[Tensor, "S N"]:
    """The entries of `log_p` at the labels."""
    return log_p.gather(2, labels[..., None]).squeeze(2)


def candidates_per_row(
    labels: Int[Tensor, "S N"], lengths: Int[Tensor, " S"]
) -> Int[Tensor, " S"]:
    """The number of candidates (n, k <= K_n) of each sequence: what its evaluation costs."""
    positions = torch.arange(labels.shape[1], device=labels.device)
    per_position = (labels.cummax(1).values + 2).where(positions < lengths[:, None], 0)
    return per_position.sum(1)


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


def _looks_ragged(x: Sequence[Any], labels: Any) -> bool:
    """A list of data sets (each an array), rather than nested lists of numbers."""
    return len(x) == 0 or hasattr(x[0], "shape") and len(x[0].shape) > 0 and not _is_flat(labels)


def _is_flat(labels: Any) -> bool:
    """One row of integers, so that a list of points is one data set."""
    first = labels[0] if len(labels) else labels
    return not hasattr(first, "__len__") or getattr(first, "shape", None) == ()
