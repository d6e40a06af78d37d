"""How long it takes until something happens, in fresh processes.

    python benchmarks/startup.py [--quick]

CPU seconds, compiled code on disk, in turns; medians, in brackets the least and the largest. The
first call of all compiles: what it takes longer by, in seconds of wall clock, since two processes
share that.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _timing import Spread, lost

MODELS = ("tabular",)
FIRST_CALL = 5.0  # seconds
IRIS = Path(__file__).resolve().parents[1] / "examples" / "iris.csv"


def cpu_of(arguments: list[str]) -> float:
    """CPU seconds of a fresh Python, which may keep the bytecode of what it imports."""
    keeps = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=keeps)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compiling(arguments: list[str]) -> float:
    """Seconds by which the first run of all is longer than the second."""
    with tempfile.TemporaryDirectory() as cache:
        environment, took = os.environ | {"NUMBA_CACHE_DIR": cache}, []
        for _ in range(2):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            took.append(time.perf_counter() - begin)
    return took[0] - took[1]


def start_up(quick: bool) -> list[str]:
    """What fresh processes take; what is lost."""
    with tempfile.TemporaryDirectory() as out:
        run = ["-m", "ncp", "cluster", str(IRIS), "--out", out]
        commands = {
            "python -c pass": (["-c", "pass"], math.inf),
            "import ncp": (["-c", "import ncp"], 0.1),
            "import torch": (["-c", "import torch"], math.inf),
            "ncp cluster examples/iris.csv": (run, 3.0),
            "ncp cluster examples/iris.csv --no-report": ([*run, "--no-report"], 2.2),
        }
        turns = [
            {name: cpu_of(arguments) for name, (arguments, _) in commands.items()}
            for _ in range(2 if quick else 4)
        ][1:]  # the first one compiles, if need be
        first = Spread.of([compiling([*run, "--no-report"]) for _ in range(1 if quick else 3)])
    found = {name: Spread.of([turn[name] for turn in turns]) for name in commands}
    print("| a fresh process, compiled code on disk | CPU seconds | goal |\n|---|---|---|")
    for name, (_, goal) in commands.items():
        print(f"| `{name}` | {found[name]:.2f} | {goal if goal < math.inf else ''} |")
    print(f"\nThe first call of all takes {first:.1f} s longer (goal {FIRST_CALL}).")
    own = found["import ncp"].middle - found["python -c pass"].middle
    late = f"the first call compiles for {first:.1f} s instead of {FIRST_CALL}."
    return [late] * (first.middle > FIRST_CALL) + [
        f"`{name}` takes {found[name]:.2f} s instead of {goal}."
        for name, (_, goal) in commands.items()
        if (own if name == "import ncp" else found[name].middle) > goal
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn")
    lost(start_up(parser.parse_args().quick))


if __name__ == "__main__":
    main()
