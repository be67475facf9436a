"""Runs that a command reads, what is told of records that are not whole, and where what it makes goes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.runs import Run


def open_and_tell(folders: Sequence[str], taken: str) -> "list[Run]":
    """The runs in folders; on the error stream, which of them are not finished or have lost rows, and are
    therefore `taken` ("drawn", "judged") as they stand."""
    from rankrise import runs

    opened = runs.open(folders)
    for run in opened:
        lost = [] if isinstance(run, runs.ToyRun) else [*run.missing_rows, *run.missing_spectra]
        for what in (*([] if run.finished else ["it is not finished"]), *lost):
            print(f"Note: {run.folder} is {taken} as it stands: {what}.", file=sys.stderr)
    return opened


def place_for(folders: Sequence[str]) -> Path:
    """The folder for what is made of runs: that of the run or sweep; of several, the one that the first lies
    in, where it takes the place of nothing that was made of one of them.

    >>> place_for(["runs/a"]).as_posix(), place_for(["runs/a", "runs/b"]).as_posix()
    ('runs/a', 'runs')
    """
    first = folders[0]
    return Path(first if len(folders) == 1 else os.path.normpath(os.path.join(first, os.pardir)))
