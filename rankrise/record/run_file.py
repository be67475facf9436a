"""run.json: what a run is."""

from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import RUN

FORMAT = "rankrise-run/2"
MAKERS = {"toy": "'rankrise toy'", "tracked": "'rankrise train', 'rankrise history' or watch.RankTracker"}


def has_run(folder: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return (Path(folder) / RUN).is_file()


def read_run(folder: str | Path, *kinds: str) -> dict[str, Any]:
    """Read run.json of a run of one of these kinds, "toy" or "tracked"; of either if none is named.

    >>> read_run("no/such/folder", "toy")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by 'rankrise toy'.
    """
    path, kinds = Path(folder) / RUN, kinds or tuple(MAKERS)
    advice = f"pass a folder written by {' or '.join(MAKERS[kind] for kind in kinds)}"
    if not path.is_file():
        why = "is a file" if Path(folder).is_file() else f"is not a run: it has no {RUN}"
        raise RankriseError(f"{folder} {why if Path(folder).exists() else 'does not exist'}: {advice}.")
    info = read_json(path)
    if info.get("format") != FORMAT or info.get("kind") not in MAKERS:
        raise RankriseError(
            f"{path} has format {info.get('format')!r} and kind {info.get('kind')!r}, which this version "
            f"does not read: {advice}."
        )
    if info["kind"] not in kinds:
        raise RankriseError(f"{folder} is a {info['kind']} run, not a {kinds[0]} one: pass another folder.")
    return info


def write_run(folder: Path, kind: str, about: dict[str, Any]) -> None:
    """Replace run.json atomically."""
    write_json(folder / RUN, {"format": FORMAT, "kind": kind} | about)
