"""Folders opened as runs: toy runs and tracked ones, alone or in the folder of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.record.names import RUN
from rankrise.record.run_file import has_run, read_run
from rankrise.record.weight_folders import checkpoints_below, named
from rankrise.runs.toy.run import ToyRun, toy_run
from rankrise.watch import TrackedRun

Run = ToyRun | TrackedRun


@typed
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
    if folder.is_dir() and not has_run(folder):
        _refuse_what_it_holds(folder)
    info = read_run(folder)
    return toy_run(folder, info) if info["kind"] == "toy" else TrackedRun(folder, info)


def _refuse_what_it_holds(folder: Path) -> None:
    """Where a folder is not a run, but holds what was meant, further down, or what a run can be made of."""
    runs = sorted(path.parent for path in folder.glob(f"*/*/{RUN}"))
    if runs:
        above = list(dict.fromkeys(path.parent for path in runs))
        raise RankriseError(
            f"{folder} is not a run, but its folders hold some ({named(folder, runs)}): pass these, or "
            f"{str(above[0])!r} for those in it."
        )
    checkpoints = checkpoints_below(folder)
    if checkpoints:
        raise RankriseError(
            f"{folder} is not a run: it holds checkpoints ({named(folder, checkpoints)}); make a run of them "
            f"with 'rankrise history {checkpoints[0].parent} --run FOLDER', and pass that folder."
        )
