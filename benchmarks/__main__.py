"""Run all benchmarks and write `docs/benchmarks.md`.

    python benchmarks [--quick] [--only speed tabular]

Every file beside this one is a script that prints Markdown; its docstring becomes the text above
its tables. One after another, each in a process of its own, so that none slows another. The page
opens with what is won and lost: a line that begins with "**Lost:**" stands there and nowhere else.
Each section names the weights it was measured with, from the script's `MODELS`, by the beginning
of the hash of their files. A script that fails is reported at the end and leaves its section as it
was. With `--only`, all other sections stay; those of scripts that are gone do not.
"""

import argparse
import ast
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from _timing import LOST

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
WEIGHTS = HERE.parent / "src" / "ncp" / "network" / "weights"
FIRST = ("speed", "comparison", "tabular", "likelihood", "startup")  # then by name
SHORT = ("tabular",)  # here always with --quick; `make bench-tabular` has the whole
LISTED = re.compile(r"(?m)^\* \[(\w+)\]\(#\w+\): (.*)$")
NO_GOAL = "Nothing: every goal below is reached, and no other method wins."


def scripts() -> dict[str, Path]:
    found = {path.stem: path for path in HERE.glob("[!_]*.py")}
    return {name: found[name] for name in sorted(found, key=_rank)}


def _rank(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


def digests(source: str) -> str:
    """The weights that a script names, each with the beginning of its file's hash."""
    found = re.search(r"(?m)^MODELS = (\(.*\))$", source)
    names = ast.literal_eval(found[1]) if found else ()
    files = [(name, WEIGHTS / f"{name}.safetensors") for name in names]
    shown = [f"`{n}` {hashlib.sha256(f.read_bytes()).hexdigest()[:12]}" for n, f in files]
    return f" Weights: {', '.join(shown)}." if shown else ""


def section(name: str, path: Path, quick: bool) -> str | None:
    """The Markdown of one script, or None if it fails."""
    source = path.read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    options = ["--quick"] if name in SHORT or (quick and '"--quick"' in source) else []
    print(f"{name} ...", flush=True)
    begin, busy = time.perf_counter(), load()
    run = subprocess.run([sys.executable, str(path), *options], capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    print(f"{name}: {seconds:.0f} s", flush=True)
    if run.returncode != 0:
        print(run.stderr, file=sys.stderr)
        return None
    command = " ".join(["python", f"benchmarks/{path.name}", *options])
    when = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}"
    stamp = f"{when}, `{command}`, {seconds:.0f} s{busy}.{digests(source)}"
    text = re.sub(r"(?m)^    python .*\n\n?", "", text).strip()
    return f"## {name}\n\n{title} {text}\n\n{stamp}\n\n{run.stdout.strip()}\n"


def load() -> str:
    """How many other processes were running, where the system tells."""
    if not hasattr(os, "getloadavg"):
        return ""
    others = os.getloadavg()[0]
    return f", beside {others:.0f} other busy processes" if others >= 0.5 else ", quiet machine"


def page(sections: dict[str, str], lost: dict[str, list[str]]) -> str:
    """The whole of it: what is lost first, then the sections without these lines."""
    lines = [f"* [{name}](#{name}): {line}" for name in sections for line in lost.get(name, [])]
    return "\n".join(
        [
            "# Benchmarks\n\nThis page is written by `make bench`; each section is what one "
            "script in `benchmarks/` printed.\n",
            "## Where we lose\n\nGoals that are not reached, and comparisons that another method "
            f"wins. All else is won.\n\n{chr(10).join(lines) or NO_GOAL}\n",
            *(text.strip() + "\n" for text in sections.values()),
        ]
    )


def cut(text: str) -> tuple[str, list[str]]:
    """A section without the lines that say what is lost, and these."""
    lines = text.splitlines()
    lost = [line.removeprefix(LOST) for line in lines if line.startswith(LOST)]
    kept = "\n".join(line for line in lines if not line.startswith(LOST))
    return re.sub(r"\n{3,}", "\n\n", kept), lost


def read(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The sections of a page, and what each has lost."""
    parts = [part for part in re.split(r"(?m)^(?=## )", text) if part.startswith("## ")]
    sections = {part[3:].splitlines()[0].strip(): part for part in parts}
    lost: dict[str, list[str]] = {}
    for name, line in LISTED.findall(sections.pop("Where we lose", "")):
        lost.setdefault(name, []).append(line)
    return sections, lost


def machine() -> str:
    names = re.findall(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes where a script has them"
    )
    parser.add_argument("--only", nargs="+", choices=list(known), default=list(known))
    options = parser.parse_args()
    failed = []
    for name in options.only:
        found = section(name, known[name], options.quick)
        if found is None:
            failed.append(name)
            continue
        sections, lost = read(_read(str(PAGE)))
        sections[name], lost[name] = cut(found)
        PAGE.write_text(page({n: sections[n] for n in known if n in sections}, lost))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
