"""Tables for terminals of any width."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class Fitting:
    """A rich table where the terminal has room for the columns that may not wrap; else a paragraph per row.

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

        needed = Measurement.get(console, options.update(max_width=10_000), self.table).minimum
        if needed <= options.max_width:
            yield self.table
            return
        if self.table.title:
            yield self.table.title
        titles = [column.header for column in self.table.columns]
        for cells in zip(*(column.cells for column in self.table.columns), strict=True):
            named = [
                Text.assemble(f"{title} ", cell) for title, cell in zip(titles, cells, strict=True) if cell
            ]
            yield Text(", ").join(named)
