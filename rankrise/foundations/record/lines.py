"""Files of JSON lines, one row per step, that can be read at any moment, whatever happens to the writer."""

import json
import operator
import os
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite

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
            row = json.loads(line)
            rows.append(row | {"step": operator.index(row["step"])})
        except (ValueError, TypeError, KeyError) as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file."
            ) from error
    return rows


def last_step(path: Path) -> int:
    """The step of the last whole line, found without reading the others; 0 where there is none."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *lines, _ = file.read().split(b"\n")  # the last is empty, or being written
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _step_of(line: bytes, path: Path) -> int:
    try:
        return int(line[len(_START) : line.index(b",")].rstrip(b"}\n"))
    except ValueError as error:
        raise RankriseError(f"{path} has a line that starts with {line[:20]!r}: restore the file.") from error
