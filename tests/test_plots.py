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

from ncp.checks.accuracy import Efficiency
from ncp.checks.calibration import CalibrationResult
from ncp.checks.ranks import RankTest, rank_test
from ncp.checks.reliability import Reliability
from ncp.checks.report import CheckReport
from ncp.output import plots
from ncp.summary.statistics import Discrete


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


# -- diagnostics -----------------------------------------------------------------------------------


@pytest.fixture
def ranks(seed: int) -> RankTest:
    return rank_test("K", np.random.default_rng(seed).random(400))


@pytest.fixture
def curve() -> Reliability:
    said = np.array([0.05, np.nan, 0.9])
    counts = np.array([10, 0, 30])
    seen = np.array([0.1, np.nan, 0.8])
    return Reliability(said, seen, counts, seen - 0.1, seen + 0.1, 0.08, 0.1, 0.2)


@pytest.fixture
def ess(seed: int) -> Efficiency:
    return Efficiency(np.random.default_rng(seed).beta(8, 2, 200), 2000, 0.7)


def test_rank_histogram(ax: Axes, ranks: RankTest) -> None:
    assert plots.rank_histogram(ax, ranks, n_bins=10) is ax
    heights = [bar.get_height() for bar in ax.containers[0]]
    np.testing.assert_array_equal(heights, np.histogram(ranks.u, 10, (0, 1))[0])
    assert ax.get_title().startswith("K, p ")


def test_ecdf_difference(ax: Axes, ranks: RankTest) -> None:
    assert plots.ecdf_difference(ax, ranks) is ax
    x, y = np.asarray(ax.lines[-1].get_data(), dtype=float)
    np.testing.assert_allclose(y, [(ranks.u <= z).mean() - z for z in x])
    assert y[0] == y[-1] == 0


def test_reliability_diagram_leaves_out_empty_bins(ax: Axes, curve: Reliability) -> None:
    assert plots.reliability_diagram(ax, curve) is ax
    np.testing.assert_allclose(np.asarray(ax.lines[-1].get_data()), [[0.05, 0.9], [0.1, 0.8]])


def test_ess_histogram(ax: Axes, ess: Efficiency) -> None:
    assert plots.ess_histogram(ax, ess) is ax
    texts = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert texts[0] == f"median {np.median(ess.fractions):.0%}"


@pytest.mark.parametrize("with_ess", [True, False])
def test_check_figure(
    ranks: RankTest,
    curve: Reliability,
    ess: Efficiency,
    with_ess: bool,
    tmp_path: Path,
) -> None:
    results = {"sbc": CalibrationResult((ranks,) * 3), "reliability": curve}
    report = CheckReport((), {**results, **({"ess": ess} if with_ess else {})})
    figure = plots.check_figure(report)
    assert len(figure.axes) == 7 + with_ess
    figure.savefig(tmp_path / "check.png", dpi=40)
    assert (tmp_path / "check.png").stat().st_size > 1000


# -- clusters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 12])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_clusters_are_drawn_point_by_point(ax: Axes, width: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3 - (n > 5)
    assert plots.clusters(ax, rng.normal(size=(n, width)), labels, rng.random(n)) is ax
    drawn = [np.asarray(points.get_offsets()) for points in ax.collections]
    assert sum(len(points) for points in drawn) == n
    assert len(drawn) == len(np.unique(labels))


def test_confidence_is_transparency(ax: Axes) -> None:
    plots.clusters(ax, np.eye(2), np.array([0, 0]), np.array([0.1, 1.0]))
    alpha = np.asarray(ax.collections[0].get_alpha())
    assert alpha[0] < 0.3 < 0.9 < alpha[1]


def test_many_points_and_missing_values(ax: Axes, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(plots.MOST_POINTS + 500, 3))
    x[0] = np.nan
    plots.clusters(ax, x, np.zeros(len(x), dtype=int))
    assert len(np.asarray(ax.collections[0].get_offsets())) == plots.MOST_POINTS


def test_principal_axes_are_named_and_ordered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 4))
    xy, (first, second) = plots.project_2d(x)
    assert xy[:, 0].var() > 10 * xy[:, 1].var()
    assert first.startswith("principal axis 1 (99%")
    assert "principal axis 2" in second


def test_names_are_not_mathematics(ax: Axes, tmp_path: Path) -> None:
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    plots.clusters(ax, np.eye(2), np.array([0, 1]), names=["$\\frac{1}", "a_b^$"])
    figure.savefig(tmp_path / "names.png")
    assert plots.escape_label("x" * 100) == "x" * 37 + "..."


def test_posterior_of_k(ax: Axes) -> None:
    k = Discrete(np.array([1, 2, 4]), np.array([0.2, 0.7, 0.1]))
    assert plots.posterior_of_k(ax, *k, chosen=2) is ax
    heights = [bar.get_height() for bar in ax.patches]  # type: ignore[attr-defined]
    assert heights == [0.2, 0.7, 0.1]
    colours = {to_hex(bar.get_facecolor()) for bar in ax.patches}
    assert len(colours) == 2


def test_similarity_is_ordered_by_cluster(ax: Axes) -> None:
    labels = np.array([0, 1, 0, 1, 1])
    matrix = (labels[:, None] == labels).astype(float)
    assert plots.similarity_matrix(ax, matrix, labels) is ax
    shown = np.asarray(ax.images[0].get_array())
    np.testing.assert_array_equal(shown[:3, :3], 1)
    np.testing.assert_array_equal(shown[:3, 3:], 0)


def test_training_figure(tmp_path: Path) -> None:
    log = [
        {"step": s, "nll": 1 / s, "accuracy": 0.5, "permutation_variance": 1.0 / s}
        for s in range(10, 500, 10)
    ]
    figure = plots.training_figure([*log, {"step": 500, "held_out_nll": 0.3}], "a run")
    middle = figure.axes[1]
    assert middle.get_yscale() == "log"
    smooth = np.asarray(middle.lines[1].get_ydata())
    assert smooth[-1] == pytest.approx(np.mean([line["nll"] for line in log[-10:]]))
    with pytest.raises(ValueError, match="at least one line"):
        plots.training_figure([])


def test_the_palette_is_okabe_and_itos() -> None:
    assert len({to_hex(colour) for colour in plots.PALETTE}) == 8
    assert plots.PALETTE[0] == "#0072B2"


def test_importing_plots_does_not_import_matplotlib() -> None:
    code = "import sys, ncp.output.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
