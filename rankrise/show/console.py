"""What commands print on a terminal: a console, tables, warnings, sizes and times."""

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings as one sentence on standard error, without a line of code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
        yield


def plain_table(
    titles: Sequence[str],
    rows: Sequence[Sequence["RenderableType"]],
    left: Sequence[str] = (),
    title: str = "",
    gap: int = 1,
) -> "Table":
    """A table without lines and without empty columns; columns named in `left` are left-justified."""
    from rich.table import Table

    table = Table(title=title or None, box=None, padding=(0, gap, 0, 0), title_justify="left")
    shown = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    for place in shown:
        justify = "left" if titles[place] in left else "right"
        table.add_column(titles[place], justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table


def size(count: float) -> str:
    """A number of bytes, to three digits: "58.1 GB"."""
    place = 0
    while count >= 999.5 and place < len(UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.3g} {UNITS[place]}"


def duration(seconds: float) -> str:
    """A time in words: "3 min", "2.8 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
