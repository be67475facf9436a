"""The paper's toy figures, each drawn from a run and from nothing else, with its data beside it."""

from collections.abc import Callable
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

FIGURES: dict[str, Callable[[Source], tuple[Figure, str]]] = {
    "3": draw_training,
    "6": draw_loss,
    "7": partial(draw_entries, kind="KQ"),
    "8": partial(draw_entries, kind="VO"),
    "9": partial(draw_perturbations, kind="strict-minima"),
    "10": partial(draw_perturbations, kind="noise-robustness"),
    "descent": draw_descent,
}
"""By the number in the paper's submission; its later version has 6, 7, 8 as Figure 2, and 9, 10 as Figure 3. The last is not in it."""

DPI = 200


def draw_figures(
    run: str | Path,
    names: list[str] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of a run as PNG and SVG with a CSV beside them: their paths by name, and why others could not be drawn.

    Without `names`, all figures that the run has the data for; named ones must be drawable. Into the run's own `figures`, if no
    `out` is given.
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
                drawn[name] = _save(*FIGURES[name](source), folder / f"figure-{name}{suffix}")
            except MissingPiece as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
            if progress is not None:
                progress((number + 1) / len(asked))
    return drawn, skipped


def _save(figure: Figure, data: str, stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    for path in paths[:2]:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    write_text(paths[2], data)
    return paths
