"""Figures draw the numbers they are given, on the axes they are given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ncp import diagnostics, plots


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


# -- diagnostics -----------------------------------------------------------------------------------


@pytest.fixture
def ranks(seed: int) -> diagnostics.RankTest:
    return diagnostics.rank_test("K", np.random.default_rng(seed).random(400))


@pytest.fixture
def curve() -> diagnostics.Reliability:
    said = np.array([0.05, np.nan, 0.9])
    counts = np.array([10, 0, 30])
    seen = np.array([0.1, np.nan, 0.8])
    return diagnostics.Reliability(said, seen, counts, seen - 0.1, seen + 0.1, 0.08, 0.1, 0.2)


@pytest.fixture
def ess(seed: int) -> diagnostics.Efficiency:
    return diagnostics.Efficiency(np.random.default_rng(seed).beta(8, 2, 200), 2000, 0.7)


def test_rank_histogram(ax: Axes, ranks: diagnostics.RankTest) -> None:
    assert plots.rank_histogram(ax, ranks, n_bins=10) is ax
    heights = [bar.get_height() for bar in ax.containers[0]]
    np.testing.assert_array_equal(heights, np.histogram(ranks.u, 10, (0, 1))[0])
    assert ax.get_title().startswith("K, p ")


def test_ecdf_difference(ax: Axes, ranks: diagnostics.RankTest) -> None:
    assert plots.ecdf_difference(ax, ranks) is ax
    x, y = np.asarray(ax.lines[-1].get_data(), dtype=float)
    np.testing.assert_allclose(y, [(ranks.u <= z).mean() - z for z in x])
    assert y[0] == y[-1] == 0


def test_reliability_diagram_leaves_out_empty_bins(
    ax: Axes, curve: diagnostics.Reliability
) -> None:
    assert plots.reliability_diagram(ax, curve) is ax
    np.testing.assert_allclose(np.asarray(ax.lines[-1].get_data()), [[0.05, 0.9], [0.1, 0.8]])


def test_ess_histogram(ax: Axes, ess: diagnostics.Efficiency) -> None:
    assert plots.ess_histogram(ax, ess) is ax
    texts = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert texts[0] == f"median {np.median(ess.fractions):.0%}"


@pytest.mark.parametrize("with_ess", [True, False])
def test_check_figure(
    ranks: diagnostics.RankTest,
    curve: diagnostics.Reliability,
    ess: diagnostics.Efficiency,
    with_ess: bool,
    tmp_path: Path,
) -> None:
    results = {"sbc": diagnostics.CalibrationResult((ranks,) * 3), "reliability": curve}
    report = diagnostics.CheckReport((), {**results, **({"ess": ess} if with_ess else {})})
    figure = plots.check_figure(report)
    assert len(figure.axes) == 7 + with_ess
    figure.savefig(tmp_path / "check.png", dpi=40)
    assert (tmp_path / "check.png").stat().st_size > 1000


def test_the_palette_is_okabe_and_itos() -> None:
    assert len({to_hex(colour) for colour in plots.PALETTE}) == 8
    assert plots.PALETTE[0] == "#0072B2"


def test_importing_plots_does_not_import_matplotlib() -> None:
    code = "import sys, ncp.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
