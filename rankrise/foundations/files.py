"""Files that are either whole or not there, and outlast a power cut: written aside, synced, then renamed."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line


@contextmanager
def replacing(path: str | Path, folder: bool = False) -> Iterator[Path]:
    """Give a temporary file or folder beside `path`: on success it replaces `path`, else it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem[:50]}-unfinished-{os.urandom(4).hex()}{path.suffix}")
    try:
        temporary.mkdir() if folder else temporary.touch()
        yield temporary
        for written in (*temporary.glob("*"), temporary):
            sync(written)
        if folder and path.is_dir():
            path.rmdir()
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and str(error.filename or temporary).startswith(str(temporary)):
            error.filename = str(path)  # a full disk has no name, or the temporary one
        raise


whole_folder = partial(replacing, folder=True)


def sync(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a folder."""
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


def is_taken(path: Path) -> bool:
    """Whether a new folder would replace something: anything but an empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` so that a reader never sees a part of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; see `to_json`."""
    write_text(path, to_json(value) + "\n")


def read_json(path: Path, advice: str = "restore it") -> dict[str, Any]:
    """The JSON object in a file, or an error with `advice` on what to do."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it does not hold a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise RankriseError(f"{path} is damaged ({first_line(error)}): {advice}.") from error
    return value


def to_json(value: Any) -> str:
    """Strict JSON, which any parser reads: non-finite numbers are strings, as paths are."""
    return json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=os.fspath)


def finite(value: Any) -> Any:
    """The same value with the strings "inf", "-inf" and "nan" in place of non-finite numbers."""
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
