"""Clusters with a shape: curves, rings, spirals, bars, balls, and scenes composed of them.

A shape takes labels c in {0, ..., K - 1} and gives every row a place in the plane or in space;
`draw_shapes` chooses a shape, the number of clusters and their sizes, adds noise across the curves,
and turns and stretches the whole. Many are in the manner of the collections on which clustering
methods are compared: a core in a shell, linked rings, touching diamonds, wings of growing density,
bars in the form of an L, crescents of unequal density, groups inside an open circle; and of those
whose clusters touch or cross: broken lines, crossing bars and rings, strands of a rope, the walls
of a labyrinth, tiles; and collages of all forms, one inside the other or not, and of two such
pictures side by side.

**Background.** Rows strewn over the picture belong to nothing. Where they lie among the rows of
a cluster, nobody could tell them from it, and they have its label. The others have one common
label if they are many (a diffuse cluster of its own, which a person sees as "the rest"), and the
label of the cluster next to them if they are few: no row far off is a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["draw_shapes", "with_background"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Drawn = tuple[Array, float]  # places (N, q), and the width that noise is measured by


class Shape(NamedTuple):
    """A way to draw K clusters, for K from `fewest` to `most`."""

    draw: Callable[[Labels, int, Generator], Drawn]
    fewest: int
    most: int
    share: float


def draw_shapes(
    n_points: int, rng: Generator, n_clusters: int | None = None
) -> tuple[Array, Labels]:
    """Places (N, q), q = 2 or 3, and labels (N,), of clusters with a shape."""
    shares = _SHARES * (_FEWEST == 1) if n_clusters == 1 else _SHARES
    shape = SHAPES[rng.choice(len(SHAPES), p=shares / shares.sum())]
    most = min(shape.most, max(shape.fewest, n_points // 12))
    k = n_clusters or int(rng.integers(max(shape.fewest, 1), most + 1))
    c = _sizes(n_points, k, rng)
    z, width = shape.draw(c, k, rng)
    z = z + width * rng.uniform(0.02, 0.25) * rng.standard_normal(z.shape)
    if rng.random() < 0.8:
        z = z @ np.linalg.qr(rng.standard_normal((z.shape[1], z.shape[1])))[0]
    if rng.random() < 0.7:
        z = z * np.exp(rng.normal(0.0, 0.2, size=z.shape[1]))
    return np.asarray(z), c


def _sizes(n_points: int, k: int, rng: Generator) -> Labels:
    """Labels of K clusters of equal or unequal sizes, every one of them present."""
    if k == 1:
        return np.zeros(n_points, dtype=np.int64)
    if rng.random() < 0.4:
        return np.asarray(rng.permutation(np.arange(n_points) % k))
    shares = rng.dirichlet(np.full(k, np.exp(rng.uniform(np.log(1.5), np.log(20.0)))))
    c = rng.choice(k, size=n_points, p=0.85 * shares + 0.15 / k)
    c[: min(k, n_points)] = np.arange(min(k, n_points))
    return np.asarray(rng.permutation(c))


def with_background(
    z: Array, c: Labels, share: float, rng: Generator, common: float = 0.05
) -> tuple[Array, Labels]:
    """Strew a share of the rows over the picture; see the module for the labels they get."""
    from ncp.generative.table_kernels import nearest

    strewn = rng.random(len(z)) < share
    kept = np.flatnonzero(~strewn)
    if kept.size < 10 or not strewn.any():
        return z, c
    low, high = z[kept].min(0), z[kept].max(0)
    margin = 0.1 * (high - low)
    z = z.copy()
    z[strewn] = rng.uniform(low - margin, high + margin, size=(int(strewn.sum()), z.shape[1]))
    among = np.ascontiguousarray(z[kept])
    index, distance = nearest(np.ascontiguousarray(z[strewn]), among, 3, False)
    own = nearest(among, among, 3, True)[1][:, 2]
    c = c.copy()
    beside = c[kept][index[:, 0]]
    c[strewn] = beside
    far = np.flatnonzero(strewn)[distance[:, 2] > 2.0 * own[index[:, 0]] + 0.5 * np.median(own)]
    if far.size < max(10, common * len(z)):
        return z, c
    is_far = np.isin(np.arange(len(z)), far)
    around = nearest(np.ascontiguousarray(z[far]), np.ascontiguousarray(z), 5, False)[0][:, 1:]
    if is_far[around].mean() > 0.75:  # else they are not among themselves: no cluster
        c[far] = c.max() + 1
    return z, c


def _circle(angle: NDArray[Any]) -> Array:
    return np.stack((np.cos(angle), np.sin(angle)), axis=1)


def _along(c: Labels, rng: Generator) -> Array:
    """Position along the curve in (0, 1): random, seldom more of them in the middle, or in even
    steps, as programs draw curves."""
    kind = rng.random()
    if kind < 0.45:
        return np.asarray(rng.random(c.size))
    if kind < 0.65:
        return np.asarray(rng.beta(1.5, 1.5, size=c.size))
    order, sizes = np.argsort(c, kind="stable"), np.bincount(c)
    step = np.empty(c.size)
    step[order] = np.arange(c.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray((step + (rng.random(c.size) if kind < 0.8 else 0.5)) / sizes[c])


def _disc(n: int, dim: int, rng: Generator) -> Array:
    """Points of a unit ball."""
    e = rng.standard_normal((n, dim))
    radius = rng.random((n, 1)) ** (1.0 / dim)
    return np.asarray(radius * e / np.linalg.norm(e, axis=1, keepdims=True))


def _moons(c: Labels, k: int, rng: Generator) -> Drawn:
    """A chain of interlocking crescents."""
    angle = np.pi * _along(c, rng)
    up = np.where(c % 2 == 0, 1.0, -1.0)
    height = up * (np.sin(angle) - rng.uniform(0.1, 0.45))
    return np.stack((np.cos(angle) + c, height), axis=1), 0.6


def _rings(c: Labels, k: int, rng: Generator) -> Drawn:
    """Rings in rings, closed or not; the innermost may be a filled disc."""
    step = rng.uniform(0.6, 1.2)
    radius = step * c + rng.uniform(0.3, 1.2)
    if rng.random() < 0.4:
        radius = np.where(c == 0, radius * np.sqrt(rng.random(c.size)), radius)
    angle = 2 * np.pi * (_along(c, rng) if rng.random() < 0.5 else rng.random(c.size))
    angle = angle * rng.choice((1.0, 1.0, 0.8))
    return radius[:, None] * _circle(angle), 0.8 * step


def _shells(c: Labels, k: int, rng: Generator) -> Drawn:
    """Spheres in spheres, around a filled ball or not."""
    e = rng.standard_normal((c.size, 3))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    radius = c + rng.uniform(0.3, 1.0)
    if k > 1 and rng.random() < 0.6:
        radius = np.where(c == 0, radius * rng.random(c.size) ** (1.0 / 3.0), radius)
    return np.asarray(radius[:, None] * e), 0.5


def _arcs(c: Labels, k: int, rng: Generator) -> Drawn:
    """Free arcs around the points of a jittered grid."""
    side = int(np.ceil(np.sqrt(k)))
    cells = rng.permutation(side * side)[:k]
    pitch = rng.uniform(2.2, 3.2)
    centre = pitch * np.stack((cells // side, cells % side), axis=1)
    centre = centre + 0.3 * rng.standard_normal((k, 2))
    start, span = rng.uniform(0, 2 * np.pi, size=k), rng.uniform(0.4, 1.9, size=k) * np.pi
    angle = start[c] + _along(c, rng) * span[c]
    return centre[c] + _circle(angle), 0.8


def _spirals(c: Labels, k: int, rng: Generator) -> Drawn:
    """Interleaved arms; rows evenly along the arm, or more of them inside."""
    turns = rng.uniform(0.4, 2.2 if k <= 3 else 1.3)
    inner = rng.uniform(0.05, 0.3)
    u = _along(c, rng)
    radius = (
        np.sqrt(inner**2 + (1.0 - inner**2) * u)
        if rng.random() < 0.6
        else (inner + (1.0 - inner) * u)
    )
    angle = 2 * np.pi * (turns * radius + c / max(k, 1))
    gap = 1.0 / max(1.0, k * turns)
    return radius[:, None] * _circle(angle), 0.5 * gap


def _stripes(c: Labels, k: int, rng: Generator) -> Drawn:
    """Side by side: long, nearly parallel segments or waves of unequal length."""
    length, shift = rng.uniform(2.0, 7.0, size=k), rng.normal(0.0, 1.0, size=k)
    if rng.random() < 0.5:
        length, shift = np.full(k, rng.uniform(2.0, 9.0)), np.zeros(k)
    tilt = rng.normal(0.0, rng.choice((0.0, 0.06)), size=k)
    x = (_along(c, rng) - 0.5) * length[c] + shift[c]
    y = c + tilt[c] * x
    if rng.random() < 0.5:
        y = y + rng.uniform(0.3, 1.5) * np.sin(x * rng.uniform(0.5, 2.0))
    return np.stack((x, y), axis=1), 0.8


def _linked(c: Labels, k: int, rng: Generator) -> Drawn:
    """A chain of linked rings in space."""
    ring = _circle(2 * np.pi * rng.random(c.size))
    flat = np.where((c % 2 == 0)[:, None], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    z = ring[:, :1] * [1.0, 0.0, 0.0] + ring[:, 1:] * flat
    z[:, 0] += c * rng.uniform(0.8, 1.3)
    return z, 0.5


def _core_and_outposts(c: Labels, k: int, rng: Generator) -> Drawn:
    """A disc in a ring, and small groups in the corners around."""
    angle = 2 * np.pi * rng.random(c.size)
    core = rng.uniform(0.3, 1.0)
    radius = np.where(c == 0, core * np.sqrt(rng.random(c.size)), core + rng.uniform(0.7, 1.5))
    z = radius[:, None] * _circle(angle)
    post = rng.uniform(1.5, 2.5) * (core + 1.5)
    corner = post * _circle(np.pi / 4 + np.pi / 2 * np.arange(k))
    out = c >= 2
    z[out] = corner[c[out]] + 0.15 * rng.standard_normal((int(out.sum()), 2))
    return z, 0.5


def _open_circle(c: Labels, k: int, rng: Generator) -> Drawn:
    """Groups inside an open circle."""
    gap = rng.uniform(0.0, 0.35)
    angle = 2 * np.pi * (gap / 2 + (1.0 - gap) * _along(c, rng))
    z = _circle(angle)
    inside = rng.uniform(0.25, 0.5) * _circle(
        2 * np.pi * (rng.random() + np.arange(k) / max(k - 1, 1))
    )
    if k == 2:
        inside = inside * 0.3
    spread = rng.uniform(0.08, 0.2)
    rows = c > 0
    e = rng.standard_normal((int(rows.sum()), 2))
    z[rows] = inside[c[rows]] + spread * e
    return z, 0.2


def _touching(c: Labels, k: int, rng: Generator) -> Drawn:
    """Squares that touch at their corners, in a row or zigzag."""
    z = rng.uniform(-1.0, 1.0, size=(c.size, 2))
    reach = 2.0 * rng.uniform(1.0, 1.15)
    zigzag = rng.random() < 0.5
    z[:, 0] += reach * c
    z[:, 1] += reach * (c % 2 if zigzag else c)
    return z, 0.1


def _wings(c: Labels, k: int, rng: Generator) -> Drawn:
    """Boxes side by side in which the density grows towards the neighbour's corner."""
    u = rng.random((c.size, 2))
    grows = u ** rng.uniform(0.4, 0.9)
    side = np.where(c % 2 == 0, 1.0, -1.0)
    x = np.where(side > 0, grows[:, 0], 1.0 - grows[:, 0])
    y = np.where(side > 0, grows[:, 1], 1.0 - grows[:, 1])
    shift = rng.uniform(1.03, 1.3)
    return np.stack((x + shift * c, 1.6 * y + 0.3 * side), axis=1), 0.05


