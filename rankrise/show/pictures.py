"""A picture as files: PNG and SVG, each whole or not at all, and the same bytes from the same numbers."""

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
