"""Results as short tables of text, for their reprs."""

from collections.abc import Mapping, Sequence

MOST_ROWS = 12


def text_table(title: str, columns: Mapping[str, Sequence[str]]) -> str:
    """A title over right-aligned columns. Empty columns and the middle of long ones are left out."""
    table = []
    for name, cells in columns.items():
        if any(cells):
            half = MOST_ROWS // 2
            shown = [*cells] if len(cells) <= MOST_ROWS else [*cells[:half], "...", *cells[-half:]]
            width = max(map(len, [name, *shown]))
            table.append([cell.rjust(width) for cell in [name, *shown]])
    return "\n".join([title, *("  " + "  ".join(row) for row in zip(*table, strict=True))])
