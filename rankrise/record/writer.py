"""Write the rows, spectra and run.json of a tracked run."""

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

    Before each write it checks that the folder and the files are still at their paths. If not, somebody
    moved, removed or replaced them, and nothing more is recorded: see `lost`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # the process may change its working directory
        remove_unfinished(self.folder)
        self.steps, self.ranks = Lines(self.folder / STEPS), Lines(self.folder / RANKS)
        self._opened = {lines.path: lines.handle for lines in (self.steps, self.ranks)}
        if os.name != "nt":  # held open, so that the system gives its number to no other folder
            self._opened = {self.folder: os.open(self.folder, os.O_RDONLY)} | self._opened

    @property
    def lost(self) -> str:
        """Why nothing more can be recorded; empty while everything is in its place."""
        for path, handle in self._opened.items():
            if not is_at(path, handle):
                return f"{path} was moved, removed or replaced"
        return ""

    def add_step(self, step: int, row: dict[str, Any]) -> None:
        """Append a row of loss and metrics."""
        self._refuse_lost()
        self.steps.append(step, row)

    def add_ranks(self, step: int, row: dict[str, Any]) -> None:
        """Append a row of ranks."""
        self._refuse_lost()
        self.ranks.append(step, row)

    def add_spectra(self, step: int | None, spectra: Mapping[str, Tensor]) -> None:
        """Write a file of full spectra; None for those of the initial weights."""
        self._refuse_lost()
        write_tensors(spectra_path(self.folder, step), spectra)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        return self.steps.before(step)[0] + self.ranks.before(step)[0] > 0

    def cut(self, step: int) -> int:
        """Drop everything from `step` on, because it is run again. Returns how many rows."""
        self._refuse_lost()
        for later in spectra_steps(self.folder):
            if later >= step:
                spectra_path(self.folder, later).unlink()
        return self.steps.cut(step) + self.ranks.cut(step)

    def sync(self) -> None:
        """Put everything that was written on the disk."""
        self._refuse_lost()
        os.fsync(self.steps.handle)
        os.fsync(self.ranks.handle)
        sync(self.folder)

    def write_about(self, info: dict[str, Any]) -> None:
        """Replace run.json, unless the folder is lost."""
        handle = self._opened.get(self.folder)
        if handle is not None and not is_at(self.folder, handle):
            raise RankriseError(self.lost)
        write_run(self.folder, "tracked", info)

    def close(self) -> None:
        for handle in self._opened.values():
            os.close(handle)

    def _refuse_lost(self) -> None:
        if why := self.lost:
            raise RankriseError(why)