def _dense_in_sparse(c: Labels, k: int, rng: Generator) -> Drawn:
    """Dense groups in, or at the rim of, a wide thin one."""
    place = rng.uniform(0.2, 1.3, size=(k, 1)) * _circle(2 * np.pi * rng.random(k))
    size = rng.uniform(0.05, 0.15, size=k)
    place[0], size[0] = 0.0, 1.0
    e = _disc(c.size, 2, rng) if rng.random() < 0.5 else 0.5 * rng.standard_normal((c.size, 2))
    return place[c] + size[c, None] * e, 0.1


def _balls(c: Labels, k: int, rng: Generator) -> Drawn:
    """Equal balls around the origin of space and on its axes, apart or almost touching."""
    corners = np.array(
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0], [0, -1, 0], [0, 0, -1]], float
    )
    corners = rng.uniform(2.05, 5.0) * corners
    if k == 4 and rng.random() < 0.5:
        corners = (
            rng.uniform(1.03, 1.6)
            * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], float)
            / np.sqrt(2.0)
        )
    scale = np.ones(k)
    if rng.random() < 0.5:
        scale = rng.uniform(0.4, 1.0, size=k)
    return corners[c] + scale[c, None] * _disc(c.size, 3, rng), 0.1


def _scene(c: Labels, k: int, rng: Generator) -> Drawn:
    """Objects of different form, size and density, strewn so that they keep apart."""
    from ncp.generative.table_kernels import keep_apart

    size = np.exp(rng.normal(0.0, rng.uniform(0.0, 0.7), size=k))
    room = np.sqrt(k) * rng.uniform(1.5, 3.0) * size.mean()
    candidates = rng.uniform(-room, room, size=(k, 30, 2))
    order = np.argsort(-size)
    centre = np.empty((k, 2))
    centre[order] = keep_apart(candidates, size[order])
    z = np.empty((c.size, 2))
    same = rng.random() < 0.3
    form = rng.integers(len(_OBJECTS), size=k)
    for j in range(k):
        rows = np.flatnonzero(c == j)
        one = _OBJECTS[form[0] if same else form[j]](rows.size, rng)
        turn = np.linalg.qr(rng.standard_normal((2, 2)))[0]
        z[rows] = centre[j] + size[j] * one @ turn
    if k > 1:
        d = np.linalg.norm(centre[:, None] - centre, axis=-1) / (size[:, None] + size)
        np.fill_diagonal(d, np.inf)
        # objects may come close: the tightest pair keeps between 1.0 and 1.8 of its radii
        room = max(d.min(), 1e-3)
        z += (rng.uniform(1.0, 1.8) / room - 1.0) * centre[c]
    return z, 0.2 * float(np.median(size))


