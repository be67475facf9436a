"""A sweep's folder: the runs, and `sweep.json`, which lists them and how they ended."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, read_json, to_json, write_json
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.lines import last_step
from rankrise.record.names import RANKS, RUN, STEPS, SWEEP
from rankrise.record.run_file import has_run, read_run
from rankrise.train._begun import run_in
from rankrise.train.sweep.plan import PlannedRun, SweepPlan

FORMAT = "rankrise-sweep/1"
State = Literal["waiting", "running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class SweepRun:
    """How a run of a sweep stands."""

    name: str
    """Its folder inside the sweep's."""
    settings: dict[str, Any]
    """What the sweep sets."""
    state: State
    reason: str = ""
    """Why it failed or stopped."""
    trace: str = ""
    """The traceback of an unexpected error."""


def describe(plan: SweepPlan, recipe: str) -> dict[str, Any]:
    """The part of `sweep.json` that never changes."""
    described = {"format": FORMAT, "recipe": recipe, "settings": plan.settings.to_dict(), **plan.over}
    plain: dict[str, Any] = json.loads(to_json(described))
    return plain


def refuse_other_sweep(folder: Path, described: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but this sweep or a part of it, and name the first difference."""
    path = folder / SWEEP
    if not path.exists():
        if is_taken(folder):
            raise RankriseError(f"{folder} exists and is not a sweep: pass a new or an empty folder.")
        return
    kept = read_json(path)
    if kept.get("format") != FORMAT or ("choices" in kept) != ("choices" in described):
        kind = "a table of choices" if "choices" in described else "a sweep over values"
        raise RankriseError(f"{folder} does not hold {kind}: pass another folder.")
    found, machine = _values(kept), names_of(TrainSettings, "machine")
    for name, wanted in _values(described).items():
        before = found.get(name, [])
        if "choices" in described and name not in described["settings"]:
            allowed = not before or before == wanted  # choices can be added, but not changed
        elif name in machine and len(wanted) == len(before) == 1:
            allowed = True
        else:
            # More values only of what varies already, or the runs would get other names.
            extends = (name == "seed" or len(before) > 1) and all(value in wanted for value in before)
            allowed = before == wanted or extends
        if not allowed:
            was, now = (", ".join(map(str, values)) or "unset" for values in (before, wanted))
            raise RankriseError(
                f"{folder} holds a sweep with {name} {was}, not {now}: pass the same values to resume it, "
                "more of them to extend it, or another folder."
            )


def write_sweep(folder: Path, described: dict[str, Any], runs: Sequence[SweepRun]) -> None:
    """Write `sweep.json`."""
    write_json(folder / SWEEP, described | {"runs": [asdict(run) for run in runs]})


def standing(folder: Path, run: PlannedRun) -> SweepRun:
    """How a run stands, from its own folder."""
    if not has_run(folder / run.name):
        return SweepRun(run.name, run.changed, "waiting")
    try:
        found = run_in(folder / run.name, run.settings)
    except RankriseError:  # another run; its training will say so
        found = None
    finished = found is not None and bool(found.get("finished"))
    return SweepRun(run.name, run.changed, "finished" if finished else "interrupted")


def part_done(folder: Path) -> float:
    """The part of its steps that an unfinished run has recorded, between 0 and 1."""
    try:
        total = read_run(folder, "tracked").get("extra", {}).get("total_steps", 0)
        return min(1.0, last_step(folder / STEPS) / total) if total else 0.0
    except (OSError, ValueError, KeyError):  # it is being written
        return 0.0


def written_at(folder: Path) -> tuple[int, ...]:
    """When each file of a run's record was last written, which shows that a worker has begun."""
    paths = (folder / name for name in (RUN, STEPS, RANKS))
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _values(described: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of every setting, and what each choice changes."""
    values = {name: [value] for name, value in described["settings"].items()}
    if "choices" in described:
        return values | {f"the choice {name}": [change] for name, change in described["choices"].items()}
    return values | described["sets"] | {"seed": described["seeds"]}
