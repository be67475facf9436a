"""Files of JSON lines, one row per step, that can be read at any moment, whatever happens to the writer.

A row ends with the CRC-32 of the text before it: {"step":7,"loss":2.3,"crc32":"0a1b2c3d"}, of
'{"step":7,"loss":2.3'. Rows of earlier versions may have none.
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite, is_at, replacing
from rankrise.foundations.reading import refuse_special

MOST = 2**63
"""Steps are below this: they are read as 64-bit numbers."""
TEXTS = ("checkpoint", "key", "since")
"""What a row may say in words: the checkpoint that it was measured of. All else is numbers."""
LEFT_OUT = "left out"
"""In a row of loss and metrics, those that could not be recorded: their names, each with why."""
LONGEST = 100_000_000
"""The most bytes in a row: many times what that of the largest model has."""
NOT_A_ROW = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What is raised on reading a line that is no row."""
_START = b'{"step":'
_CHECKSUM = "crc32"
RESERVED = {
    "step": "the step of a row",
    "time": "the time of a row",
    LEFT_OUT: "what a row leaves out",
    _CHECKSUM: "a row's checksum",
}
"""Names that no metric can have, and of what they are."""
_END = f',"{_CHECKSUM}":"00000000"}}'


class Lines:
    """A file of JSON lines in the order of their steps. Each is written by one call, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: int | None = None
        """The step that was appended last, since it was opened or cut."""
        self.size = 0
        """The bytes of whole rows."""
        self.suspect = False
        """Whether the file has been touched by another program since its rows were last verified."""
        self._sum = 0
        """The CRC-32 of those rows, as they were written."""
        self._open()

    def append(self, step: int, row: dict[str, Any]) -> None:
        if _CHECKSUM in row:
            raise RankriseError(f"{_CHECKSUM} is the name of {RESERVED[_CHECKSUM]}: pass another name.")
        text = json.dumps(finite({"step": step, **row}), separators=(",", ":"), allow_nan=False)[:-1]
        data = f'{text},"{_CHECKSUM}":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()
        self._suspect_touched()
        try:
            written = os.write(self._handle, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes fit into {self.path}: is the disk full?")
            self.size += written
            self._sum = zlib.crc32(data, self._sum)
            self.last = step
        except OSError:
            os.ftruncate(self._handle, self.size)
            raise
        finally:
            self._touched = self._time_of_change()

    @property
    def in_place(self) -> bool:
        """Whether the open file is the one at its path: it may have been removed or replaced."""
        return is_at(self.path, self._handle)

    @property
    def untouched(self) -> bool:
        """Whether the open file ends where the last row that was written here ends."""
        return os.fstat(self._handle).st_size == self.size

    def changed_in_place(self) -> str:
        """What another program has changed in the rows since they were written, or last looked at; empty
        where they are as they were. It reads them all."""
        self.suspect, self._touched, found = False, self._time_of_change(), self._sum_of_rows()
        if found == self._sum:
            return ""
        self._sum = found
        number = self.damaged_row()
        return "its rows are not those that were written" if number is None else f"line {number} is damaged"

    def damaged_row(self, checked: bool = False) -> int | None:
        """The number of the first row that is damaged, or has no checksum where rows are `checked`."""
        for number, line in enumerate(_whole_lines(self.path), start=1):
            try:
                _row(line.rstrip(b"\n"), checked)
            except NOT_A_ROW:
                return number
        return None

    def go_on(self) -> None:
        """Take the file as another program left it."""
        os.close(self._handle)
        self._open()

    def restore(self) -> Path | None:
        """Put all rows back at their path. What lies there now is kept under the name that is returned."""
        rows = os.pread(self._handle, self.size, 0)
        aside = None
        if os.path.lexists(self.path):
            aside = free_name(self.path)
            self.path.rename(aside)
        with replacing(self.path) as temporary:
            temporary.write_bytes(rows)
        self.go_on()
        return aside

    def end_before(self, step: int) -> int:
        """The size of the file without the rows of `step` and later."""
        size = 0
        for line in _whole_lines(self.path):
            if _step_of(line, self.path) >= step:
                break
            size += len(line)
        return size

    def cut(self, step: int) -> int:
        """Drop the rows of `step` and later. Returns of how many steps."""
        size = self.end_before(step)
        dropped = {_step_of(line, self.path) for line in _whole_lines(self.path, size)}
        os.ftruncate(self._handle, size)
        self.size, self.last = size, None
        self._remember()
        return len(dropped)

    def sync(self) -> None:
        self._suspect_touched()
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)

    def _open(self) -> None:
        if self.path.exists():
            refuse_special(self.path)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self.size = _end_of_rows(self.path)
        if not self.untouched:  # a last line that was torn by a kill; else the file is not even touched
            os.ftruncate(self._handle, self.size)
        self._remember()

    def _remember(self) -> None:
        """Take the rows as they are for those that were written."""
        self.suspect, self._touched, self._sum = False, self._time_of_change(), self._sum_of_rows()

    def _suspect_touched(self) -> None:
        self.suspect = self.suspect or self._time_of_change() != self._touched

    def _sum_of_rows(self) -> int:
        """The CRC-32 of the rows that the file is to have."""
        found = size = 0
        for line in _whole_lines(self.path):
            found, size = zlib.crc32(line, found), size + len(line)
            if size >= self.size:
                break
        return found

    def _time_of_change(self) -> int:
        return os.fstat(self._handle).st_mtime_ns


def read_lines(path: Path, checked: bool = False) -> list[dict[str, Any]]:
    """The rows of a file; a last line that is being written, or was torn, is left out. Where the rows are
    `checked`, one without a checksum is damaged."""
    rows: list[dict[str, Any]] = []
    try:
        refuse_special(path)
    except FileNotFoundError:
        return rows
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            rows.append(_row(line.rstrip(b"\n"), checked))
        except NOT_A_ROW as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file."
            ) from error
    return rows


def last_step(path: Path) -> int:
    """The step of the last whole line, found without reading the others; 0 where there is none."""
    refuse_special(path)
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *lines, _ = file.read().split(b"\n")  # the last is empty, or being written
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """The lines of a file from a byte on, but for a torn last one; one at a time is in memory."""
    with path.open("rb") as file:
        file.seek(start)
        while line := file.readline(LONGEST):
            if not line.endswith(b"\n"):
                if len(line) == LONGEST:
                    raise _without_rows(path)
                return
            yield line


def _end_of_rows(path: Path) -> int:
    """Where the last line ends that is whole."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - LONGEST))
        found = file.read().rfind(b"\n") + 1
    if start and not found:
        raise _without_rows(path)
    return start + found