def _collage(c: Labels, k: int, rng: Generator) -> Drawn:
    """Objects and curves of all sizes in any place where they keep a gap: inside others too."""
    ticks, tries = 25, 12
    gap = rng.uniform(0.15, 0.6)
    size = np.sort(np.exp(rng.normal(0.0, rng.uniform(0.2, 0.8), size=k)))[::-1]
    room = rng.uniform(0.5, 1.2) * np.sqrt(np.square(size).sum())
    form = rng.integers(len(_FORMS), size=k)
    z, before = np.empty((c.size, 2)), np.empty((0, 2))
    for j in range(k):
        rows = np.flatnonzero(c == j)
        turn = size[j] * np.linalg.qr(rng.standard_normal((2, 2)))[0]
        one = _FORMS[form[j]](rows.size + ticks, rng) @ turn
        centre = rng.uniform(-room, room, size=(tries, 1, 2))
        apart = np.full(tries, gap)
        if j > 0:
            x, y = np.moveaxis((centre + one[rows.size :])[:, :, None] - before, -1, 0)
            apart = np.sqrt((x * x + y * y).min((1, 2)))
        # the first place that keeps the gap, or the one that does best
        here = centre[(apart >= gap).argmax() if (apart >= gap).any() else apart.argmax()]
        z[rows] = here + one[: rows.size]
        before = np.concatenate((before, here + one[rows.size :]))
    return z, gap


