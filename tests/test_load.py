"""`ncp cluster` over many files: killed, resumed, on Dask, by the thousand; and large tables."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ncp import cli
from ncp.checks import runner
from ncp.checks.report import CheckReport, CheckRow
from ncp.cli.common import CHECK_FAILED
from ncp.clustering import batch
from ncp.clustering.cluster import cluster
from ncp.generative import mnist as datasets
from ncp.network.checkpoint import save_model
from ncp.output import readers
from ncp.output.terminal import bars
from tests.small_models import gaussian

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = {"labels.csv", "samples.npz", "summary.json"}
QUICK = ["--samples", "8", "--orders", "1", "--no-report", "--no-reweight", "--estimate", "map"]
RUN = "import sys; from ncp.cli import app; sys.exit(app())"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    save_model(path, gaussian())
    return path


def write_data(directory: Path, n_files: int, largest: int) -> list[Path]:
    rng = np.random.default_rng(0)
    directory.mkdir()
    paths = [directory / f"{i:05d}.csv" for i in range(n_files)]
    for path in paths:
        rows = 3 * rng.normal(size=(rng.integers(5, largest), 2))
        path.write_text("a,b\n" + "".join(f"{a:.6f},{b:.6f}\n" for a, b in rows))
    return paths


def command(data: Path, model: Path, out: Path, *more: str) -> list[str]:
    pattern = str(data / "*.csv")
    return ["cluster", pattern, "--model", str(model), "--out", str(out), *QUICK, *more]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdout=null, stderr=null, env=environment
    )


def folders(out: Path) -> Iterator[Path]:
    yield from (path for path in out.iterdir() if not path.name.startswith("."))


def results(out: Path) -> dict[str, bytes]:
    return {folder.name: (folder / "labels.csv").read_bytes() for folder in folders(out)}


def test_killed_half_way_and_resumed(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out, whole = tmp_path / "data", tmp_path / "out", tmp_path / "whole"
    paths = write_data(data, 200, 12)
    process = start(command(data, model, out))
    deadline = time.monotonic() + 300
    while not out.is_dir() or len(list(folders(out))) < 40:
        assert process.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = list(folders(out))
    assert 40 <= len(done) < 200
    for folder in done:
        assert {path.name for path in folder.iterdir()} == OUTPUTS
        json.loads((folder / "summary.json").read_text())
    stamps = {folder: (folder / "summary.json").stat().st_mtime_ns for folder in done}
    mine = out / f".{paths[150].stem}.00000000"  # looks a little like a temporary folder of ours
    mine.mkdir()

    assert cli.app(command(data, model, out, "--resume", "--quiet")) == 0
    assert set(out.iterdir()) - set(folders(out)) == {mine}
    assert len(list(folders(out))) == 200
    for folder, stamp in stamps.items():
        assert (folder / "summary.json").stat().st_mtime_ns == stamp
    assert cli.app(command(data, model, whole, "--quiet")) == 0
    assert results(out) == results(whole)

    # one of them alone, in no company, is clustered alike
    alone = ["cluster", str(paths[123]), "--model", str(model), "--out", str(tmp_path / "alone")]
    assert cli.app([*alone, *QUICK, "--quiet"]) == 0
    assert (tmp_path / "alone" / "labels.csv").read_bytes() == results(whole)[paths[123].stem]


def test_the_same_on_dask(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    data = tmp_path / "data"
    write_data(data, 12, 12)
    assert cli.app(command(data, model, tmp_path / "here", "--quiet")) == 0
    monkeypatch.setattr(batch, "BLOCK_FILES", 3)
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(processes=True, **how) as cluster:
        there = ["--engine", "dask", "--address", cluster.scheduler_address, "--quiet"]
        assert cli.app(command(data, model, tmp_path / "there", *there)) == 0
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert len(results(tmp_path / "there")) == 12


def test_an_address_of_nobody(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    write_data(data, 1, 6)
    assert cli.app(command(data, model, tmp_path / "out", "--address", "tcp://127.0.0.1:9")) == 3
    assert "--engine dask" in capsys.readouterr().err


MEASURED = """
import sys
from ncp.cli import app
code = app()
status = open("/proc/self/status").read()  # ru_maxrss would count the parent as well
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
sys.exit(code)
"""


def peak_of(arguments: list[str]) -> int:
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout.split()[-1])


@pytest.mark.slow
def test_ten_thousand_data_sets_in_one_call(tmp_path: Path, model: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    write_data(few, 500, 200)
    paths = write_data(many, 10_000, 200)
    out = tmp_path / "out"
    less = peak_of(command(few, model, tmp_path / "out-few", "--quiet"))
    more = peak_of(command(many, model, out, "--quiet"))
    assert more < less + 150 * 2**20  # flat
    assert len(results(out)) == 10_000
    for path in paths[::1000]:
        alone = tmp_path / "alone" / path.stem
        arguments = ["cluster", str(path), "--model", str(model), "--out", str(alone)]
        assert cli.app([*arguments, *QUICK, "--quiet"]) == 0
        assert (alone / "labels.csv").read_bytes() == (out / path.stem / "labels.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_columns"), [(20_000, 3), (100_000, 5)])
def test_large_tables(n: int, n_columns: int, seed: int) -> None:
    """A part is clustered, and says so; every row gets a label."""
    rng = np.random.default_rng(seed)
    centres = 6 * rng.normal(size=(4, n_columns))
    x = centres[rng.integers(0, 4, n)] + rng.normal(size=(n, n_columns))
    started = time.perf_counter()
    found = cluster(x, seed=0)
    print(f"{n:,} rows x {n_columns} columns: {time.perf_counter() - started:.1f} s")
    assert found.labels.shape == (n,)
    assert (found.labels >= 0).all()
    assert np.isfinite(found.confidence).all()
    assert any(f"of the {n:,} rows were clustered" in note for note in found.notes)


# -- the terminal ----------------------------------------------------------------------------------


def test_progress_shows_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with bars(True) as tell:
        for done in range(4):
            tell("sampling", done, 3600)
            time.sleep(0.15)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "sampling" in shown
    assert re.search(r"\d:\d\d:\d\d", shown)
    with bars(False) as tell:
        tell("sampling", 1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("passed", [True, False])
def test_check_through_the_command_line(
    passed: bool,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The checks themselves are tested elsewhere; an untrained network passes none."""
    row = CheckRow("KL", 0.004, "<= 0.01", passed, "distance")
    found = CheckReport((row,))
    monkeypatch.setattr(runner, "run_checks", lambda *_, **__: found)
    monkeypatch.setattr("ncp.output.plots.check_figure", lambda report: some_figure())
    out = tmp_path / "out"
    code = cli.app(["check", str(model), "--quick", "--out", str(out)])
    assert code == (0 if passed else CHECK_FAILED)
    assert {path.name for path in out.iterdir()} == {"check.json", "check.png"}
    assert json.loads((out / "check.json").read_text())["passed"] is passed
    assert "distance" in capsys.readouterr().out


