"""Files that are either whole or not there, and outlast a power cut: written under a temporary name, synced,
then renamed."""

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.reading import DEEPEST, is_too_deep, read_bytes, refuse_special

LARGEST_JSON = 100_000_000
"""Bytes; an index of the largest model's weights has a few million."""

MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
_TEMPORARY = re.compile(r"\..*-([0-9a-f]{6})-(\d{1,9})-[a-z0-9_]{8}(\.[^.]*)?")
"""Our temporary names: what is written, the machine, the process, anything."""
_DAY = 86_400
_looked_at: set[Path] = set()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it replaces `path`, on failure it is removed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        refuse_special(path)  # a device or a pipe would be gone
    temporary = _temporary(path)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        _tell_of(path, error, temporary)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`, which gets that name once all is in it and on the disk; an empty
    folder of that name makes way for it."""
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        for inner in temporary.iterdir():
            sync(inner)
        sync(temporary)
        if path.is_dir():
            path.rmdir()
        temporary.rename(path)
        sync(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _tell_of(path, error, temporary)
        raise


def _tell_of(path: Path, error: BaseException, temporary: Path) -> None:
    """A full disk is told without a name, or with our temporary one: say where it was to be written."""
    if isinstance(error, OSError) and str(error.filename or temporary).startswith(str(temporary)):
        error.filename = str(path)


def _temporary(path: Path) -> Path:
    """A new name beside `path`, in a folder without what killed processes left there."""
    make_folder(path.parent)
    _remove_abandoned(path.parent)
    return path.with_name(f".{path.stem[:50]}-{MACHINE}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


def sync(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a folder, and not the system's buffers alone."""
    if os.name == "nt":  # it syncs neither folders nor files that are open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot sync a folder
            raise
    finally:
        os.close(handle)


def is_at(path: Path, handle: int) -> bool:
    """Whether an open file or folder is the one at its path, and not removed, renamed or replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_folder(folder: Path) -> None:
    """Make a folder and those above it where they are missing, and have the disk keep them."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in new:
        sync(one.parent)


def is_taken(path: Path) -> bool:
    """Whether something lies at a path that a new folder would replace: anything but an empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed had begun; each process looks once at each folder."""
    if folder in _looked_at:
        return
    _looked_at.add(folder)
    for path in folder.glob(".*-*-*-*"):
        name = _TEMPORARY.fullmatch(path.name)
        if name:
            with suppress(OSError):
                if _has_ended(name[1], int(name[2])) or time.time() - path.stat().st_mtime > _DAY:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _has_ended(machine: str, process: int) -> bool:
    """Whether a process of this machine is no more; of another machine's, nothing is known."""
    if machine != MACHINE or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` so that a reader never sees a part of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Non-finite numbers become the strings "inf", "-inf",
    "nan".
    """
    write_text(path, to_json(value) + "\n")


def read_json(path: Path, advice: str = "restore it") -> dict[str, Any]:
    """The JSON object in a file, or one sentence: what is wrong with it, and `advice` on what to do."""
    try:
        value = json.loads(read_bytes(path, LARGEST_JSON).decode("utf-8"))
    except RankriseError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RankriseError(f"{path} is damaged ({first_line(error)}): {advice}.") from error
    if not isinstance(value, dict):
        raise RankriseError(f"{path} is damaged (it does not hold a JSON object): {advice}.")
    if is_too_deep(value):
        raise RankriseError(f"{path} is damaged (it is nested deeper than {DEEPEST} levels): {advice}.")
    return value


def to_json(value: Any) -> str:
    """Strict JSON: any parser reads it, because non-finite numbers are written as strings.

    >>> print(to_json({"time": float("inf")}))
    {
      "time": "inf"
    }
    """
    return json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """The same value with the strings "inf", "-inf" and "nan" in place of non-finite numbers."""
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
