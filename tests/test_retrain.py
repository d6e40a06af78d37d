"""`make retrain`: one recipe from nothing to the file that ships."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ncp.checks.report import CheckReport, CheckRow
from ncp.model import load_model
from ncp.network.checkpoint import read
from ncp.training.loop import train
from ncp.training.recipe import Recipe

RECIPE = """
name = "{name}"
log_every = 1

[generative]
sizes = [3, 6]
prior = {{ kind = "CRP", alpha = 0.7 }}
likelihood = {{ kind = "GaussianKnownVariance", dim = 1 }}

[network]
encoder = {{ kind = "MLPEncoder", width = 4, depth = 2, out = 4 }}
g = {{ width = 4, depth = 2, out = 4 }}
f = {{ width = 4, depth = 2 }}

[[phase]]
steps = 2
points_per_step = 20

[[phase]]
steps = 1
pairwise = 1.0
"""


@pytest.fixture
def retrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with recipes of two models, a check that takes no time, and its own places."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    script = importlib.import_module("retrain")
    export = importlib.import_module("export")
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(export, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(export, "DIRECTORY", tmp_path)
    report = CheckReport((CheckRow("calibration error", 0.25, "", None, ""),), {})
    monkeypatch.setattr(export, "run_checks", lambda *model, plan: report)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a-paper"):
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(name=name))
    return script


def run(script: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["retrain.py", name])
    script.main()


def test_from_nothing_to_the_file_that_ships(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(retrain, "a", monkeypatch)
    info = read("a.safetensors").info
    assert Recipe.from_dict(info["recipe"]) == Recipe.from_toml("a.toml")
    assert info["step"] == 3
    assert info["seconds"] > 0
    assert info["quality"] == {"calibration error": 0.25}
    assert {"commit", "metrics", "resumed"} <= set(info)
    assert load_model("a.safetensors").mixture == Recipe.from_toml("a.toml").generative
    log = [json.loads(line) for line in Path("logs/a.log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "nll" in line] == [1, 2, 3]
    trained = Path("runs/a/a.safetensors")
    before = trained.stat().st_mtime_ns
    run(retrain, "a", monkeypatch)  # nothing left to train
    assert trained.stat().st_mtime_ns == before
    assert capsys.readouterr().out.count("is finished") == 1


def test_a_run_that_was_stopped_goes_on_and_does_not_ship_before_its_end(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopping:
        stopping.setattr(
            retrain,
            "train",
            lambda recipe, directory, resume: train(
                recipe, directory, resume=resume, progress=False, seconds=0.0
            ),
        )
        with pytest.raises(SystemExit, match="stopped; the same command goes on"):
            run(retrain, "a", stopping)
    trained = Path("runs/a/a.safetensors")
    assert read(trained).info["step"] < 3
    with pytest.raises(SystemExit, match="runs/a is not finished"):
        retrain.export(Path("runs/a"))
    assert not Path("a.safetensors").exists()
    run(retrain, "a", monkeypatch)
    assert read(trained).info["step"] == 3
    assert read("a.safetensors").info["resumed"] == [1]


@pytest.mark.parametrize("name", ["", "b", "a-pap"])
def test_other_models_are_refused(
    retrain: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(SystemExit, match="Expected MODEL to be one of a, a-paper but got"):
        run(retrain, name, monkeypatch)