def _apart(candidates: Array) -> Array:
    """Of m candidate curves (K, m, T, 2) one each: the one farthest from those before."""
    chosen = [candidates[0, 0]]
    for tries in candidates[1:]:
        before = np.concatenate(chosen)
        gap = np.linalg.norm(tries[:, :, None] - before, axis=-1).min((1, 2))
        chosen.append(tries[gap.argmax()])
    return np.stack(chosen)


def _closest(curves: Array) -> float:
    """The least distance between points of different curves (K, T, 2)."""
    gaps = [
        np.linalg.norm(one[:, None] - other, axis=-1).min()
        for i, one in enumerate(curves)
        for other in curves[:i]
    ]
    return float(min(gaps, default=1.0))


def _worms(c: Labels, k: int, rng: Generator) -> Drawn:
    """Long smooth curves that wind past each other: trajectories, worms."""
    ticks, tries = 24, 12
    turn = rng.uniform(0.0, 0.8)
    bend = np.cumsum(turn * rng.standard_normal((k, tries, ticks)), axis=2)
    heading = rng.uniform(0.0, 2 * np.pi, size=(k, tries, 1)) + 0.4 * bend
    length = rng.uniform(0.5, 1.0, size=(k, tries, 1, 1)) * rng.uniform(0.15, 0.5)
    steps = length * np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    room = np.sqrt(k) * rng.uniform(0.8, 2.0)
    start = rng.uniform(-room, room, size=(k, tries, 1, 2))
    curves = _apart(start + np.cumsum(steps, axis=2))
    at = _along(c, rng) * (ticks - 1)
    low = np.minimum(at.astype(np.int64), ticks - 2)
    part = (at - low)[:, None]
    z = (1.0 - part) * curves[c, low] + part * curves[c, low + 1]
    return z, float(np.clip(0.8 * _closest(curves), 0.4, 1.0))  # some cross


