"""The paper's toy figures, each drawn from a run and from nothing else, with its data beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from rankrise.errors import RankriseError
from rankrise.files import replacing, write_text
from rankrise.show.figures.data import Source
from rankrise.show.figures.descent import draw_descent
from rankrise.show.figures.entries import draw_entries
from rankrise.show.figures.loss import draw_loss
from rankrise.show.figures.perturbations import draw_perturbations
from rankrise.show.figures.style import paper_style
from rankrise.show.figures.training import draw_training
from rankrise.toy import MissingPiece, open_run


@dataclass(frozen=True)
class Drawing:
    """A figure: how it is drawn, its caption, and its number in the paper's later version."""

    draw: Callable[[Source], tuple[Figure, str]]
    caption: str
    later_number: str = ""


FIGURES = {
    "3": Drawing(draw_training, "Diagonal and full weights trained by gradient descent"),
    "6": Drawing(draw_loss, "Loss against rescaled time for each initialisation scale", "2"),
    "7": Drawing(partial(draw_entries, kind="KQ"), "Entries of w_K*w_Q for each initialisation scale", "2"),
    "8": Drawing(partial(draw_entries, kind="VO"), "Entries of w_V*w_O for each initialisation scale", "2"),
    "9": Drawing(partial(draw_perturbations, kind="strict-minima"), "Noise at random times", "3"),
    "10": Drawing(partial(draw_perturbations, kind="noise-robustness"), "Noise when a coordinate wakes", "3"),
    "descent": Drawing(draw_descent, "Gradient descent beside the exact flow"),
}
"""By the number in the paper's submission; one more that is not in it."""

DPI = 200


def draw_figures(
    run: str | Path,
    names: list[str] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of a run as PNG and SVG with a CSV beside them: their paths, and why others are not drawn.

    Without `names`, all figures that the run has the data for; named ones must be drawable. They go into the
    run's own `figures`, if no `out` is given.
    """
    for name in names or ():
        if name not in FIGURES:
            raise RankriseError(f"figure {name!r} is not known: pass some of {', '.join(FIGURES)}")
    opened = open_run(run)
    chosen = opened.settings.seeds[0] if seed is None else seed
    if chosen not in opened.settings.seeds:
        known = ", ".join(map(str, opened.settings.seeds))
        raise RankriseError(f"seed {chosen} is not in the run {run}: pass one of {known}")
    folder = opened.folder / "figures" if out is None else Path(out)
    source = Source(opened, chosen)
    suffix = "" if len(opened.settings.seeds) == 1 else f"-seed-{chosen}"
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    asked = list(FIGURES) if names is None else names
    with paper_style():
        for number, name in enumerate(asked):
            try:
                figure, data = FIGURES[name].draw(source)
                drawn[name] = _save(figure, data, _title(name), folder / f"figure-{name}{suffix}")
            except MissingPiece as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
            if progress is not None:
                progress((number + 1) / len(asked))
    return drawn, skipped


def _title(name: str) -> str:
    """What the files say of themselves: the caption, and the number in both versions of the paper."""
    drawing = FIGURES[name]
    later = f", {drawing.later_number} of the later version" if drawing.later_number else ""
    return f"{drawing.caption} (Figure {name} of the paper{later})" if name.isdigit() else drawing.caption


def _save(figure: Figure, data: str, title: str, stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    for path, more in zip(paths, ({}, {"Date": None}), strict=False):
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=DPI, metadata={"Title": title, **more})
    write_text(paths[2], data)
    return paths
