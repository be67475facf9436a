"""Tables for terminals of any width."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


def table_of(columns: Mapping[str, Sequence[str]], left: Sequence[str], **options: Any) -> "Table":
    """A rich table of columns by their titles, without the empty ones; those in `left` are left-justified.

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


@dataclass(frozen=True)
class Fitting:
    """A rich table if the terminal has room for the columns that may not wrap; else a paragraph per row, in
    which an empty first cell is the one above.

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
            first = cells[0] or first
            row = zip(titles, (first, *cells[1:]), strict=True)
            named = [Text.assemble(f"{title} " if title else "", cell) for title, cell in row if cell]
            yield Text(", ").join(named)
