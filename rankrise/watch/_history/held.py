"""What a run's folder holds already of a history, and whether a plan can go on from there."""

from collections.abc import Mapping
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import read_lines
from rankrise.record.names import RANKS, RUN
from rankrise.record.run_file import has_checksums, has_run, read_run
from rankrise.record.shapes import check_shape
from rankrise.watch._history.plan import HistoryPlan
from rankrise.watch._history.series import Entry


def steps_held(plan: HistoryPlan, folder: Path) -> set[int]:
    """The steps that are in the record already; refused where they are of other checkpoints."""
    if not has_run(folder):
        return set()
    info = read_run(folder, "tracked")
    about = info.get("extra", {}).get("history")
    if about is None:
        raise RankriseError(f"{folder} is a run that is not a history of checkpoints: pass another folder.")
    _refuse_other_rows(plan, folder, info)
    shape = {"base": {"name": str, "key?": str}}
    check_shape(folder / RUN, about, shape, "restore it, or pass another folder", "extra.history")
    if about["base"] != described_base(plan):
        raise RankriseError(
            f"{folder} holds changes since {_name(about['base'])}, not since "
            f"{_name(described_base(plan), (plan.base or plan.checkpoints[0]).name)}: pass another folder."
        )
    rows = {row["step"]: row for row in read_lines(folder / RANKS, has_checksums(info))}
    for entry in plan.checkpoints:
        if entry.step in rows and entry.source.key() != rows[entry.step].get("key"):
            raise RankriseError(
                f"{folder} has step {entry.step} from other weights than {entry.name} has now: pass another "
                "folder."
            )
    for entry, before in rows_of(plan):
        if entry.step in rows and told_since(before).get("since") != rows[entry.step].get("since"):
            raise RankriseError(
                f"{folder} has step {entry.step} measured against another checkpoint than the one before it "
                "now: choose the same checkpoints as before, or pass another folder."
            )
    return set(rows)


def _refuse_other_rows(plan: HistoryPlan, folder: Path, info: Mapping[str, Any]) -> None:
    """All rows of a run hold the same numbers of the same weights."""
    layers = [unit for unit in plan.model.units if unit.is_layer]
    asked: dict[str, list[Any]] = {
        "layers": [layer.name for layer in layers],
        "heads": [head for layer in layers for head in layer.heads],
        "products": products_of(plan),
        "matrices": [unit.name for unit in plan.model.units if not unit.is_layer],
        "top": [plan.top],
    }
    held: dict[str, list[Any]] = {
        "layers": [layer["name"] for layer in info["layers"]],
        "heads": [head for layer in info["layers"] for head in layer["tracked_heads"]],
        "products": info["settings"]["products"],
        "matrices": [matrix["name"] for matrix in info["matrices"]],
        "top": [info["settings"]["top"]],
    }
    for what, old in held.items():
        if old != asked[what]:
            differing = next(
                f"{one}, not {other}"
                for one, other in zip_longest(old, asked[what], fillvalue="none")
                if one != other
            )
            raise RankriseError(
                f"{folder} has rows with other {what} ({differing}): pass the same {what} as before, or "
                "another folder."
            )


def products_of(plan: HistoryPlan) -> list[str]:
    return [name for unit in plan.model.units[:1] if unit.is_layer for name, _ in unit.products]


def rows_of(plan: HistoryPlan) -> list[tuple[Entry, Entry | None]]:
    """The checkpoints that get a row, each with the one it is measured against, None for the base.

    The beginning itself has a row of zeros if it is step 0, as in a run that was tracked, and none otherwise.
    """
    entries = plan.checkpoints
    if plan.base is not None:
        return [(entry, None) for entry in entries if entry is not plan.base or entry.step == 0]
    first = [(entry, None) for entry in entries[:1] if entry.step == 0]
    return [*first, *((later, one) for one, later in pairwise(entries))]


def told_since(before: Entry | None) -> dict[str, str]:
    """What a row says of the checkpoint that it is measured against, where that is not the run's base."""
    return {} if before is None else {"since": before.source.key()}


def described_base(plan: HistoryPlan) -> dict[str, str]:
    """The base; or of changes since the checkpoint before each, that which the first of them is since."""
    begun = plan.base or plan.checkpoints[0]
    return {"name": begun.name if plan.base else "previous", "key": begun.source.key()}


def _name(described: Mapping[str, str], first: str = "the one") -> str:
    """The base; of changes since the checkpoint before each, the `first` of them, whose name no run keeps."""
    name, key = described["name"], f"({described.get('key', '')[:24]})"
    return f"the checkpoint before each, from {first} {key} on" if name == "previous" else f"{name} {key}"
