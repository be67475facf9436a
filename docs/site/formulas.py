"""Formulas become MathML when the site is built: browsers draw it themselves, so no script is fetched."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replaces what pymdownx.arithmatex marked, in pages and in docstrings alike."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline")