def _without_rows(path: Path) -> RankriseError:
    return RankriseError(f"{path} is damaged (no row has {LONGEST:,} bytes): restore it.")


def _row(line: bytes, checked: bool) -> dict[str, Any]:
    """A row without its checksum; an error where that differs, or where something is not of its kind."""
    row: dict[str, Any] = json.loads(line, parse_int=_whole_number)
    if not isinstance(row, dict):
        raise TypeError("the row has no names")
    missing = _CHECKSUM not in row
    if missing and checked:
        raise ValueError("there is no checksum")
    if not missing and row.pop(_CHECKSUM) != f"{zlib.crc32(line[: -len(_END)]):08x}":
        raise ValueError("the checksum differs")
    if type(row["step"]) is not int or not 0 <= row["step"] < MOST:
        raise ValueError("the step is not one")
    for name, value in row.items():
        if isinstance(value, str) and value not in ("nan", "inf", "-inf") and name not in TEXTS:
            raise ValueError("a text stands for a number")
    if not all(isinstance(why, str) for why in dict(row.get(LEFT_OUT, {})).values()):
        raise ValueError("what is left out has no reason")
    return row


def _whole_number(digits: str) -> int:
    """A whole number anywhere in a row; OverflowError for one that is more than a float holds."""
    number = int(digits)
    float(number)
    return number


def _step_of(line: bytes, path: Path) -> int:
    try:
        return int(line[len(_START) : line.index(b",")].rstrip(b"}\n"))
    except ValueError as error:
        raise RankriseError(f"{path} has a line that starts with {line[:20]!r}: restore the file.") from error


def free_name(path: Path) -> Path:
    """A name beside a path that is not taken."""
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.replaced-{number}")):
        number += 1
    return path.with_name(f"{path.name}.replaced-{number}")
