"""The house rules that can be read off the source: who imports whom, and what nobody uses."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "ncp"

# The path of the data (DESIGN, section 1): a file imports only from files before it. Files that
# are not written yet may stand here; files that are not here may not be written.
ORDER = [
    *("partitions", "priors", "likelihoods", "mixture", "tabular", "networks", "model"),
    *("sampling", "exact", "importance", "losses", "checkpoint", "training"),
    *("gibbs", "summary", "diagnostics", "comparison"),
    *("pretrained", "engines", "datasets", "plots", "clustering", "report"),
    *("estimator", "reproduce", "cli"),
]
# Methods that hand over to code further down, for the user's convenience; imported when called.
HANDED_OVER = {
    ("partitions", "importance"),  # samples answer for themselves: samples.reweight(...)
    ("partitions", "summary"),
    ("model", "sampling"),  # model.sample(...)
    ("model", "engines"),  # model.sample_many(..., engine="dask")
    ("clustering", "report"),  # clustering.report(...)
    ("diagnostics", "comparison"),  # run_checks(...)
}
ORACLES = {"exact", "gibbs", "importance", "summary", "diagnostics", "comparison"}
SUBJECTS = {"model", "sampling"}
# private modules not named after their owner
PRIVATE_OWNERS = {"files": "partitions", "readers": "cli", "tabular_prior": "tabular"}
OUTSIDE = {"__init__", "__main__"}


def owner(name: str) -> str:
    """The public module that a private one, such as ``_gibbs_kernels``, ranks as."""
    if not name.startswith("_"):
        return name
    bare = name.lstrip("_")
    if bare in PRIVATE_OWNERS:
        return PRIVATE_OWNERS[bare]
    return next((public for public in ORDER if bare.split("_")[0] == public), name)


def imports(path: Path, root: Path = PACKAGE, deferred: bool = True) -> set[str]:
    """The modules of the package that a file imports, also in functions if ``deferred``.

    What only a type checker imports (``if TYPE_CHECKING:``) does not count.
    """
    package = path.relative_to(root).parent.parts
    found: set[str] = set()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")), deferred):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _inside(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            prefix = ["ncp", *package[: len(package) - node.level + 1]] if node.level else []
            parts = prefix + (node.module.split(".") if node.module else [])
            for alias in node.names:
                found |= _inside([*parts, alias.name] if parts == ["ncp"] else parts)
    return found


def _statements(node: ast.AST, deferred: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not deferred:
            continue
        yield child
        yield from _statements(child, deferred)


def _inside(parts: list[str]) -> set[str]:
    return {parts[1]} if parts[0] == "ncp" and len(parts) > 1 else set()


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.stem not in OUTSIDE)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@each_file
def test_has_a_place_in_the_order(path: Path) -> None:
    assert owner(path.stem) in ORDER


@each_file
def test_imports_only_from_files_above(path: Path) -> None:
    rank = ORDER.index(owner(path.stem))
    at_once = imports(path, deferred=False)
    for name in imports(path):
        if owner(name) not in ORDER:  # a name of the package itself, such as __version__
            assert not (PACKAGE / f"{name}.py").exists()
            continue
        handed_over = name not in at_once and (path.stem, name) in HANDED_OVER
        above = ORDER.index(owner(name)) < rank or owner(name) == owner(path.stem)
        assert above or handed_over, f"{path.name} imports {name}, which stands below it"


def reached(name: str) -> set[str]:
    """All modules of the package that importing a module can bring in."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for found in imports(PACKAGE / f"{waiting.pop()}.py"):
            if found not in seen and (PACKAGE / f"{found}.py").exists():
                seen.add(found)
                waiting.append(found)
    return seen


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_oracles_do_not_know_what_they_judge(name: str) -> None:
    for path in FILES:
        if owner(path.stem) == name:
            assert not reached(path.stem) & SUBJECTS


@each_file
def test_no_pickle_and_no_eval(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id]
        else:
            continue
        assert not {"pickle", "cPickle", "dill", "cloudpickle", "joblib"} & set(names)
        assert not {"eval", "exec", "__import__"} & set(names)


FORBIDDEN = {"load": "torch", "read_pickle": None, "system": "os", "popen": "os"}  # None: anyone's


def dangers(tree: ast.AST) -> list[str]:
    """Uses of torch.load, read_pickle, os.system, os.popen and shell=True, by any name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
            of = ast.unparse(node.value)
            if FORBIDDEN[node.attr] in (None, of):
                found.append(f"{of}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            found += [
                a.name for a in node.names if FORBIDDEN.get(a.name, "") in (None, node.module)
            ]
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            safe = isinstance(node.value, ast.Constant) and not node.value.value
            found += [] if safe else ["shell="]
    return found


@each_file
def test_nothing_unpickles_or_calls_a_shell(path: Path) -> None:
    assert dangers(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("torch.load(f)", 1),
        ("from torch import load", 1),
        ("from os import system as s", 1),
        ("os.system('ls')", 1),
        ("os.popen('ls')", 1),
        ("pd.read_pickle(f)", 1),
        ("from pandas import read_pickle", 1),
        ("subprocess.run('ls', shell=True)", 1),
        ("subprocess.run('ls', shell=yes)", 1),
        ("subprocess.run(['ls'], shell=False)", 0),
        ("np.load(f, allow_pickle=False); from ncp.pretrained import load; json.load(f)", 0),
    ],
)
def test_dangers_are_seen(source: str, n: int) -> None:
    assert len(dangers(ast.parse(source))) == n


@each_file
def test_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ncp.model", {"model"}),
        ("import ncp.model as m, torch", {"model"}),
        ("from ncp import cli, __version__", {"cli", "__version__"}),
        ("from ncp.priors import CRP", {"priors"}),
        ("from . import sampling", {"sampling"}),
        ("from .exact import posterior", {"exact"}),
        ("def f():\n    from ncp.plots import show", {"plots"}),
        ("import ncp", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ncp.model", set()),
        ("import numpy.ncp", set()),
    ],
)
def test_imports_are_seen(tmp_path: Path, source: str, expected: set[str]) -> None:
    path = tmp_path / "some.py"
    path.write_text(source)
    assert imports(path, root=tmp_path) == expected


def test_deferred_imports_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("import ncp.priors\nclass A:\n    def f(self):\n        import ncp.plots")
    assert imports(path, root=tmp_path, deferred=False) == {"priors"}
    assert imports(path, root=tmp_path) == {"priors", "plots"}
