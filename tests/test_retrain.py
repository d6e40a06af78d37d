"""`make retrain`: the stages of a model one after the other, each to its end."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ncp.network.checkpoint import read
from ncp.training.loop import train
from ncp.training.recipe import RunConfig

CONFIG = """
name = "{name}"
initial = "{initial}"

[mixture]
sizes = [3, 6]
prior = {{ kind = "CRP", alpha = 0.7 }}
likelihood = {{ kind = "GaussianKnownVariance", dim = 1 }}

[model]
h_width = 4
h_depth = 2
h_dim = 4
width = 4
g_depth = 2
g_dim = 4
f_depth = 2

[training]
steps = 3
points_per_step = 20
"""


@pytest.fixture
def retrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with the configs of eleven stages of one model beside one of another."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    script = importlib.import_module("retrain")
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.chdir(tmp_path)
    names = ["a", *(f"a-stage{i}" for i in range(2, 12))]
    for before, name in zip(["", *names], [*names, "a-paper"], strict=True):
        initial = f"runs/{before}/{before}.safetensors" if before and name != "a-paper" else ""
        config = CONFIG.format(name=name, initial=initial)
        (tmp_path / f"{name}.toml").write_text(config)
    return script


def run(script: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["retrain.py", name])
    script.main()


def test_stages_run_in_order_and_only_once(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [path.stem for path in retrain.stages("a")][-2:] == ["a-stage10", "a-stage11"]
    assert [path.stem for path in retrain.stages("a-paper")] == ["a-paper"]
    run(retrain, "a", monkeypatch)
    last = Path("runs/a-stage11/a-stage11.safetensors")
    before = last.stat().st_mtime_ns
    run(retrain, "a", monkeypatch)
    assert last.stat().st_mtime_ns == before
    assert capsys.readouterr().out.count("is finished") == 11


def test_no_stage_starts_before_the_one_before_it_is_done(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopping:
        stopping.setattr(
            retrain,
            "train",
            lambda run, directory, resume: train(
                run, directory, resume=resume, progress=False, seconds=0.0
            ),
        )
        with pytest.raises(SystemExit, match="stopped; the same command goes on"):
            run(retrain, "a", stopping)
    first = Path("runs/a/a.safetensors")
    assert read(first).info["step"] < 3
    assert not Path("runs/a-stage2").exists()
    run(retrain, "a", monkeypatch)
    assert read(first).info["step"] == 3
    assert RunConfig.from_dict(read(first).info["run"]).name == "a"
    assert Path("runs/a-stage11").exists()


@pytest.mark.parametrize("name", ["", "b", "a-stage"])
def test_other_models_are_refused(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(SystemExit, match="Expected MODEL to be one of a, a-paper but got"):
        run(retrain, name, monkeypatch)
