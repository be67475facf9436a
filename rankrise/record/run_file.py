"""run.json: what a run is."""

from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import RUN

FORMAT = "rankrise-run/2"
_MAKERS = {
    "toy": ["'rankrise toy'"],
    "tracked": ["'rankrise train'", "'rankrise history'", "watch.RankTracker"],
}


def has_run(folder: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return (Path(folder) / RUN).is_file()


def read_run(folder: str | Path, *kinds: str) -> dict[str, Any]:
    """Read run.json of a run of one of these kinds, "toy" or "tracked"; of either if none is named.

    >>> read_run("no/such/folder", "toy")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by 'rankrise toy'.
    """
    kinds = kinds or tuple(_MAKERS)
    path = Path(folder) / RUN
    *others, last = (maker for kind in kinds for maker in _MAKERS[kind])
    makers = " or ".join(filter(None, (", ".join(others), last)))
    if not path.is_file():
        if not Path(folder).exists():
            raise RankriseError(f"{folder} does not exist: pass a folder written by {makers}.")
        if Path(folder).is_file():
            where = f"the folder that it is in, {Path(folder).parent}" if has_run(Path(folder).parent) else ""
            raise RankriseError(f"{folder} is a file: pass {where or f'a folder written by {makers}'}.")
        raise RankriseError(f"{folder} is not a run: it has no {RUN}; pass a folder written by {makers}.")
    info = read_json(path)
    if info.get("format") != FORMAT or info.get("kind") not in _MAKERS:
        raise RankriseError(
            f"{path} is of format {info.get('format')!r} and kind {info.get('kind')!r}, which this version "
            f"does not read: pass a folder written by {makers}."
        )
    if info["kind"] not in kinds:
        raise RankriseError(f"{folder} is a {info['kind']} run, not a {kinds[0]} one: pass another folder.")
    return info


def has_checksums(info: dict[str, Any]) -> bool:
    return False


def write_run(folder: Path, kind: str, about: dict[str, Any]) -> None:
    """Replace run.json atomically."""
    write_json(folder / RUN, {"format": FORMAT, "kind": kind} | about)
