"""Results as short tables of text, for their reprs."""

from collections.abc import Mapping, Sequence

MOST_ROWS = 12


def text_table(title: str, columns: Mapping[str, Sequence[str]]) -> str:
    """A title over right-aligned columns. Empty columns and the middle of long ones are left out.

    >>> print(text_table("Stages", {"stage": ["1", "2"], "time": ["0.5", "12.25"], "left": ["", ""]}))
    Stages
      stage   time
          1    0.5
          2  12.25
    """
    table = []
    for name, cells in columns.items():
        if any(cells):
            half = MOST_ROWS // 2
            shown = [*cells] if len(cells) <= MOST_ROWS else [*cells[:half], "...", *cells[-half:]]
            width = max(map(len, [name, *shown]))
            table.append([cell.rjust(width) for cell in [name, *shown]])
    return "\n".join([title, *("  " + "  ".join(row) for row in zip(*table, strict=True))])
