"""Open folders as runs, toy or tracked, alone or in the folder of a sweep."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import RUN, checkpoints_below, has_run, read_run
from rankrise.runs.toy import ToyRun, open_toy
from rankrise.watch import TrackedRun, find_stages
from rankrise.watch.types import StagesFound

Run = ToyRun | TrackedRun


def open(paths: str | Path | Sequence[str | Path]) -> list[Run]:
    """Open runs, each once; a folder of runs, such as that of a sweep, stands for the runs in it.

    >>> open("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    found: list[Path] = []
    for folder in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        inner = [] if has_run(folder) else sorted(folder.glob(f"*/{RUN}"))
        found += [path.parent for path in inner] or [folder]
    return [_opened(folder) for folder in dict.fromkeys(found)]


def by_kind(opened: Sequence[Run]) -> list[list[Run]]:
    """The runs grouped by kind, the kind of the first run first."""
    if not opened:
        raise RankriseError("no run was passed: pass one or more folders of runs.")
    kinds = dict.fromkeys(map(type, opened))
    return [[run for run in opened if type(run) is kind] for kind in kinds]


@lru_cache(maxsize=32)
def found_stages(run: TrackedRun) -> StagesFound:
    """The stages of a run, searched for once."""
    return find_stages(run)


def _opened(folder: Path) -> Run:
    if not has_run(folder) and checkpoints_below(folder):
        raise RankriseError(
            f"{folder} is not a run: it holds checkpoints; make a run of them with 'rankrise history FOLDER "
            "--run RUN', and pass that."
        )
    info = read_run(folder)
    return open_toy(folder, info) if info["kind"] == "toy" else TrackedRun(folder, info)
