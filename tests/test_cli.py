"""The command line: right answers, one-line errors, exit codes, nothing half-written."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ncp
from ncp import cli
from ncp.cli import check as cli_check
from ncp.cli import cluster as cli_cluster
from ncp.cli.common import BAD_INPUT, SOME_FAILED
from ncp.cli.main import BUG
from ncp.clustering import batch
from ncp.network.checkpoint import save_model
from tests.small_models import gaussian

HEAVY = ("torch", "matplotlib", "pandas", "sklearn", "numba", "lightning_fabric", "scipy")
OUTPUTS = {"labels.csv", "samples.npz", "summary.json", "report.html"}


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def data(tmp_path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(25, 3)), columns=["a", "b", "c"])
    frame["kind"] = "text"
    frame.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


def run(*arguments: object) -> int:
    return cli.app([str(argument) for argument in arguments])


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


QUICK = ("--samples", 20, "--orders", 2)


def test_writes_everything(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cluster", data, *QUICK, "--out", "here") == 0
    out = Path("here")
    assert files(out) == OUTPUTS
    labels = pd.read_csv(out / "labels.csv")
    assert list(labels.columns) == ["row", "cluster", "confidence"]
    assert len(labels) == 25
    summary = json.loads((out / "summary.json").read_text())
    assert summary["columns"] == ["a", "b", "c"]
    assert any("kind" in note for note in summary["notes"])
    assert ncp.Partitions.load(out / "samples.npz").n_samples == 20
    assert np.load(out / "samples.npz")["samples"].shape == (20, 25)
    assert "<html" in (out / "report.html").read_text()
    printed = capsys.readouterr()
    assert "report.html" in printed.out
    assert printed.err == ""


def test_default_folder_and_formats(data: Path) -> None:
    assert run("cluster", data, *QUICK, "--no-report", "--format", "json", "-q") == 0
    folder = Path("ncp-output/data")
    assert files(folder) == {"labels.json", "samples.npz", "summary.json"}
    assert len(json.loads((folder / "labels.json").read_text())) == 25
    assert run("cluster", data, *QUICK, "--no-report", "--format", "parquet", "-q") == 0
    assert len(pd.read_parquet(folder / "labels.parquet")) == 25


def named_table(path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"who": [f"=p{i}" for i in range(9)], "cluster": "old"})
    frame = frame.assign(a=rng.normal(size=9).round(3), b=rng.normal(size=9).round(3))
    frame.to_csv(path, index=False)
    return frame


LABELS: dict[str, Callable[[str], pd.DataFrame]] = {
    "csv": pd.read_csv,
    "json": pd.read_json,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "parquet": pd.read_parquet,
    "feather": pd.read_feather,
    "xlsx": pd.read_excel,
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_know_their_rows(kind: str, tmp_path: Path) -> None:
    frame = named_table(tmp_path / "named.csv")
    how = ("cluster", "named.csv", *QUICK, "--no-report", "-q", "--format", kind, "--out", "here")
    assert run(*how) == 0
    labels = LABELS[kind](f"here/labels.{kind}")
    assert list(labels.columns) == ["row", "who", "cluster", "confidence"]
    assert list(labels["row"]) == list(range(1, 10))
    assert list(labels["who"]) == list(frame["who"])  # none of them a formula
    assert set(labels["cluster"]) >= {0}
    assert run(*how, "--append") == 0
    labels = LABELS[kind](f"here/labels.{kind}")
    names = ["row", "who", "cluster (input)", "a", "b", "cluster", "confidence"]
    assert list(labels.columns) == names
    np.testing.assert_allclose(labels["b"].astype(float), frame["b"])
    assert run("cluster", f"here/labels.{kind}", *QUICK, "--no-report", "-q", "--out", "again") == 0


def test_a_bomb_among_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tables(tmp_path, 2)
    (tmp_path / "f5.csv").write_bytes(gzip.compress(b"1,2\n" * 10**7))
    assert run("cluster", "f*.csv", *QUICK, "--no-report", "--max-memory", 0.1) == SOME_FAILED
    assert files(Path("ncp-output")) == {"f0", "f1"}
    error = capsys.readouterr().err
    assert error.startswith("ncp: f5.csv: ")
    assert "--max-memory" in error


def test_commas_through_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "us.csv").write_text('a,b\n"1,234",7\n"2,500",8\n"1,001",9\n')
    how = ("cluster", "us.csv", *QUICK, "--no-report", "-q", "--out", "us")
    assert run(*how) == BAD_INPUT
    assert "--decimal , or --thousands ," in capsys.readouterr().err
    assert run(*how, "--thousands", ",") == 0
    first = Path("us/summary.json").stat().st_mtime_ns
    assert run(*how, "--thousands", ",", "--resume") == 0
    assert Path("us/summary.json").stat().st_mtime_ns == first
    assert run(*how, "--decimal", ",", "--resume") == 0  # another table, so not the same result
    assert Path("us/summary.json").stat().st_mtime_ns > first


@pytest.mark.parametrize("name", ["...csv", "..csv", ".gz", "....csv", "a/../..csv"])
def test_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for path in (tmp_path / "in" / name, tmp_path / "in" / ".csv"):
        path.write_text("a,b\n1,2\n3,4\n")
    before = {path for path in tmp_path.rglob("*") if "in" in path.relative_to(tmp_path).parts}
    sources = (f"in/{name}", "in/.csv")
    assert run("cluster", *sources, *QUICK, "--no-report", "-q", "--out", "down/out") == 0
    out = tmp_path / "down" / "out"
    assert len(list(out.iterdir())) == 2
    assert set(tmp_path.rglob("*")) == before | {tmp_path / "down", *tmp_path.glob("down/**/*")}
    assert [path.name for path in (tmp_path / "down").iterdir()] == ["out"]


def test_a_run_that_another_one_overtook(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("cluster", data, *QUICK, "--no-report", "--out", "here")
    assert run(*how, "-q") == 0
    from ncp.clustering.cluster import cluster_many as real

    def slowly(*given: Any, **how: Any) -> Any:
        os.utime("here/summary.json", (1, 1))  # another run
        return real(*given, **how)

    monkeypatch.setattr(batch, "cluster_many", slowly)
    assert run(*how) == 0
    assert "another run wrote here meanwhile" in capsys.readouterr().err


def test_a_file_in_the_way_is_not_overwritten(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "cluster_many", lambda *_, **__: pytest.fail("sampled"))
    Path("labels.csv").write_text("a,b\n1,2\n3,4\n")
    assert run("cluster", "labels.csv", "--out", ".") == BAD_INPUT
    assert "was not written by ncp" in capsys.readouterr().err
    assert Path("labels.csv").read_text() == "a,b\n1,2\n3,4\n"


def test_seed_decides(data: Path) -> None:
    for out in ("one", "two"):
        assert run("cluster", data, *QUICK, "--no-report", "-q", "--seed", 3, "--out", out) == 0
    assert Path("one/labels.csv").read_bytes() == Path("two/labels.csv").read_bytes()


def test_json_for_machines(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cluster", data, *QUICK, "--no-report", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["errors"] == []
    assert printed["results"][0]["n_points"] == 25


def test_quiet_is_quiet(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cluster", data, *QUICK, "--no-report", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_standard_input(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = io.TextIOWrapper(io.BytesIO(data.read_bytes()))
    monkeypatch.setattr(sys, "stdin", fed)
    assert run("cluster", "-", *QUICK, "--columns", "a,c", "--no-report", "-q", "--out", "in") == 0
    assert json.loads(Path("in/summary.json").read_text())["columns"] == ["a", "c"]


def test_one_row(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,b\n1,2\n")
    assert run("cluster", "one.csv", *QUICK, "-q", "--out", "one") == 0
    assert files(Path("one")) == OUTPUTS


def small_tables(folder: Path, count: int) -> None:
    for i in range(count):
        np.savetxt(folder / f"f{i}.csv", np.random.default_rng(i).normal(size=(8, 2)))


def test_many_files_with_a_bad_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BLOCK_FILES", 3)
    small_tables(tmp_path, 7)
    (tmp_path / "f3.csv").write_bytes(b"")
    assert run("cluster", "f*.csv", *QUICK, "--no-report", "--out", "all") == SOME_FAILED
    assert files(Path("all")) == {f"f{i}" for i in range(7) if i != 3}
    printed = capsys.readouterr()
    assert printed.err == "ncp: f3.csv: is empty; a table needs at least one row of numbers\n"


def test_summaries_are_remembered_by_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever files are broken, and of those that are kept, too."""
    monkeypatch.setattr(cli_cluster, "TABLE_ROWS", 2)
    small_tables(tmp_path, 5)
    (tmp_path / "f0.csv").write_bytes(b"")
    remembered = []
    tell = cli_cluster._tell

    def look(jobs: list[batch.Job], *rest: object) -> int:
        remembered.append([bool(job.summary) for job in jobs])
        return tell(jobs, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cli_cluster, "_tell", look)
    for more in ((), ("--resume",)):
        done = run("cluster", "f*.csv", *QUICK, "--no-report", "--out", "all", *more)
        assert done == SOME_FAILED
        printed = capsys.readouterr().out
        assert "... and 2 more" in printed
        assert ("(kept)" in printed) == bool(more)
    assert remembered == [[False, True, True, False, False]] * 2


