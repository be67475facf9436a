"""Progress of long work on standard error, with its rate and the time left: a bar on a terminal, and where
there is none, a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TextIO


class Move(Protocol):
    """Move the bar to a place of its total, and change its description or its total where one is given; with
    `tell`, the place is worth a line where there is no terminal."""

    def __call__(
        self, done: float, description: str | None = None, total: float | None = None, tell: bool = False
    ) -> None: ...


@contextmanager
def bar(description: str, total: float, unit: str = "") -> Iterator[Move]:
    """Show progress and give the function that moves it to a given place of `total`; with a `unit`, its rate
    is shown too.

    >>> with bar("counting", total=10) as move_to:
    ...     move_to(10)
    """
    if not sys.stderr.isatty():
        yield ProgressLines(description, total, unit)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(rate(task.speed or 0.0, unit), style="progress.data.speed")

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), Rate())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)

        def move_to(
            done: float, description: str | None = None, total: float | None = None, tell: bool = False
        ) -> None:
            progress.update(task, completed=done, description=description, total=total)

        yield move_to


class ProgressLines:
    """Progress as lines: 5 seconds after the start, then ever more seldom, and where one is asked for.

    >>> clock = iter([0.0, 1.0, 10.0, 11.0])
    >>> move_to = ProgressLines("counting", 100, "images", clock=lambda: next(clock), out=sys.stdout)
    >>> move_to(5)
    >>> move_to(50)
    counting: 50 %, 5 images/s, 0:00:10 left
    >>> move_to(55)
    """

    FIRST, LONGEST = 5.0, 300.0
    """Seconds to the first line, and the most between two; until then a tenth of what has passed."""

    def __init__(
        self,
        description: str,
        total: float,
        unit: str,
        clock: Callable[[], float] = time.monotonic,
        out: TextIO | None = None,
    ) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._clock, self._out = clock, out or sys.stderr
        self._begun = self._last = clock()
        self._origin: tuple[float, float] | None = None

    def __call__(
        self, done: float, description: str | None = None, total: float | None = None, tell: bool = False
    ) -> None:
        self._description = description or self._description
        self._total = total or self._total
        now = self._clock()
        # The rate counts from the first call: what was done before it may be of a run that is resumed.
        self._origin = self._origin or (now, done)
        if tell or now - self._last >= min(max(self.FIRST, (now - self._begun) / 10), self.LONGEST):
            self._last = now
            print(self._line(done, now), file=self._out, flush=True)

    def _line(self, done: float, now: float) -> str:
        since, before = self._origin or (now, done)
        speed = (done - before) / (now - since) if now > since else 0.0
        parts = [f"{100 * done / self._total:.0f} %", rate(speed, self._unit)]
        if speed > 0 and self._total > done:
            seconds = (self._total - done) / speed
            century = 100 * 365 * 24 * 3600
            left = timedelta(seconds=round(seconds)) if seconds < century else "more than 100 years"
            parts.append(f"{left} left")
        return f"{self._description}: {', '.join(filter(None, parts))}"


def rate(speed: float, unit: str) -> str:
    """How fast it goes, to two digits or to the unit.

    >>> rate(12345.6, "images"), rate(0.0234, "stages"), rate(0.0, "stages"), rate(3.0, "")
    ('12,346 images/s', '0.023 stages/s', '', '')
    """
    if not unit or speed <= 0:
        return ""
    return f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.2g} {unit}/s"
