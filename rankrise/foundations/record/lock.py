"""The lock on the folder of a run: one writer at a time."""

import os
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.names import LOCK

try:
    import fcntl
except ImportError:  # Windows: a tracker of another process is not noticed
    fcntl = None  # type: ignore[assignment]


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
        self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
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
