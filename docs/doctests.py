"""Examples in docstrings as code.

Doctests stand bare in the docstrings, where Markdown would take `>>>` for a quotation.
"""

import re
from typing import Any

from griffe import Extension, Object

# A paragraph of which the first line is a prompt: to the next blank line or the end.
DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?= *\S).*)*", re.MULTILINE)


class Doctests(Extension):
    """Puts a fence around every doctest."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(_fence, obj.docstring.value)


def _fence(found: re.Match[str]) -> str:
    return f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```"
