"""A name that was mistyped, and the one that was meant."""

import difflib
from collections.abc import Iterable

CLOSE = 0.65
"""Of two names, twice the letters in common over all letters: one of three may be wrong."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a name is most like, or the only one that it abbreviates; None where none is close.

    >>> nearest("initialization_scale", ["seed", "initialisation_scale"]), nearest("out", ["dropout"])
    ('initialisation_scale', None)
    >>> nearest("dim", ["dimension", "seed"]), nearest("lr", ["learning_rate", "seed"])
    ('dimension', 'learning_rate')
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=CLOSE)
    short = [
        one for one in names if one.startswith(name) or name == "".join(word[:1] for word in one.split("_"))
    ]
    return close[0] if close else short[0] if len(name) > 1 and len(short) == 1 else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is not known: the nearest as a question, or else the advice given.

    >>> did_you_mean("sed", ["seed", "layers"], "pass one of them."), did_you_mean("x", ["seed"], "leave it.")
    ('did you mean seed?', 'leave it.')
    """
    meant = nearest(name, known)
    return f"did you mean {meant}?" if meant else otherwise
