"""What commands print on a terminal: a console, tables of any width, warnings, sizes and times."""

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankrise

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def safe_console(**options: Any) -> "Console":
    """rich's console, but a reader that is gone, such as `head`, ends it as it ends `print`."""
    from rich.console import Console

    class Safe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Safe(**options)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of this package as one sentence on standard error, without a line of code."""
    (ours,) = rankrise.__path__
    as_before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *others: Any, **named: Any) -> None:
        if Path(filename).is_relative_to(ours):
            print(f"Warning: {message}", file=sys.stderr)
        else:
            as_before(message, category, filename, *others, **named)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = as_before


def table_of(columns: Mapping[str, Sequence[str]], left: Sequence[str], **options: Any) -> "Table":
    """A rich table of columns by title, without the empty ones; those in `left` are left-justified.

    >>> from rich.console import Console
    >>> columns = {"stage": ["1", "2"], "coordinate": ["VO 3", "KQ 1"], "left": ["", ""]}
    >>> Console(width=40).print(table_of(columns, left=("coordinate", "left"), box=None))
     stage  coordinate
         1  VO 3
         2  KQ 1
    """
    from rich.table import Table

    shown = {title: cells for title, cells in columns.items() if any(cells)}
    table = Table(**options)
    for title in shown:
        table.add_column(title, justify="left" if title in left else "right")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def plain_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str], title: str = ""
) -> "Fitting":
    """A table without lines whose cells do not wrap, without empty columns."""
    from rich.table import Table

    table = Table(title=title or None, box=None, padding=(0, 1, 0, 0), title_justify="left")
    shown = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    for place in shown:
        table.add_column(titles[place], justify="left" if titles[place] in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return Fitting(table)


@dataclass(frozen=True)
class Fitting:
    """A rich table if the terminal is wide enough; otherwise a paragraph per row.

    >>> from rich.console import Console
    >>> from rich.table import Table
    >>> table = Table(box=None)
    >>> for title in ("stage", "coordinate", "loss"):
    ...     table.add_column(title, no_wrap=True)
    >>> table.add_row("1", "VO 3", "0.25")
    >>> Console(width=40).print(Fitting(table))
     stage  coordinate  loss
     1      VO 3        0.25
    >>> Console(width=20).print(Fitting(table))
    stage 1, coordinate
    VO 3, loss 0.25
    """

    table: "Table"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.measure import Measurement
        from rich.text import Text

        unbounded = options.update(max_width=10_000)
        for column in self.table.columns:
            if column.no_wrap:
                cells = (column.header, *column.cells)
                column.min_width = max(Measurement.get(console, unbounded, cell).maximum for cell in cells)
        if Measurement.get(console, unbounded, self.table).minimum <= options.max_width:
            yield self.table
            return
        if self.table.title:
            yield self.table.title
        titles = [column.header for column in self.table.columns]
        first: Any = ""
        for cells in zip(*(column.cells for column in self.table.columns), strict=True):
            first = cells[0] or first  # an empty first cell repeats the one above
            row = zip(titles, (first, *cells[1:]), strict=True)
            named = [Text.assemble(f"{title} " if title else "", cell) for title, cell in row if cell]
            yield Text(", ").join(named)


def size(count: float) -> str:
    """A number of bytes, to three digits.

    >>> size(180), size(5400), size(999_999), size(58.1e9)
    ('180 bytes', '5.4 kB', '1 MB', '58.1 GB')
    """
    place = 0
    while count >= 999.5 and place < len(UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.3g} {UNITS[place]}"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.02), duration(3.2), duration(200), duration(10000)
    ('less than 1 s', '3 s', '3 min', '2.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
