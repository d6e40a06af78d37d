"""The networks in the words of the paper: nothing fused, nothing shared, one candidate at a time.

Algorithm 1, attention, codes and pair features are written here again, from their definitions, so
that what `ncp.network` and `ncp.sampling` make of them has something to be compared with.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ncp.model import NCP
from ncp.network.attention import AttentionBlock, AttentionLayers
from ncp.network.network import Network
from ncp.partitions import enumerate_partitions
from tests.small_models import spec

# What f sees beside G and Q, and where Q comes from.
VIEWS: dict[str, dict[str, Any]] = {
    "paper": {},
    "candidate": {"sees": ("candidate",)},
    "authors": {"own_q": True, "sees": ("-point",)},
    "no point": {"sees": ("-point",)},
    "own Q": {"own_q": True},
    "own Q, candidate": {"own_q": True, "sees": ("candidate",)},
    "no point, candidate": {"sees": ("-point", "candidate")},
    "authors, candidate": {"own_q": True, "sees": ("-point", "candidate")},
}
BASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "residual": {"residual": True},
    "mean": {"pooling": "mean"},
    "attention": {"residual": True, "attention": (2, 8, 5, 0)},
    "distances": {"residual": True, "attention": (2, 8, 5, 3)},
    "pairs": {"residual": True, "attention": (2, 8, 5, 0), "sees": ("pairs",)},
    "pairs, distances": {"attention": (2, 8, 5, 3), "sees": ("pairs",)},
    "pairs, one coordinate": {"attention": (1, 8, 6, 2, 1), "sees": ("pairs",)},
    "pairs, mean": {"attention": (2, 8, 5, 3), "sees": ("pairs",), "pooling": "mean"},
    "links": {"attention": (2, 8, 5, 2, 0, 2), "sees": ("pairs",), "pooling": "mean"},
}
IN_FULL = ("plain", "pairs, mean")  # these with every view, the others with the first three


def _composed(base: dict[str, Any], view: dict[str, Any]) -> dict[str, Any]:
    return base | view | {"sees": (*base.get("sees", ()), *view.get("sees", ()))}


# Keywords of `spec`, by name.
COMPOSITIONS = {
    f"{base}, {view}": _composed(parts, seen)
    for base, parts in BASES.items()
    for i, (view, seen) in enumerate(VIEWS.items())
    if base in IN_FULL or i < 3
}

# Other depths and widths: the shallowest, the paper's, and g and f that differ.
SHAPES: dict[str, dict[str, Any]] = {
    "depths 2 and 2": {"g": (6, 2, 5), "f": (10, 2)},
    "depths 2 and 3": {"g": (12, 2, 4), "f": (5, 3), "sees": ("candidate",)},
    "depths 3 and 6": {"g": (5, 3, 11), "f": (9, 6), "residual": True},
    "depths 6 and 2": {"g": (9, 6, 3), "f": (4, 2), "pooling": "mean"},
    "depths 5 and 5, pairs": {
        "g": (7, 5, 6),
        "f": (11, 5),
        "attention": (1, 8, 9, 4),
        "sees": ("candidate", "pairs"),
        "residual": True,
        "pooling": "mean",
    },
}


def random_model(generator: torch.Generator, event_shape: Any = 2, **parts: Any) -> NCP:
    """Random weights in float64, large enough that the conditionals are far from uniform."""
    model = NCP(spec(event_shape, **parts)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 10
            parameter.copy_(noise * fan_in**-0.5)
        largest = next(p for p in model.f.parameters() if p.shape[0] == 1 and p.dim() == 2)
        largest.mul_(3 / model.log_prob(*difficult(model)).std())
    return model


def difficult(model: NCP) -> tuple[Tensor, Tensor]:
    """Data of the model's shape on which its scale is set, and partitions of it."""
    n_numbers = 6 * math.prod(model.spec.event_shape)
    x = torch.linspace(-2, 2, n_numbers, dtype=torch.float64).sin()
    return x.view(6, *model.spec.event_shape), enumerate_partitions(6)


