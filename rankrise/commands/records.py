"""Open the runs that a command reads, and find the place for what it makes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.runs import Run


def open_and_tell(folders: Sequence[str], taken: str) -> "list[Run]":
    """Open runs; note on standard error which are `taken` as they stand, unfinished."""
    from rankrise import runs

    opened = runs.open(folders)
    for run in opened:
        if not run.finished:
            print(f"Note: {run.folder} is {taken} as it stands: it is not finished.", file=sys.stderr)
    return opened


def place_for(folders: Sequence[str]) -> Path:
    """The folder for what is made of runs: that of one run or sweep, or the one above the first of several.

    >>> place_for(["runs/a"]).as_posix(), place_for(["runs/a", "runs/b"]).as_posix()
    ('runs/a', 'runs')
    """
    first = folders[0]
    return Path(first if len(folders) == 1 else os.path.normpath(os.path.join(first, os.pardir)))
