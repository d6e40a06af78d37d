"""What README and docs say works: Python blocks run, commands and files exist.

The blocks of a page run in order in one namespace, in an empty directory. Shell blocks are not run:
commands, options and make targets are looked up.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib as mpl
import pytest

import ncp

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OTHER_COMMANDS = {"cat", "cd", "dask", "echo", "export", "fabric", "git", "pip", "sbatch", "srun"}
OTHER_COMMANDS |= {"pre-commit", "python", "tensorboard", "torchrun"}


class Block(NamedTuple):
    language: str
    line: int  # of the page that the text starts on
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], text[: found.start(2)].count("\n") + 1, found[2])
        for found in FENCE.finditer(text)
        if found[1] in languages
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def empty_module(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A module of its own for a page, as classes that a checkpoint names need one."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{re.sub(r'[^a-z]', '_', request.node.name.lower())}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    mpl.use("Agg")
    known = dict(ncp.Likelihood.registry)
    yield module
    ncp.Likelihood.registry.clear()  # two pages may define one class
    ncp.Likelihood.registry.update(known)
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None:
        plt.close("all")


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=named)
def test_python_blocks_run(page: Path, empty_module: ModuleType) -> None:
    for block in blocks(page, "python"):
        lines = "\n" * (block.line - 1)  # so that a traceback points into the page
        exec(compile(lines + block.text, str(page), "exec"), empty_module.__dict__)


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    for block in blocks(page, "sh", "bash", "console", "shell"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for part in split_at(words, {"|", "&&", ";"}):
                while part and re.fullmatch(r"[A-Z_]+=\S*", part[0]):
                    part = part[1:]
                if part:
                    yield block.line, part


def split_at(words: list[str], marks: set[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in marks:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "sh", "bash", "console", "shell")], ids=named
)
def test_commands_exist(page: Path) -> None:
    for line, words in commands(page):
        where = f"{named(page)}, block at line {line}: {' '.join(words)}"
        if words[0] == "ncp":
            check_ncp(words[1:], where)
        elif words[0] == "make":
            check_make(words[1:], where)
        else:
            assert words[0] in OTHER_COMMANDS, where


def check_ncp(words: list[str], where: str) -> None:
    from typer.main import get_command

    from ncp.cli.main import commands as ncp

    command: Any = get_command(ncp)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        assert not words or words[0].startswith("-"), f"Expected a command of ncp: {where}"
    options = {name for p in command.params for name in [*p.opts, *p.secondary_opts]} | {"--help"}
    used = {word.partition("=")[0] for word in words if re.match(r"-{1,2}[a-z]", word)}
    assert used <= options, f"Unknown options {sorted(used - options)}: {where}"


def check_make(words: list[str], where: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        if "=" not in word and not word.startswith("-"):
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), where


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{named(page)}: {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_every_model_is_described(page: str) -> None:
    from ncp.network.pretrained import PURPOSE

    text = (ROOT / page).read_text(encoding="utf-8")
    assert not [name for name in PURPOSE if f"`{name}`" not in text]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_fences_are_recognised() -> None:
    # An indented or misnamed fence would escape the tests above.
    known = {"", "python", "sh", "text", "toml", "json"}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        languages = re.findall(r"^[ \t]*```(\w+)", text, re.MULTILINE)
        assert set(languages) <= known, page
        assert len(languages) == len([b for b in FENCE.finditer(text) if b[1]]), page


def test_first_screen_of_the_readme() -> None:
    page = ROOT / "README.md"
    code = blocks(page, "python")[0].text
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 8
    first, clone = (block.text.splitlines() for block in blocks(page, "sh"))
    assert first[0] == "pip install neural-clustering-process"
    assert len(first) == 3
    assert [line.split()[1] for line in clone] == ["demo", "test"]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=named)
def test_pages_begin_with_what_they_are_for(page: Path) -> None:
    title, text = page.read_text(encoding="utf-8").split("\n\n", 2)[:2]
    assert title.startswith("# ")
    assert text.startswith("This page ")


def test_every_name_of_the_reference_exists() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for path, members in re.findall(
        r"^::: (\S+)(?:\n +options:\n +members: \[(.*)\])?", text, re.M
    ):
        found = resolve_name(path)
        assert not [name for name in members.split(", ") if name and not hasattr(found, name)], path


def test_a_model_of_ones_own_is_the_same_everywhere() -> None:
    paths = "docs/index.md", "docs/own-model.md", "examples/a_model_of_ones_own.py"
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in paths]
    classes = {t.partition("class Sticks")[2].partition("_sd * noise")[0] for t in texts}
    assert len(classes) == 1
    assert "def sample_observations" in classes.pop()


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(r"^date-released: (\S+)$", citation, re.M)
    assert released
    assert f"\nversion: {ncp.__version__}\n" in citation
    assert f"\n## {ncp.__version__} - {released[1]}\n" in changes
