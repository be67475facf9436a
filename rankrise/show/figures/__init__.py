"""The paper's figures, drawn from opened runs, each with its data beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, Run
from rankrise.show.figures.listing import FIGURES, planned, shown_of
from rankrise.show.figures.saving import save
from rankrise.show.figures.style import paper_style

__all__ = ["FIGURES", "draw_figures"]


def draw_figures(
    opened: Sequence[Run],
    out: str | Path,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of opened runs into the folder `out`: PNG, SVG, and the data as CSV.

    Returns the paths of each figure, and for each that is not drawn the reason. Draws all figures that the
    runs have the data for, or those of `names`, which must be drawable.
    """
    plans = planned(shown_of(opened, seed))
    known = dict.fromkeys(name for plan in plans for name in (plan.name, *plan.others) if name)
    for name in names or ():
        if name not in known:
            raise RankriseError(f"figure {name!r} is not known: the runs given here have {', '.join(known)}.")
    asked = [plan for plan in plans if names is None or {plan.name, *plan.others} & {*names}]
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    with paper_style():
        for place, plan in enumerate(asked, start=1):
            try:
                figure, data = plan.draw()
                drawn[plan.name] = save(figure, data, plan.title, Path(out) / f"figure-{plan.name}")
            except NotRecorded as error:
                if names is not None:
                    raise
                skipped[plan.name] = str(error)
            if progress is not None:
                progress(place / len(asked))
    return drawn, skipped
