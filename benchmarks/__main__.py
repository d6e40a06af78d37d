"""Run all benchmarks and write `docs/benchmarks.md`.

    python benchmarks [--quick] [--only likelihood sampling]

Every file beside this one is a script that prints Markdown; its docstring becomes the text above
its tables. One after another, each in a process of its own, so that none slows another. A script
that fails is reported at the end, and its section says so. Lines that begin with "**Lost:**" are
collected at the top. With `--only`, the other sections of the page stay as they are.
"""

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from _turns import LOST

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
FIRST = ("likelihood", "sampling", "throughput", "memory", "gibbs", "comparison")  # then by name
SHORT = ("tabular",)  # here always with --quick; `make bench-tabular` has the whole


def scripts() -> dict[str, Path]:
    found = {path.stem: path for path in sorted(HERE.glob("[!_]*.py"))}
    return {name: found[name] for name in sorted(found, key=lambda n: (n not in FIRST, _rank(n)))}


def _rank(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else 0, name)


def section(name: str, path: Path, quick: bool) -> tuple[str, bool]:
    """The Markdown of one script, and whether it succeeded."""
    source = path.read_text()
    title, _, text = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    options = ["--quick"] if name in SHORT or (quick and '"--quick"' in source) else []
    print(f"{name} ...", flush=True)
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, str(path), *options], capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    print(f"{name}: {seconds:.0f} s", flush=True)
    output = run.stdout.strip()
    if run.returncode != 0:
        print(run.stderr, file=sys.stderr)
        output = f"{output}\n\nThis benchmark failed.".strip()
    command = " ".join(["python", f"benchmarks/{path.name}", *options])
    stamp = f"{datetime.now(timezone.utc):%Y-%m-%d}, `{command}`, {seconds:.0f} s"
    return f"## {name}\n\n{title}\n\n{text.strip()}\n\n{stamp}\n\n{output}\n", run.returncode == 0


def where_we_lose(sections: dict[str, str]) -> str:
    """A list of all lines of the sections that say so."""
    lines = [
        f"* [{name}](#{name}): {line.removeprefix(LOST)}"
        for name, text in sections.items()
        for line in text.splitlines()
        if line.startswith(LOST)
    ]
    listed = "\n".join(lines) or "Nothing in the sections below."
    text = "Goals that are not reached, and comparisons that another method wins, from below."
    return f"## Where we lose\n\n{text}\n\n{listed}\n"


def machine() -> str:
    names = re.findall(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def old_sections() -> dict[str, str]:
    parts = re.split(r"(?m)^(?=## )", PAGE.read_text() if PAGE.exists() else "")
    return {part[3:].splitlines()[0].strip(): part for part in parts if part.startswith("## ")}


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes where a script has them"
    )
    parser.add_argument("--only", nargs="+", choices=list(known), default=list(known))
    options = parser.parse_args()
    sections, failed = old_sections(), []
    for name in options.only:
        sections[name], good = section(name, known[name], options.quick)
        failed += [] if good else [name]
    head = (
        "# Benchmarks\n\nWritten by `make bench`; each section is the output of one script in "
        f"`benchmarks/`. Machine: {machine()}.\n"
    )
    sections = {name: sections[name].strip() + "\n" for name in known if name in sections}
    PAGE.write_text("\n".join([head, where_we_lose(sections), *sections.values()]))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
