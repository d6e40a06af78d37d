"""The examples run, and the example tables are what their script makes."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncp import cli
from ncp.generative.mnist import mnist
from ncp.network import pretrained
from tests.small_models import install

EXAMPLES = Path(__file__).parents[1] / "examples"
TABLES = sorted(EXAMPLES.glob("*.csv"))
LARGEST = 100_000  # bytes
MEASURED = {"iris.csv", "galaxies.csv", "faithful.csv"}  # by others; the rest is made


def has_mnist() -> bool:
    try:
        mnist(download=False)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", ["a_table", "a_model_of_ones_own", "mnist"])
def test_runs(name: str, tmp_path: Path) -> None:
    """In a process of its own: classes of one name cannot be defined twice."""
    if name == "mnist" and not has_mnist():
        pytest.skip("MNIST is not on disk")
    few = {"NCP_EXAMPLE_STEPS": "10", "NCP_EXAMPLE_SETS": "2"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, **few},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Best single partition" in done.stdout


def test_scripts_are_cells() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# %% [markdown]\n# # "), path
        assert "\n# %%\n" in text, path


def test_tables_are_what_their_script_makes(tmp_path: Path) -> None:
    script = shutil.copy(EXAMPLES / "make_tables.py", tmp_path)
    runpy.run_path(str(script))
    made = {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    assert made == {path.name: path.read_text() for path in TABLES if path.name not in MEASURED}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_can_be_clustered(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "DIRECTORY", install(tmp_path))
    out = tmp_path / "out"
    quick = ["--samples", "5", "--orders", "1", "--max-points", "50", "--no-report"]
    assert cli.app(["cluster", str(path), "--out", str(out), "--quiet", *quick]) == 0
    assert path.stat().st_size < LARGEST
    assert (out / "labels.csv").read_text().count("\n") == path.read_text().count("\n")


def test_there_are_five_kinds_of_tables() -> None:
    assert len(TABLES) >= 5
