"""Formulas as MathML, made when the site is built.

Browsers draw MathML themselves, so the pages need neither a script nor another machine.
"""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""
    return FORMULA.sub(_replace, html)


def _replace(match: re.Match[str]) -> str:
    display = "block" if match["tag"] == "div" else "inline"
    return convert(unescape(match["tex"]), display=display)
