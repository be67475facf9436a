"""Pictures with their data as files; the same numbers give the same bytes."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from rankrise.foundations.files import replacing, write_text


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with the header on top."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((header, *rows))
    return text.getvalue()


def save_picture(figure: Figure, folder: Path, name: str, dpi: int = 160) -> list[Path]:
    """Write `name`.png and .svg to `folder`, and return their paths."""
    for text in figure.texts:  # the heading, which may be longer than the figure is wide
        text.set_wrap(True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        with replacing(path) as temporary, rc_context({"svg.hashsalt": "rankrise"}):
            figure.savefig(temporary, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else {})
        figure.set_layout_engine("none")  # layout takes most of the time: do it once
    return paths


def save_with_data(
    figure: Figure, header: Sequence[str], rows: Iterable[Sequence[object]], stem: Path
) -> list[Path]:
    """Write `stem`.png, .svg, and the data as .csv with six digits; return the paths."""
    pictures = save_picture(figure, stem.parent, stem.name, dpi=200)
    data = stem.with_name(f"{stem.name}.csv")
    cells = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_text(data, csv_text(header, cells))
    return [*pictures, data]
