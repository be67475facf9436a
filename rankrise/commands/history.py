"""`rankrise history`: the rank growth of a run that nobody tracked, from its checkpoints."""

import os
from pathlib import Path
from typing import Any, Literal


def history(
    series: list[str],
    *,
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
        steps: pattern with one group around the step in a checkpoint's name, such as 'stage1-step(\\d+)'; by
            default, the number after "step" or "checkpoint".
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
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # there is one bar already
    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.foundations.text_tables import text_table
    from rankrise.show.console import size
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
    result: dict[str, Any] = {"plan": planned.to_dict()}
    if not json:
        about = result["plan"]
        against = "the checkpoint before" if planned.base is None else planned.base.name
        title = f"{len(planned.checkpoints)} of {about['of']} checkpoints of {about['model']}"
        columns = {
            "step": [str(one["step"]) for one in about["checkpoints"]],
            "gap": ["", *map(str, about["gaps"])],
            "checkpoint": [one["name"] for one in about["checkpoints"]],
        }
        print(text_table(title, columns))
        print(f"to measure: {about['layers']} attention layers, {about['matrices']} other matrices")
        print(f"to read: {size(about['bytes'])}; changes are measured against {against}")
        if about["left_out"]:
            print(f"left out, because their names tell no step: {', '.join(about['left_out'])}")
    if run is not None and not plan:
        found = read_history(planned, run, note=note, meter=bar)
        result["run"] = {"folder": str(run), "measured": found.measured.tolist(), "notes": found.notes}
    if json:
        print(to_json(result))
        return
    for remark in result.get("run", result["plan"])["notes"]:
        print(f"Note: {remark}")
    if "run" in result:
        print(f"{len(result['run']['measured'])} checkpoints are measured: see 'rankrise watch {run}'.")