def test_jobs_without_a_summary_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """As when the results of Dask come in another order."""
    jobs = [batch.Job(f"{i}.csv", f"name{i}", Path("all") / str(i)) for i in range(3)]
    jobs[2].summary = {"sizes": [5], "n_points": 5, "n_clusters": 1, "mean_confidence": 1.0}
    jobs[2].summary["posterior_of_k"] = {"1": 1.0}
    assert cli_cluster._tell(jobs, 1.0, True, False) == 0
    printed = capsys.readouterr().out
    assert "name2" in printed
    assert "... and 2 more" in printed


def test_resume_knows_the_weights_and_looks_for_the_files(data: Path) -> None:
    again = ("cluster", data, *QUICK, "--columns", "a,b", "--no-report", "-q", "--out", "r")
    mine = ("--model", "mine.safetensors", "--resume")

    def redone() -> bool:
        before = Path("r/summary.json").stat().st_mtime_ns if Path("r").exists() else 0
        assert run(*again, *mine) == 0
        return Path("r/summary.json").stat().st_mtime_ns > before

    save_model("mine.safetensors", gaussian(), step=1)
    assert redone()
    assert not redone()
    save_model("mine.safetensors", gaussian(), step=2)
    assert redone()
    for name in ("labels.csv", "samples.npz"):
        Path("r", name).unlink()
        assert redone()
        assert Path("r", name).exists()
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["inputs"]["version"] == ncp.__version__


