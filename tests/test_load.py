"""`ncp cluster` over many files: killed, resumed, on Dask, by the thousand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ncp import _partitions_files, _readers, cli
from ncp.checkpoint import save_model
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
    (out / f".{paths[150].stem}.00000000").mkdir()  # what a kill in the middle of a write leaves

    assert cli.app(command(data, model, out, "--resume", "--quiet")) == 0
    assert len(list(out.iterdir())) == 200
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
    monkeypatch.setattr(cli, "BLOCK_FILES", 3)
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
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


# -- archives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "gzip"])
def test_what_unpacks_to_too_much_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import io

    monkeypatch.setattr(_partitions_files, "LARGEST", 2**20)
    buffer = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(buffer, x=np.zeros((2**18, 2)))
        content = buffer.getvalue()
    else:
        content = gzip.compress(b"1,2\n" * 2**19)
    assert len(content) < 2**14
    with pytest.raises(ValueError, match="unpacks to more than"):
        _readers.read_table("file", content)


def test_a_header_that_promises_too_much_is_refused() -> None:
    from tests.fuzz import lying_npy, zipped

    file = lying_npy((2**40, 2**20), "<f8")
    for content in (file, zipped([("x.npy", file)])):
        with pytest.raises(ValueError, match="not a complete NumPy file"):
            _readers.read_table("file", content)
