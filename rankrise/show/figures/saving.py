"""A figure as files: PNG and SVG that say what they are, and beside them the numbers they show as CSV."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import replacing, write_text
from rankrise.foundations.text import printable
from rankrise.show.csv_text import csv_text

DPI = 200

Drawn = tuple[Figure, str]
"""A picture, and its data as CSV."""


def save(figure: Figure, data: str, title: str, stem: Path) -> list[Path]:
    """Write `stem`.png, .svg and .csv, each whole or not at all; the pictures' metadata have the title."""
    for text in figure.texts:  # the heading, which may be longer than the figure is wide
        text.set_wrap(True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    for path, more in zip(paths, ({}, {"Date": None}), strict=False):
        with replacing(path) as temporary:
            try:
                figure.savefig(temporary, dpi=DPI, metadata={"Title": printable(title), **more})
            except OSError:
                raise
            except Exception as error:  # numbers near the largest there are break matplotlib in many ways
                raise RankriseError(
                    f"{path} cannot be drawn ({first_line(error)}): look in the record for numbers that are "
                    "far too large."
                ) from error
        figure.set_layout_engine("none")  # laid out once, which takes most of the time, and alike in both
    write_text(paths[2], data)
    return paths


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV text; numbers with six digits, which is more than a figure shows."""
    return csv_text(
        header, ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    )
