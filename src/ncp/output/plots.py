"""Figures: numbers in, axes out.

Every function draws on the `Axes` it is given and returns them, so that figures are put together
by the caller; nothing is computed here that is not drawn. Colours are those of Okabe and Ito,
which people with any common form of colour blindness can tell apart; where colour carries meaning,
so does shape or position. Matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

    from ncp.checks.accuracy import Efficiency
    from ncp.checks.ranks import RankTest
    from ncp.checks.reliability import Reliability
    from ncp.checks.report import CheckReport

__all__ = [
    "PALETTE",
    "check_figure",
    "cluster_style",
    "clusters",
    "draw_training",
    "ecdf_difference",
    "escape_label",
    "ess_histogram",
    "posterior_of_k",
    "project_2d",
    "rank_histogram",
    "reliability_diagram",
    "similarity_matrix",
    "training_curve",
    "training_figure",
]

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW, BLACK)
GREY = "#B8B8B8"  # bands and guides: what a right answer looks like
MARKERS = "osD^vPX"  # one for each turn through the palette
MOST_POINTS = 4000  # drawn in one picture; of more, a random subset


# -- diagnostics -----------------------------------------------------------------------------------


def rank_histogram(ax: Axes, test: RankTest, n_bins: int = 20, coverage: float = 0.95) -> Axes:
    """Ranks of the truth among posterior draws: flat, within the band, for a right posterior.

    Args:
        ax: where to draw.
        test: the ranks of one statistic.
        n_bins: bins of the histogram.
        coverage: the share of bars that the band holds, bar by bar.
    """
    from scipy.stats import binom

    n = len(test.u)
    low, high = binom.interval(coverage, n, 1 / n_bins)
    ax.hist(test.u, n_bins, range=(0.0, 1.0), color=SKY, edgecolor="white", lw=0.5)
    ax.axhspan(float(low), float(high), color=BLACK, alpha=0.15, lw=0)
    ax.axhline(n / n_bins, color=BLACK, lw=0.8)
    ax.set(xlim=(0, 1), xlabel="rank of the truth", ylabel="data sets")
    ax.set_title(f"{test.name}, {_p(test.chi_square_p)}", fontsize=10)
    return ax


def ecdf_difference(ax: Axes, test: RankTest, coverage: float = 0.95) -> Axes:
    """ECDF of the ranks minus the diagonal, and the band that holds all of it at once.

    Args:
        ax: where to draw.
        test: the ranks of one statistic.
        coverage: the probability with which a right posterior stays inside everywhere.
    """
    n = len(test.u)
    band = test.band(coverage)
    grid = np.concatenate([[0.0], band.grid, [1.0]])
    curve = np.searchsorted(np.sort(test.u), grid, side="right") / n - grid
    low, high = (np.concatenate([[0.0], b - band.grid, [0.0]]) for b in (band.lower, band.upper))
    ax.fill_between(grid, low, high, color=GREY, alpha=0.5, lw=0)
    ax.axhline(0, color=BLACK, lw=0.8)
    ax.plot(grid, curve, color=BLUE, lw=1.5)
    ax.set(xlim=(0, 1), xlabel="rank of the truth", ylabel="ECDF - uniform")
    ax.set_title(f"{test.name}, {_p(test.ecdf_p)}", fontsize=10)
    limit = 1.1 * max(np.abs(curve).max(), np.abs(low).max(), np.abs(high).max())
    ax.set_ylim(-limit, limit)
    return ax


def reliability_diagram(ax: Axes, curve: Reliability) -> Axes:
    """How often pairs share a cluster against how often the posterior says so.

    Vertical bars are where the points of a right posterior lie 95 times in 100.
    """
    full = curve.counts > 0
    said, seen = curve.predicted[full], curve.observed[full]
    ax.plot([0, 1], [0, 1], color=BLACK, lw=0.8, zorder=1)
    ax.vlines(said, curve.lower[full], curve.upper[full], color=GREY, lw=5, zorder=2)
    ax.plot(said, seen, "o-", color=BLUE, lw=1, ms=4, zorder=3)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xlabel="said: P(same cluster)", ylabel="seen: fraction in the same cluster")
    ax.set_title(f"reliability, calibration error {curve.error:.3f}", fontsize=10)
    return ax


def ess_histogram(ax: Axes, result: Efficiency, n_bins: int = 20) -> Axes:
    """Effective sample sizes over data sets, as fractions, with median and lowest decile."""
    # rounding takes a perfect sample size past its largest possible value, out of the last bin
    fractions = np.minimum(result.fractions, 1.0)
    ax.hist(fractions, n_bins, range=(0.0, 1.0), color=SKY, edgecolor="white", lw=0.5)
    ax.axvline(result.median, color=BLUE, lw=1.5, label=f"median {result.median:.0%}")
    ax.axvline(
        result.lowest_decile,
        color=VERMILLION,
        lw=1.5,
        ls="--",
        label=f"lowest decile {result.lowest_decile:.0%}",
    )
    ax.set(xlim=(0, 1), xlabel=f"ESS / {result.n_samples} samples", ylabel="data sets")
    ax.set_title("importance sampling", fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return ax


def check_figure(report: CheckReport) -> Figure:
    """The figures of a check on one page: ranks, their ECDF, reliability and, if known, ESS."""
    from matplotlib.figure import Figure

    tests = report.results["sbc"].tests
    figure = Figure(figsize=(3 * len(tests), 9), layout="constrained")
    halves = figure.add_gridspec(2, 1, height_ratios=(2, 1.2))
    top, bottom = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    axes = top.subplots(2, len(tests), squeeze=False)
    for (above, below), test in zip(axes.T, tests, strict=True):
        rank_histogram(above, test)
        ecdf_difference(below, test)
    ess = report.results.get("ess")
    last = bottom.subplots(1, 1 if ess is None else 2, squeeze=False)[0]
    reliability_diagram(last[0], report.results["reliability"])
    if ess is not None:
        ess_histogram(last[1], ess)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


# -- clusters --------------------------------------------------------------------------------------


def clusters(
    ax: Axes,
    x: np.ndarray,
    labels: np.ndarray,
    confidence: np.ndarray | None = None,
    names: Sequence[str] = (),
    size: float | None = None,
) -> Axes:
    """Points coloured by cluster; the surer the cluster, the more solid the point.

    One column is drawn along a line, two as they are, more on their leading principal axes.

    Args:
        ax: where to draw.
        x: the data, of shape (N, ...).
        labels: of shape (N,); -1 for points without a cluster.
        confidence: of shape (N,), between 0 and 1.
        names: of the columns.
        size: of the points; by default it follows N.
    """
    xy, axis_names = project_2d(x, names)
    shown = _subset(len(xy))
    xy, c = xy[shown], np.asarray(labels)[shown]
    sure = np.ones(len(xy)) if confidence is None else np.nan_to_num(np.asarray(confidence)[shown])
    size = size or float(np.clip(4000 / len(xy), 6, 45))
    for k in np.unique(c):
        here = c == k
        colour, marker = (GREY, "x") if k < 0 else cluster_style(int(k))
        across, up = xy[here].T
        drawn = ax.scatter(across, up, s=size, c=colour, marker=marker, linewidths=0.3)
        drawn.set_alpha((0.2 + 0.75 * sure[here]).tolist())
        if k >= 0:
            drawn.set_edgecolor(BLACK)
    ax.set_xlabel(escape_label(axis_names[0]))
    ax.set_ylabel(escape_label(axis_names[1]))
    if x.reshape(len(x), -1).shape[1] == 1:
        ax.set_yticks([])
    return ax


def cluster_style(k: int) -> tuple[str, str]:
    """Colour and marker of cluster k: after eight colours the marker changes.

    Example:
        >>> cluster_style(0), cluster_style(8)
        (('#0072B2', 'o'), ('#0072B2', 's'))
    """
    return PALETTE[k % len(PALETTE)], MARKERS[k // len(PALETTE) % len(MARKERS)]


def escape_label(name: str, most: int = 40) -> str:
    """A name as matplotlib draws it: dollars are dollars, and long names are cut.

    Example:
        >>> escape_label("price in $")
        'price in \\\\$'
    """
    name = " ".join(str(name).split())
    name = name if len(name) <= most else name[: most - 3] + "..."
    return name.replace("$", r"\$")


def project_2d(x: np.ndarray, names: Sequence[str] = ()) -> tuple[np.ndarray, tuple[str, str]]:
    """Coordinates (N, 2) to draw points at, and what the two axes are.

    Missing values are drawn at their column's mean. Rows of one column are stacked where their
    values are near, so that equal points do not hide each other.
    """
    flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    known = ~np.isnan(flat)
    centre = np.where(known, flat, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    flat = np.where(np.isnan(flat), centre, flat)
    if flat.shape[1] == 1:
        place = np.stack([flat[:, 0], _heights(flat[:, 0])], 1)
        return place, (names[0] if names else "x", "rows, stacked")
    if flat.shape[1] == 2:
        first, second = names if len(names) == 2 else ("x1", "x2")
        return flat, (first, second)
    z = flat - flat.mean(0)
    sd = z.std(0)
    z = z / np.where(sd > 0, sd, 1.0)
    scores, share = _principal_scores(z)
    named = tuple(f"principal axis {i + 1} ({share[i]:.0%} of the variance)" for i in range(2))
    return scores, (named[0], named[1])


def _principal_scores(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores (N, 2) on the leading principal axes of centred columns, and their shares.

    With more columns than rows the axes come from the N x N products: if z z^T u = v u, the
    scores are u sqrt(v).
    """
    wide = z.shape[1] > len(z)
    variance, vectors = np.linalg.eigh(z @ z.T if wide else z.T @ z)
    variance, vectors = np.maximum(variance[:-3:-1], 0.0), vectors[:, :-3:-1]
    share = np.zeros(2)
    share[: len(variance)] = variance / max(float((z**2).sum()), 1e-300)
    found = vectors * np.sqrt(variance) if wide else z @ vectors
    scores = np.zeros((len(z), 2))
    scores[:, : found.shape[1]] = found
    return scores, share


