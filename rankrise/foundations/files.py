"""Files that are either whole or not there: written under a temporary name, then renamed."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it replaces `path`, on failure it is removed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are private; the final one should be ordinary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RankriseError(f"{path} is damaged ({str(error).splitlines()[0]}): {advice}.") from error
    if not isinstance(value, dict):
        raise RankriseError(f"{path} is damaged (it does not hold a JSON object): {advice}.")
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
