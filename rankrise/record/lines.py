"""Files of JSON lines, one row per step. They can be read at any moment, whatever happens to the writer."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite

MOST = 2**63
"""Steps are below this: they are read as 64-bit numbers."""
NOT_A_ROW = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a damaged line raises."""
LEFT_OUT = "left out"
"""In a row of loss and metrics: the numbers that could not be recorded, by name, each with the reason."""
_CHECKSUM = "crc32"  # ended the rows of earlier versions
RESERVED = ("step", "time", LEFT_OUT, _CHECKSUM)
"""Names that no metric can have."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class Lines:
    """A file of rows in the order of their steps, open for writing. A torn last line is removed at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: int | None = None
        """The step of the row that was appended last."""
        self.handle = os.open(path, _FLAGS, 0o666)
        end = sum(map(len, _whole_lines(path)))
        if end < os.fstat(self.handle).st_size:
            os.ftruncate(self.handle, end)

    def append(self, step: int, row: dict[str, Any]) -> None:
        """Write a row with one call; if it does not fit on the disk, none of it stays."""
        text = json.dumps(finite({"step": step, **row}), separators=(",", ":"), allow_nan=False)
        data = f"{text}\n".encode()
        before = os.fstat(self.handle).st_size
        try:
            written = os.write(self.handle, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes fit into {self.path}: is the disk full?")
        except OSError:
            os.ftruncate(self.handle, before)
            raise
        self.last = step

    def rows_before(self, step: int) -> tuple[int, int]:
        """How many rows precede the first one of `step` or later, and how many bytes they have."""
        count = size = 0
        for line, row in _rows(self.path):
            if row["step"] >= step:
                break
            count, size = count + 1, size + len(line)
        return count, size

    def cut(self, step: int) -> int:
        """Drop the rows from the first one of `step` or later on. Returns how many."""
        rows = sum(1 for _ in _whole_lines(self.path))
        count, size = self.rows_before(step)
        os.ftruncate(self.handle, size)
        self.last = None
        return rows - count

    def sync(self) -> None:
        os.fsync(self.handle)

    def close(self) -> None:
        os.close(self.handle)


def read_lines(path: Path, checked: object = None) -> list[dict[str, Any]]:
    """The rows of a file, without a torn last line; none if there is no file."""
    return [row for _, row in _rows(path)] if path.exists() else []


def last_step(path: Path) -> int:
    """The step of the last whole line, found without reading the others; 0 where there is none."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *lines, _ = file.read().split(b"\n")  # the last is empty, or being written
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line, and its row."""
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
            row.pop(_CHECKSUM, None)
        except NOT_A_ROW as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file."
            ) from error
        yield line, row


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
