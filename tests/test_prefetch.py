"""Data drawn ahead by a process of its own: the same data, and it ends when it should."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from ncp.training.data import draw
from ncp.training.loop import train
from ncp.training.prefetch import Prefetcher
from ncp.training.recipe import Recipe
from tests.test_training import ROOT, log_of, same, tiny


def check_same_data(recipe: Recipe, ahead: Prefetcher, rollbacks: int, step: int) -> None:
    found, expected = ahead.next(rollbacks, step), draw(recipe, rollbacks, ahead.rank, step)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.tail_only == b.tail_only
        for x, y in zip(a[:5], b[:5], strict=True):
            assert (x is None) == (y is None)
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
                assert x.dtype == y.dtype
                assert x.stride() == y.stride()
                assert torch.equal(x, y)


def test_the_same_data_whatever_is_asked_for() -> None:
    options = {"exact_up_to": 6, "rao_blackwell": 2, "hard_examples": 0.5, "pairwise": 1.0}
    recipe = tiny(prefetch=3, steps=8, **options)
    with Prefetcher(recipe, rank=1) as ahead:
        for step in (0, 1, 2):
            check_same_data(recipe, ahead, 0, step)
        for step in (1, 2, 3, 4):  # rolled back
            check_same_data(recipe, ahead, 1, step)
        for step in (6, 7):
            check_same_data(recipe, ahead, 1, step)
        assert not ahead.asked  # nothing beyond the end of the recipe
        process = ahead.process
    assert not process.is_alive()
    assert not multiprocessing.active_children()


def test_prefetching_changes_nothing(tmp_path: Path) -> None:
    plain = train(tiny(), tmp_path / "plain", progress=False)
    train(tiny(prefetch=3), tmp_path / "ahead", progress=False, seconds=0.0)
    ahead = train(tiny(prefetch=3), tmp_path / "ahead", progress=False, resume=True)
    assert same(plain, ahead)


def test_when_the_process_is_gone_this_one_draws() -> None:
    recipe = tiny(prefetch=2)
    with Prefetcher(recipe) as ahead:
        check_same_data(recipe, ahead, 0, 0)
        ahead.process.kill()
        ahead.process.join()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for step in (1, 2, 3, 4, 5):
                check_same_data(recipe, ahead, 0, step)
    assert [str(one.message) for one in said] == ["The process that draws data ahead has ended"]


def test_what_cannot_be_drawn_is_said_here() -> None:
    recipe = tiny(prefetch=1)
    object.__setattr__(recipe.generative.given().prior, "alpha", "much")
    with Prefetcher(recipe) as ahead, pytest.raises(TypeError):
        ahead.next(0, 0)


SCRIPT = """
import json, sys

if __name__ == "__main__":
    from ncp.training.loop import train
    from ncp.training.recipe import Recipe

    train(Recipe.from_dict(json.loads(sys.argv[1])), sys.argv[2], progress=False)
"""


def children(pid: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_training_ends_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    recipe = json.dumps(tiny(prefetch=2, steps=1_000_000, log_every=1).to_dict())
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), recipe, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    log = tmp_path / "run" / "log.jsonl"
    while not log.exists() or len(log.read_text().splitlines()) < 3:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = children(run.pid)
    assert started
    if number == signal.SIGKILL:
        os.kill(run.pid, number)
    else:
        os.killpg(run.pid, number)  # as the terminal does
    _, errors = run.communicate(timeout=60)
    if number == signal.SIGINT:
        assert errors == ""
    assert run.returncode == (-number if number == signal.SIGKILL else 0)
    while any(is_running(child) for child in started):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if number != signal.SIGKILL:
        assert log_of(tmp_path / "run")
