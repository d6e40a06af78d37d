"""What README says, done by somebody who has nothing but Python and a built wheel."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks

README = ROOT / "README.md"


def run(*command: object, cwd: Path) -> str:
    """What a command prints, without any setting of Python's that would show it this checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean, "MPLBACKEND": "Agg", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = ("-m", "pip", "--quiet")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "environment", cwd=folder)
    found = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    pins = ROOT / "constraints.txt"
    run(found / "python", *pip, "install", "--constraint", pins, wheel, cwd=folder)
    return found


@pytest.mark.slow
def test_the_readme_in_an_empty_environment(programs: Path, tmp_path: Path) -> None:
    where = run(programs / "python", "-c", "import ncp; print(ncp.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(programs.parent)
    code = blocks(README, "python")[0].text
    assert "Best single partition" in run(programs / "python", "-c", code, cwd=tmp_path)
    assert (tmp_path / "iris.png").stat().st_size > 5000

    shutil.copy(ROOT / "examples" / "iris.csv", tmp_path / "data.csv")
    for line in blocks(README, "sh")[0].text.splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "ncp":
            assert run(programs / "ncp", *words, cwd=tmp_path)
    made = {path.name for path in (tmp_path / "ncp-output" / "data").iterdir()}
    assert made >= {"labels.csv", "report.html", "samples.npz", "summary.json"}

    printed = run(
        *(programs / "ncp", "cluster", ROOT / "examples" / "iris.csv", "--columns", "1,2,3,4"),
        cwd=tmp_path,
    )
    shown = blocks(README, "text")[0].text.splitlines()
    kinds = [line.partition(":")[0].split()[0] for line in shown]
    assert [line.partition(":")[0].split()[0] for line in printed.splitlines()][:-1] == kinds
