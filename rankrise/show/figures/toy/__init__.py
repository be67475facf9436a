"""The paper's toy figures, each drawn from a run and from nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, ToyRun
from rankrise.show.figures.saving import save, titled
from rankrise.show.figures.style import paper_style
from rankrise.show.figures.toy.descent import draw_descent
from rankrise.show.figures.toy.entries import draw_entries
from rankrise.show.figures.toy.loss import draw_loss
from rankrise.show.figures.toy.perturbations import draw_perturbations
from rankrise.show.figures.toy.source import Source
from rankrise.show.figures.toy.training import draw_training


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


def draw_toy(
    run: ToyRun,
    names: list[str] | None = None,
    seed: int | None = None,
    out: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of a toy run: their paths, and why others are not drawn (see `draw_figures`)."""
    for name in names or ():
        if name not in FIGURES:
            raise RankriseError(f"figure {name!r} is not known: a toy run has {', '.join(FIGURES)}")
    chosen = run.settings.seeds[0] if seed is None else seed
    if chosen not in run.settings.seeds:
        known = ", ".join(map(str, run.settings.seeds))
        raise RankriseError(f"seed {chosen} is not in the run {run.folder}: pass one of {known}")
    folder = run.folder / "figures" if out is None else out
    source = Source(run, chosen)
    suffix = "" if len(run.settings.seeds) == 1 else f"-seed-{chosen}"
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    asked = list(FIGURES) if names is None else names
    with paper_style():
        for number, name in enumerate(asked):
            drawing = FIGURES[name]
            title = titled(drawing.caption, name if name.isdigit() else "", drawing.later_number)
            try:
                figure, data = drawing.draw(source)
                drawn[name] = save(figure, data, title, folder / f"figure-{name}{suffix}")
            except NotRecorded as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
            if progress is not None:
                progress((number + 1) / len(asked))
    return drawn, skipped
