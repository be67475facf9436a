"""A picture as PNG and SVG; the same numbers give the same bytes."""

from pathlib import Path

from matplotlib.figure import Figure

from rankrise.foundations.files import replacing

DPI = 160


def save_picture(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and .svg to `folder`, and give their paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
