"""The rows and spectra of a tracked run, open for writing."""

from pathlib import Path

from rankrise.foundations.record.lines import Lines
from rankrise.foundations.record.names import RANKS, STEPS, remove_unfinished, spectra_path, spectra_steps


class Record:
    """The rows and spectra of one run, open for writing."""

    def __init__(self, folder: Path) -> None:
        remove_unfinished(folder)
        self.folder = folder
        self.steps, self.ranks = Lines(folder / STEPS), Lines(folder / RANKS)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        return self.steps.end_before(step) + self.ranks.end_before(step) > 0

    def cut(self, step: int) -> int:
        """Drop what was recorded at `step` and later, because it is run again. Returns how many rows."""
        for taken in spectra_steps(self.folder):
            if taken >= step:
                spectra_path(self.folder, taken).unlink(missing_ok=True)
        return self.steps.cut(step) + self.ranks.cut(step)

    def sync(self) -> None:
        """Everything that was written is on the disk, not only in the system's hands."""
        self.steps.sync()
        self.ranks.sync()

    def close(self) -> None:
        self.steps.close()
        self.ranks.close()
