"""How long it takes until something happens: `import ncp` and `ncp --help` beside torch.

    python benchmarks/startup.py

Each in fresh processes, in turn; the median, in brackets the least and the largest. Goal: `import
ncp` and `ncp --help` take less time than `import torch`.
"""

from __future__ import annotations

import subprocess
import sys
import time

from _turns import Spread, lost

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import ncp": [sys.executable, "-c", "import ncp"],
    "ncp --help": [sys.executable, "-c", "from ncp.cli import app; app(['--help'])"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import ncp; ncp.NCP": [sys.executable, "-c", "import ncp; ncp.NCP"],
}
TURNS = 5
LIGHT, HEAVY = ("import ncp", "ncp --help"), "import torch"


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    turns = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(TURNS)]
    found = {name: Spread.of([turn[name] for turn in turns]) for name in COMMANDS}
    print(f"| start-up, {TURNS} turns | seconds |\n|---|---|")
    for name, spread in found.items():
        print(f"| `{name}` | {spread:.2f} |")
    heavy = found[HEAVY]
    lost(
        f"`{name}` takes {found[name]:.2f} s, `{HEAVY}` {heavy:.2f} s."
        for name in LIGHT
        if found[name].middle > heavy.middle
    )


if __name__ == "__main__":
    main()
