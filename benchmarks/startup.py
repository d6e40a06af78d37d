"""How long it takes until something happens: `import ncp` and `ncp --help` beside torch.

    python benchmarks/startup.py

The best of several runs of each, in a fresh process. Prints a Markdown table.
"""

from __future__ import annotations

import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import ncp": [sys.executable, "-c", "import ncp"],
    "ncp --help": [sys.executable, "-c", "from ncp.cli import app; app(['--help'])"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import ncp; ncp.NCP": [sys.executable, "-c", "import ncp; ncp.NCP"],
}
REPEATS = 3


def seconds(command: list[str]) -> float:
    """Wall time of the best run."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    print("| start-up | seconds |\n|---|---|")
    for name, command in COMMANDS.items():
        print(f"| `{name}` | {seconds(command):.2f} |", flush=True)


if __name__ == "__main__":
    main()
