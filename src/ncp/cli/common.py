"""What the commands share: exit codes, options that several have, how options become a command.

Nothing heavy is imported before a command needs it, so that `ncp --help` and shell completion are
quick.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ncp.output import terminal

__all__ = [
    "BAD_INPUT",
    "CHECK_FAILED",
    "JSON",
    "MODEL_HELP",
    "SOME_FAILED",
    "Plugins",
    "Quiet",
    "add_plugins",
    "save_figure",
    "sign_of_life",
    "takes",
]

BAD_INPUT, SOME_FAILED, CHECK_FAILED = 3, 4, 5
MODEL_HELP = "Name of a model (see [bold]ncp models[/bold]) or a checkpoint file."
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file with classes of your own that a model names."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

T = TypeVar("T")
R = TypeVar("R")


def takes(options: type[T]) -> Callable[[Callable[[T], R]], Callable[..., R]]:
    """Make a command of a function whose one argument is a dataclass of options."""

    def decorate(function: Callable[[T], R]) -> Callable[..., R]:
        def command(**given: Any) -> R:
            return function(options(**given))

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__annotations__ = get_type_hints(options, include_extras=True)
        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return decorate


def sign_of_life(what: str, wanted: bool = True) -> AbstractContextManager[None]:
    """On a terminal, before anything heavy is imported; from then on, what is logged is shown."""
    shown = wanted and sys.stderr.isatty()
    if shown:
        terminal.show_log()
    return terminal.sign_of_life(shown, f"{what} ...")


def add_plugins(files: Sequence[Path] | None) -> None:
    """Make the classes of these files known by their names."""
    from ncp.generative.plugins import add_plugin

    for file in files or ():
        add_plugin(file)


def save_figure(figure: Any, path: Path) -> None:
    """As PNG, SVG or PDF, whole or not at all."""
    import io

    from ncp.files import write_atomically

    kind = path.suffix.lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=144)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
