"""Any engine, any blocks, any dying worker: the same samples, nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ncp.engines
from ncp.engines import gather, model_bytes, run, sample_stream
from ncp.model import NCP
from ncp.posterior import Partitions
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
        where = ["--scheduler-file", str(self.file), "--no-dashboard"]
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
    monkeypatch.setattr(ncp.engines, "BLOCK_SETS", 7)
    seen: list[tuple[int, int]] = []
    how: dict[str, Any] = {"orders": 3, "seed": 7, "progress": lambda *done: seen.append(done)}
    parts = list(sample_stream(model, xs, 100, **how))
    assert [i for i, _ in parts] == list(range(len(xs)))
    assert all(same(a, b) for (_, a), b in zip(parts, whole, strict=True))
    assert seen == [(i + 1, len(xs)) for i in range(len(xs))]
    alone = ncp.sampling.tree.sample_many(model, [xs[11]], 100, orders=3, seed=7, streams=[11])
    assert same(alone[0], whole[11])


def test_two_workers_one_killed_half_way(
    model: NCP, xs: list[np.ndarray], cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncp.engines, "BLOCK_SETS", 3)
    expected = model.sample_many(xs, 200, orders=2, seed=1)
    seen: list[int] = []
    stream = sample_stream(model, xs, 200, orders=2, seed=1, engine=client)
    for number, samples in stream:
        if len(seen) == len(xs) // 3:
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.workers.append(cluster.add_worker())
        seen.append(number)
        assert same(samples, expected[number])
        np.testing.assert_array_equal(samples.x, expected[number].x)
    assert sorted(seen) == list(range(len(xs)))  # nothing lost, nothing twice


def whoami(model: NCP, numbers: list[int], items: list[Any]) -> list[Any]:
    time.sleep(0.01)
    return [(os.getpid(), id(model)) for _ in items]


def test_the_weights_are_built_once_a_worker(model: NCP, client: Any) -> None:
    blocks = [[(i, None)] for i in range(20)]
    found = dict(run(whoami, model, blocks, client))
    assert sorted(found) == list(range(20))
    assert len(set(found.values())) == len({pid for pid, _ in found.values()}) == 2


def test_by_address(model: NCP, client: Any, xs: list[np.ndarray]) -> None:
    address = client.scheduler.address
    found = model.sample_many(xs[:5], 50, seed=2, engine="dask", address=address)
    assert all(
        same(a, b) for a, b in zip(found, model.sample_many(xs[:5], 50, seed=2), strict=True)
    )


def test_a_stream_is_taken_up_as_it_is_needed(
    model: NCP, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncp.engines, "BLOCK_SETS", 1)
    taken: list[int] = []

    def endless() -> Iterator[list[list[float]]]:
        while True:
            taken.append(1)
            yield [[0.0, 1.0], [2.0, 3.0]]

    stream = sample_stream(model, endless(), 10, seed=0, engine=client)
    for _ in range(5):
        next(stream)
    stream.close()
    assert len(taken) < 5 + 4 * 2 * ncp.engines.AHEAD


def test_errors_name_the_data_set(model: NCP, client: Any) -> None:
    bad = [[[0.0, 1.0]], [[np.nan, 1.0]]]
    for engine in (None, client):
        with pytest.raises(ValueError, match="Data set 1: Expected finite"):
            list(sample_stream(model, bad, 10, engine=engine))


def test_wrong_engines_are_refused(model: NCP) -> None:
    for engine, address in (("spark", None), (3, None), (None, "tcp://127.0.0.1:1")):
        with pytest.raises(ValueError, match="Expected engine"):
            gather(model, [[[0.0, 1.0]]], 5, engine=engine, address=address)


def test_a_model_travels_without_its_mixture(model: NCP) -> None:
    assert len(model_bytes(model, with_mixture=False)) < len(model_bytes(model))
    copy = ncp.engines._build(model_bytes(model, with_mixture=False), "digest")
    assert copy.mixture is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor)
