"""The rows and spectra of a tracked run, open for writing."""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_at, sync
from rankrise.record.lines import Lines, free_name, read_lines
from rankrise.record.lock import Lock
from rankrise.record.names import (
    INITIAL,
    RANKS,
    RUN,
    STEPS,
    remove_unfinished,
    spectra_path,
    spectra_step,
    spectra_steps,
)
from rankrise.record.run_file import has_checksums, write_run
from rankrise.record.tensors import write_tensors
from rankrise.watch._track.spectra_read import of_step, spectra_tensors
from rankrise.watch._track.written_once import WrittenOnce


class Record:
    """The rows and spectra of one run, open for writing.

    Other programs may remove, rename or replace a run's folder, or files in it, while it is being written.
    Each write looks first: rows are put back where they were; without its folder the record is `gone`. `tell`
    gets a sentence, and whether something of the record is missing now.
    """

    def __init__(self, folder: Path, lock: Lock, tell: Callable[[str, bool], None]) -> None:
        self.folder = folder.resolve()  # the process may change its own folder, or a link
        self.gone = ""
        """Why nothing is written any more."""
        self.last_weights = ""
        """The checksum of the tracked weights at the end, once they are measured."""
        self._lock, self._tell = lock, tell
        self._about = (self.folder / RUN).read_bytes()
        info = json.loads(self._about)
        left = info.get("sizes", {})
        self._left = {
            step: size for name, size in left.items() if (step := spectra_step(Path(name))) is not None
        }
        self._checked = has_checksums(info)
        self._once = WrittenOnce()
        self._once.add(self.folder / INITIAL, info["initial_sha256"])
        remove_unfinished(self.folder)
        self.steps, self.ranks = Lines(self.folder / STEPS), Lines(self.folder / RANKS)
        self._short = [one for one in (self.steps, self.ranks) if one.size < left.get(one.path.name, 0)]
        # Held open, so that the system gives its number to no other folder.
        self._place = None if os.name == "nt" else os.open(self.folder, os.O_RDONLY)

    def add_step(self, step: int, row: dict[str, Any]) -> None:
        """A row of loss and metrics."""
        self._look()
        self.steps.append(step, row)

    def add_ranks(self, step: int, row: dict[str, Any]) -> None:
        """A row of ranks."""
        self._look()
        self.ranks.append(step, row)

    def add_spectra(self, step: int | None, spectra: Mapping[str, Tensor]) -> None:
        """A file of full spectra; None for those of the initial products."""
        self._look()
        path = spectra_path(self.folder, step)
        write_tensors(path, spectra, of=of_step(step))
        self._once.leave(path)
        self._look_at_files(self._once.newest)
        self._once.add(path)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        return self.steps.end_before(step) + self.ranks.end_before(step) > 0

    def cut(self, step: int) -> int:
        """Drop what was recorded at `step` and later, because it is run again. Returns how many rows."""
        self._look()
        self._look_into_rows(all_files=True)
        for taken in spectra_steps(self.folder):
            if taken >= step:
                path = spectra_path(self.folder, taken)
                path.unlink(missing_ok=True)
                self._once.leave(path)
        self._left = {taken: size for taken, size in self._left.items() if taken < step}
        return self.steps.cut(step) + self.ranks.cut(step)

    def check_kept(self) -> None:
        """Read all that is kept of a run which is continued, and tell what is damaged, or not there any more:
        `sizes` say what there was when it was left, and a step with spectra has ranks."""
        for lines in self._short:
            if lines.size:
                self._tell(f"{lines.path} has fewer rows than when the run was left", True)
        steps = spectra_steps(self.folder)
        for step in sorted({*self._left} - {*steps}):
            self._tell(f"{spectra_path(self.folder, step)} is not there any more", True)
        for step in steps:
            self._tell_damage(partial(self._take_spectra, step))
        self._tell_damage(partial(read_lines, self.steps.path, self._checked))
        self._tell_damage(partial(self._match_ranks, steps))

    def _take_spectra(self, step: int) -> None:
        path = spectra_path(self.folder, step)
        spectra_tensors(path, step, self._checked)
        self._once.add(path)

    def _match_ranks(self, steps: list[int]) -> None:
        lacking = {*steps} - {row["step"] for row in read_lines(self.ranks.path, self._checked)}
        if lacking:
            raise RankriseError(f"{self.ranks.path} lacks step {min(lacking)}, of which there are spectra.")

    def _tell_damage(self, read: Callable[[], object]) -> None:
        try:
            read()
        except RankriseError as error:
            self._tell(str(error).rstrip("."), True)

    def sync(self, last: bool = False) -> None:
        """Everything that was written is on the disk, not only in the system's hands. The `last` time, all
        rows are read once more; until then, only those of files that others have touched."""
        self._look()
        self._look_at_files()
        self._look_at_about()
        self.steps.sync()
        self.ranks.sync()
        self._look_into_rows(all_files=last)
        sync(self.folder)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of rows in each file, and of each file of spectra, also of those that are lost already:
        fewer, later, are what was lost."""
        rows = {lines.path.name: lines.size for lines in (self.steps, self.ranks)}
        spectra: dict[int | None, int] = dict(self._left.items())
        for step in (None, *spectra_steps(self.folder)):
            path = spectra_path(self.folder, step)
            spectra |= {step: path.stat().st_size} if path.is_file() else {}
        return rows | {spectra_path(Path(), step).as_posix(): size for step, size in spectra.items()}

    def write_about(self, info: dict[str, Any]) -> None:
        """Write run.json anew."""
        self._look_at_about()
        write_run(self.folder, "tracked", info)
        self._about = (self.folder / RUN).read_bytes()

    def close(self) -> None:
        self.steps.close()
        self.ranks.close()
        if self._place is not None:
            os.close(self._place)

    def look_for_folder(self) -> str:
        """Why the record is `gone`, if its folder is not there; a write that failed may have found that."""
        if not self.gone and self._place is not None and not is_at(self.folder, self._place):
            self.gone = f"{self.folder} was removed, renamed or replaced by another program."
        return self.gone

    def _look(self) -> None:
        """Make sure that what is written next becomes a part of the record."""
        self.look_for_folder()
        try:
            if not self.gone:
                self._lock.renew()
        except RankriseError as error:
            self.gone = str(error)
        if self.gone:
            raise RankriseError(self.gone)
        for lines in (self.steps, self.ranks):
            if not lines.in_place:
                aside = lines.restore()
                kept = f"; what lay there is kept as {aside.name}" if aside else ""
                self._tell(f"{lines.path} was removed or replaced: all its rows are put back{kept}", False)
            elif not lines.untouched:
                before = lines.size
                lines.go_on()
                foreign = lines.size != before  # rows of ours are gone, or there are others'
                self._tell(f"{lines.path} was changed by another program, and goes on as it is", foreign)

    def _look_into_rows(self, all_files: bool) -> None:
        """Tell of rows that another program changed in place; where not in `all_files`, in those touched."""
        for lines in (self.steps, self.ranks):
            if (all_files or lines.suspect) and (what := lines.changed_in_place()):
                self._tell(f"{lines.path} was changed by another program, and {what}", True)

    def _look_at_about(self) -> None:
        """Tell of a run.json that another program removed or changed: it is written anew at the end."""
        path = self.folder / RUN
        found = path.read_bytes() if path.is_file() else b""
        if found == self._about:
            return
        self._about, kept = found, ""
        if found:
            aside = free_name(path)
            aside.write_bytes(found)
            kept = f"; what lies there is kept as {aside.name}"
        self._tell(f"{path} was removed or changed, and is written anew at the end{kept}", False)

    def _look_at_files(self, paths: list[Path] | None = None) -> None:
        for sentence in self._once.meddled(paths):
            self._tell(sentence, True)
