"""Rows of JSON, one line each, in the order of their steps: readable at any moment, even after a kill."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite

LEFT_OUT = "left out"
"""In a row of loss and metrics: the numbers that could not be recorded, by name, each with the reason."""
_CHECKSUM = "crc32"  # ended the rows of earlier versions
RESERVED = ("step", "time", LEFT_OUT, _CHECKSUM)
"""Names that no metric can have."""


class Lines:
    """A file of rows, open for writing. A torn last line is removed at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: int | None = None
        """The step of the row that was appended last."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.handle = os.open(path, flags, 0o666)
        whole = sum(map(len, _whole_lines(path)))
        if whole < os.fstat(self.handle).st_size:
            os.ftruncate(self.handle, whole)

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

    def before(self, step: int) -> tuple[int, int]:
        """Number and bytes of the rows before the first one of `step` or later."""
        count = size = 0
        for line, row in _rows(self.path):
            if row["step"] >= step:
                break
            count, size = count + 1, size + len(line)
        return count, size

    def cut(self, step: int) -> int:
        """Drop the rows from the first one of `step` or later on. Returns how many."""
        rows = sum(1 for _ in _whole_lines(self.path))
        count, size = self.before(step)
        os.ftruncate(self.handle, size)
        self.last = None
        return rows - count

    def close(self) -> None:
        os.close(self.handle)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, without a torn last line; none if there is no file."""
    return [row for _, row in _rows(path)] if path.exists() else []


def last_step(path: Path) -> int:
    """The step of the last whole line, found without reading the others; 0 if there is none."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *lines, _ = file.read().split(b"\n")  # the last is empty, or being written
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line with its row."""
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
            row.pop(_CHECKSUM, None)
        except (ValueError, TypeError, KeyError) as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file."
            ) from error
        yield line, row


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))
