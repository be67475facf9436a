"""A sweep's folder: the runs, and `sweep.json` that says which they are and how they ended."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, read_json, to_json, write_json
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.lines import NOT_A_ROW, last_step
from rankrise.record.names import RANKS, RUN, STEPS, SWEEP
from rankrise.record.run_file import has_run, read_run
from rankrise.record.shapes import check_shape
from rankrise.train._resumable import run_in
from rankrise.train.sweep.plan import PlannedRun, SweepPlan
from rankrise.watch import TrackedRun

FORMAT = "rankrise-sweep/1"
_OF_CHOICES = {"settings": dict, "choices": dict}
_OVER_VALUES = {"settings": dict, "sets": {"*": list}, "seeds": list}
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
    """Python's account of an error that was not foreseen."""


def describe(plan: SweepPlan, recipe: str) -> dict[str, Any]:
    """The part of `sweep.json` that never changes."""
    described = {"format": FORMAT, "recipe": recipe, "settings": plan.settings.to_dict(), **plan.over}
    plain: dict[str, Any] = json.loads(to_json(described))
    return plain


def refuse_other_sweep(folder: Path, described: dict[str, Any]) -> None:
    """Refuse a folder that holds something else than this sweep or a part of it, by the first difference."""
    path = folder / SWEEP
    if not path.exists():
        if is_taken(folder):
            raise RankriseError(f"{folder} exists and is not a sweep: pass a new or an empty folder.")
        return
    advice = "restore it, or pass another folder"
    kept = read_json(path, advice)
    if kept.get("format") != FORMAT:
        raise RankriseError(f"{path} is of format {kept.get('format')!r}, not {FORMAT!r}: {advice}.")
    if ("choices" in kept) != ("choices" in described):
        raise RankriseError(
            f"{folder} holds {_kind(kept)}, not {_kind(described)}: pass another folder, or the same command."
        )
    check_shape(path, kept, _OF_CHOICES if "choices" in kept else _OVER_VALUES, advice)
    found = _values(kept)
    over, wanted_over = _varied(found), _varied(_values(described))
    if wanted_over and over != wanted_over:
        raise RankriseError(
            f"{folder} holds a sweep over {', '.join(over) or 'seeds alone'}, not over "
            f"{', '.join(wanted_over)}: pass another folder."
        )
    for name, wanted in _values(described).items():
        there = found.get(name)
        if there is None and "choices" in described and name not in described["settings"]:
            continue  # a choice that has been added to the table
        moved = name in names_of(TrainSettings, "machine") and len(wanted) == len(there or []) == 1
        if there != wanted and not moved and not _grown(name, there or [], wanted):
            raise RankriseError(
                f"{folder} holds a sweep with {name} {_listed(there)}, not {_listed(wanted)}: "
                "pass the same values to resume it, more of them to extend it, or another folder."
            )


def write_sweep(folder: Path, described: dict[str, Any], runs: Sequence[SweepRun]) -> None:
    """Write `sweep.json`."""
    write_json(folder / SWEEP, described | {"runs": [asdict(run) for run in runs]})


def standing(folder: Path, run: PlannedRun) -> SweepRun:
    """How a run stands by what is in its own folder."""
    state: State = "waiting"
    if has_run(folder / run.name):
        state = "finished" if _is_finished(folder / run.name, run.settings) else "interrupted"
    return SweepRun(run.name, run.changed, state)


def part_done(folder: Path) -> float:
    """How much of its steps an unfinished run has recorded, between 0 and 1."""
    try:
        total = TrackedRun(folder, read_run(folder, "tracked")).total_steps
        return min(1.0, last_step(folder / STEPS) / total) if total else 0.0
    except (OSError, *NOT_A_ROW):  # it is being written, or damaged, as its training will say
        return 0.0


def written_at(folder: Path) -> tuple[int, ...]:
    """When a run's record was last written, file by file: it changes when a worker has begun."""
    paths = (folder / name for name in (RUN, STEPS, RANKS))
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _is_finished(folder: Path, settings: TrainSettings) -> bool:
    """Whether it is this very run, to its end; what is wrong with another one is for the training to say."""
    try:
        found = run_in(folder, settings)
    except RankriseError:
        return False
    return found is not None and bool(found.get("finished"))


def _kind(described: dict[str, Any]) -> str:
    return "a table of choices" if "choices" in described else "a sweep over values"


def _values(described: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of every setting, whether the recipe or the sweep has them; and what each choice changes."""
    alone = {name: [value] for name, value in described["settings"].items()}
    if "choices" in described:
        changes = described["choices"].items()
        return alone | {f"the choice {name}": [change] for name, change in changes}
    return alone | described["sets"] | {"seed": described["seeds"]}


def _varied(values: dict[str, list[Any]]) -> list[str]:
    """The settings with several values, which the names of runs carry."""
    return sorted(name for name, several in values.items() if len(several) > 1 and name != "seed")


def _grown(name: str, there: list[Any], wanted: list[Any]) -> bool:
    """Whether values were added to what varies already, so that no run gets another name."""
    return (name == "seed" or len(there) > 1) and all(value in wanted for value in there)


def _listed(values: list[Any] | None) -> str:
    return "unsaid" if values is None else ", ".join(map(str, values))
