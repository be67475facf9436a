"""Doctests in docstrings are shown as code."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each block of examples into a fence."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Is called for each module, class, function and attribute that was read."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub("```pycon\n\\g<0>\n```", obj.docstring.value)