def test_a_file_in_the_place_of_the_folder(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncp.clustering.batch.cluster_many", lambda *_: pytest.fail("sampled"))
    Path("afile").write_text("")
    for out in ("afile", "afile/below"):
        assert run("cluster", data, "--out", out) == BAD_INPUT
        assert "afile: is a file" in capsys.readouterr().err


def test_the_papers_models_are_measured_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    from ncp.checks.plan import CheckPlan, Targets
    from ncp.checks.report import CheckReport

    plans = []

    def checked(*_: object, plan: CheckPlan, **__: object) -> CheckReport:
        plans.append(plan)
        return CheckReport((), {})

    monkeypatch.setattr("ncp.checks.runner.run_checks", checked)
    monkeypatch.setattr("ncp.output.plots.check_figure", lambda _: None)
    monkeypatch.setattr(cli_check, "save_figure", lambda *_: None)
    save_model("gaussian-2d-paper.safetensors", gaussian())
    assert run("check", "gaussian-2d-paper.safetensors", "--quick", "-q") == 0
    assert run("check", "gaussian-2d", "-q") == 0
    assert [plan.targets for plan in plans] == [Targets.none(), Targets()]
    assert plans[0].sbc_datasets < plans[1].sbc_datasets


def test_resume_skips_what_is_there(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("cluster", data, *QUICK, "--no-report", "-q", "--out", "r") == 0
    before = Path("r/summary.json").stat().st_mtime_ns
    again = ("cluster", data, "--no-report", "-q", "--out", "r", "--resume", "--orders", 2)
    assert run(*again, "--samples", 20) == 0
    assert Path("r/summary.json").stat().st_mtime_ns == before
    assert run(*again, "--samples", 21) == 0  # other settings: done again
    assert Path("r/summary.json").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 9, "binary file"),
        (b"a,b\nx,y\n", "no numeric column"),
        (b"a,b\n1,2\n1,2,3\n", "not a regular table"),
    ],
)
def test_bad_data_is_one_line(
    tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_bytes(content)
    assert run("cluster", "bad.csv", "--out", "never") == BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("ncp: bad.csv: ")
    assert said in error
    assert error.count("\n") == 1
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("cluster",), 2, "Missing argument"),
        (("nonesuch",), 2, "No such command"),
        (("cluster", "data.csv", "--nonesuch"), 2, "No such option"),
        (("cluster", "data.csv", "--samples", "0"), 2, "--samples"),
        (("cluster", "data.csv", "--samples", "many"), 2, "--samples"),
        (("cluster", "nonesuch.csv"), 3, "no such file"),
        (("cluster", "*.nonesuch"), 3, "no file matches"),
        (("cluster", "data.csv", "--model", "nonesuch"), 3, "tabular, gaussian-2d"),
        (("cluster", "data.csv", "--model", "gaussian-2d"), 3, "Expected 2 columns"),
        (("cluster", "data.csv", "--columns", "z"), 3, "its columns are a, b, c, kind"),
        (("cluster", "data.csv", "--noise-sd", "-1"), 3, "noise_sd > 0"),
        (("cluster", "data.csv", "--noise-sd", "1", "--scale", "1"), 3, "scale or noise_sd"),
        (("cluster", "data.csv", "--reweight", "-n", "5"), 3, "joint density"),
        (("check", "nonesuch"), 3, "Expected the name of a model"),
        (("plot-training", "."), 3, "holds no log.jsonl"),
        (("train",), 2, "CONFIG.toml or --resume"),
        (("train", "nonesuch.toml"), 3, "no such file"),
        (("train", "--resume", "."), 3, "no checkpoint"),
    ],
)
def test_mistakes(
    data: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("ncp: ")
    assert error.count("\n") == 1


def test_a_bug_is_one_line_too(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("ncp.clustering.batch.cluster_many", broken)
    assert run("cluster", data, "--out", "never") == BUG
    assert "unexpected RuntimeError: surprise" in capsys.readouterr().err
    assert not Path("never").exists()
    with pytest.raises(RuntimeError, match="surprise"):
        run("--debug", "cluster", data)


def test_a_full_disk_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncp.files import create_file as real

    def full(path: Path, content: bytes) -> None:
        if path.name == "summary.json":
            raise OSError(28, "No space left on device", str(path))
        real(path, content)

    monkeypatch.setattr("ncp.output.folder.create_file", full)
    assert run("cluster", data, *QUICK, "--no-report", "--out", "full") == BAD_INPUT
    assert not Path("full").exists()
    assert {path.name for path in Path().iterdir()} == {"data.csv"}


def test_units_and_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = 0.02 * np.random.default_rng(0).normal(size=(20, 2))
    np.save("cells.npy", x)
    options = ("--model", "gaussian-2d", *QUICK, "--no-report")
    assert run("cluster", "cells.npy", *options) == 0
    assert "noise_sd" in capsys.readouterr().out
    assert run("cluster", "cells.npy", *options, "--noise-sd", 0.02) == 0
    printed = capsys.readouterr().out
    assert "multiplied by 50" in printed
    assert "Warning" not in printed


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models") == 0
    assert "any table: numbers" in capsys.readouterr().out
    assert run("models", "--json") == 0
    assert [card["name"] for card in json.loads(capsys.readouterr().out)] == [
        "tabular",
        "gaussian-2d",
    ]


CONFIG = """
name = "tiny"
log_every = 2
validate_every = 6
[generative]
sizes = [5, 8]
prior = { kind = "CRP", alpha = 0.7 }
likelihood = { kind = "GaussianKnownVariance", dim = 1, prior_sd = 10.0, noise_sd = 1.0 }
[network]
encoder = { kind = "MLPEncoder", width = 8, depth = 2, out = 8 }
g = { width = 8, depth = 2, out = 8 }
f = { width = 8, depth = 2 }
[[phase]]
steps = 6
points_per_step = 60
"""


def test_train_resume_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.toml").write_text(CONFIG)
    assert run("train", "tiny.toml", "--quiet", "--out", "run") == 0
    assert Path("run/tiny.safetensors").exists()
    log = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    measured = next(line for line in log if "held_out_tv" in line)
    assert 0 <= measured["held_out_tv"] <= 1
    assert 0 <= measured["held_out_ess"] <= 1
    assert run("train", "--resume", "run", "--quiet") == 0
    assert run("plot-training", "run", "--out", "curves.png") == 0
    assert Path("curves.png").stat().st_size > 5000
    (tmp_path / "wrong.toml").write_text(CONFIG + "\nunknown = 3\n")
    assert run("train", "wrong.toml") == 3
    assert "unknown" in capsys.readouterr().err


def test_starts_light() -> None:
    """Neither `import ncp` nor `ncp --help` waits for anything heavy."""
    for code in ("import ncp", "from ncp.cli import app; app(['--help'])"):
        look = f"import sys; {code}; print([m for m in {HEAVY!r} if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_reads_like_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    for command in ("cluster", "models", "train", "check", "data"):
        assert command in printed
    assert "Exit codes" in printed
    assert run("--version") == 0
    assert ncp.__version__ in capsys.readouterr().out


def test_public_names() -> None:
    source = Path(ncp.__file__).read_text()
    for name in ncp._HOME_OF:
        assert f"import {name} as {name}\n" in source  # type checkers see it, too
        assert getattr(ncp, name) is not None
        assert name in dir(ncp)
    with pytest.raises(AttributeError, match="nonesuch"):
        ncp.nonesuch  # noqa: B018


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = "import sys; from ncp.cli import app; sys.exit(app(['models']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