def _heights(x: np.ndarray) -> np.ndarray:
    """Stack the points of each of sixty bins, like a dot plot."""
    span = float(np.ptp(x)) or 1.0
    bins = ((x - x.min()) / span * 59.999).astype(int)
    height = np.zeros(len(x))
    for b in np.unique(bins):
        here = np.flatnonzero(bins == b)
        height[here[np.argsort(x[here], kind="stable")]] = np.arange(len(here))
    return height


def _subset(n: int) -> np.ndarray:
    """Which points are drawn."""
    if n <= MOST_POINTS:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, MOST_POINTS, replace=False))


def posterior_of_k(
    ax: Axes, values: np.ndarray, probabilities: np.ndarray, chosen: int | None = None
) -> Axes:
    """The probability of each number of clusters; that of the estimate stands out.

    Args:
        ax: where to draw.
        values: of K.
        probabilities: of the values.
        chosen: the number of clusters of the point estimate.
    """
    from matplotlib.ticker import MaxNLocator

    values, p = np.asarray(values), np.asarray(probabilities)
    colours = [BLUE if v == chosen else SKY for v in values]
    bars = ax.bar(values, p, color=colours, width=0.8)
    if len(values) <= 10:
        heights = [f"{q:.0%}" if q >= 0.005 else "" for q in p]
        ax.bar_label(bars, heights, fontsize=9, padding=2)
    ax.set(xlabel="number of clusters", ylabel="probability", ylim=(0, 1.12 * float(p.max())))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(values) == 1:
        ax.set_xlim(values[0] - 2, values[0] + 2)
    return ax


