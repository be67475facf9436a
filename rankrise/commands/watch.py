"""`rankrise watch`: a tracked run, live."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rankrise.watch import StagesFound, TrackedRun

SECONDS = 2.0
"""Between frames."""


def watch(
    run: Path,
    *,
    rank: Literal["stable", "90", "95", "99", "entropy"] = "stable",
    once: bool = False,
    json: bool = False,
) -> None:
    """Show the ranks, loss, pace and stages of a tracked run, while it is going and afterwards.

    Args:
        run: folder written by watch.RankTracker, 'rankrise train' or 'rankrise history'.
        rank: which rank to show over time: the stable rank, how many directions hold 90, 95 or 99 % of the
            energy, or the entropy rank.
        once: print one frame and stop, as is done anyway if the output is not a terminal or the run is
            finished.
        json: print the numbers of one frame as JSON.
    """
    import time
    from threading import Thread

    from rich.live import Live

    from rankrise import watch as library
    from rankrise.foundations.files import to_json
    from rankrise.show.console import safe_console
    from rankrise.show.terminal import frame, snapshot

    console = safe_console()
    tracked = library.load(run)
    stages: StagesFound | None = None

    def search(recorded: "TrackedRun") -> None:
        nonlocal stages
        stages = library.find_stages(recorded)

    if console.is_terminal and not (once or json or tracked.finished):
        searching, searched = Thread(), 0  # in the background, whenever the record has grown by a twentieth
        try:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                while not tracked.finished:
                    rows = len(tracked.measured) + len(tracked.steps()["step"])
                    if not searching.is_alive() and rows > 1.05 * searched:
                        searching, searched = Thread(target=search, args=(tracked,), daemon=True), rows
                        searching.start()
                    live.update(frame(snapshot(tracked, stages), console, rank), refresh=True)
                    time.sleep(SECONDS)
                    tracked = library.load(run)
        except KeyboardInterrupt:
            console.print(frame(snapshot(tracked, stages), console, rank))
            return
    search(tracked)
    shown = snapshot(tracked, stages)
    if json:
        print(to_json(shown))
    else:
        console.print(frame(shown, console, rank))
