"""Tables as commands print them."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table


def plain_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[RenderableType]],
    left: Sequence[str] = (),
    title: str = "",
    gap: int = 1,
) -> Table:
    """A table without lines and without empty columns; columns named in `left` are left-justified."""
    table = Table(title=title or None, box=None, padding=(0, gap, 0, 0), title_justify="left")
    shown = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    for place in shown:
        justify = "left" if titles[place] in left else "right"
        table.add_column(titles[place], justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table
