"""A name that was mistyped, and the one that was meant."""

import difflib
from collections.abc import Iterable

CLOSE = 0.65
"""Of two names, twice the letters in common over all letters: one of three may be wrong."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a name is most like; None where none is close to it.

    >>> nearest("initialization_scale", ["seed", "initialisation_scale"]), nearest("out", ["dropout"])
    ('initialisation_scale', None)
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=CLOSE)), None)
