"""Forty-two pictures in the manner of those on which clustering methods are compared.

What is drawn here is made anew, by fixed seeds, in the number of rows and of groups that such
pictures usually have: bars and strokes, arcs and rings, lattices, spirals, groups in noise. It does
not use the prior that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["PICTURES", "draw_pictures"]

Array = NDArray[np.float64]
Parts = list[Array]


def _dots(rng: Generator, n: int, centre: tuple[float, ...], sd: float | list[float]) -> Array:
    return np.asarray(rng.normal(centre, sd, size=(n, len(centre))))


def _disc(rng: Generator, n: int, centre: tuple[float, float], radius: float) -> Array:
    r, angle = radius * np.sqrt(rng.random(n)), 2 * np.pi * rng.random(n)
    return centre + r[:, None] * np.stack((np.cos(angle), np.sin(angle)), 1)


def _arc(
    rng: Generator,
    n: int,
    centre: tuple[float, float],
    radius: float | tuple[float, float],
    ends: tuple[float, float],
    sd: float,
) -> Array:
    angle = np.pi * rng.uniform(*ends, size=n)
    curve = np.stack((np.cos(angle), np.sin(angle)), 1) * radius
    return np.asarray(centre + curve + sd * rng.normal(size=(n, 2)))


def _box(rng: Generator, n: int, low: tuple[float, float], high: tuple[float, float]) -> Array:
    return np.asarray(rng.uniform(low, high, size=(n, 2)))


def _stroke(
    rng: Generator, n: int, start: tuple[float, float], end: tuple[float, float], sd: float
) -> Array:
    along = rng.random((n, 1))
    return np.asarray(start + along * np.subtract(end, start) + sd * rng.normal(size=(n, 2)))


def _curve(rng: Generator, n: int, of: Callable[[Array], Array], x: Array, sd: float) -> Array:
    return np.stack((x, of(x)), 1) + sd * rng.normal(size=(n, 2))


# -- rings and arcs


def _four_circles(rng: Generator) -> Parts:
    return [_arc(rng, 1000, (0, 0), r, (0, 2), 0.03) for r in (0.5, 1.0, 1.5, 2.0)]


def _isolation(rng: Generator) -> Parts:
    return [_arc(rng, 3000, (0, 0), r, (0, 2), 0.12) for r in (1.0, 2.5, 4.0)]


def _crossing_rings(rng: Generator) -> Parts:
    places = ((0, 0), (2.2, 0), (4.4, 0), (1.1, -1), (3.3, -1))
    return [_arc(rng, 1000, place, 1.0, (0, 2), 0.035) for place in places]


def _ring(rng: Generator) -> Parts:
    return [_disc(rng, 500, (0, 0), 1.0), _arc(rng, 500, (0, 0), 3.0, (0, 2), 0.15)]


def _ring_in_noise(rng: Generator) -> Parts:
    return [*_ring(rng), _box(rng, 50, (-4, -4), (4, 4))]


def _ring_with_outliers(rng: Generator) -> Parts:
    corners = [_dots(rng, 10, (a, b), 0.1) for a, b in ((8, 8), (-8, 8), (8, -8))]
    return [*_ring(rng), *corners]


def _smile(rng: Generator) -> Parts:
    eyes = [_disc(rng, 100, (x, 1.4), 0.35) for x in (-1.2, 1.2)]
    mouth = _arc(rng, 250, (0, 0), (1.6, 1.6), (1.15, 1.85), 0.06)
    return [_arc(rng, 550, (0, 0), 3.2, (0, 2), 0.08), mouth, *eyes]


def _two_moons(rng: Generator) -> Parts:
    return [
        _arc(rng, 500, (0, 0), 1.0, (0, 1), 0.09),
        _arc(rng, 500, (1, 0.4), 1.0, (1, 2), 0.09),
    ]


def _parabolas(rng: Generator) -> Parts:
    x = rng.uniform(-2, 2, size=500)
    up = _curve(rng, 500, lambda t: 0.8 * t**2, x, 0.16)
    down = _curve(rng, 500, lambda t: 4.2 - 0.8 * (t - 2) ** 2, x + 2, 0.16)
    return [up, down]


def _trapped(rng: Generator) -> Parts:
    cage = _arc(rng, 3000, (0, 0), (3.2, 2.2), (0, 2), 0.12)
    return [_disc(rng, 1000, (-1.1, 0), 0.6), _disc(rng, 1000, (1.1, 0), 0.6), cage]


# -- curves


def _spirals(arms: int, each: int, turns: float, sd: float) -> Callable[[Generator], Parts]:
    def draw(rng: Generator) -> Parts:
        parts = []
        for arm in range(arms):
            t = np.linspace(0.2, 1.0, each)
            angle = 2 * np.pi * (turns * t + arm / arms)
            curve = 10 * t[:, None] * np.stack((np.cos(angle), np.sin(angle)), 1)
            parts.append(curve + sd * rng.normal(size=curve.shape))
        return parts

    return draw


def _trajectories(rng: Generator) -> Parts:
    x = rng.uniform(0, 10, size=(4, 2500))
    waves = ((0.0, 1.0, 0.0), (2.6, 0.8, 0.7), (5.0, 1.1, 1.6), (7.8, 0.9, 2.6))
    return [
        _curve(rng, 2500, lambda t, w=w: w[0] + w[1] * np.sin(0.9 * t + w[2]), at, 0.22)
        for at, w in zip(x, waves, strict=True)
    ]


def _sine_stripes(rng: Generator) -> Parts:
    x = rng.uniform(0, 4 * np.pi, size=(2, 2500))
    return [_curve(rng, 2500, lambda t, s=s: np.sin(t) + s, at, 0.1) for s, at in enumerate(x)]


def _zigzag(each: int, noise: int = 0, far: int = 0) -> Callable[[Generator], Parts]:
    def draw(rng: Generator) -> Parts:
        corners = [(0.0, 0.0), (1.0, 2.0), (2.0, 0.0), (3.0, 2.0)]
        pairs = pairwise(corners)
        strokes = [_stroke(rng, each, a, b, 0.06) for a, b in pairs]
        more = [_box(rng, noise, (-0.5, -0.5), (3.5, 2.5))] if noise else []
        return [*strokes, *more, *([_dots(rng, far, (6.0, 6.0), 0.1)] if far else [])]

    return draw


def _worms(rng: Generator) -> Parts:
    parts = []
    for _ in range(25):
        place, angle = rng.uniform(0, 40, size=2), rng.uniform(0, 2 * np.pi)
        angles = angle + np.cumsum(0.12 * rng.normal() + 0.1 * rng.normal(size=50))
        track = place + np.cumsum(0.12 * np.stack((np.cos(angles), np.sin(angles)), 1), 0)
        parts.append(track[rng.integers(50, size=200)] + 0.35 * rng.normal(size=(200, 2)))
    return parts


# -- bars, boxes, letters


def _cross(rng: Generator) -> Parts:
    return [
        _box(rng, 500, (-4, -0.35), (-0.6, 0.35)),
        _box(rng, 500, (0.6, -0.35), (4, 0.35)),
        _box(rng, 500, (-0.35, 0.6), (0.35, 4)),
        _box(rng, 500, (-0.35, -4), (0.35, -0.6)),
    ]


def _windows(rng: Generator) -> Parts:
    frame = rng.uniform(-5, 5, size=(4000, 2))
    frame = frame[np.abs(frame).max(1) > 4.2][:977]
    panes = [
        _box(rng, 500, (a - 1.5, b - 1.5), (a + 1.5, b + 1.5)) for a in (-2, 2) for b in (-2, 2)
    ]
    return [frame, *panes]


def _line_and_cloud(rng: Generator) -> Parts:
    return [_stroke(rng, 125, (-3, -1), (3, -1), 0.03), _dots(rng, 125, (0, 1.2), [0.8, 0.5])]


def _letters(rng: Generator) -> Parts:
    """X between two bars."""
    bars = [_stroke(rng, 40, (x, 0), (x, 2), 0.05) for x in (-2.0, 2.0)]
    cross = [_stroke(rng, 20, (-0.7, a), (0.7, 2 - a), 0.05) for a in (0, 2)]
    return [*bars, np.concatenate(cross)]


def _labyrinth(rng: Generator) -> Parts:
    parts = []
    for r, n in ((1.0, 400), (2.0, 550), (3.0, 700)):
        side = np.array([[-r, -r], [r, -r], [r, r], [-r, r], [-r, -r]])
        at = rng.uniform(0.15, 3.85, size=n)
        corner = at.astype(int)
        path = side[corner] + (at - corner)[:, None] * (side[corner + 1] - side[corner])
        path += 0.07 * rng.normal(size=path.shape)
        parts += [path[at < 2], path[at >= 2]] if r > 1 else [path]
    return parts


def _square_halves(rng: Generator) -> Parts:
    return [_box(rng, 500, (0, 0), (0.94, 2)), _box(rng, 500, (1.06, 0), (2, 2))]


def _bars_in_noise(rng: Generator) -> Parts:
    bars = [_stroke(rng, 1000, (0, y), (8, y + s), 0.2) for y, s in ((0, 1), (2, 1), (4, -1))]
    rest = [_disc(rng, 1000, (11, 1), 1.2), _disc(rng, 1000, (11, 5), 1.0)]
    wave = _curve(rng, 1000, lambda t: 7 + np.sin(t), rng.uniform(0, 8, size=1000), 0.2)
    return [*bars, *rest, wave, _box(rng, 800, (-1, -2), (13, 9))]


def _shapes_in_noise(rng: Generator) -> Parts:
    parts = [
        _arc(rng, 1200, (0, 0), 2.0, (0.1, 1.4), 0.2),
        _disc(rng, 600, (0, 0), 0.8),
        _stroke(rng, 900, (4, -2), (9, 2), 0.25),
        _stroke(rng, 900, (4, 1), (7, 4), 0.25),
        _arc(rng, 1200, (12, 0), 2.0, (0, 1), 0.2),
        _arc(rng, 1200, (13.8, 1.0), 2.0, (1, 2), 0.2),
    ]
    return [*parts, _box(rng, 700, (-4, -4), (17, 6))]


def _letters_in_noise(rng: Generator) -> Parts:
    ovals = [(0.0, 0.0, 1.5, 0.6), (5.0, 0.0, 0.6, 1.5), (9.0, 0.5, 1.2, 1.2), (0.0, 4.0, 1.0, 1.0)]
    parts = [_disc(rng, 900, (0, 0), 1.0) * [w, h] + [x, y] for x, y, w, h in ovals]
    parts += [_stroke(rng, 900, (4, 4), (9, 4), 0.3), _stroke(rng, 900, (4, 6), (9, 6.5), 0.3)]
    parts += [_dots(rng, 900, (12.5, y), 0.5) for y in (0.0, 5.0)]
    return [*parts, _box(rng, 800, (-3, -3), (15, 8))]


# -- clouds


def _mixture(*groups: tuple[int, float, float, float, float]) -> Callable[[Generator], Parts]:
    """Of (rows, x, y, sd in x, sd in y)."""
    return lambda rng: [_dots(rng, n, (x, y), [sx, sy]) for n, x, y, sx, sy in groups]


def _narrow_and_wide(rng: Generator) -> Parts:
    return [_dots(rng, 100, (0.0, 0.0), 0.3), _dots(rng, 100, (2.0, 0.0), 1.0)]


def _five_skewed(rng: Generator) -> Parts:
    parts = []
    for k in range(5):
        turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        e = rng.gamma(2.0, 0.5, size=(180, 2)) * [1.0, 0.4]
        parts.append(e @ turn + 4 * np.array([np.cos(1.257 * k), np.sin(1.257 * k)]))
    return parts


def _graph(rng: Generator) -> Parts:
    places = rng.permutation(25)[:10]
    return [
        _dots(rng, 250, (p // 5 + 0.2 * rng.normal(), p % 5 + 0.2 * rng.normal()), 0.17)
        for p in places
    ]


def _double_ring_of_clouds(rng: Generator) -> Parts:
    parts = [_dots(rng, 40, (0.0, 0.0), 0.12)]
    for radius, sd in ((0.9, 0.1), (3.0, 0.3)):
        for k in range(7):
            angle = 2 * np.pi * k / 7
            parts.append(_dots(rng, 40, (radius * np.cos(angle), radius * np.sin(angle)), sd))
    return parts


def _lattice(rng: Generator) -> Parts:
    return [_dots(rng, 100, (4.5 * (k // 10), 4.5 * (k % 10)), 1.0) for k in range(100)]


def _along_a_sine(rng: Generator) -> Parts:
    x = np.arange(100)
    return [_dots(rng, 100, (t, 12 * np.sin(t / 8)), 0.35) for t in x]


def _thirty_one(rng: Generator) -> Parts:
    centres = rng.random((1, 2))
    while len(centres) < 31:
        tries = rng.random((10, 2))
        gap = np.linalg.norm(tries[:, None] - centres, axis=-1).min(1)
        centres = np.concatenate((centres, tries[gap.argmax()][None]))
    return [_dots(rng, 100, (x, y), 0.026) for x, y in centres]


def _density_mixture(rng: Generator) -> Parts:
    parts = [_dots(rng, 300, (0.0, 0.0), 0.3), _dots(rng, 400, (3.0, 1.0), 0.8)]
    parts += [_dots(rng, 200, (-1.0, 4.0), [1.0, 0.2]), _arc(rng, 500, (6, 6), 2.0, (0, 1.2), 0.15)]
    return [*parts, _disc(rng, 300, (6, 6), 0.7), _box(rng, 600, (-4, -3), (10, 10))]


PICTURES: dict[str, Callable[[Generator], Parts]] = {
    "four circles": _four_circles,
    "three thick circles": _isolation,
    "five crossing rings": _crossing_rings,
    "disc in a ring": _ring,
    "disc in a ring, noise": _ring_in_noise,
    "disc in a ring, far groups": _ring_with_outliers,
    "face": _smile,
    "two moons": _two_moons,
    "two parabolas": _parabolas,
    "two discs in an oval": _trapped,
    "three spirals in even steps": _spirals(3, 104, 1.0, 0.1),
    "two spirals": _spirals(2, 500, 1.5, 0.15),
    "four long waves": _trajectories,
    "two sine stripes": _sine_stripes,
    "zigzag": _zigzag(83),
    "zigzag in noise": _zigzag(83, noise=50),
    "zigzag and a far group": _zigzag(83, far=30),
    "25 worms": _worms,
    "bars of a cross": _cross,
    "frame with four panes": _windows,
    "line and cloud": _line_and_cloud,
    "X between bars": _letters,
    "labyrinth": _labyrinth,
    "halves of a square": _square_halves,
    "bars and discs in noise": _bars_in_noise,
    "arcs and strokes in noise": _shapes_in_noise,
    "ovals and bars in noise": _letters_in_noise,
    "three clouds, 100 each": _mixture((100, 0, 0, 1, 1), (100, 4, 2, 1, 1), (100, 1, 5, 1, 1)),
    "three long clouds": _mixture((200, 0, 0, 3, 0.4), (200, 0, 2.5, 3, 0.4), (200, 6, 6, 0.5, 2)),
    "clouds of many sizes": _mixture(
        (700, 0, 0, 1.2, 1.2), (500, 5, 1, 0.6, 0.6), (300, 3, 5, 0.8, 0.3)
    ),
    "three of a small table": _mixture((40, 0, 0, 1, 1), (40, 4, 0, 1, 1), (40, 2, 3.5, 1, 1)),
    "four of unequal size": _mixture(
        (100, 0, 0, 1, 1), (50, 5, 0, 0.5, 0.5), (25, 0, 4, 0.4, 0.4), (10, 5, 4, 0.3, 0.3)
    ),
    "narrow and wide beside it": _narrow_and_wide,
    "two splashes": _mixture((200, 0, 0, 1, 1), (200, 3, 3, 1, 0.5)),
    "four of 1,000": _mixture(
        (250, 0, 0, 0.6, 0.6),
        (250, 2.4, 0, 0.6, 0.6),
        (250, 0, 2.4, 0.6, 0.6),
        (250, 2.4, 2.4, 0.6, 0.6),
    ),
    "five skewed clouds": _five_skewed,
    "ten clouds": _graph,
    "fifteen in two circles": _double_ring_of_clouds,
    "31 clouds": _thirty_one,
    "lattice of 100": _lattice,
    "100 along a sine": _along_a_sine,
    "many densities in noise": _density_mixture,
}


def draw_pictures() -> Iterator[tuple[str, Array, NDArray[np.int64]]]:
    """Each picture: name, rows (N, 2), labels (N,); noise is a group of its own."""
    for i, (name, draw) in enumerate(PICTURES.items()):
        parts = draw(np.random.default_rng(6000 + i))
        labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        yield name, np.concatenate(parts), labels
