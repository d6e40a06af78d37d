"""What may go wrong while training: resume or a clear error, and the last good checkpoint stays."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from ncp.files import temporary_name
from ncp.model import load_model
from ncp.network.checkpoint import read
from ncp.network.network import Network
from ncp.training import data
from ncp.training.data import Sequences
from ncp.training.loop import train
from ncp.training.recipe import Recipe
from ncp.training.state import checkpoints
from tests.test_training import log_of, same, tiny

FORK = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    FORK.set_forkserver_preload(["ncp.training.loop", "tests.test_faults"])


def go_on(plain: dict[str, Any], directory: str) -> None:
    """Start a run, or go on with it, in a process of its own."""
    torch.set_num_threads(1)
    train(
        Recipe.from_dict(plain),
        directory,
        resume=bool(checkpoints(Path(directory))),
        progress=False,
    )


def start(run: Recipe, directory: Path) -> BaseProcess:
    process = FORK.Process(target=go_on, args=(run.to_dict(), str(directory)))
    process.start()
    return process


def newest(directory: Path) -> int:
    found = checkpoints(directory) if directory.exists() else []
    return int(found[-1].stem.rsplit("-", 1)[1]) if found else -1


def wait_for_progress(process: BaseProcess, directory: Path, beyond: int) -> None:
    deadline = time.monotonic() + 120
    while process.is_alive() and newest(directory) <= beyond:
        assert time.monotonic() < deadline
        time.sleep(0.001)


# -- SIGKILL -------------------------------------------------------------------------------------


def kill_and_resume(tmp_path: Path, n_kills: int, steps: int, seed: int) -> None:
    rng = random.Random(seed)
    run = tiny(steps=steps, checkpoint_seconds=0.0, ema=0.9, log_every=1, validate_every=steps)
    whole = start(run, tmp_path / "whole")
    killed = 0
    while killed < n_kills:
        before = newest(tmp_path / "parts")
        process = start(run, tmp_path / "parts")
        if rng.random() < 0.8:  # else: anywhere from the start of the process on
            wait_for_progress(process, tmp_path / "parts", before)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        assert newest(tmp_path / "parts") < steps, "finished before it could be killed"
    last = start(run, tmp_path / "parts")
    for process in (whole, last):
        process.join()
        assert process.exitcode == 0
    for name in ("tiny.safetensors", checkpoints(tmp_path / "whole")[-1].name):
        a, b = read(tmp_path / "whole" / name), read(tmp_path / "parts" / name)
        for mine, other in ((a.weights, b.weights), (a.state, b.state)):
            assert set(mine) == set(other)
            assert all(torch.equal(mine[key], other[key]) for key in mine)
    lines = [line for line in log_of(tmp_path / "parts") if "nll" in line]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    exact = [line for line in log_of(tmp_path / "whole") if "nll" in line]
    assert [line["nll"] for line in lines] == [line["nll"] for line in exact]
    assert not list((tmp_path / "parts").glob(".*"))


def test_four_kills_change_nothing(tmp_path: Path, seed: int) -> None:
    kill_and_resume(tmp_path, n_kills=4, steps=40, seed=seed)


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path, seed: int) -> None:
    kill_and_resume(tmp_path, n_kills=20, steps=200, seed=seed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    run = tiny(steps=1_000_000, log_every=1)
    process = start(run, tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "log.jsonl").exists() or len(log_of_some(tmp_path)) < 3:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 0
    step = newest(tmp_path)
    assert step >= 3
    assert log_of(tmp_path)[-1]["step"] == step
    load_model(tmp_path / "tiny.safetensors")


def log_of_some(directory: Path) -> list[str]:
    return (directory / "log.jsonl").read_text().splitlines()


# -- bad files -----------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path) -> tuple[Path, Network]:
    """A run with checkpoints at steps 3, 4 and 5 of 8, and what it should become."""
    run = tiny(steps=8)
    whole = train(run, tmp_path / "whole", progress=False)
    directory = tmp_path / "half"
    train(run, directory, progress=False, seconds=0.0)
    for _ in range(4):
        train(run, directory, progress=False, resume=True, seconds=0.0)
    assert newest(directory) == 5
    return directory, whole


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        path.write_bytes(b"something else altogether" * 100)
    elif how == "not a number":
        values = bytearray(content)
        values[-len(content) // 2 :] = b"\xff" * (len(content) // 2)
        path.write_bytes(values)
    elif how == "another model":
        other = tiny().to_dict()
        other["network"]["g"]["width"] = 16
        directory = path.parent.parent / "other"
        train(Recipe.from_dict(other), directory, progress=False, seconds=0.0)
        path.write_bytes(checkpoints(directory)[-1].read_bytes())
    elif how == "weights only":
        path.write_bytes((path.parent / "tiny.safetensors").read_bytes())


@pytest.mark.parametrize(
    "how", ["truncated", "empty", "foreign", "not a number", "another model", "weights only"]
)
def test_a_spoilt_checkpoint_is_refused_and_the_one_before_used(
    half: tuple[Path, Network], how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, whole = half
    spoilt = checkpoints(directory)[-1]
    spoil(spoilt, how)
    model = train(tiny(steps=8), directory, progress=False, resume=True)
    assert f"Skipping {spoilt.name}: Expected" in capsys.readouterr().out
    assert same(model, whole)
    assert spoilt.with_suffix(".unreadable").exists()


def test_good_checkpoints_outlive_any_number_of_newer_spoilt_ones(
    half: tuple[Path, Network],
) -> None:
    directory, _ = half
    for step in (100, 200, 300, 400):
        (directory / f"checkpoint-{step:08d}.safetensors").write_bytes(b"spoilt")
    train(tiny(steps=8), directory, progress=False, resume=True, seconds=0.0)
    assert newest(directory) == 6
    read(checkpoints(directory)[-1])


def test_resuming_removes_what_was_torn_and_nothing_else(half: tuple[Path, Network]) -> None:
    directory, _ = half
    torn = [temporary_name(name) for name in ("log.jsonl", "checkpoint-00000009.safetensors")]
    for name in (*torn, ".log.jsonl.mine", ".old.safetensors.bak"):
        (directory / name).write_bytes(b"")
    train(tiny(steps=8), directory, progress=False, resume=True)
    left = sorted(path.name for path in directory.glob(".*"))
    assert left == [".log.jsonl.mine", ".old.safetensors.bak"]


def test_no_good_checkpoint_is_a_clear_error_that_touches_nothing(
    half: tuple[Path, Network], tmp_path: Path
) -> None:
    directory, _ = half
    for path in checkpoints(directory):
        spoil(path, "truncated")
    files = sorted(os.listdir(directory))
    for place in (directory, tmp_path / "absent"):
        with pytest.raises(ValueError, match="Expected a readable checkpoint"):
            train(tiny(steps=8), place, progress=False, resume=True)
    assert sorted(os.listdir(directory)) == files


def test_a_jumping_clock_changes_nothing(
    half: tuple[Path, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, whole = half
    for i, path in enumerate(checkpoints(directory)):
        os.utime(path, (4e9 - 1e9 * i, 4e9 - 1e9 * i))  # the oldest is the newest by the clock
    wild = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: wild.uniform(-1e9, 1e10))
    assert same(train(tiny(steps=8), directory, progress=False, resume=True), whole)
    assert all(line.get("seconds", 0) < 1000 for line in log_of(directory))


# -- no room -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_when_nothing_can_be_written_the_last_checkpoint_stays(
    half: tuple[Path, Network], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    directory, whole = half

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="can be resumed from checkpoint-00000005"):
        train(tiny(steps=8), directory, progress=False, resume=True)
    monkeypatch.undo()
    assert not list(directory.glob(".*"))
    assert same(train(tiny(steps=8), directory, progress=False, resume=True), whole)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that holds a few checkpoints only."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(disk: Path, tmp_path: Path) -> None:
    run = tiny(steps=8, checkpoint_seconds=0.0)
    whole = train(run, tmp_path / "whole", progress=False)
    train(run, disk / "run", progress=False, seconds=0.0)
    step = newest(disk / "run")
    (disk / "ballast").write_bytes(b"\0" * (os.statvfs(disk).f_bavail * 4096 - 8192))
    with pytest.raises(OSError, match="No space left on device; the run stops"):
        train(run, disk / "run", progress=False, resume=True)
    assert newest(disk / "run") == step
    (disk / "ballast").unlink()
    assert same(train(run, disk / "run", progress=False, resume=True), whole)


def test_a_read_only_disk(disk: Path) -> None:
    run = tiny(steps=8)
    train(run, disk / "run", progress=False, seconds=0.0)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(OSError, match="Read-only file system; the run stops"):
        train(run, disk / "run", progress=False, resume=True)
    with pytest.raises(OSError, match="Read-only file system; the run stops"):
        train(run, disk / "other", progress=False)
    load_model(disk / "run" / "tiny.safetensors")
    read(checkpoints(disk / "run")[-1])


# -- not a number --------------------------------------------------------------------------------


def spoil_data(monkeypatch: pytest.MonkeyPatch, steps: range, rollbacks: range = range(1)) -> None:
    honest = data.draw

    def draw(run: Recipe, *key: int) -> list[Sequences]:
        pieces = honest(run, *key)
        if key[0] in rollbacks and key[2] in steps:
            pieces[0].x[0, 0] = torch.nan
        return pieces

    monkeypatch.setattr(data, "draw", draw)


def test_a_bad_step_is_reported_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_data(monkeypatch, range(4, 7))
    model = train(tiny(), tmp_path, progress=False)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    events = [(line["step"], line["event"]) for line in log_of(tmp_path) if "event" in line]
    assert events == [(step, "non-finite step skipped") for step in (5, 6, 7)]
    assert read(checkpoints(tmp_path)[-1]).info["rollbacks"] == 0


def test_bad_steps_in_a_row_roll_back_at_half_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_data(monkeypatch, range(4, 100))
    train(tiny(checkpoint_seconds=0.0), tmp_path, progress=False)
    info = read(checkpoints(tmp_path)[-1]).info
    assert (info["step"], info["rollbacks"], info["rate_factor"]) == (12, 1, 0.5)
    events = [line for line in log_of(tmp_path) if "event" in line]
    assert events == [{"step": 4, "event": "rolled back from step 9, half the learning rate"}]
    rates = [line["learning_rate"] for line in log_of(tmp_path) if "nll" in line]
    assert len(rates) == 4
    assert max(rates[1:]) < 0.6 * max(rates)


def test_spoilt_weights_are_not_kept(tmp_path: Path) -> None:
    seen = []

    def validate(model: Network) -> dict[str, float]:
        seen.append(1)
        if len(seen) == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
        return {}

    model = train(
        tiny(ema=0.0, checkpoint_seconds=0.0), tmp_path, progress=False, validate=validate
    )
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert read(checkpoints(tmp_path)[-1]).info["rollbacks"] == 1
    for path in [*checkpoints(tmp_path), tmp_path / "tiny.safetensors"]:
        read(path).build(Network)


def test_a_hopeless_run_gives_up_and_leaves_its_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_data(monkeypatch, range(4, 100), rollbacks=range(100))
    with pytest.raises(RuntimeError, match="giving up"):
        train(tiny(checkpoint_seconds=0.0), tmp_path, progress=False)
    assert newest(tmp_path) == 4
    read(checkpoints(tmp_path)[-1]).build(Network)


def test_weights_that_overflow_are_neither_saved_nor_shipped(tmp_path: Path) -> None:
    run = tiny(steps=1, ema=0.0)
    with pytest.raises(RuntimeError, match="not finite after step 1"):
        train(run, tmp_path, progress=False, validate=explode)
    assert newest(tmp_path) == 0
    assert not (tmp_path / "tiny.safetensors").exists()


def explode(model: Network) -> dict[str, float]:
    with torch.no_grad():
        next(model.parameters()).mul_(torch.inf)
    return {}


def test_monitors_that_are_not_numbers_are_null_in_the_log(tmp_path: Path) -> None:
    train(tiny(), tmp_path, progress=False, validate=lambda model: {"lost": float("nan")})
    text = (tmp_path / "log.jsonl").read_text()
    assert "NaN" not in text
    assert {"lost": None}.items() <= json.loads(text.splitlines()[-1]).items()
