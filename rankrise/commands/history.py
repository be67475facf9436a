"""`rankrise history`: the rank growth of a run that nobody tracked, from its checkpoints."""

from pathlib import Path
from typing import Any, Literal

SHOWN = 6
"""Rows of a longer plan that are shown at its beginning, and at its end."""


def history(
    series: list[str],
    run: Path | None = None,
    plan: bool = False,
    steps: str | None = None,
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
    base: str = "first",
    products: tuple[Literal["KQ", "VO"], ...] = ("KQ", "VO"),
    layers: tuple[str, ...] = (),
    heads: tuple[int, ...] = (),
    matrices: tuple[str, ...] = (),
    top: int = 8,
    device: str = "cpu",
    note: str = "",
    json: bool = False,
) -> None:
    """Make a tracked run out of a series of checkpoints, for watch, figures, claims and report.

    The plan is shown first. To resume an interrupted run, give the same command again.

    Args:
        series: a folder of checkpoints, several checkpoints, or OWNER/NAME of a model on the Hugging Face Hub
            whose revisions they are.
        run: folder of the run, new or to be resumed.
        plan: show the plan and stop.
        steps: pattern with one group around the step in a checkpoint's name, such as 'stage1-step(\\d+)', or
            the path of a CSV file with lines name,step; by default, the number after "step" or "checkpoint".
        every: take every N-th checkpoint, and always the last.
        first: leave out checkpoints before this step; changes are still measured against the series' first.
        last: leave out checkpoints after this step.
        log_spaced: take this many checkpoints, about evenly spaced on a logarithmic scale.
        base: what changes are measured against: first, previous, or another checkpoint (for a fine-tuning,
            the pretrained model).
        products: which products of a head's weights to measure.
        layers: which attention layers, by patterns of their names; all if not given.
        heads: which heads of each layer, by their numbers from 0; all if not given.
        matrices: other weight matrices, by patterns of their names, such as '*.mlp.*'.
        top: how many leading singular values to keep of each change.
        device: where to compute, for example cuda.
        note: a remark kept with the run.
        json: print plan and result as JSON.
    """
    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.record.folder import RANKS, read_lines
    from rankrise.show.console import Fitting, safe_console, size, table_of
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
        base=base,
        products=products,
        layers=layers or None,
        heads=heads or None,
        matrices=matrices,
        top=top,
        device=device,
    )
    about = planned.to_dict()
    against = "the checkpoint before" if planned.base is None else planned.base.name
    console = safe_console(stderr=json)
    if not json or not plan:
        gaps = ["", *map(str, about["gaps"])]
        rows = [
            (str(one["step"]), gap, one["name"]) for one, gap in zip(about["checkpoints"], gaps, strict=True)
        ]
        hidden = len(rows) - 2 * SHOWN
        if hidden > 1:
            rows[SHOWN:-SHOWN] = [("...", "", f"{hidden} more")]
        columns = dict(zip(("step", "gap", "checkpoint"), zip(*rows, strict=True), strict=True))
        console.print(Fitting(table_of(columns, left=("checkpoint",), box=None, padding=(0, 2, 0, 0))))
        lines = [
            f"{len(gaps)} of {about['of']} checkpoints of {about['model']} in {about['series']}",
            f"to measure in each: {about['layers']} attention layers, {about['matrices']} other matrices",
            f"to read: {size(about['bytes'])}",
            f"changes are measured against {against}",
            *(f"note: {note}" for note in about["notes"]),
        ]
        if about["left_out"]:
            lines.append(f"left out, because their names tell no step: {', '.join(about['left_out'])}")
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    result: dict[str, Any] = {"plan": about}
    if run is not None and not plan:
        before = len(read_lines(run / RANKS)) if (run / RANKS).is_file() else 0
        found = read_history(planned, run, note=note, meter=bar)
        new, count = len(found.measured) - before, len(found.measured)
        result["run"] = {
            "folder": str(run),
            "measured": found.measured.tolist(),
            "new": new,
            "notes": found.notes,
            "heads_below_noise": {
                name: found.below_noise(name).mean(axis=(1, 2)).tolist() for name in found.products
            },
            "matrices_below_noise": {name: found.below_noise(name).tolist() for name in found.matrices},
        }
        lines = [f"{run}: {count} checkpoints measured against {against}, {new} of them new."]
        lines += [f"Note: {note}" for note in found.notes if note not in planned.notes]
        if not json:
            lines.append(f"See it with 'rankrise watch {run}'.")
            console.print("\n".join(lines), markup=False, soft_wrap=True)
    if json:
        print(to_json(result))
