"""The paper's figures, made with small untrained networks: every file is written, none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ncp import datasets, reproduce
from ncp.model import NCP, NCPConfig
from ncp.partitions import Partitions
from tests.small_models import gaussian


def digits() -> datasets.MNIST:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40) % 10
    return datasets.MNIST(images, labels, images, labels)


def load(name: str) -> NCP:
    if name == "mnist":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return NCP(NCPConfig((28, 28), "conv", h_dim=16, width=16, g_dim=16)).eval()
    return gaussian(1 if name == "gaussian-1d" else 2)


def some_case(model: NCP) -> tuple[np.ndarray, np.ndarray, Partitions]:
    images, labels, _ = next(reproduce.digit_cases(1))
    return images, labels, model.sample(images, 20, seed=0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "load", load)
    monkeypatch.setattr(datasets, "mnist", digits)
    monkeypatch.setattr(reproduce, "most_ambiguous", some_case)  # nothing is, untrained
    monkeypatch.setattr(reproduce, "_python_gibbs_seconds", lambda x, n_sweeps: 1.0)
    for name, value in {"DPI": 30, "REPETITIONS": 2, "N_DRAWS": 40, "LONG_RUN": 400}.items():
        monkeypatch.setattr(reproduce, name, value)


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("name", reproduce.FIGURES)
def test_each_figure_is_written(name: str, tmp_path: Path) -> None:
    numbers = reproduce.reproduce(name, tmp_path, quiet)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"{name}.{ending}" for ending in ("csv", "png", "pdf")),
        "numbers.json",
    }
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 1
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert json.loads((tmp_path / "numbers.json").read_text()) == numbers
    assert all(np.isfinite(list(numbers[name].values())))


def test_numbers_of_two_calls_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(9))

    def make(say: Any) -> reproduce.Reproduced:
        figure = reproduce._figure(1.0, 1.0)
        return reproduce.Reproduced(pd.DataFrame({"a": [1]}), figure, {"call": float(next(calls))})

    for name in reproduce.FIGURES:
        monkeypatch.setitem(reproduce._MAKERS, name, make)
    (tmp_path / "numbers.json").write_text("{ damaged")
    for name in ("fig4", "fig1", "fig4"):
        reproduce.reproduce(name, tmp_path, quiet)
    kept = json.loads((tmp_path / "numbers.json").read_text())
    assert {name: numbers["call"] for name, numbers in kept.items()} == {"fig1": 1, "fig4": 2}


def test_figure_4_has_the_papers_seconds_and_a_panel_for_seeded_chains(tmp_path: Path) -> None:
    made = reproduce._fig4(quiet)
    seconds = made.table.groupby("sampler")["paper_seconds"].first()
    assert seconds["Gibbs"] == 1969
    assert seconds["NCP importance"] == 184
    assert np.isnan(seconds["NCP-seeded chains"])
    legends = [ax.get_legend() for ax in made.figure.axes]
    said = [[t.get_text() for t in legend.get_texts()] for legend in legends if legend is not None]
    both, seeded, _ = said
    assert "the paper's: 1,969 s" in both[0]
    assert "the paper's: 184 s" in both[1]
    assert len(seeded) == 1
    assert "seeded" in seeded[0]


def test_other_figures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected one of fig1"):
        reproduce.reproduce("fig5", tmp_path)
