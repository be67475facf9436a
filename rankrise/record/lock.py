"""The lock on the folder of a run: one writer at a time."""

import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

from rankrise.foundations.errors import RankriseError

try:
    import fcntl
except ImportError:  # Windows: a second writer is not noticed
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class Lock:
    """Refuses a second writer on a folder. The lock belongs to the open file: the system releases it when the
    process ends, and a backup that opens and closes the same file does not. Forked workers close their share
    of it at once, because they may outlive a killed process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.release)
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):  # Linux: also on network file systems
                fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _whole_file())
            elif fcntl is not None:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            self.release()
            raise RankriseError(
                f"{folder} is being written by another tracker: close that one, or pass another folder."
            ) from error
        except OSError:  # a file system without locks
            return
        with suppress(OSError):  # a full disk: readers do not learn who holds it
            (folder / LOCK).write_text(platform.node())

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def is_held(folder: Path) -> bool | None:
    """Whether a process is writing a run's folder; None if it is on another machine or unknown."""
    try:
        with (folder / LOCK).open() as file:
            if file.read() != platform.node() or not hasattr(fcntl, "F_OFD_GETLK"):
                return None
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file())
    except OSError:
        return None
    return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)


def _whole_file() -> bytes:
    """A `struct flock` for writing."""
    return struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
