"""Results as short tables of text, for their reprs."""

from collections.abc import Mapping, Sequence

MOST_ROWS = 12


def text_table(title: str, columns: Mapping[str, Sequence[str]]) -> str:
    """A title over aligned columns; empty columns and the middle of long ones are left out.

    >>> print(text_table("Stages", {"stage": ["1", "2"], "time": ["0.5", "12.25"], "left": ["", ""]}))
    Stages
      stage   time
          1    0.5
          2  12.25
    """
    shown = [[name, *_shortened(cells)] for name, cells in columns.items() if any(cells)]
    widths = [max(map(len, column)) for column in shown]
    lines = [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*shown, strict=True)
    ]
    return "\n".join([title, *lines])


def _shortened(cells: Sequence[str]) -> list[str]:
    if len(cells) <= MOST_ROWS:
        return list(cells)
    half = MOST_ROWS // 2
    return [*cells[:half], "...", *cells[-half:]]
