"""Classes of one's own: found in a Python file that the user names, or in an installed package.

A checkpoint names the classes of its generative model and never brings code. Those that are not of
this package are registered when their module is imported: by the user's program, from the files
that NCP_PLUGINS lists (`ncp ... --plugin FILE.py` adds to it, so that worker processes find them,
too), or by a package that has an entry point in the group `ncp.plugins`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["HOW_TO_IMPORT", "add_plugin", "import_plugins", "named_thing"]

GROUP = "ncp.plugins"
VARIABLE = "NCP_PLUGINS"
HOW_TO_IMPORT = (
    "import the module that defines it first, or on the command line name its file: "
    "--plugin FILE.py"
)


def add_plugin(file: str | os.PathLike[str]) -> ModuleType:
    """Import a Python file, here and in the processes that this one starts.

    Args:
        file: Its path.
    """
    path = Path(file).expanduser().resolve()
    listed = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    module = _import_file(path)
    if str(path) not in listed:
        os.environ[VARIABLE] = os.pathsep.join([*listed, str(path)])
    return module


def import_plugins() -> None:
    """Import all files of NCP_PLUGINS and all entry points."""
    for part in os.environ.get(VARIABLE, "").split(os.pathsep):
        if part:
            _import_file(Path(part))
    for entry in entry_points(group=GROUP):
        entry.load()


def named_thing(text: str) -> Any:
    """What `FILE.py:NAME`, or `package.module:NAME`, names.

    Args:
        text: A file or a module, a colon, and a name in it.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise ValueError(f"Expected FILE.py:NAME but got {text!r}")
    is_file = place.endswith(".py") or os.sep in place
    module = add_plugin(place) if is_file else import_module(place)
    if not hasattr(module, name):
        raise ValueError(f"{place}: defines no {name}")
    return getattr(module, name)


def _import_file(path: Path) -> ModuleType:
    # A name of its own: a plugin that is called torch.py must not be taken for torch.
    name = f"ncp_plugin_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"{path}: there is no such Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    return module
