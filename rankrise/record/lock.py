"""The lock on the folder of a run: one writer at a time."""

import hashlib
import os
import platform
import struct
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_at, make_folder
from rankrise.record.names import LOCK

try:
    import fcntl
except ImportError:  # Windows: a tracker of another process is not noticed
    fcntl = None  # type: ignore[assignment]


class Lock:
    """Refuses a second tracker on a folder. The system lets go of it when the process ends, however it ends.

    The lock belongs to the open file, so that it stays when other code of the process opens and closes the
    same file, as a backup does. Workers forked from the process close their share of it at once: they may
    outlive a process that is killed.
    """

    _held: dict[Path, "Lock"] = {}  # noqa: RUF012 (shared on purpose)

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._shown, self._folder = folder, folder.resolve()
        self._path = self._folder / LOCK
        if self._folder in self._held:
            raise RankriseError(f"{folder} is being written by a tracker of this process: close that one.")
        self._handle: int | None = self._taken()
        self._held[self._folder] = self

    def renew(self) -> None:
        """Take the lock again where its file was removed or replaced; refused where another has done so."""
        if self._handle is not None and not is_at(self._path, self._handle):
            os.close(self._handle)
            self._handle = None
            self._handle = self._taken()

    def release(self) -> None:
        if self._held.get(self._folder) is self:
            del self._held[self._folder]
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _taken(self) -> int:
        if self._path.is_dir():
            raise RankriseError(
                f"{self._shown / LOCK} is a folder, and the lock of a run is a file: remove it."
            )
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError) as error:
            os.close(handle)
            raise RankriseError(
                f"{self._shown} is being written by a tracker of another process: end that one, or pass "
                "another folder."
            ) from error
        except OSError:  # a file system without locks
            return handle
        if fcntl is not None:
            _name_machine(handle)
        return handle


def is_held(folder: Path) -> bool | None:
    """Whether a process is writing a run's folder, which is not touched; None where the system does not tell,
    or where the lock was last taken on another machine."""
    try:
        with (folder / LOCK).open("rb") as file:
            if file.read(len(_machine()) + 1) != _machine() or not hasattr(fcntl, "F_OFD_GETLK"):
                return None
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file())
    except OSError:
        return None
    return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)


def _name_machine(handle: int) -> None:
    """Leave a sign of this machine in a lock, which may not be seen elsewhere, on a shared disk."""
    try:
        if os.pread(handle, len(_machine()) + 1, 0) != _machine():
            os.ftruncate(handle, 0)
            os.pwrite(handle, _machine(), 0)
    except OSError:  # a full disk
        pass


def _machine() -> bytes:
    """A sign of this machine that does not give its name away."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:16].encode()


def _lock(handle: int) -> None:
    """Lock an open file (not the process's access to it), or raise BlockingIOError."""
    if fcntl is None:
        return
    if hasattr(fcntl, "F_OFD_SETLK"):  # Linux: also against the record locks of earlier versions
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file())
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _whole_file() -> bytes:
    """A lock for writing, as the system takes it."""
    return struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _let_go_in_a_fork() -> None:
    for lock in Lock._held.values():
        if lock._handle is not None:
            os.close(lock._handle)
            lock._handle = None
    Lock._held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)
