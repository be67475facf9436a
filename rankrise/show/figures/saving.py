"""A figure as files: PNG, SVG, and its numbers as CSV."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rankrise.foundations.files import replacing, write_text
from rankrise.show.pictures import csv_text

DPI = 200

Drawn = tuple[Figure, str]
"""A picture, and its data as CSV."""


def save(figure: Figure, data: str, title: str, stem: Path) -> list[Path]:
    """Write `stem`.png, .svg and .csv, each atomically; the pictures carry the title as metadata."""
    for text in figure.texts:  # the heading, which may be longer than the figure is wide
        text.set_wrap(True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    for path, more in zip(paths, ({}, {"Date": None}), strict=False):
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=DPI, metadata={"Title": title, **more})
        figure.set_layout_engine("none")  # layout takes most of the time: do it once
    write_text(paths[2], data)
    return paths


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV text with six digits, more than a figure shows."""
    return csv_text(
        header, ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    )
