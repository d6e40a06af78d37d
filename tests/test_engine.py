"""Any engine, any blocks, any dying worker: the same samples, nothing lost, nothing twice."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ncp import engine as engines
from ncp.engine import Parcel, map_blocks
from ncp.model import NCP, as_parcel
from ncp.posterior import Partitions
from ncp.sampling import stream as streams
from ncp.sampling.stream import from_bytes, to_bytes
from tests.small_models import gaussian

ROOT = Path(__file__).resolve().parents[1]  # where workers find the tests
Client = pytest.importorskip("distributed").Client


@pytest.fixture(scope="module")
def model() -> NCP:
    return gaussian()


@pytest.fixture(scope="module")
def xs() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [3 * rng.normal(size=(n, 2)) for n in rng.integers(1, 30, size=40)]


def same(a: Partitions, b: Partitions) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("labels", "counts", "log_q")
    )


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """A process of its own, with the environment that Dask gives its workers."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=null, stderr=null)


class Cluster:
    """A scheduler and two workers, each a process that can be killed for good."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "scheduler.json"
        where = ["--scheduler-file", str(self.file), "--no-dashboard", "--port", "0"]
        self.scheduler = start("distributed.cli.dask_scheduler", *where, "--host", "127.0.0.1")
        self.directory = directory
        self.workers = [self.add_worker(), self.add_worker()]

    def add_worker(self) -> subprocess.Popen[bytes]:
        where = ["--scheduler-file", str(self.file), "--no-dashboard", "--no-nanny"]
        place = ["--nthreads", "1", "--local-directory", str(self.directory)]
        return start("distributed.cli.dask_worker", *where, *place)

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    with Client(scheduler_file=str(cluster.file), timeout="60s", set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def test_here_the_blocks_do_not_matter(
    model: NCP, xs: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model.sample_many(xs, 100, orders=3, seed=7)
    monkeypatch.setattr(streams, "BLOCK_SETS", 7)
    seen: list[tuple[int, int]] = []
    how: dict[str, Any] = {"orders": 3, "seed": 7, "progress": lambda *done: seen.append(done)}
    parts = list(model.sample_stream(xs, 100, **how))
    assert [i for i, _ in parts] == list(range(len(xs)))
    assert all(same(a, b) for (_, a), b in zip(parts, whole, strict=True))
    assert seen == [(i + 1, len(xs)) for i in range(len(xs))]
    alone = model.sample_many([xs[11]], 100, orders=3, seed=7, streams=[11])
    assert same(alone[0], whole[11])


def test_two_workers_one_killed_half_way(
    model: NCP, xs: list[np.ndarray], cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK_SETS", 3)
    expected = model.sample_many(xs, 200, orders=2, seed=1)
    seen: list[int] = []
    stream = model.sample_stream(xs, 200, orders=2, seed=1, engine=client)
    for number, samples in stream:
        if len(seen) == len(xs) // 3:
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.workers.append(cluster.add_worker())
        seen.append(number)
        assert same(samples, expected[number])
        np.testing.assert_array_equal(samples.x, expected[number].x)
    assert sorted(seen) == list(range(len(xs)))  # nothing lost, nothing twice


def whoami(model: NCP, block: int) -> tuple[int, int]:
    time.sleep(0.01)
    return os.getpid(), id(model)


def test_the_weights_are_built_once_a_worker(model: NCP, client: Any) -> None:
    found = dict(map_blocks(whoami, range(20), as_parcel(model), engine=client))
    assert sorted(found) == list(range(20))
    assert len(set(found.values())) == len({pid for pid, _ in found.values()}) == 2


def test_a_worker_with_other_code_is_refused(
    model: NCP, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its results are worth, they are not those of this process."""
    for changed in ({"ncp": "of source 0123"}, {"torch": "1.0"}):
        here = engines.versions("ncp") | changed
        monkeypatch.setattr(engines, "versions", lambda package, here=here: here)
        with pytest.raises(ValueError, match=r"Expected Dask workers with (ncp of source|torch)"):
            model.sample_many([[[0.0, 1.0]]], 5, engine=client)
        monkeypatch.undo()


def test_the_hash_of_a_package_sees_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_package" / "below").mkdir(parents=True)
    for name in ("__init__.py", "below/kernels.py"):
        (tmp_path / "some_package" / name).write_text("x = 1\n")
    before = engines.versions("some_package")
    assert before["some_package"].startswith("of source ")
    engines.versions.cache_clear()
    assert engines.versions("some_package") == before
    engines.versions.cache_clear()
    (tmp_path / "some_package" / "below" / "kernels.py").write_text("x = 2\n")
    assert engines.versions("some_package") != before


def test_no_scheduler_and_no_worker(
    model: NCP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 1)
    with pytest.raises(ValueError, match=r"Expected a Dask scheduler at 'tcp://127.0.0.1:9' but"):
        model.sample_many([[[0.0, 1.0]]], 5, engine="dask", address="tcp://127.0.0.1:9")
    file = tmp_path / "scheduler.json"
    where = ["--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1", "--port", "0"]
    scheduler = start("distributed.cli.dask_scheduler", *where)
    try:
        while not file.exists():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with pytest.raises(ValueError, match=r"Expected a Dask worker at .* but none came"):
            model.sample_many([[[0.0, 1.0]]], 5, engine="dask", address=address)
    finally:
        scheduler.kill()
        scheduler.wait()


