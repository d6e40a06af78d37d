"""The house rules that can be read off the source: who imports whom, and what nobody uses."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "ncp"

# Who may import whom, by the names of folders and top-level files: down the list only.
MAY_IMPORT = {
    "compiled": "",
    "engine": "",
    "files": "",
    "partitions": "",
    "generative": "compiled files partitions",
    "inference": "compiled partitions generative",
    "summary": "compiled partitions inference",
    "network": "compiled files partitions generative",
    "sampling": "compiled engine partitions network",
    "training": "files partitions generative inference network sampling",
    "checks": "partitions generative inference summary",  # never what they judge
    "output": "files",
    "posterior": "files partitions generative inference summary output",
    "model": "engine partitions generative network sampling posterior",
    "clustering": "engine files partitions generative inference summary network sampling output "
    "posterior model",
    "cli": "files generative inference summary network sampling training checks output "
    "posterior model clustering",
    "__main__": "cli",
}
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"
)
each_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(PACKAGE).with_suffix(""))
)


def room(path: Path) -> str:
    """The folder of a file, or its own name if it stands at the top."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports from, at once or in functions.

    What only a type checker imports (``if TYPE_CHECKING:``) does not count.
    """
    found: set[str] = set()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("ncp.")}
    return found - {"__version__"}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from _statements(child)


@each_file
def test_imports_run_one_way(path: Path) -> None:
    assert imports(path) <= {room(path), *MAY_IMPORT[room(path)].split()}


def test_the_map_itself_runs_one_way() -> None:
    rooms = list(MAY_IMPORT)
    for number, name in enumerate(rooms):
        assert set(MAY_IMPORT[name].split()) <= set(rooms[:number])


@each_file
def test_says_what_is_for_others(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    named = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]
    assert path.stem.startswith("__") or named.count("__all__") == 1


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
        (
            "np.load(f, allow_pickle=False); from ncp.model import load; json.load(f)",
            0,
        ),
    ],
)
def test_dangers_are_seen(source: str, n: int) -> None:
    assert len(dangers(ast.parse(source))) == n


@each_file
def test_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def lengths(source: str) -> list[int]:
    """Lines of the body of each function, without its docstring."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    bodies = [f.body[ast.get_docstring(f) is not None :] for f in functions]
    return [(b[-1].end_lineno or 0) - b[0].lineno + 1 if b else 0 for b in bodies]


def test_functions_are_short() -> None:
    # Complexity is ruff's to watch (pyproject.toml); kernels are excepted from both.
    files = [path.read_text(encoding="utf-8") for path in FILES if "kernels" not in path.stem]
    found = sorted(n for source in files for n in lengths(source))
    assert found[len(found) // 2] <= 8
    assert found[len(found) * 9 // 10] <= 20
    assert found[-1] <= 60


def test_lengths_are_seen() -> None:
    assert lengths("def f():\n    '''Says\n    it.'''\n    x = (\n        1)\n    return x") == [3]
    assert lengths("def f():\n    'Says what.'") == [0]
    assert lengths("class A:\n    def f(self):\n        return 1\n\n\n") == [1]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ncp.model", {"model"}),
        ("import ncp.model as m, torch", {"model"}),
        ("from ncp import cli, __version__", {"cli"}),
        ("from ncp.generative.priors import CRP", {"generative"}),
        ("def f():\n    from ncp.output.plots import show", {"output"}),
        ("import ncp", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ncp.model", set()),
        ("import numpy.ncp", set()),
    ],
)
def test_imports_are_seen(tmp_path: Path, source: str, expected: set[str]) -> None:
    path = tmp_path / "some.py"
    path.write_text(source)
    assert imports(path) == expected
