"""Files that are written once and then left alone: whether they still are what was written."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rankrise.record.tensors import sha256

_Look = tuple[int, int, int]


@dataclass
class WrittenOnce:
    """Files by what the system tells of them, which costs nothing to ask, and by their SHA-256, which is
    computed again where that has changed: a file that was only touched, or copied back, is as it was."""

    _kept: dict[Path, tuple[_Look | None, str]] = field(default_factory=dict)

    def add(self, path: Path, content: str = "") -> None:
        """Take a file as it is now, or as the one with that SHA-256."""
        self._kept[path] = _look(path), content or sha256(path)

    def leave(self, path: Path) -> None:
        """Do not look at it any more."""
        self._kept.pop(path, None)

    @property
    def newest(self) -> list[Path]:
        """The file that was added last."""
        return list(self._kept)[-1:]

    def meddled(self, paths: Iterable[Path] | None = None) -> list[str]:
        """What became of those of them that are not as they were, in sentences without a full stop; each is
        told once."""
        found: dict[str, list[Path]] = {}
        for path in list(self._kept if paths is None else paths):
            if how := self._how(path):
                found.setdefault(how, []).append(path)
                self.leave(path)
        return [_sentence(how, paths) for how, paths in found.items()]

    def _how(self, path: Path) -> str:
        look, content = self._kept[path]
        now = _look(path)
        if now is None:
            return "removed"
        if now != look:
            if sha256(path) != content:
                return "changed"
            self._kept[path] = now, content
        return ""


def _sentence(how: str, paths: list[Path]) -> str:
    """What became of files, by the first of them.

    >>> _sentence("changed", [Path("a"), Path("b")])
    'a was changed by another program, one of 2'
    """
    return f"{paths[0]} was {how} by another program" + (f", one of {len(paths)}" if paths[1:] else "")


def _look(path: Path) -> _Look | None:
    """Which file it is, its size and the time of its last change; None where there is no file."""
    if not path.is_file():
        return None
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
