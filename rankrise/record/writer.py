"""Writing the rows, spectra and run.json of a tracked run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_at, sync
from rankrise.record.lines import Lines
from rankrise.record.names import RANKS, STEPS, remove_unfinished, spectra_path, spectra_steps
from rankrise.record.run_file import write_run
from rankrise.record.tensors import write_tensors


class Record:
    """The rows and spectra of one run, open for writing.

    Before each write it looks whether the folder and the files are still at their paths. If not, they were
    moved, removed or replaced, and nothing more can become part of the record: see `lost`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # the process may change its working directory
        remove_unfinished(self.folder)
        self.steps, self.ranks = Lines(self.folder / STEPS), Lines(self.folder / RANKS)
        # Held open, so that the system gives its number to no other folder.
        self._place = None if os.name == "nt" else os.open(self.folder, os.O_RDONLY)

    @property
    def folder_in_place(self) -> bool:
        """Whether the folder is still the one that was opened."""
        return self._place is None or is_at(self.folder, self._place)

    @property
    def lost(self) -> str:
        """Why nothing more can be recorded; empty while everything is in its place."""
        if not self.folder_in_place:
            return f"{self.folder} was moved, removed or replaced"
        for lines in (self.steps, self.ranks):
            if not is_at(lines.path, lines.handle):
                return f"{lines.path} was moved, removed or replaced"
        return ""

    def add_step(self, step: int, row: dict[str, Any]) -> None:
        """A row of loss and metrics."""
        self._refuse_lost()
        self.steps.append(step, row)

    def add_ranks(self, step: int, row: dict[str, Any]) -> None:
        """A row of ranks."""
        self._refuse_lost()
        self.ranks.append(step, row)

    def add_spectra(self, step: int | None, spectra: Mapping[str, Tensor]) -> None:
        """A file of full spectra; None for those of the initial weights."""
        self._refuse_lost()
        write_tensors(spectra_path(self.folder, step), spectra)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        return sum(lines.rows_before(step)[0] for lines in (self.steps, self.ranks)) > 0

    def cut(self, step: int) -> int:
        """Drop everything from `step` on, because it is run again. Returns how many rows."""
        self._refuse_lost()
        for later in spectra_steps(self.folder):
            if later >= step:
                spectra_path(self.folder, later).unlink()
        return self.steps.cut(step) + self.ranks.cut(step)

    def sync(self) -> None:
        """Have the disk keep everything that was written."""
        self._refuse_lost()
        self.steps.sync()
        self.ranks.sync()
        sync(self.folder)

    def write_about(self, info: dict[str, Any]) -> None:
        """Replace run.json."""
        if not self.folder_in_place:
            raise RankriseError(self.lost)
        write_run(self.folder, "tracked", info)

    def close(self) -> None:
        self.steps.close()
        self.ranks.close()
        if self._place is not None:
            os.close(self._place)

    def _refuse_lost(self) -> None:
        if why := self.lost:
            raise RankriseError(why)