def similarity_matrix(ax: Axes, matrix: np.ndarray, labels: np.ndarray) -> Axes:
    """P(two points share a cluster), points ordered by cluster and, within it, by how typical.

    Args:
        ax: where to draw.
        matrix: of shape (N, N).
        labels: the point estimate, of shape (N,).
    """
    typical = np.array([row[labels == k].mean() for row, k in zip(matrix, labels, strict=True)])
    order = np.lexsort((-typical, labels, -np.bincount(labels)[labels]))
    image = ax.imshow(
        matrix[np.ix_(order, order)], cmap="cividis", vmin=0, vmax=1, interpolation="nearest"
    )
    edges = np.flatnonzero(np.diff(labels[order])) + 0.5
    if len(edges) <= 30:
        for edge in edges:
            ax.axhline(edge, color="white", lw=0.6)
            ax.axvline(edge, color="white", lw=0.6)
    ax.set(xlabel="points, ordered by cluster", xticks=[], yticks=[])
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("probability of sharing a cluster", fontsize=9)
    return ax


# -- training --------------------------------------------------------------------------------------


def training_curve(
    ax: Axes,
    steps: Sequence[int],
    values: Sequence[float],
    name: str,
    log: bool = False,
    window: int = 100,
    held_out: tuple[Sequence[int], Sequence[float]] | None = None,
) -> Axes:
    """A monitor of training: what was logged, and its mean over a sliding window of steps.

    Args:
        ax: where to draw.
        steps, values: of the log.
        name: of the monitor.
        log: logarithmic axis.
        window: in steps.
        held_out: steps and values measured on held-out data.
    """
    t, v = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    ax.plot(t, v, color=SKY, lw=0.6, alpha=0.6, label="logged")
    start = np.searchsorted(t, t - window, side="right")
    total = np.concatenate([[0.0], np.cumsum(v)])
    smooth = (total[1:] - total[start]) / (np.arange(len(t)) + 1 - start)
    ax.plot(t, smooth, color=BLUE, lw=1.5, label=f"mean of {window} steps")
    if held_out is not None and len(held_out[0]):
        ax.plot(*held_out, "o-", color=VERMILLION, ms=3, lw=1, label="held out")
    ax.set(xlabel="step", ylabel=name)
    if log and np.all(v > 0):
        ax.set_yscale("log")
    ax.legend(frameon=False, fontsize=8)
    return ax


def training_figure(log: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Accuracy, negative log-likelihood and permutation variance: the paper's figure 3.

    Args:
        log: the lines of a run's `log.jsonl`.
        title: over the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    draw_training(figure, log, title)
    return figure


def draw_training(figure: FigureBase, log: Sequence[dict[str, Any]], title: str) -> None:
    """The curves of `training_figure`, in a figure or a part of one."""
    lines = [line for line in log if "nll" in line]
    if not lines:
        raise ValueError("Expected a log with at least one line of monitors but got none")
    steps = [line["step"] for line in lines]
    measured = [line for line in log if "held_out_nll" in line]
    held_out = [m["step"] for m in measured], [m["held_out_nll"] for m in measured]
    axes = figure.subplots(1, 3)
    training_curve(axes[0], steps, [line["accuracy"] for line in lines], "accuracy")
    nll = [line["nll"] for line in lines]
    training_curve(axes[1], steps, nll, "NLL per point", log=True, held_out=held_out)
    variance = [line["permutation_variance"] for line in lines]
    training_curve(axes[2], steps, variance, "permutation variance", log=True)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(escape_label(title, 80), fontsize=11)