def _outline(form: int, u: Array) -> Array:
    """Points of a closed line around the origin: a circle, a square, a diamond."""
    ring = _circle(2 * np.pi * u)
    if form == 0:
        return ring
    power = np.abs(ring).max(1) if form == 1 else np.abs(ring).sum(1)
    return np.asarray(ring / power[:, None])


def _faces(c: Labels, k: int, rng: Generator) -> Drawn:
    """Closed lines in closed lines, and in the innermost one objects, or nothing."""
    n_lines = int(rng.integers(1, min(k, 3) + 1)) if k > 1 else 1
    form = int(rng.integers(3))
    z = np.empty((c.size, 2))
    for j in range(n_lines):
        rows = np.flatnonzero(c == j)
        z[rows] = (1.0 - 0.3 * j) * _outline(form, rng.random(rows.size))
    inner = (1.0 - 0.3 * (n_lines - 1)) * rng.uniform(0.45, 0.6)
    n_inside = k - n_lines
    place = inner * _circle(2 * np.pi * (rng.random() + np.arange(n_inside) / max(n_inside, 1)))
    size = 0.6 * inner * np.sin(np.pi / max(n_inside, 3))
    for j in range(n_inside):
        rows = np.flatnonzero(c == n_lines + j)
        one = _OBJECTS[rng.integers(len(_OBJECTS))](rows.size, rng)
        z[rows] = (place[j] if n_inside > 1 else 0.0) + rng.uniform(0.5, 1.0) * size * one
    return z, 0.15


def _zigzags(c: Labels, k: int, rng: Generator) -> Drawn:
    """Broken lines above each other."""
    teeth, height = rng.uniform(1.0, 4.0), rng.uniform(0.3, 1.5)
    x = _along(c, rng)
    y = height * np.abs(2.0 * ((teeth * x + rng.random()) % 1.0) - 1.0)
    return np.stack((rng.uniform(2.0, 5.0) * x, y + rng.uniform(0.5, 1.0) * c), axis=1), 0.35


def _broken_line(c: Labels, k: int, rng: Generator) -> Drawn:
    """Straight segments end to end, up and down, each a cluster; gaps where they meet."""
    length = rng.uniform(0.7, 1.3, size=k)
    slope = rng.uniform(0.12, 0.42) * np.pi * np.where(np.arange(k) % 2 == 0, 1.0, -1.0)
    step = length[:, None] * _circle(slope)
    start = np.cumsum(step, axis=0) - step
    gap = rng.uniform(0.03, 0.2)
    return start[c] + (gap + (1.0 - 2.0 * gap) * _along(c, rng)[:, None]) * step[c], 0.5


