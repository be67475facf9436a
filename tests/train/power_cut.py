"""A disk that keeps nothing but what was synced: what a power cut leaves of a folder, at any moment.

A file has the content of its last sync, and a folder the names of its last sync; what was never synced is
empty. File systems keep more than that, but none has to.
"""

import os
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest


class Disk:
    """What is on the disk, by number of the file or folder. A context that replaces `os.fsync`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.syncs = 0
        self._held: list[int] = []  # so that no number is given to another file
        self._real = os.fsync
        patch.setattr(os, "fsync", self._sync)

    def left_of(self, folder: Path, into: Path) -> None:
        """Write what a power cut would leave of a folder now."""
        self._write(folder.stat().st_ino, into)

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)

    def _sync(self, handle: int) -> None:
        self.syncs += 1
        about = os.fstat(handle)
        self._held.append(os.dup(handle))
        if S_ISDIR(about.st_mode):
            path = os.readlink(f"/proc/self/fd/{handle}")
            self.names[about.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            path = f"/proc/self/fd/{handle}"
            self.files[about.st_ino] = Path(path).read_bytes()

    def _write(self, number: int, path: Path) -> None:
        if number in self.names:
            path.mkdir()
            for name, inner in self.names[number].items():
                self._write(inner, path / name)
        else:
            path.write_bytes(self.files.get(number, b""))  # a folder that was never synced is lost, too


def once_per(function: Any, after: Any) -> Any:
    """A function that calls `after` when it has returned: from then on, what it did is relied on."""

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        after(*arguments, **named)
        return result

    return called
