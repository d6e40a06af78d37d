"""Compiled functions are kept on disk if that is possible, and never wrong or missing for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config
from numba.core.errors import TypingError
from numba.core.event import Event, Listener, install_listener

from ncp.compiled import INSIDE, exp_minus, log1p, njit

CALLED = "from ncp.compiled import njit\n@njit\ndef step(x):\n    return x + {}\n"
CALLER = """
from called import step
from ncp.compiled import njit
@njit(fastmath=True)
def twice(x):
    return step(step(x))
"""
RUN = """
import sys
from caller import twice
print(twice(int(sys.argv[1])), sum(twice.stats.cache_hits.values()))
"""
ELSEWHERE = """
import sys
import caller
from ncp.compiled import compile_elsewhere
sys.executable = {}
compile_elsewhere(caller.twice, caller.types)
compile_elsewhere(caller.twice, caller.types)
"""
TYPES = "\nimport numba\ndef types():\n    return (numba.int64,)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "called.py").write_text(CALLED.format(1))
    (tmp_path / "caller.py").write_text(CALLER)
    return tmp_path


def run(folder: Path, code: str = RUN, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code, "5"],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
    )


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.nbc"))


def test_a_process_that_compiles_says_so_once(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import logging\nlogging.basicConfig(level=20)\n")
    assert run(folder).stderr.count("compiling for this machine") == 1  # two functions are
    assert run(folder).stderr == ""


def test_a_second_process_compiles_nothing(folder: Path) -> None:
    assert run(folder).stdout.split() == ["7", "0"]
    before = [(path, path.stat().st_mtime_ns) for path in kept(folder)]
    again = run(folder)
    assert again.stdout.split() == ["7", "1"]
    assert again.stderr == ""
    assert [(path, path.stat().st_mtime_ns) for path in kept(folder)] == before
    assert len(before) == 2


def test_a_function_knows_the_files_of_those_it_calls(folder: Path) -> None:
    assert run(folder).stdout.split() == ["7", "0"]
    (folder / "called.py").write_text(CALLED.format(10))
    assert run(folder).stdout.split() == ["25", "0"]


def test_torn_files_are_compiled_anew(folder: Path) -> None:
    run(folder)
    for path in kept(folder):
        path.write_bytes(path.read_bytes()[:100])
    assert run(folder).stdout.split() == ["7", "0"]
    assert run(folder).stdout.split() == ["7", "1"]


@pytest.mark.parametrize(
    ("python", "hits"), [("sys.executable", "1"), ("'/bin/false'", "0"), ("'/none'", "0")]
)
def test_another_process_compiles_what_the_first_call_waits_for(
    folder: Path, python: str, hits: str
) -> None:
    (folder / "caller.py").write_text(CALLER + TYPES)
    done = run(folder, ELSEWHERE.format(python) + RUN)
    assert done.stdout.split() == ["7", hits]
    assert done.stderr == ""
    assert len(kept(folder)) == 2


def test_what_is_on_the_disk_or_cannot_be_is_not_compiled_elsewhere(folder: Path) -> None:
    (folder / "caller.py").write_text(CALLER + TYPES)
    run(folder)
    code = (
        ELSEWHERE.format("sys.executable") + "import ncp.compiled\nprint(ncp.compiled._ELSEWHERE)"
    )
    assert run(folder, code).stdout == "{}\n"
    nowhere = str(folder / "called.py" / "home")
    for path in kept(folder):
        path.unlink()
    (folder / "__pycache__").rmdir()
    (folder / "__pycache__").write_text("not a folder, so that not even root can write there")
    assert run(folder, code, HOME=nowhere, XDG_CACHE_HOME=nowhere).stdout == "{}\n"


def test_without_a_place_for_a_cache(folder: Path) -> None:
    (folder / "__pycache__").write_text("not a folder, so that not even root can write there")
    nowhere = str(folder / "called.py" / "home")
    done = run(folder, HOME=nowhere, XDG_CACHE_HOME=nowhere)
    assert done.stdout.split() == ["7", "0"]
    assert done.stderr.count("kept in memory only") == 1


def test_a_disk_that_fills_up(folder: Path) -> None:
    """The directory is there when the function is made and gone when it has been compiled."""
    code = RUN.replace("print(", "import shutil; shutil.rmtree('{0}'); open('{0}', 'w')\nprint(")
    cache = folder / "__pycache__"
    done = subprocess.run(
        [sys.executable, "-c", code.format(cache), "5"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["7", "0"]
    assert done.stderr.count("kept in memory only") == 1


def test_the_process_is_as_before_after_compiling() -> None:
    good = numba.njit(**INSIDE)(lambda x: x + 1)  # numba's own: not from the disk
    bad = numba.njit(lambda x: good(x).no_such_thing)
    level = config.OPT
    try:
        for switch, x in ((gc.enable, 1), (gc.disable, 1.0)):
            switch()
            with pytest.raises(TypingError):
                bad(x)
            assert gc.isenabled() == (switch is gc.enable)
            assert level == config.OPT
    finally:
        gc.enable()
    assert len(good.signatures) == 2  # it was compiled on the way


def test_only_what_python_cannot_call_is_optimised_lightly() -> None:
    levels = []

    class Levels(Listener):
        def on_start(self, event: Event) -> None:
            levels.append(int(config.OPT))

        def on_end(self, event: Event) -> None: ...

    public = numba.njit(lambda x: x + 1)
    between = numba.njit(**INSIDE)(lambda x: public(x))
    outer = numba.njit(lambda x: between(x))
    with install_listener("numba:compile", Levels()):
        assert outer(1) == 2
    assert levels == [config.OPT, 1, config.OPT]


@njit  # what is inlined into kernels is called by one
def _each(x: np.ndarray, logs: np.ndarray, exponentials: np.ndarray) -> None:
    for i in range(len(x)):
        logs[i] = log1p(x[i])
        exponentials[i] = exp_minus(x[i])


def test_logs_and_exponentials_are_those_of_numpy() -> None:
    x = np.concatenate([np.zeros(1), np.linspace(0, 708, 100_001), np.logspace(-300, 9, 1000)])
    logs, exponentials = np.empty_like(x), np.empty_like(x)
    _each(x, logs, exponentials)
    np.testing.assert_allclose(logs, np.log1p(x), rtol=1e-14, atol=1e-15)
    small = x <= 708
    np.testing.assert_allclose(exponentials[small], np.exp(-x[small]), rtol=1e-14)
    assert exponentials[~small].max() < 1e-300


def test_exponentials_of_single_precision_are_single() -> None:
    x = np.concatenate([np.zeros(1), np.linspace(0, 87, 100_001), np.logspace(-30, 9, 1000)])
    x = x.astype(np.float32)
    logs, exponentials = np.empty_like(x), np.empty_like(x)
    _each(x, logs, exponentials)
    small = x <= 87
    exact = np.exp(-x[small].astype(np.float64))
    np.testing.assert_allclose(exponentials[small], exact, rtol=3e-7)
    assert exponentials[~small].max() < 2e-38
