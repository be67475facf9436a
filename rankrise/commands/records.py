"""Runs that a command reads, and what is told of records that are not whole."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.runs import Run


def open_and_tell(folders: Sequence[str], taken: str) -> "list[Run]":
    """The runs in folders; on the error stream, which of them are not finished or have lost rows, and are
    therefore `taken` ("drawn", "judged") as they stand."""
    from rankrise import runs

    opened = runs.open(folders)
    for run in opened:
        lost = [] if isinstance(run, runs.ToyRun) else run.missing_rows
        for what in (*([] if run.finished else ["it is not finished"]), *lost):
            print(f"Note: {run.folder} is {taken} as it stands: {what}.", file=sys.stderr)
    return opened
