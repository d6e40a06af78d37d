"""The page of benchmarks: never of weights that do not ship; and scripts that can be imported."""

import ast
import hashlib
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from ncp.network import pretrained

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPTS = [
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *sorted((ROOT / "experiments").glob("*.py")),
]


def stale(text: str, directory: Path) -> set[str]:
    """Models of a page whose weights are not those in a directory."""
    named = re.findall(r"`([\w-]+)` ([0-9a-f]{12})\b", text)
    files = {name: directory / f"{name}.safetensors" for name, _ in named}
    shipped = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for name, path in files.items()
    }
    return {name for name, digest in named if shipped[name] != digest}


def test_the_page_is_of_the_weights_that_ship() -> None:
    found = stale(PAGE.read_text(encoding="utf-8"), pretrained.DIRECTORY)
    assert not found, "run `python benchmarks --only ...` for the sections that name them"


def test_other_weights_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "some-2d.safetensors"
    path.write_bytes(b"old")
    text = f"Weights: `some-2d` {hashlib.sha256(b'old').hexdigest()[:12]}."
    assert stale(text, tmp_path) == set()
    path.write_bytes(b"new")
    assert stale(text, tmp_path) == {"some-2d"}


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("benchmarks_main", ROOT / "benchmarks" / "__main__.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_is_read_as_it_is_written(runner: ModuleType) -> None:
    printed = "## speed\n\nHow fast.\n\n| a | b |\n\n**Lost:** slow.\n\n**Lost:** slower."
    text, lost = runner.cut(printed)
    sections = {"speed": text, "memory": "## memory\n\nHow much.\n"}
    page = runner.page(sections, {"speed": lost})
    assert page.count("slower.") == 1  # a loss is printed once
    again, lost_again = runner.read(page)
    assert lost_again == {"speed": ["slow.", "slower."]}
    assert runner.page(again, lost_again) == page


def test_digests_are_of_the_models_that_a_script_names(runner: ModuleType) -> None:
    shown = runner.digests('MODELS = ("gaussian-2d", "tabular")\n')
    assert re.fullmatch(r" Weights: `gaussian-2d` [0-9a-f]{12}, `tabular` [0-9a-f]{12}\.", shown)
    assert stale(shown, pretrained.DIRECTORY) == set()
    assert runner.digests("import ncp") == ""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_scripts_import_exists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ncp":
            for alias in node.names:
                resolve_name(f"{node.module}:{alias.name}")
