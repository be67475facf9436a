"""Curves of a truncation on disk: written as they are measured, read by the same command when it goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.record.names import TRUNCATION
from rankrise.record.truncation import AGAIN, read_truncation
from rankrise.use._truncate import GainCurve, Point


def keep_curves(
    folder: Path,
    about: Mapping[str, Any],
    curves: Sequence[GainCurve],
    known: Sequence[GainCurve] = (),
    trained: Mapping[str, float] | None = None,
) -> Path:
    """Write what is measured so far, and of what was `known` before what is not measured again; `trained` are
    the scores of the whole model, once all is measured."""
    measured = {(curve.group, curve.method) for curve in curves}
    others = [curve for curve in known if (curve.group, curve.method) not in measured]
    found = {**about, "curves": [asdict(curve) for curve in (*curves, *others)]}
    write_json(folder / TRUNCATION, found if trained is None else {**found, "trained": dict(trained)})
    return folder / TRUNCATION


def kept_curves(folder: Path, about: Mapping[str, Any]) -> list[GainCurve]:
    """The curves that an earlier call of the same command left there."""
    path, found = folder / TRUNCATION, read_truncation(folder)
    if found is None:
        return []
    for name, value in about.items():
        if name not in found:
            raise RankriseError(f"{path} does not say {name}, as it would today: pass another folder.")
        if found[name] != value:
            raise RankriseError(
                f"{path} was measured with {name} {found[name]!r}, not {value!r}: pass another folder."
            )
    try:
        return [
            GainCurve(**{**curve, "points": tuple(Point(**point) for point in curve["points"])})
            for curve in found["curves"]
        ]
    except TypeError as error:  # a name that is not known
        raise RankriseError(f"{path} is damaged ({error}): {AGAIN}.") from error
