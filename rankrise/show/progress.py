"""Progress of long work on standard error: a bar on a terminal, otherwise a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO

FIRST, LONGEST = 5.0, 300.0
"""Seconds to the first line, and the most between two; in between, a tenth of what has passed."""


Move = Callable[..., None]
"""move(done, description=None, total=None, tell=False): move to a place of the total; `tell` prints a line at
once if there is no terminal."""


@contextmanager
def bar(description: str, total: float, unit: str = "") -> Iterator[Move]:
    """Show progress, with its rate if there is a `unit`; yields the function that moves it.

    >>> with bar("counting", total=10) as move_to:
    ...     move_to(10)
    """
    if not sys.stderr.isatty():
        yield ProgressLines(description, total, unit)
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.text import Text

    class Rate(rich_progress.ProgressColumn):
        def render(self, task: rich_progress.Task) -> Text:
            return Text(rate(task.speed or 0.0, unit), style="progress.data.speed")

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(),
        Rate(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)

        def move_to(done: float, description: Any = None, total: Any = None, tell: bool = False) -> None:
            progress.update(task, completed=done, description=description, total=total)

        yield move_to


class ProgressLines:
    """Progress as lines, ever more seldom.

    >>> clock = iter([0.0, 1.0, 10.0, 11.0])
    >>> move_to = ProgressLines("counting", 100, "images", clock=lambda: next(clock), out=sys.stdout)
    >>> move_to(5)
    >>> move_to(50)
    counting: 50 %, 5 images/s, 0:00:10 left
    >>> move_to(55)
    """

    def __init__(
        self,
        description: str,
        total: float,
        unit: str,
        clock: Callable[[], float] = time.monotonic,
        out: TextIO | None = None,
    ) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.clock, self.out = clock, out or sys.stderr
        self.begun = self.last = clock()
        self.origin: tuple[float, float] | None = None

    def __call__(
        self, done: float, description: str | None = None, total: float | None = None, tell: bool = False
    ) -> None:
        self.description = description or self.description
        self.total = total or self.total
        now = self.clock()
        self.origin = self.origin or (now, done)  # a resumed run has done some before the first call
        if not tell and now - self.last < min(max(FIRST, (now - self.begun) / 10), LONGEST):
            return
        self.last = now
        since, before = self.origin
        speed = (done - before) / (now - since) if now > since else 0.0
        parts = [f"{100 * done / self.total:.0f} %", rate(speed, self.unit)]
        if speed > 0 and self.total > done:
            seconds = min((self.total - done) / speed, 1e10)
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        print(f"{self.description}: {', '.join(filter(None, parts))}", file=self.out, flush=True)


def rate(speed: float, unit: str) -> str:
    """Two digits, or whole numbers from 100 on.

    >>> rate(12345.6, "images"), rate(0.0234, "stages"), rate(0.0, "stages"), rate(3.0, "")
    ('12,346 images/s', '0.023 stages/s', '', '')
    """
    if not unit or speed <= 0:
        return ""
    return f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.2g} {unit}/s"
