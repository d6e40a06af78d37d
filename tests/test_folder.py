"""A folder of results: the old one or the new one, whole, whatever happens; and nobody else's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ncp.files import locked, write_atomically
from ncp.output import folder
from ncp.output.folder import check_folder, replace_folder

SCRIPT = '''
import os, shutil, signal, sys, tempfile
from pathlib import Path
from ncp.output import folder
from tests.test_folder import FOREIGN, WATCHED, leftovers, prepare, result, visible

scenario, fault = sys.argv[1:]
if scenario == "no exchange":
    folder.exchange = lambda one, other: False
A, B, C = result("a", "csv", report=True), result("b", "json"), result("c", "csv")


def attempt(out, number):
    """Write B in a process of its own that meets its fault at the given step; its exit code."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    steps = 0

    def watch(event, arguments):
        nonlocal steps
        if event not in WATCHED:
            return
        steps += 1
        if steps == number and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == number:
            raise OSError(28, "No space left on device")

    sys.addaudithook(watch)
    try:
        folder.replace_folder(out, B)
    except OSError:
        os._exit(1)
    os._exit(0 if steps >= number else 2)


number = 0
while True:
    number += 1
    base = Path(tempfile.mkdtemp(dir=os.getcwd()))
    out = base / "results"
    before = prepare(out, scenario, A)
    code = attempt(out, number)
    seen = visible(out)
    atomic = scenario in ("new", "second", "foreign") or fault == "full"
    if atomic:
        assert seen in (before, B), (number, seen)
    assert all(seen[name] == before.get(name) for name in seen) or all(
        seen[name] == B[name] for name in seen
    ), f"a mixture at step {number}: {sorted(seen)}"
    assert "summary.json" not in seen or seen in (before, B), number
    if fault == "full" and seen == before:
        assert leftovers(base) == [], (number, leftovers(base))
    if number % 2 and "summary.json" in seen:  # a resumed batch finds it whole, and writes nothing
        folder.tidy_folder(out)
        assert (visible(out), leftovers(base)) == (seen, []), (number, leftovers(base))
    folder.replace_folder(out, C)
    assert visible(out) == C, number
    assert leftovers(base) == [], (number, leftovers(base))
    for name in FOREIGN.get(scenario, ()):
        assert (out / name).read_text() == "mine", (number, name)
    shutil.rmtree(base)
    if os.waitstatus_to_exitcode(code) == 2:  # there are no more steps
        print(number - 1)
        break
