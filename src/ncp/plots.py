"""Figures: numbers in, axes out.

Every function draws on the `Axes` it is given and returns them, so that figures are put together
by the caller; nothing is computed here that is not drawn. Colours are those of Okabe and Ito,
which people with any common form of colour blindness can tell apart; where colour carries meaning,
so does shape or position. Matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ncp.diagnostics import CheckReport, Efficiency, RankTest, Reliability, ecdf_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW, BLACK)
GREY = "#B8B8B8"  # bands and guides: what a right answer looks like


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
    band = ecdf_band(n, coverage)
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