def algorithm_1(model: Network, x: Tensor, labels: Tensor) -> list[Tensor]:
    """Algorithm 1 of the paper, line by line, with c_n given instead of drawn.

    Returns log p_k, k = 1 .. K+1, for every n (for n = 1 the certain first cluster).
    """
    x = (x - model.location) / model.scale
    N = len(x)
    h = [model.h(x[i : i + 1])[0] for i in range(N)]
    z = h
    if model.attention is not None:
        h, z = with_attention(model.attention, h, x[:, : model.n_coordinates])
    q = h if model.q is None else [model.q(x[i : i + 1])[0] for i in range(N)]
    Q = torch.zeros_like(q[0])
    for i in range(1, N):
        Q = Q + q[i]
    H: list[Tensor | None] = [h[0]]
    sizes = [1]
    G = g_of(model, H[0], 1)
    rows = [torch.zeros(1).double()]
    for n in range(1, N):
        Q = Q - q[n]
        H.append(None)  # H_{K+1} = 0, with g(0) = 0
        sizes.append(0)
        logits = []
        for k in range(len(H)):
            H_k = H[k]
            joined = h[n] if H_k is None else H_k + h[n]
            g_joined, g_before = g_of(model, joined, sizes[k] + 1), g_of(model, H_k, sizes[k])
            G = G + g_joined - g_before
            members = [i for i in range(n) if labels[i] == k]
            everything = {"G": G, "Q": Q, "point": h[n], "candidate": g_joined}
            seen = {name: v for name, v in everything.items() if name in model.spec.f_sees}
            if "pairs" in model.spec.f_sees:
                seen["pairs"] = pair_features(model, x, z, members, n)
                seen["points"] = point_features(z, n)
            K = len(H) - 1 if members else len(H)
            logits.append(f_of(model, seen, K, N - n - 1))
            G = G - g_joined + g_before
        log_p = torch.stack(logits)
        rows.append(log_p - log_p.logsumexp(0))
        c = int(labels[n])
        H_c = H[c]
        joined = h[n] if H_c is None else H_c + h[n]
        G = G - g_of(model, H_c, sizes[c]) + g_of(model, joined, sizes[c] + 1)
        H[c] = joined
        sizes[c] += 1
        if H[-1] is None:
            H.pop()
            sizes.pop()
    return rows


def g_of(model: Network, H: Tensor | None, size: int) -> Tensor:
    """g(H), g(0) = 0; of the mean and the logarithm of the size where means are pooled."""
    if H is None:
        return torch.zeros(model.spec.g.out).double()
    if model.log_size is None:
        return torch.as_tensor(model.g(H[None])[0])
    first = model.g[0](H / size) + model.log_size.weight[:, 0] * math.log(size)
    return torch.as_tensor(model.g[1:](first[None])[0])


def f_of(model: Network, seen: dict[str, Tensor], K: int, n_unassigned: int) -> Tensor:
    """f of what it sees; of means and the logarithms of K and N - n + 1 where means are pooled."""
    if model.log_numbers is None:
        return torch.as_tensor(model.f(torch.cat([*seen.values()])[None])[0, 0])
    seen = seen | {"G": seen["G"] / K, "Q": seen["Q"] / max(1, n_unassigned)}
    of_k, of_rest = model.log_numbers.weight.T
    first = model.f[0](torch.cat([*seen.values()]))
    first = first + of_k * math.log(K) + of_rest * math.log(1 + n_unassigned)
    return torch.as_tensor(model.f[1:](first[None])[0, 0])


def pair_features(model: Network, x: Tensor, z: list[Tensor], members: list[int], n: int) -> Tensor:
    """What f sees of a cluster and point n: the list in the docstring of `PairFeatures`."""
    C, octaves = len(z[0]), model.spec.attention.rbf_octaves if model.spec.attention else 0
    if not members:
        return torch.zeros(3 * C + 4 + 3 * octaves).double()
    mean = sum((z[i] for i in members), torch.zeros(C).double()) / len(members)
    rest = mean_code_after(z, n)
    seen = [mean, mean * z[n], mean * rest]
    cosines = [10 / C * (mean @ z[n]), 10 / C * (mean @ mean), 10 / C * (mean @ rest)]
    numbers = [*cosines, mean.new_tensor(math.log(1 + len(members)))]
    if octaves:
        place = x[:, : model.n_coordinates]
        centre = sum((place[i] for i in members), torch.zeros(model.n_coordinates)) / len(members)
        apart = ((centre - place[n]) ** 2).sum()
        spread = sum(((place[i] - centre) ** 2).sum() for i in members) / len(members)
        numbers += [(-apart * 4**j / 8).exp() for j in range(octaves)]
        numbers += [(1 + apart * 4**j / 8).log() for j in range(octaves)]
        numbers += [(1 + spread * 4**j / 8).log() for j in range(octaves)]
    return torch.cat([*seen, torch.stack(numbers)])


def point_features(z: list[Tensor], n: int) -> Tensor:
    """What f sees of point n and the unassigned ones."""
    rest = mean_code_after(z, n)
    number = rest.new_tensor(math.log(len(z) - n))  # those after n, and one
    return torch.cat([rest * z[n], torch.stack([10 / len(rest) * (rest @ z[n]), number])])


