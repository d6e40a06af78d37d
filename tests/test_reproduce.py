"""The paper's figures, made with small untrained networks: every file is written, none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from experiments import figures as reproduce

from ncp.generative import mnist as datasets
from ncp.model import NCP
from ncp.posterior import Partitions
from tests.small_models import gaussian, spec


def digits() -> datasets.MNIST:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40) % 10
    return datasets.MNIST(images, labels, images, labels)


def load(name: str) -> NCP:
    if name == "mnist":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return NCP(spec((28, 28), h=(4, 2, 16), g=(16, 2, 16), channels=(2, 4))).eval()
    return gaussian(1 if name == "gaussian-1d" else 2)


def some_case(model: NCP) -> tuple[reproduce.Case, Partitions]:
    case = next(reproduce.digit_cases(1))
    return case, model.sample(case[0], 20, seed=0)


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


def test_figure_1_says_what_its_samples_are(tmp_path: Path) -> None:
    numbers = reproduce.reproduce("fig1", tmp_path, quiet)["fig1"]
    nll = [numbers[f"sample_{i}_nll"] for i in range(1, 6)]
    assert nll == sorted(nll)
    assert min(numbers[f"sample_{i}_k"] for i in range(1, 6)) >= 1


def test_figure_2_keeps_digits_truth_and_partitions_of_every_case(tmp_path: Path) -> None:
    reproduce.reproduce("fig2", tmp_path, quiet)
    table = pd.read_csv(tmp_path / "fig2.csv")
    assert table["case"].nunique() == 11
    for _, rows in table.groupby("case"):
        digits, truth = rows.filter(like="point").to_numpy()[:2]
        assert rows["row"].tolist()[:3] == ["digit", "true label", "partition"]
        assert len({*zip(digits, truth, strict=True)}) == len({*digits}) == len({*truth})


def test_a_figure_without_its_data_does_not_keep_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(say: Any) -> reproduce.Reproduced:
        raise OSError("no MNIST here")

    monkeypatch.setitem(reproduce._MAKERS, "fig2", gone)
    with pytest.raises(OSError, match=r"fig2 could not be made. no MNIST here"):
        reproduce.reproduce(["fig2", "fig3"], tmp_path, quiet)
    assert (tmp_path / "fig3.csv").exists()


@pytest.mark.parametrize("names", ["fig5", ["fig3", "fig5"]])
def test_other_figures_are_refused_before_any_is_made(
    names: str | list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"Expected one of fig1.*'fig5'"):
        reproduce.reproduce(names, tmp_path / "new")
    assert not (tmp_path / "new").exists()
