"""The terminal: lines that cannot command it, bars, and a first sign of life.

Names of files and columns are anybody's; a terminal obeys the escape sequences in what it prints.
So control characters, and those that turn the direction of text, are printed as Python writes
them. Nothing heavy is imported here.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Tell", "bars", "console", "print_line", "say", "show_log", "sign_of_life", "visible"]

Tell = Callable[[str, int, int], None]  # what is being done, done, total
HIDDEN = ("Cc", "Cs", "Zl", "Zp")  # categories: control, half characters, separators of lines
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CLEAR_LINE = "\r\x1b[K"


def visible(text: str) -> str:
    r"""Text with everything that a terminal could obey spelled out.

    Example:
        >>> visible("petal\x1b[2J width")
        'petal\\x1b[2J width'
    """
    if text.isprintable():
        return text
    return "".join(_spelled(c) for c in text)


def _spelled(character: str) -> str:
    hidden = unicodedata.category(character) in HIDDEN or character in TURNING
    return character.encode("unicode_escape").decode("ascii") if hidden else character


def say(message: str) -> None:
    """One line on standard error."""
    print(f"ncp: {visible(' '.join(message.split()))}", file=sys.stderr)


def show_log() -> None:
    """What the package logs, as lines on standard error; where a bar stands, in its place."""
    log = logging.getLogger("ncp")
    if not any(isinstance(handler, _Lines) for handler in log.handlers):
        log.addHandler(_Lines())
        log.setLevel(logging.INFO)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(CLEAR_LINE)
        say(record.getMessage())


def console() -> Console:
    """Where results are printed."""
    from rich.console import Console

    class Printed(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # which is no failure of the program

    return Printed(highlight=False)


def print_line(text: str, head: str = "") -> None:
    """One line of a result, as it is; the head, if any, is bold."""
    from rich.text import Text

    line = Text(head, style="bold") + Text(f" {visible(text)}" if head else visible(text), style="")
    console().print(line, soft_wrap=True)


@contextmanager
def sign_of_life(wanted: bool, what: str) -> Iterator[None]:
    """A line on standard error while something starts, gone when it has."""
    if wanted:
        sys.stderr.write(visible(what))
        sys.stderr.flush()
    try:
        yield
    finally:
        if wanted:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()


@contextmanager
def bars(wanted: bool) -> Iterator[Tell]:
    """Bars on standard error, one for each thing that is being done."""
    if not wanted:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield tell