def mean_code_after(z: list[Tensor], n: int) -> Tensor:
    after = z[n + 1 :]
    return sum(after, torch.zeros_like(z[0])) / max(1, len(after))


def with_attention(
    layers: AttentionLayers, h: list[Tensor], x: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """h_i + W t_i, where the tokens t_i look at each other, one pair at a time; and the codes."""
    t = [layers.into(h_i) for h_i in h]
    near = [[kernels(x_i, x_j, layers.octaves) for x_j in x] for x_i in x]
    if layers.link_octaves:
        ways = linked(x.detach(), layers.link_octaves)  # constants: they have no gradient
        near = [[torch.cat([near[i][j], ways[i, j]]) for j in range(len(x))] for i in range(len(x))]
    if layers.density is not None:
        around = [torch.stack(row).sum(0) for row in near]
        t = [t_i + layers.density((1 + n).log()) for t_i, n in zip(t, around, strict=True)]
    for block in layers.blocks:
        assert isinstance(block, AttentionBlock)
        t = attended(block, t, near)
    t = [layers.norm(t_i) for t_i in t]
    projected = [layers.code(t_i) for t_i in t]
    codes = [math.sqrt(len(p)) * p / (p @ p).sqrt() for p in projected]
    return [h_i + layers.out(t_i) for h_i, t_i in zip(h, t, strict=True)], codes


def attended(block: AttentionBlock, t: list[Tensor], near: list[list[Tensor]]) -> list[Tensor]:
    """The tokens after a block."""
    width = len(t[0])
    part = width // block.HEADS
    projected = [block.attention(block.norm1(t_i)) for t_i in t]
    new = []
    for i, t_i in enumerate(t):
        seen = []
        for start in range(0, width, part):
            query = projected[i][start : start + part]
            keys = [p[width + start : width + start + part] for p in projected]
            values = [p[2 * width + start : 2 * width + start + part] for p in projected]
            weights = [(query @ key / math.sqrt(part)).exp() for key in keys]
            if block.bias is not None:
                by_distance = [10 * block.bias(kernel)[start // part] for kernel in near[i]]
                weights = [w * b.exp() for w, b in zip(weights, by_distance, strict=True)]
            total = sum(weights)
            seen.append(sum(w / total * v for w, v in zip(weights, values, strict=True)))
        z = t_i + block.project(torch.cat(seen))
        wide = block.widen(block.norm2(z))
        new.append(z + block.narrow(torch.where(wide > 0, wide, block.activation.weight * wide)))
    return new


def kernels(x: Tensor, y: Tensor, octaves: int) -> Tensor:
    """Gaussians of the distance, of widths 2, 1, 1/2, ..."""
    r = (x - y).norm() if octaves and not torch.equal(x, y) else torch.zeros(()).double()
    return torch.stack(
        [(-(r**2) / (2 * (2.0 ** (1 - j)) ** 2)).exp() for j in range(octaves)] or [r]
    )


def linked(x: Tensor, octaves: int) -> Tensor:
    """Kernels of the widest gap on the best way between points, all ways tried (N, N, channels)."""
    n, seen = len(x), []
    far = (x[:, None] - x).square().sum(-1)
    for m in (3, 10):
        core = far.sort(1).values[:, min(m, n - 1)].clamp(min=1e-4)
        gap = torch.maximum(far, torch.maximum(core[:, None], core))
        for via in range(n):
            gap = torch.minimum(gap, torch.maximum(gap[:, via, None], gap[via]))
        gap[range(n), range(n)] = core
        ratio = gap / (core[:, None] * core).sqrt()
        seen += [(-ratio / (2 * 4**j)).exp() for j in range(octaves)]
    return torch.stack(seen, -1)


def as_published(model: Network, x: Tensor, labels: Tensor) -> list[Tensor]:
    """The authors' public code in our words: for each k, g of all clusters, then f(G_k, Q)."""
    h, q = model.h(x), x if model.q is None else model.q(x)
    rows = []
    for n in range(1, len(x)):
        K = int(labels[:n].max()) + 1
        H = torch.stack([h[:n][labels[:n] == k].sum(0) for k in range(K)])
        Q = q[n + 1 :].sum(0)
        logits = []
        for k in range(K + 1):
            with_x_n = torch.cat([H, torch.zeros_like(H[:1])])[: max(K, k + 1)].clone()
            with_x_n[k] += h[n]
            logits.append(model.f(torch.cat([model.g(with_x_n).sum(0), Q])[None])[0, 0])
        rows.append(torch.stack(logits).log_softmax(0))
    return rows
