"""Folders opened as runs: toy runs and tracked ones, alone or in the folder of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.names import RUN
from rankrise.foundations.record.run_file import has_run, read_run
from rankrise.runs.toy.run import ToyRun, toy_run
from rankrise.watch import TrackedRun

Run = ToyRun | TrackedRun


def open(paths: str | Path | Sequence[str | Path]) -> list[Run]:
    """The runs that folders name, each once; the folder of a sweep, or of any runs, stands for those in it.

    >>> open("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    return [_opened(folder) for folder in folders_of(paths)]


def folders_of(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The folders that `open` opens: a run's own, or for a folder of runs those in it, by name."""
    found: list[Path] = []
    for folder in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        inner = [] if has_run(folder) else sorted(folder.glob(f"*/{RUN}"))
        found += [path.parent for path in inner] or [folder]
    return list(dict.fromkeys(found))


def by_kind(opened: Sequence[Run]) -> list[list[ToyRun] | list[TrackedRun]]:
    """The same runs, those of one kind together, the first one's kind first; refused where there is none."""
    if not opened:
        raise RankriseError("no run was passed: pass one or more folders of runs.")
    toys = [run for run in opened if isinstance(run, ToyRun)]
    tracked = [run for run in opened if isinstance(run, TrackedRun)]
    kinds: list[list[ToyRun] | list[TrackedRun]] = [toys, tracked]
    if isinstance(opened[0], TrackedRun):
        kinds.reverse()
    return [same for same in kinds if same]


def _opened(folder: Path) -> Run:
    info = read_run(folder)
    return toy_run(folder, info) if info["kind"] == "toy" else TrackedRun(folder, info)
