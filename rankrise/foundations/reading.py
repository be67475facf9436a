"""Files read whole, and only files: a pipe would never end, and a device fills the memory."""

from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError

PICTURES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
"""The suffixes of files that are read as pictures."""
DEEPEST = 100
"""Levels of lists and objects within each other that JSON may have: what goes through them calls itself for
each, and Python ends that at a thousand."""


def refuse_special(path: Path) -> None:
    """Refuse what is neither a plain file nor a link to one; what is not there is an OSError.

    >>> refuse_special(Path("/dev/zero"))
    Traceback (most recent call last):
    rankrise.RankriseError: /dev/zero is not a plain file: put one in its place.
    """
    path.stat()
    if not path.is_file():
        raise RankriseError(f"{path} is not a plain file: put one in its place.")


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a plain file, which is refused if it has more than `most` bytes."""
    refuse_special(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise RankriseError(f"{path} has more than {most:,} bytes, more than any such file: restore it.")
    return content


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects lie within each other on more levels than are gone through.

    >>> is_too_deep({"sizes": [[1, 2], [3]]})
    False
    """
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for some in inside for inner in some if isinstance(inner, dict | list | tuple)]
        if not level:
            return False
    return True
