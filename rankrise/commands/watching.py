"""`rankrise watch`, `compare` and `history`: the ranks of a run, of two checkpoints, of a series of them."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rankrise.show.progress import bar


def watch(
    run: Path,
    *,
    rank: Literal["stable", "90", "95", "99", "entropy"] = "stable",
    once: bool = False,
) -> Iterator[Any]:
    """Show the ranks, loss, pace and stages of a tracked run, while it is going and afterwards.

    Args:
        run: folder written by watch.RankTracker, 'rankrise train' or 'rankrise history'.
        rank: which rank to show over time: the stable rank, how many directions hold 90, 95 or 99 % of the
            energy, or the entropy rank.
        once: print one frame and end, as happens anyway if the run is finished or there is no terminal.
        json: print the numbers of one frame as JSON.
    """
    from rich.console import Console
    from rich.live import Live

    from rankrise import watch as library
    from rankrise.show.terminal import frame, snapshot

    console = Console()
    tracked = library.load(run)
    stages = library.find_stages(tracked)
    shown = snapshot(tracked, stages)
    yield shown
    if console.is_terminal and not (once or tracked.finished):
        searched = 0
        with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, transient=True) as live:
            while not tracked.finished:
                live.update(frame(shown, console, rank), refresh=True)
                time.sleep(2)
                tracked = library.load(run)
                rows = len(tracked.measured) + len(tracked.steps()["step"])
                if tracked.finished or rows > 1.05 * searched:  # a search takes a second
                    stages, searched = library.find_stages(tracked), rows
                shown = snapshot(tracked, stages)
    console.print(frame(shown, console, rank))


def compare(before: str, after: str, *, overlap: str | None = None, out: Path | None = None) -> Iterator[Any]:
    """Measure the rank and size of what changed between two checkpoints, in every layer and head.

    Args:
        before: safetensors file or folder with its config.json, or a model's name on the Hugging Face Hub; or
            a tracked run, for its initial weights.
        after: the same model later, for example after fine-tuning; or the folder of a PEFT adapter of it; or
            a run of 'rankrise train', for its newest checkpoint.
        overlap: a second training of the same model, to measure how far both learned the same directions.
        out: folder for the table (CSV, JSON) and a picture of layers by heads (PNG, SVG).
        json: print everything as JSON instead of a table.
    """
    from rankrise import watch
    from rankrise.show.comparison import as_dict, print_comparison, save_comparison

    compared = watch.compare(before, after)
    shared = None if overlap is None else watch.overlap(before, after, overlap)
    saved = [] if out is None else save_comparison(compared, out, shared)
    yield as_dict(compared, shared)
    print_comparison(compared, shared, saved)


@dataclass(frozen=True)
class Reading:
    """Which checkpoints to read, and what to measure in each."""

    steps: str | None = None
    """Pattern with one group around the step in a checkpoint's name, such as 'stage1-step([0-9]+)'; by
    default, the number after "step" or "checkpoint"."""
    first: int | None = None
    """Leave out checkpoints before this step; changes are still measured against the series' first."""
    last: int | None = None
    """Leave out checkpoints after this step."""
    log_spaced: int | None = None
    """Take this many checkpoints, about evenly spaced on a logarithmic scale."""
    base: str = "first"
    """What changes are measured against: first, previous, or another checkpoint (for a fine-tuning, the
    pretrained model)."""
    products: tuple[Literal["KQ", "VO"], ...] = ("KQ", "VO")
    """Which products of a head's weights to measure."""
    layers: tuple[str, ...] = ()
    """Which attention layers, by patterns of their names; all if not given."""
    matrices: tuple[str, ...] = ()
    """Other weight matrices, by patterns of their names, such as '*.mlp.*'."""
    device: str = "cpu"
    """Where to compute, for example cuda."""


def history(series: list[str], *, reading: Annotated[Mapping[str, Any], Reading], run: Path) -> Iterator[Any]:
    """Make a tracked run out of a series of checkpoints, for watch, figures, claims and report.

    To resume an interrupted run, give the same command again.

    Args:
        series: a folder of checkpoints, several checkpoints, or OWNER/NAME of a model on the Hugging Face Hub
            whose revisions they are.
        run: folder of the run, new or to be resumed.
        json: print which steps are measured as JSON.
    """
    from rankrise.watch import history as read_history

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # there is one bar already
    found = read_history(series[0] if len(series) == 1 else series, run, meter=bar, **reading)
    measured, left_out = found.measured.tolist(), found.extra["history"]["left_out"]
    yield {"run": run, "measured": measured, "left_out": left_out, "notes": found.notes}
    if left_out:
        print(f"Left out, because their names tell no step: {', '.join(left_out)}")
    for remark in found.notes:
        print(f"Note: {remark}")
    print(f"{len(measured)} checkpoints are measured: see 'rankrise watch {run}'.")
