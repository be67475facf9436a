"""Runs as folders: of what kind a run is, and which runs lie in the folders that a user names."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError

FORMAT = "rankrise-run/1"
KINDS = ("toy", "tracked")


def run_file(folder: str | Path, maker: str) -> Path:
    """A run's run.json; where there is none, the folder is refused, and `maker` says what writes one."""
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise RankriseError(f"{folder} is no run: it has no run.json; pass a folder written by {maker}")
    return path


def check_kind(path: Path, info: Any, *kinds: str) -> str:
    """The kind that a run.json says it is of; refused where it is another format, or none of `kinds`."""
    if not isinstance(info, dict):
        raise RankriseError(f"{path} is damaged (it holds no JSON object): restore it")
    found = info.get("format"), info.get("kind")
    if found[0] != FORMAT or found[1] not in kinds:
        wanted = " and ".join(map(repr, kinds))
        raise RankriseError(
            f"{path} is of format and kind {found[0]!r}, {found[1]!r}: pass a run of {FORMAT!r}, {wanted}"
        )
    return str(found[1])


def kind_of(folder: str | Path) -> str:
    """The kind of the run in a folder: "toy" or "tracked".

    >>> kind_of("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder is no run: it has no run.json; pass a folder written by ...
    """
    path = run_file(
        folder, "'rankrise toy', by 'rankrise train' or by a RankTracker, or a folder of such folders"
    )
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RankriseError(f"{path} is damaged ({str(error).splitlines()[0]}): restore it") from error
    return check_kind(path, info, *KINDS)


def runs_in(folders: Sequence[str | Path]) -> list[Path]:
    """The runs that folders name: a run itself, or for a folder of runs (a sweep) those in it, by name."""
    found: list[Path] = []
    for folder in map(Path, folders):
        inner = [] if (folder / "run.json").is_file() else sorted(folder.glob("*/run.json"))
        found += [path.parent for path in inner] or [folder]
    return list(dict.fromkeys(found))


def of_one_kind(folders: Sequence[str | Path]) -> tuple[str, list[Path]]:
    """The runs that folders name, and their kind; refused where there is none, or where kinds are mixed."""
    runs = runs_in(folders)
    if not runs:
        raise RankriseError("no run was passed: pass one or more folders of runs")
    kinds = {kind_of(run): run for run in reversed(runs)}
    if len(kinds) > 1:
        named = " and ".join(f"{run} is a {kind} run" for kind, run in sorted(kinds.items()))
        raise RankriseError(f"{named}: pass runs of one kind")
    return next(iter(kinds)), runs