def some_figure() -> object:
    from matplotlib.figure import Figure

    return Figure(figsize=(1, 1))


def test_mnist_in_a_folder_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def idx(values: np.ndarray) -> bytes:
        shape = b"".join(n.to_bytes(4, "big") for n in values.shape)
        return bytes([0, 0, 8, values.ndim]) + shape + values.tobytes()

    sizes = [(5, 28, 28), (5,), (3, 28, 28), (3,)]
    files = {
        name: idx(np.ones(size, np.uint8))
        for name, size in zip(datasets.SHA256, sizes, strict=True)
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(datasets, "SHA256", hashes)
    assert cli.app(["data", "mnist", str(tmp_path)]) == 0
    assert f"MNIST: 5 + 3 images in {tmp_path}" in capsys.readouterr().out


# -- archives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "gzip"])
def test_what_unpacks_to_too_much_is_refused(kind: str) -> None:
    import gzip
    import io

    buffer = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(buffer, x=np.zeros((2**18, 2)))
        content = buffer.getvalue()
    else:
        content = gzip.compress(b"1,2\n" * 2**19)
    assert len(content) < 2**14
    with pytest.raises(ValueError, match="--max-memory"):
        readers.read_table("file", content, max_memory=2**20)


def test_a_header_that_promises_too_much_is_refused() -> None:
    from tests.fuzz import lying_npy, zipped

    file = lying_npy((2**40, 2**20), "<f8")
    for content in (file, zipped([("x.npy", file)])):
        with pytest.raises(ValueError, match="takes about"):
            readers.read_table("file", content)
