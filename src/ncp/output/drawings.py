"""Pictures that need neither a script nor a plotting library: SVG and PNG inside of HTML.

They are what a report shows without JavaScript and on paper: points, a strip that compares a
cluster with the rest in one column, the similarity matrix. Only numbers and escaped text go in.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ncp.output.plots import PALETTE

__all__ = [
    "MARKERS",
    "mark",
    "matrix_png",
    "scatter_svg",
    "share_strip",
    "tree_svg",
    "value_strip",
]

# One for each turn through the palette, named as Bokeh names them.
MARKERS = ("circle", "square", "diamond", "triangle", "inverted_triangle", "plus", "hex")
SHAPES = (
    "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.3L1 0L0 1.3L-1 0Z",
    "M0-1.1L1.1 .9H-1.1Z",
    "M0 1.1L1.1-.9H-1.1Z",
    "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
    "M-1 0L-.5-.9H.5L1 0L.5 .9H-.5Z",
)
LEFT_OUT = "M-1-1L1 1M-1 1L1-1"
CIVIDIS = "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838"  # dark to light
WIDTH, HEIGHT, MARGIN = 640, 400, 46
TREE_WIDTH, LEAF = 400, 20  # of a tree, and the height of a leaf


def _style(k: int) -> tuple[str, str]:
    """Fill and shape of cluster k; black is the colour of the text, which a dark scheme turns."""
    if k < 0:
        return "none", LEFT_OUT
    colour = PALETTE[k % len(PALETTE)]
    shape = SHAPES[k // len(PALETTE) % len(SHAPES)]
    return "currentColor" if colour == "#000000" else colour, shape


def mark(k: int) -> str:
    """The sign of cluster k, for legends and tables."""
    fill, shape = _style(k)
    return (
        '<svg class="mark" width="14" height="14" viewBox="-1.5 -1.5 3 3" aria-hidden="true">'
        f'<path d="{shape}" fill="{fill}" stroke="currentColor" stroke-width=".15"/></svg>'
    )


def scatter_svg(
    xy: np.ndarray,
    labels: np.ndarray,
    confidence: np.ndarray,
    names: tuple[str, str],
    known: np.ndarray | None,
    alt: str,
) -> str:
    """Points coloured by cluster; the surer the cluster, the more solid the point.

    Args:
        xy: where they are, of shape (n, 2).
        labels: of shape (n,); -1 for rows that were left out.
        confidence: of shape (n,), between 0 and 1.
        names: what the axes are.
        known: which points are outlined, of shape (n,), if any.
        alt: what the picture shows, for people who do not see it.
    """
    low, high = xy.min(0), xy.max(0)
    span = np.where(high > low, high - low, 1.0)
    inner = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    place = MARGIN + (xy - low) / span * inner
    place[:, 1] = HEIGHT - place[:, 1]
    size = float(np.clip(90 / np.sqrt(len(xy)), 2.5, 6.0))
    outlined = np.zeros(len(xy), bool) if known is None else known
    points = "".join(_points(place, labels, np.nan_to_num(confidence), outlined, size))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(alt)}">{_frame(low, high, names)}{points}</svg>\n'
    )


def _points(
    place: np.ndarray, labels: np.ndarray, sure: np.ndarray, known: np.ndarray, size: float
) -> Iterator[str]:
    for k in np.unique(labels):
        fill, shape = _style(int(k))
        yield f'<g fill="{fill}" stroke="currentColor" stroke-width=".12">'
        for i in np.flatnonzero(labels == k):
            outline = ' class="known" stroke-width=".5"' if known[i] else ""
            yield (
                f'<path transform="translate({place[i, 0]:.1f} {place[i, 1]:.1f})'
                f'scale({size:.2g})" d="{shape}" opacity="{0.25 + 0.7 * sure[i]:.2g}"{outline}/>'
            )
        yield "</g>"


def _frame(low: np.ndarray, high: np.ndarray, names: tuple[str, str]) -> str:
    """Axes with their ends and names."""
    end, bottom = WIDTH - MARGIN + 8, HEIGHT - MARGIN + 8
    text = 'font-size="12" fill="currentColor" text-anchor='
    across, up = (escape(name if len(name) <= 60 else name[:57] + "...") for name in names)
    return (
        f'<path d="M{MARGIN - 8} {MARGIN - 8}V{bottom}H{end}" fill="none" stroke="currentColor" '
        'opacity=".5"/>'
        f'<text x="{MARGIN}" y="{bottom + 15}" {text}"start">{low[0]:.3g}</text>'
        f'<text x="{end}" y="{bottom + 15}" {text}"end">{high[0]:.3g}</text>'
        f'<text x="{WIDTH / 2}" y="{bottom + 28}" {text}"middle">{across}</text>'
        f'<text x="{MARGIN - 12}" y="{HEIGHT - MARGIN}" {text}"end">{low[1]:.3g}</text>'
        f'<text x="{MARGIN - 12}" y="{MARGIN}" {text}"end">{high[1]:.3g}</text>'
        f'<text transform="translate(14 {HEIGHT / 2})rotate(-90)" {text}"middle">{up}</text>'
    )


def value_strip(
    k: int,
    inside: tuple[float, float],
    outside: tuple[float, float],
    span: tuple[float, float],
) -> str:
    """Where a cluster lies in a column (a dot and its spread) and where the rest does (grey).

    Args:
        k: the cluster.
        inside: its mean and standard deviation.
        outside: those of the other rows.
        span: smallest and largest value of the column.
    """
    width = (span[1] - span[0]) or 1.0

    def at(value: float) -> float:
        return float(np.clip(100 * (value - span[0]) / width, 0.0, 100.0))

    low, high = at(outside[0] - outside[1]), at(outside[0] + outside[1])
    left, right = at(inside[0] - inside[1]), at(inside[0] + inside[1])
    rest = (
        f'<rect x="{low:.1f}%" width="{max(high - low, 0.5):.1f}%" y="4" height="8" rx="2" '
        'fill="currentColor" opacity=".22"/>'
    )
    whisker = (
        f'<line x1="{left:.1f}%" x2="{right:.1f}%" y1="8" y2="8" stroke="{_style(k)[0]}" '
        'stroke-width="3"/>'
    )
    return _strip(k, at(inside[0]), rest + whisker)


def share_strip(k: int, inside: float, outside: float) -> str:
    """The share of a level in a cluster (a dot) and in the rest (grey), from 0 to 100%."""
    rest = (
        f'<rect x="0" width="{100 * outside:.1f}%" y="4" height="8" rx="2" fill="currentColor" '
        'opacity=".22"/>'
    )
    return _strip(k, 100 * inside, rest)


def _strip(k: int, at: float, behind: str) -> str:
    return (
        '<svg class="strip" aria-hidden="true"><line x1="0" x2="100%" y1="8" y2="8" '
        f'stroke="currentColor" opacity=".35"/>{behind}<circle cx="{at:.1f}%" cy="8" r="5" '
        f'fill="{_style(k)[0]}" stroke="currentColor" stroke-width=".6"/></svg>'
    )


def tree_svg(tree: np.ndarray, names: Sequence[str], alt: str) -> str:
    """A dendrogram from left to right, with a leaf for each cluster.

    Args:
        tree: as SciPy's linkage, of shape (K - 1, 4), with heights from 0 to 1.
        names: of the K clusters.
        alt: what the picture shows.
    """
    members = [[k] for k in range(len(names))]
    for a, b in tree[:, :2].astype(int):
        members.append(members[a] + members[b])
    left = 30.0 + 7 * max(len(name) for name in names)
    ends = [(left, LEAF * (members[-1].index(k) + 0.5)) for k in range(len(names))]
    leaves = "".join(_leaf(k, name, ends[k][1]) for k, name in enumerate(names))
    lines = []
    for a, b, height in tree[:, :3]:
        (x_a, y_a), (x_b, y_b) = ends[int(a)], ends[int(b)]
        x = left + (TREE_WIDTH - 20 - left) * min(max(height, 0.0), 1.0)
        lines.append(f"M{x_a:.1f} {y_a:.1f}H{x:.1f}V{y_b:.1f}H{x_b:.1f}")
        ends.append((x, (y_a + y_b) / 2))
    bottom = LEAF * len(names)
    return (
        f'<svg viewBox="0 0 {TREE_WIDTH} {bottom + 24}" width="{TREE_WIDTH}" role="img" '
        f'aria-label="{escape(alt)}">{_percents(left, bottom)}'
        f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f"{leaves}</svg>\n"
    )


def _leaf(k: int, name: str, y: float) -> str:
    fill, shape = _style(k)
    return (
        f'<g transform="translate(8 {y:.1f})"><path transform="scale(5)" d="{shape}" fill="{fill}" '
        'stroke="currentColor" stroke-width=".15"/><text x="12" y="4" font-size="12" '
        f'fill="currentColor">{escape(name)}</text></g>'
    )


def _percents(left: float, bottom: int) -> str:
    """Lines at 0, 25, ..., 100%."""
    at = [left + (TREE_WIDTH - 20 - left) * i / 4 for i in range(5)]
    lines = "".join(f"M{x:.1f} 0V{bottom}" for x in at)
    texts = "".join(
        f'<text x="{x:.1f}" y="{bottom + 16}" font-size="12" fill="currentColor" '
        f'text-anchor="middle">{25 * i}%</text>'
        for i, x in enumerate(at)
    )
    return f'<path d="{lines}" stroke="currentColor" opacity=".2"/>{texts}'


def matrix_png(matrix: np.ndarray, labels: np.ndarray, alt: str, most: int = 500) -> str:
    """P(two rows share a cluster), rows ordered by cluster and, within it, by who goes with whom.

    Args:
        matrix: of shape (n, n).
        labels: the best partition, of shape (n,).
        alt: what the picture shows.
        most: pixels; a larger matrix is averaged down.
    """
    from PIL import Image

    order = _seriation(matrix, labels)
    image = Image.fromarray(np.round(255 * matrix[np.ix_(order, order)]).astype(np.uint8))
    if len(matrix) > most:
        image = image.resize((most, most), Image.Resampling.BOX)
    image.putpalette(_palette())
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    content = base64.b64encode(buffer.getvalue()).decode()
    return f'<img class="matrix" alt="{escape(alt)}" src="data:image/png;base64,{content}">\n'


def _seriation(matrix: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Rows by cluster and, within it, along the leading axis of their similarities.

    So rows that are often together stand side by side, and what could be split is seen.
    """
    parts = []
    for k in np.unique(labels):
        here = np.flatnonzero(labels == k)
        inner = matrix[np.ix_(here, here)]
        inner = inner - inner.mean(0) - inner.mean(1)[:, None] + inner.mean()
        parts.append(here[np.argsort(_leading_axis(inner), kind="stable")])
    return np.concatenate(parts)


def _leading_axis(matrix: np.ndarray, n_steps: int = 30) -> np.ndarray:
    """The leading eigenvector of a symmetric matrix, nearly: an order needs no more."""
    v = np.random.default_rng(0).normal(size=len(matrix))
    for _ in range(n_steps):
        v = matrix @ v
        v = v / max(float(np.abs(v).max()), 1e-300)
    return np.asarray(v)


def _palette() -> bytes:
    """Cividis in 256 steps."""
    stops = np.array([list(bytes.fromhex(colour)) for colour in CIVIDIS.split()], dtype=float)
    at = np.linspace(0, len(stops) - 1, 256)
    mixed = [np.interp(at, np.arange(len(stops)), channel) for channel in stops.T]
    return bytes(np.round(np.stack(mixed, 1)).astype(np.uint8).ravel())
