"""`rankrise watch`: a tracked run, live."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rankrise.watch import StagesFound, TrackedRun

MOST_SECONDS = 3600
"""Between frames."""


def watch(
    run: Path,
    rank: Literal["stable", "90", "95", "99", "entropy"] = "stable",
    once: bool = False,
    json: bool = False,
    every: float = 2.0,
) -> None:
    """Show the ranks, loss, pace and stages of a tracked run, while it is going and afterwards.

    Args:
        run: folder written by watch.RankTracker, 'rankrise train' or 'rankrise history'.
        rank: which rank to show over time: the stable rank, how many directions hold 90, 95 or 99 % of the
            energy, or the entropy rank.
        once: print one frame and stop, as is done anyway if the output is not a terminal or the run is
            finished.
        json: print the numbers of one frame as JSON.
        every: seconds between frames.
    """
    import time
    from threading import Thread

    from rich.live import Live

    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.runs import found_stages
    from rankrise.show.console import safe_console
    from rankrise.show.terminal import frame, snapshot

    if not 0 < every <= MOST_SECONDS:
        raise RankriseError(f"--every is {every:g}: pass seconds above 0, at most {MOST_SECONDS}.")
    console = safe_console()
    tracked = _open(run)
    if json:
        print(to_json(snapshot(tracked, found_stages(tracked)).to_dict()))
        return
    found: StagesFound | None = None
    if not once and console.is_terminal:

        def look(at: "TrackedRun") -> None:
            nonlocal found
            found = found_stages(at)

        search, searched = Thread(), 0  # in the background, whenever the record has grown by a twentieth
        try:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                while not tracked.finished:
                    size = len(tracked.measured) + len(tracked.steps()["step"])
                    if not search.is_alive() and size > 1.05 * searched:
                        search, searched = Thread(target=look, args=(tracked,), daemon=True), size
                        search.start()
                    live.update(frame(snapshot(tracked, found), console, rank), refresh=True)
                    time.sleep(every)
                    tracked = _open(run)
        except KeyboardInterrupt:
            console.print(frame(snapshot(tracked, found), console, rank))
            return
    console.print(frame(snapshot(tracked, found_stages(tracked)), console, rank))


def _open(folder: Path) -> "TrackedRun":
    """The one tracked run in a folder."""
    from rankrise import runs
    from rankrise.foundations.errors import RankriseError

    inside = [run for run in runs.folders_of(folder) if run != folder]
    if inside:
        raise RankriseError(f"{folder} holds {len(inside)} runs, watched one by one: pass {inside[0]}.")
    (run,) = runs.open(folder)
    if isinstance(run, runs.ToyRun):
        raise RankriseError(f"{folder} is a toy run, without layers: see 'rankrise report {folder}'.")
    return run
