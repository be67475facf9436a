"""truncation.json in the folder of a run: what `rankrise truncate` measured of it, checked on reading."""

from pathlib import Path
from typing import Any

from rankrise.foundations.files import read_json
from rankrise.foundations.record.names import TRUNCATION
from rankrise.foundations.record.shapes import NUMBER, check_shape

AGAIN = "write it again with 'rankrise truncate'"
_POINT = {"rank": int, "gain": object}
_CURVE = {"group": str, "method": str, "full_rank": int, "functional_rank": object, "points": [_POINT]}


def read_truncation(folder: Path) -> dict[str, Any] | None:
    """Its curves and what they are of; None where there is no such file."""
    path = folder / TRUNCATION
    if not path.is_file():
        return None
    found = read_json(path, AGAIN)
    check_shape(path, found, {"curves": [_CURVE], "gain?": NUMBER, "measured_on?": str}, AGAIN)
    for curve in found["curves"]:  # None: the loss did not fall by this group's change
        gains = [point["gain"] for point in curve["points"] if point["gain"] is not None]
        check_shape(path, gains, [NUMBER], AGAIN, "gain")
        ranks = [curve["functional_rank"]] if curve["functional_rank"] is not None else []
        check_shape(path, ranks, [int], AGAIN, "functional_rank")
    return found