'''
WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.link", "os.rmdir", "ctypes.dlsym"}
FOREIGN = {
    "foreign": ("notes.txt", ".labels.csv.mybackup", "labels.parquet"),
    "below": ("notes.txt", "below/labels.csv"),
}


def result(mark: str, kind: str, report: bool = False) -> dict[str, bytes]:
    names = [f"labels.{kind}", "samples.npz", *(["report.html"] if report else [])]
    files = {name: f"{mark} {name}".encode() for name in names}
    summary = {"mark": mark, "files": [*names, "summary.json"], "inputs": {"sha256": "0"}}
    return files | {"summary.json": json.dumps(summary).encode()}


def prepare(out: Path, scenario: str, files: dict[str, bytes]) -> dict[str, bytes]:
    if scenario == "new":
        return {}
    replace_folder(out, files)
    for name in FOREIGN.get(scenario, ()):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    return files


def visible(out: Path) -> dict[str, bytes]:
    """Files of a result by name, those of others left out."""
    if not out.is_dir():
        return {}
    others = {Path(name).parts[0] for names in FOREIGN.values() for name in names}
    return {p.name: p.read_bytes() for p in out.iterdir() if p.is_file() and p.name not in others}


def leftovers(base: Path) -> list[str]:
    return [str(path.relative_to(base)) for path in base.rglob(".*ncp-*")]


@pytest.mark.parametrize("fault", ["kill", "full"])
@pytest.mark.parametrize("scenario", ["new", "second", "foreign", "below", "no exchange"])
def test_a_fault_at_every_step(scenario: str, fault: str, tmp_path: Path) -> None:
    """SIGKILL and a full disk before each of at least a hundred steps, over all scenarios."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, scenario, fault],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    least = {"new": 8, "second": 16, "foreign": 20, "below": 24, "no exchange": 20}
    assert int(run.stdout) >= least[scenario]


def test_another_format_leaves_nothing_stale(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replace_folder(out, result("a", "csv", report=True))
    replace_folder(out, result("b", "json"))
    assert {path.name for path in out.iterdir()} == {"labels.json", "samples.npz", "summary.json"}


def test_files_of_others_are_neither_removed_nor_replaced(tmp_path: Path) -> None:
    out = tmp_path / "results"
    mine = [
        tmp_path / ".results.00000000" / "thesis.txt",  # was deleted once
        tmp_path / f".results.ncp-{'0' * 16}" / "thesis.txt",
        out / ".labels.csv.mybackup",
        out / ".summary.json.12345678",
        out / f".labels.csv.ncp-{'0' * 16}",
        out / "labels.xlsx",
    ]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    os.symlink("nowhere", out / "link")
    for mark in "ab":
        replace_folder(out, result(mark, "csv"))
    assert all(path.read_text() == "mine" for path in mine)
    assert os.readlink(out / "link") == "nowhere"


@pytest.mark.parametrize("name", ["labels.csv", "summary.json", "report.html"])
def test_a_file_that_is_not_ours_stands_in_the_way(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"files": "of mine"}')
    files = result("a", "csv", report=True)
    with pytest.raises(ValueError, match=rf"{name}: is there and was not written by ncp"):
        check_folder(tmp_path, files)
    with pytest.raises(ValueError, match="was not written by ncp"):
        replace_folder(tmp_path, files)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("listed", [["../precious", "labels.csv"], ["/precious"], [3], "x", None])
def test_a_summary_from_a_stranger_names_nothing_outside(tmp_path: Path, listed: object) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "precious").write_text("mine")
    summary = {"files": listed, "inputs": {"sha256": "0"}}
    (out / "summary.json").write_text(json.dumps(summary))
    if isinstance(listed, list):
        replace_folder(out, result("a", "csv"))
    else:
        with pytest.raises(ValueError, match="was not written by ncp"):
            replace_folder(out, result("a", "csv"))
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_summary_of_another_program_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")  # was deleted once
    for others in ({"files": ["thesis.txt"]}, {"files": ["thesis.txt"], "inputs": ["a.csv"]}):
        (tmp_path / "summary.json").write_text(json.dumps(others))
        with pytest.raises(ValueError, match="was not written by ncp"):
            replace_folder(tmp_path, result("a", "csv"))
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_lock_file_from_a_stranger_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "labels.csv").write_text("mine")
    record = {"new": "precious", "old": "precious", "files": ["labels.csv"]}
    (tmp_path / ".out.ncp-lock").write_text(json.dumps(record))
    replace_folder(tmp_path / "out", result("a", "csv"))
    assert (tmp_path / "precious" / "labels.csv").read_text() == "mine"


def test_the_folder_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    replace_folder(out, result("a", "csv"))
    monkeypatch.chdir(out)
    replace_folder(Path(), result("b", "csv"))
    assert json.loads(Path("summary.json").read_text())["mark"] == "b"
    assert leftovers(tmp_path) == []


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "out")
    for mark in "ab":
        replace_folder(tmp_path / "out", result(mark, "csv"))
    assert os.readlink(tmp_path / "out") == "real"
    assert (tmp_path / "real" / "summary.json").exists()


def test_names_as_long_as_can_be(tmp_path: Path) -> None:
    out = tmp_path / ("\N{SNOWMAN}" * 85)  # 255 bytes
    for mark in "ab":
        replace_folder(out, result(mark, "csv"))
    write_atomically(tmp_path / ("x" * 255), b"1")


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_the_umask_decides_who_reads(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        replace_folder(tmp_path / "out", result("a", "csv"))
        write_atomically(tmp_path / "file", b"1")
    finally:
        os.umask(before)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(tmp_path / "out") == 0o777 & ~mask
    assert mode(tmp_path / "out" / "labels.csv") == 0o666 & ~mask
    assert mode(tmp_path / "file") == 0o666 & ~mask
    os.chmod(tmp_path / "file", 0o600)
    os.chmod(tmp_path / "out", 0o2750)
    write_atomically(tmp_path / "file", b"2")
    replace_folder(tmp_path / "out", result("b", "csv"))
    assert mode(tmp_path / "file") == 0o600
    assert mode(tmp_path / "out") == 0o2750


WRITER = """
import sys
from pathlib import Path
from ncp.output.folder import replace_folder
from tests.test_folder import result
for i in range(30):
    replace_folder(Path(sys.argv[1]), result(sys.argv[2] + str(i), "csv", report=True))
"""


def test_several_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-c", WRITER, str(out)]
    writers = [subprocess.Popen([*command, mark], env=environment) for mark in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    found = visible(out)
    mark = json.loads(found["summary.json"])["mark"]
    assert found == result(mark, "csv", report=True)
    assert leftovers(tmp_path) == []


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pytest.fail("held twice")
        assert path.exists()
    assert not path.exists()


def test_without_an_exchange_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "exchange", lambda one, other: False)
    for mark, kind in (("a", "csv"), ("b", "json")):
        replace_folder(tmp_path / "out", result(mark, kind))
    assert visible(tmp_path / "out") == result("b", "json")
    assert leftovers(tmp_path) == []
