"""A name that was mistyped, and the one that was meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a name is most like; None where none is like it.

    >>> nearest("initialization_scale", ["seed", "initialisation_scale"]), nearest("colour", ["seed"])
    ('initialisation_scale', None)
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
