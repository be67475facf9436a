"""run.json: what a run is. Read and checked here, written here."""

from collections import Counter
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import RUN
from rankrise.record.shapes import COUNT, SIZE, check_shape

FORMAT = "rankrise-run/2"
EARLIER = "rankrise-run/1"
"""Of versions whose rows and tensors have no checksums, at first; a run keeps the format it began with."""

PRODUCTS = ("KQ", "VO")
"""What may be tracked of attention heads, in this order."""
_LAYER = {
    "name": str,
    "heads": SIZE,
    "tracked_heads": [int],
    "d_model": SIZE,
    "d_head": SIZE,
    "notes?": [str],
    "ceilings?": {"KQ?": COUNT, "VO?": COUNT},
}
_SHAPES: dict[str, dict[str, Any]] = {
    "toy": {"settings": dict},
    "tracked": {
        "model": str,
        "settings": {"products": [str], "top": SIZE},
        "layers": [_LAYER],
        "matrices": [{"name": str, "shape": (SIZE, SIZE)}],
        "extra?": dict,
        "resumed?": list,
        "sizes?": {"*": COUNT},
    },
}
"""By kind, what run.json must hold: a type, a list of a shape, or names with shapes ("?": may be absent)."""

_MAKERS = {
    "toy": ["'rankrise toy'"],
    "tracked": ["'rankrise train'", "'rankrise history'", "watch.RankTracker"],
}


def has_run(folder: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return (Path(folder) / RUN).is_file()


def read_run(folder: str | Path, *kinds: str) -> dict[str, Any]:
    """What run.json holds, if it is of one of `kinds`, "toy" or "tracked" (none named: of either).

    >>> read_run("no/such/folder", "toy")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by 'rankrise toy'.
    >>> read_run("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: ... by 'rankrise toy', 'rankrise train', 'rankrise history' or watch.RankTracker.
    """
    kinds = kinds or tuple(_SHAPES)
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
    found = info.get("format"), info.get("kind")
    if found[0] not in (FORMAT, EARLIER) or found[1] not in tuple(_SHAPES):
        raise RankriseError(
            f"{path} is of format and kind {found[0]!r}, {found[1]!r}, which this version does not read: "
            f"pass a folder written by {makers}."
        )
    if found[1] not in kinds:
        raise RankriseError(f"{folder} is a {found[1]} run, not a {kinds[0]} one: pass another folder.")
    check_shape(path, info, _SHAPES[str(found[1])])
    if found[1] == "tracked":
        _check_layers(path, info)
    return info


def _check_layers(path: Path, info: dict[str, Any]) -> None:
    """Each product, layer and matrix is there once, and layers have the heads of which ranks are recorded."""
    products = info["settings"]["products"]
    if [one for one in PRODUCTS if one in products] != products or (info["layers"] and not products):
        raise RankriseError(f"{path} is damaged (settings.products is {products!r:.60}): restore it.")
    for listed in (info["layers"], info["matrices"]):
        (name, times), *_ = *Counter(one["name"] for one in listed).most_common(1), ("", 0)
        if times > 1:
            raise RankriseError(f"{path} is damaged ({name:.80} is in it {times} times): restore it.")
    for layer in info["layers"]:
        heads = layer["tracked_heads"]
        each_once = 0 < len(set(heads)) == len(heads)
        if not each_once or not all(0 <= head < layer["heads"] for head in heads):
            told = f"{layer['name']} has {layer['heads']} heads and tracks {heads}"
            raise RankriseError(f"{path} is damaged ({told:.80}): restore it.")


def has_checksums(info: dict[str, Any]) -> bool:
    """Whether every row and every file of tensors of a run has a checksum: one without is damaged."""
    return info.get("format") == FORMAT


def write_run(folder: Path, kind: str, about: dict[str, Any]) -> None:
    """Write run.json, whole or not at all, in the format that `about` has from an earlier version, if any."""
    write_json(folder / RUN, {"format": FORMAT, "kind": kind} | about)
