"""Progress of long work on standard error: a bar on a terminal, otherwise a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

FIRST, LONGEST = 5.0, 300.0
"""Seconds to the first line, and the most between two; in between, a tenth of what has passed."""

Move = Callable[..., None]
"""move(done, description=None, total=None, tell=False): move to a place of the total; `tell` prints a line at
once if there is no terminal."""


@contextmanager
def bar(description: str, total: float, unit: str = "") -> Iterator[Move]:
    """Show progress, with its rate if there is a `unit`; yields the function that moves it."""
    if not sys.stderr.isatty():
        yield _lines(description, total, unit)
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(_rate(task.speed, unit) if unit and task.speed else "")

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(description, total=total)

        def move_to(done: float, description: Any = None, total: Any = None, tell: bool = False) -> None:
            shown.update(task, completed=done, description=description, total=total)

        yield move_to


def _rate(speed: float, unit: str) -> str:
    return f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.3g} {unit}/s"


def _lines(description: str, total: float, unit: str) -> Move:
    """Print progress as lines, ever more seldom."""
    begun = last = time.monotonic()
    origin: tuple[float, float] | None = None

    def move_to(done: float, doing: str | None = None, of: float | None = None, tell: bool = False) -> None:
        nonlocal description, total, last, origin
        description, total, now = doing or description, of or total, time.monotonic()
        origin = origin or (now, done)  # a resumed run has done some before the first call
        if not tell and now - last < min(max(FIRST, (now - begun) / 10), LONGEST):
            return
        last, speed = now, (done - origin[1]) / max(now - origin[0], 1e-9)
        text = f"{description}: {100 * done / total:.0f} %"
        if speed > 0:
            left = timedelta(seconds=round(min((total - done) / speed, 1e10)))
            text += f"{f', {_rate(speed, unit)}' if unit else ''}, {left} left"
        print(text, file=sys.stderr, flush=True)

    return move_to