def test_a_scheduler_that_is_killed(
    model: NCP, xs: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK_SETS", 1)
    dask = pytest.importorskip("dask")
    short_lived = Cluster(tmp_path)
    try:
        while not short_lived.file.exists():
            time.sleep(0.05)
        address = json.loads(short_lived.file.read_text())["address"]
        stream = model.sample_stream(xs * 50, 50, seed=0, engine="dask", address=address)
        next(stream)
        short_lived.scheduler.kill()
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
            pytest.raises(ConnectionError, match=r"Dask scheduler .* went away"),
        ):
            list(stream)
    finally:
        short_lived.stop()


# -- processes of this machine -----------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Addresses that a process listens at."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(path))
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


LIGHT = """
import os, time
def pack(value): return b""
def unpack(content): return 0
def slowly(_, block):
    time.sleep(0.1)
    return os.getpid()
"""
PARENT = """
from ncp.engine import Parcel, map_blocks
from light_work import *
if __name__ == "__main__":
    for _, pid in map_blocks(slowly, range(10**6), Parcel(0, pack, unpack), engine="processes"):
        print(pid, flush=True)
"""


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module whose import takes no time, found by other processes, too."""
    (tmp_path / "light_work.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("light_work")


@pytest.mark.parametrize("engine", ["processes", "dask"])
def test_nothing_listens_on_this_machine(light: Any, engine: str) -> None:
    before = listening(os.getpid())  # of a client of another test, perhaps
    found = []
    parcel = Parcel(0, light.pack, light.unpack)
    for _, pid in map_blocks(light.slowly, range(8), parcel, engine=engine):
        with suppress(FileNotFoundError):
            assert listening(pid) == []
        assert listening(os.getpid()) == before
        found.append(pid)
    assert os.getpid() not in found
    assert len(found) == 8


def test_processes_end_with_their_parent(light: Any, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_is_killed(model: NCP, xs: list[np.ndarray], monkeypatch: Any) -> None:
    monkeypatch.setattr(streams, "BLOCK_SETS", 2)
    expected = model.sample_many(xs, 50, seed=1)
    seen: list[int] = []
    for number, samples in model.sample_stream(xs, 50, seed=1, engine="processes"):
        if len(seen) == len(xs) // 4:
            for process in multiprocessing.active_children():
                os.kill(process.pid or 0, signal.SIGKILL)
        seen.append(number)
        assert same(samples, expected[number])
    assert sorted(seen) == list(range(len(xs)))
    patience = time.monotonic() + 20  # a broken pool is cleared away by a thread of its own
    while multiprocessing.active_children() and time.monotonic() < patience:
        time.sleep(0.1)
    assert multiprocessing.active_children() == []


def test_a_pool_that_is_found_broken_loses_nothing(
    model: NCP, xs: list[np.ndarray], monkeypatch: Any
) -> None:
    """The block that was to be handed over next has been taken already."""
    monkeypatch.setattr(streams, "BLOCK_SETS", 2)
    submit, calls = futures.ProcessPoolExecutor.submit, []

    def to_a_broken_pool(pool: Any, *task: Any) -> Any:
        calls.append(task)
        if len(calls) == 5:
            raise futures.process.BrokenProcessPool("killed")
        return submit(pool, *task)

    monkeypatch.setattr(futures.ProcessPoolExecutor, "submit", to_a_broken_pool)
    seen = [number for number, _ in model.sample_stream(xs, 5, seed=1, engine="processes")]
    assert sorted(seen) == list(range(len(xs)))
    assert len(calls) > 5


def test_by_address(model: NCP, client: Any, xs: list[np.ndarray]) -> None:
    address = client.scheduler.address
    found = model.sample_many(xs[:5], 50, seed=2, engine="dask", address=address)
    assert all(
        same(a, b) for a, b in zip(found, model.sample_many(xs[:5], 50, seed=2), strict=True)
    )


def test_a_stream_is_taken_up_as_it_is_needed(
    model: NCP, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK_SETS", 1)
    taken: list[int] = []

    def endless() -> Iterator[list[list[float]]]:
        while True:
            taken.append(1)
            yield [[0.0, 1.0], [2.0, 3.0]]

    stream = model.sample_stream(endless(), 10, seed=0, engine=client)
    for _ in range(5):
        next(stream)
    stream.close()
    assert len(taken) < 5 + 4 * 2 * engines.AHEAD


def test_errors_name_the_data_set(model: NCP, client: Any) -> None:
    bad = [[[0.0, 1.0]], [[np.nan, 1.0]]]
    for engine in (None, client):
        with pytest.raises(ValueError, match="Data set 1: Expected finite"):
            list(model.sample_stream(bad, 10, engine=engine))


def test_wrong_engines_are_refused(model: NCP) -> None:
    for engine, address in (("spark", None), (3, None), (None, "tcp://127.0.0.1:1")):
        with pytest.raises(ValueError, match="Expected engine"):
            model.sample_many([[[0.0, 1.0]]], 5, engine=engine, address=address)


def test_a_model_travels_without_its_mixture(model: NCP) -> None:
    bare = to_bytes(model, with_mixture=False)
    assert len(bare) < len(to_bytes(model))
    copy = from_bytes(bare, NCP)
    assert copy.mixture is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor)