def _crossing(c: Labels, k: int, rng: Generator) -> Drawn:
    """Long clouds or bars that cross each other."""
    e = rng.standard_normal((c.size, 2)) * 0.5
    if rng.random() < 0.4:
        e = rng.uniform(-1.0, 1.0, size=(c.size, 2))
    e *= [1.0, rng.uniform(0.03, 0.2)]
    angle = np.pi * (np.arange(k) / k + rng.uniform(-0.2, 0.2, size=k) / k)
    shift = rng.uniform(0.0, 0.3) * rng.standard_normal((k, 2))
    across = np.stack((-np.sin(angle), np.cos(angle)), axis=1)
    return e[:, :1] * _circle(angle)[c] + e[:, 1:] * across[c] + shift[c], 0.1


def _crossing_rings(c: Labels, k: int, rng: Generator) -> Drawn:
    """Rings of which neighbours cross, in a row, up and down, or on a grid."""
    pitch, row = rng.uniform(1.0, 1.9), np.arange(k)
    place = np.stack((row, rng.uniform(0.0, 0.8) * (row % 2)), axis=1)
    if k > 3 and rng.random() < 0.5:
        side = int(np.ceil(np.sqrt(k)))
        place = np.stack((row // side, row % side), axis=1).astype(np.float64)
    return pitch * place[c] + _circle(2 * np.pi * rng.random(c.size)), 0.5


def _strands(c: Labels, k: int, rng: Generator) -> Drawn:
    """Strands of a rope in space, around a core or not."""
    u = _along(c, rng)
    core = k > 1 and rng.random() < 0.5
    radius = np.where(core & (c == 0), 0.1 * np.sqrt(rng.random(c.size)), 1.0)
    angle = 2 * np.pi * (rng.uniform(0.3, 2.5) * u + c / max(k - core, 1))
    z = np.column_stack((radius[:, None] * _circle(angle), rng.uniform(2.0, 8.0) * u))
    return z, 0.5


def _labyrinth(c: Labels, k: int, rng: Generator) -> Drawn:
    """Walls around walls: closed lines in each other, cut open, each in one or two pieces."""
    halves = 2 if k > 1 and rng.random() < 0.6 else 1
    line, half = c // halves, c % halves
    n_lines = -(-k // halves)
    cut = rng.random(n_lines) if rng.random() < 0.5 else np.full(n_lines, rng.random())
    gap = rng.uniform(0.04, 0.15, size=n_lines)
    # the last line may have one piece only, which is then half of it
    u = cut[line] + (half + gap[line] + (1.0 - 2.0 * gap[line]) * _along(c, rng)) / halves
    form = 1 if rng.random() < 0.7 else 0
    inner = rng.uniform(0.4, 1.2)
    return (inner + line)[:, None] * _outline(form, u), 0.7


def _tiles(c: Labels, k: int, rng: Generator) -> Drawn:
    """Rectangles side by side with narrow gaps, in a row or on a grid, of any sides."""
    side = k if rng.random() < 0.4 else int(np.ceil(np.sqrt(k)))
    width, height = rng.uniform(0.5, 1.5, size=side), rng.uniform(0.5, 1.5, size=side)
    gap = rng.uniform(0.05, 0.3)
    left, low = np.cumsum(width + gap) - width, np.cumsum(height + gap) - height
    column, row = c % side, c // side
    u = rng.random((c.size, 2))
    z = np.stack((left[column] + width[column] * u[:, 0], low[row] + height[row] * u[:, 1]), axis=1)
    return z, 0.5 * gap


def _two_pictures(c: Labels, k: int, rng: Generator) -> Drawn:
    """Two shapes of the plane side by side, each with some of the clusters."""
    first = int(rng.integers(1, k))
    parts, widths = [], []
    for low, high in ((0, first), (first, k)):
        own = high - low
        fits = [shape for shape in PLANE if shape.fewest <= own <= shape.most]
        shares = np.array([shape.share for shape in fits])
        shape = fits[rng.choice(len(fits), p=shares / shares.sum())]
        rows = np.flatnonzero((low <= c) & (c < high))
        z, width = shape.draw(c[rows] - low, own, rng)
        scale = rng.uniform(0.5, 1.5) / max(float(z.std(0).max()), 1e-3)
        z = scale * (z - z.mean(0)) @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
        parts.append((rows, z))
        widths.append(scale * width)
    z = np.empty((c.size, 2))
    (left, a), (right, b) = parts
    gap = rng.uniform(0.1, 1.0)
    shift = np.array([a[:, 0].max() - b[:, 0].min() + gap, rng.normal(0.0, 1.0)])
    z[left], z[right] = a, b + shift
    return z, min(*widths, gap)


def _object_disc(n: int, rng: Generator) -> Array:
    return _disc(n, 2, rng) * [1.0, rng.uniform(0.3, 1.0)]


def _object_cloud(n: int, rng: Generator) -> Array:
    return np.asarray(0.4 * rng.standard_normal((n, 2)) * [1.0, rng.uniform(0.2, 1.0)])


def _object_bar(n: int, rng: Generator) -> Array:
    return np.asarray(rng.uniform(-1.0, 1.0, size=(n, 2)) * [1.0, rng.uniform(0.05, 1.0)])


def _object_ring(n: int, rng: Generator) -> Array:
    return rng.uniform(0.8, 1.0) * _circle(2 * np.pi * rng.random(n))


def _object_arc(n: int, rng: Generator) -> Array:
    return _circle(rng.uniform(0.6, 1.7) * np.pi * rng.random(n))


def _object_triangle(n: int, rng: Generator) -> Array:
    u = rng.random((n, 2))
    u = np.where(u.sum(1, keepdims=True) > 1.0, 1.0 - u, u)
    return np.asarray(2.0 * u - 2.0 / 3.0)


_OBJECTS = (
    _object_disc,
    _object_cloud,
    _object_cloud,
    _object_bar,
    _object_ring,
    _object_arc,
    _object_triangle,
)


def _form_line(n: int, rng: Generator) -> Array:
    """A straight line, a wave or a parabola."""
    u = rng.uniform(-1.0, 1.0, size=n)
    bent = rng.uniform(0.0, 0.8) * np.sin(rng.uniform(1.0, 6.0) * u) if rng.random() < 0.5 else u**2
    return np.stack((u, bent * rng.choice((0.0, 1.0, 1.0))), axis=1)


def _form_spiral(n: int, rng: Generator) -> Array:
    u = rng.uniform(0.2, 1.0, size=n)
    return u[:, None] * _circle(2 * np.pi * rng.uniform(0.5, 1.5) * u)


def _form_outline(n: int, rng: Generator) -> Array:
    """The outline of a rectangle or a diamond."""
    return _outline(int(rng.integers(1, 3)), rng.random(n)) * [1.0, rng.uniform(0.3, 1.0)]


_FORMS = (*_OBJECTS, _object_ring, _object_arc, _form_line, _form_spiral, _form_outline)

PICTURES = (
    Shape(_moons, 2, 6, 0.10),
    Shape(_rings, 1, 5, 0.11),
    Shape(_shells, 1, 3, 0.05),
    Shape(_arcs, 1, 9, 0.07),
    Shape(_spirals, 1, 5, 0.20),
    Shape(_stripes, 1, 8, 0.18),
    Shape(_linked, 2, 4, 0.05),
    Shape(_core_and_outposts, 2, 6, 0.04),
    Shape(_open_circle, 2, 4, 0.05),
    Shape(_touching, 2, 4, 0.03),
    Shape(_wings, 2, 3, 0.03),
    Shape(_dense_in_sparse, 2, 4, 0.05),
    Shape(_balls, 1, 7, 0.05),
    Shape(_scene, 1, 12, 0.16),
    Shape(_worms, 1, 12, 0.12),
    Shape(_faces, 1, 7, 0.10),
    Shape(_zigzags, 1, 4, 0.03),
    Shape(_broken_line, 2, 8, 0.18),
    Shape(_crossing, 2, 4, 0.12),
    Shape(_crossing_rings, 2, 6, 0.16),
    Shape(_strands, 1, 4, 0.08),
    Shape(_labyrinth, 1, 6, 0.12),
    Shape(_tiles, 2, 9, 0.09),
    Shape(_collage, 1, 12, 0.40),
)
PLANE = tuple(s for s in PICTURES if s.draw not in (_shells, _linked, _balls, _strands))
SHAPES = (*PICTURES, Shape(_two_pictures, 2, 10, 0.15))
_SHARES = np.array([shape.share for shape in SHAPES])
_FEWEST = np.array([shape.fewest for shape in SHAPES])
