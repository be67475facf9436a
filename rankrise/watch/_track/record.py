"""The folder of a run, written so that it can be read at any moment, whatever happens to the run."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite, replacing

try:
    import fcntl
except ImportError:  # Windows: a tracker of another process is not noticed
    fcntl = None  # type: ignore[assignment]

RUN, INITIAL, STEPS, RANKS = "run.json", "initial.safetensors", "steps.jsonl", "ranks.jsonl"
UNFINISHED = (
    ".run-*.json", ".initial-*.safetensors", "spectra/.*-*.safetensors", ".tmp??????", "spectra/.tmp??????",
)  # fmt: skip
"""What a killed process was writing, under our temporary names and those of safetensors within."""

_START = b'{"step":'


class Lines:
    """A file of JSON lines in the order of their steps. Each is written by one call, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: int | None = None
        """The step that was appended last, since it was opened or cut."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._handle, self._size)  # a last line that was torn by a kill

    def append(self, step: int, row: dict[str, Any]) -> None:
        line = json.dumps(finite({"step": step, **row}), separators=(",", ":"), allow_nan=False) + "\n"
        data = line.encode()
        try:
            written = os.write(self._handle, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes fit into {self.path}: is the disk full?")
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += written
        self.last = step

    def end_before(self, step: int) -> int:
        """The size of the file without the rows of `step` and later."""
        size = 0
        with self.path.open("rb") as file:
            for line in file:
                if _step_of(line, self.path) >= step:
                    break
                size += len(line)
        return size

    def cut(self, step: int) -> int:
        """Drop the rows of `step` and later. Returns of how many steps."""
        size = self.end_before(step)
        with self.path.open("rb") as file:
            file.seek(size)
            dropped = {_step_of(line, self.path) for line in file}
        os.ftruncate(self._handle, size)
        self._size, self.last = size, None
        return len(dropped)

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; a last line that is being written, or was torn, is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file"
            ) from error
    return rows


def _step_of(line: bytes, path: Path) -> int:
    try:
        return int(line[len(_START) : line.index(b",")].rstrip(b"}\n"))
    except ValueError as error:
        raise RankriseError(f"{path} has a line that starts with {line[:20]!r}: restore the file.") from error


class Record:
    """The rows and spectra of one run, open for writing."""

    def __init__(self, folder: Path) -> None:
        for pattern in UNFINISHED:
            for unfinished in folder.glob(pattern):
                unfinished.unlink(missing_ok=True)
        self.folder = folder
        self.steps, self.ranks = Lines(folder / STEPS), Lines(folder / RANKS)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        return self.steps.end_before(step) + self.ranks.end_before(step) > 0

    def cut(self, step: int) -> int:
        """Drop what was recorded at `step` and later, because it is run again. Returns how many rows."""
        for path in self.folder.glob("spectra/step-*.safetensors"):
            if int(path.stem.removeprefix("step-")) >= step:
                path.unlink(missing_ok=True)
        return self.steps.cut(step) + self.ranks.cut(step)

    def spectra_path(self, step: int | None) -> Path:
        return spectra_path(self.folder, step)

    def sync(self) -> None:
        """Everything that was written is on the disk, not only in the system's hands."""
        self.steps.sync()
        self.ranks.sync()

    def close(self) -> None:
        self.steps.close()
        self.ranks.close()


def spectra_path(folder: Path, step: int | None) -> Path:
    """The file with the full spectra of a step; None for those of the initial products."""
    return folder / "spectra" / f"{'initial' if step is None else f'step-{step:010d}'}.safetensors"


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    with replacing(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Lock:
    """Refuses a second tracker on a folder. The system lets go of it when the process ends, however it ends.

    A record lock belongs to the process, so that workers forked from it do not hold it when it is killed;
    `_here` is for a second tracker in the same process.
    """

    _here: set[Path] = set()  # noqa: RUF012 (shared on purpose)

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        if self._folder in self._here:
            raise RankriseError(f"{folder} is being written by a tracker of this process: close that one.")
        self._handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        if fcntl is not None:
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                os.close(self._handle)
                raise RankriseError(
                    f"{folder} is being written by a tracker of another process: end that one, or pass "
                    "another folder."
                ) from error
            except OSError:  # a file system without locks
                pass
        self._here.add(self._folder)

    def release(self) -> None:
        self._here.discard(self._folder)
        os.close(self._handle)
