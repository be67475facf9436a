"""truncation.json: what `rankrise truncate` measured, checked on reading."""

from pathlib import Path
from typing import Any

from rankrise.foundations.files import read_json
from rankrise.record.names import TRUNCATION
from rankrise.record.shapes import COUNT, NUMBER, SIZE, OrNone, check_shape

AGAIN = "delete it, and measure again with 'rankrise truncate'"
_SCORES = {"loss": NUMBER, "*": NUMBER}
_POINT = {
    "group?": str,
    "method?": str,
    "rank": SIZE,
    "parameters?": COUNT,
    "kept?": NUMBER,
    "scores?": _SCORES,
    "gain": OrNone(NUMBER),  # None: the loss does not fall by this group's change
}
_CURVE = {
    "group": str,
    "method": str,
    "points": [_POINT],
    "initial?": _SCORES,
    "full_rank": COUNT,
    "functional_rank": OrNone(SIZE),
    "at_most?": OrNone(SIZE),
}
"""What only a call that goes on needs may be absent: a run is shown without it."""
_SHAPE = {"curves": [_CURVE], "trained?": _SCORES, "gain?": NUMBER, "measured_on?": str}


def read_truncation(folder: Path) -> dict[str, Any] | None:
    """Its curves and what they are of; None where there is no such file."""
    path = folder / TRUNCATION
    if not path.exists():
        return None
    found: dict[str, Any] = check_shape(path, read_json(path, AGAIN), _SHAPE, AGAIN)
    return found
