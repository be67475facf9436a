"""`rankrise history`: the rank growth of a run that nobody tracked, from its checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from rankrise.watch.types import HistoryPlan

# How many checkpoints of a longer series the plan shows at its beginning, and at its end.
SHOWN = 6


def history(
    series: list[str],
    run: Path | None = None,
    plan: bool = False,
    steps: str | None = None,
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
    from_: str = "first",
    products: tuple[Literal["KQ", "VO"], ...] = ("KQ", "VO"),
    layers: tuple[str, ...] = (),
    matrices: tuple[str, ...] = (),
    top: int = 8,
    device: str = "cpu",
    note: str = "",
    json: bool = False,
) -> None:
    """Make a tracked run of a series of checkpoints, for watch, figures, claims and report.

    The plan is shown first. An interrupted run resumes: the same command goes on where it stopped.

    Args:
        series: a folder of checkpoints, several checkpoints, or OWNER/NAME of a model on the Hugging Face Hub
            whose revisions they are.
        run: folder of the run, new or to be resumed.
        plan: show the plan and stop.
        steps: pattern with one group around the step in a checkpoint's name, such as 'stage1-step(\\d+)', or
            the path of a CSV file with lines name,step; the number after "step" or "checkpoint" if not given.
        every: take every N-th checkpoint, and always the last.
        first: leave out checkpoints before this step; changes are still measured against the series' first.
        last: leave out checkpoints after this step.
        log_spaced: take this many checkpoints, about evenly spaced on a logarithmic scale.
        from_: what changes are measured against: first, previous, or another checkpoint (for a fine-tuning,
            the pretrained model).
        products: which products of a head's weights to measure.
        layers: which attention layers, by patterns of their names; all if not given.
        matrices: other weight matrices, by patterns of their names, such as '*.mlp.*'.
        top: how many leading singular values to keep of each change.
        device: where to compute, for example cuda.
        note: a remark kept with the run.
        json: print plan and result as JSON.
    """
    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.record.lines import read_lines
    from rankrise.record.names import RANKS
    from rankrise.record.run_file import has_run
    from rankrise.show.console import safe_console
    from rankrise.show.progress import bar
    from rankrise.watch import history as read_history
    from rankrise.watch import history_plan

    if run is None and not plan:
        raise RankriseError("no folder was passed for the run: pass --run FOLDER, or --plan to see the plan.")
    planned = history_plan(
        series[0] if len(series) == 1 else series,
        steps=steps,
        every=every,
        first=first,
        last=last,
        log_spaced=log_spaced,
        base=from_,
        products=products,
        layers=layers or None,
        matrices=matrices,
        top=top,
        device=device,
    )
    console = safe_console(stderr=json)
    if not json or not plan:
        _show(planned, console)
    result: dict[str, Any] = {"plan": planned.to_dict()}
    if not plan:
        assert run is not None
        before = len(read_lines(run / RANKS)) if has_run(run) else 0
        found = read_history(planned, run, note=note, meter=bar)
        result["run"] = {
            "folder": str(run),
            "measured": found.measured.tolist(),
            "new": len(found.measured) - before,
            "notes": found.notes,
            "heads_below_noise": {
                name: found.below_noise(name).mean(axis=(1, 2)).tolist() for name in found.products
            },
            "matrices_below_noise": {name: found.below_noise(name).tolist() for name in found.matrices},
        }
    if json:
        print(to_json(result))
    elif not plan:
        console.print(_summary(result["run"], planned), markup=False, soft_wrap=True)


def _show(plan: "HistoryPlan", console: "Console") -> None:
    from rich.table import Table

    from rankrise.foundations.counted import counted
    from rankrise.show.quantities import size
    from rankrise.show.table import Fitting

    about = plan.to_dict()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("step", "gap", "checkpoint"):
        table.add_column(title, justify="left" if title == "checkpoint" else "right")
    rows = [
        (str(one["step"]), "" if gap is None else str(gap), one["name"])
        for one, gap in zip(about["checkpoints"], [None, *about["gaps"]], strict=True)
    ]
    hidden = len(rows) - 2 * SHOWN
    shown = [*rows[:SHOWN], ("...", "", f"{hidden} more"), *rows[-SHOWN:]] if hidden > 1 else rows
    for row in shown:
        table.add_row(*row)
    console.print(Fitting(table))
    lines = [
        f"{len(rows)} of {about['of']} checkpoints of {about['model']} in {about['series']}, "
        f"{counted(about['layers'], 'attention layer')} and "
        f"{counted(about['matrices'], 'other matrix', 'other matrices')} of each",
        f"to read: {size(about['bytes'])}, {_time(plan)}",
        f"changes are measured against {_against(plan)}",
        *(f"note: {note}" for note in about["notes"]),
    ]
    if about["left_out"]:
        lines.append(f"left out, because their names tell no step: {', '.join(about['left_out'])}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _time(plan: "HistoryPlan") -> str:
    from rankrise.show.quantities import duration

    if plan.seconds is None:
        return "in a time that is told once the first is measured"
    return f"in {'about ' if plan.seconds >= 1 else ''}{duration(plan.seconds)}"


def _against(plan: "HistoryPlan") -> str:
    return "the checkpoint before" if plan.base is None else plan.base.name


def _summary(run: dict[str, Any], plan: "HistoryPlan") -> str:
    """What was written, with the notes that the plan did not show."""
    from rankrise.foundations.counted import counted

    held = f"{counted(len(run['measured']), 'checkpoint')} measured against {_against(plan)}"
    if run["new"] == 0:
        told = f"Nothing is new: {run['folder']} already holds {held}."
    elif run["new"] < len(run["measured"]):
        told = f"Written: {run['folder']}, {held}, {run['new']} of them new."
    else:
        told = f"Written: {run['folder']}, {held}."
    notes = [note for note in run["notes"] if note not in plan.notes]
    return "\nNote: ".join([told, *notes]) + f"\nSee it with 'rankrise watch {run['folder']}'."
