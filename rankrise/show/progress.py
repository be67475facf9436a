"""Progress bars for long work: rate, time left, on standard error, silent where nobody watches."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Move(Protocol):
    """Move the bar to a place of its total, and change its description or its total where one is given."""

    def __call__(self, done: float, description: str | None = None, total: float | None = None) -> None: ...


@contextmanager
def bar(description: str, total: float, unit: str = "") -> Iterator[Move]:
    """Show a bar and give the function that moves it to a given place of `total`; with a `unit`, its rate is
    shown too.

    >>> with bar("counting", total=10) as move_to:
    ...     move_to(10)
    """
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
            return Text(
                f"{task.speed:,.0f} {unit}/s" if unit and task.speed else "", style="progress.data.speed"
            )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(description, total=total)

        def move_to(done: float, description: str | None = None, total: float | None = None) -> None:
            progress.update(task, completed=done, description=description, total=total)

        yield move_to
