"""The paper's figures, each drawn from opened runs and from nothing else, with its data beside it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, Run, Study
from rankrise.show.figures.figure import Shown, shown_of
from rankrise.show.figures.paper_figures import FIGURES
from rankrise.show.figures.saving import Drawn, save
from rankrise.show.figures.style import paper_style
from rankrise.show.figures.toy.seed import ToySeed

__all__ = ["FIGURES", "Planned", "draw_figures", "planned"]


@dataclass(frozen=True)
class Planned:
    """A figure to draw: the name of its files, the names it also goes by, their title, and how."""

    name: str
    others: tuple[str, ...]
    title: str
    draw: Callable[[], Drawn]


def planned(shown: Shown) -> list[Planned]:
    """Every figure that some runs could have."""
    plans: list[Planned] = []
    for figure in FIGURES:
        for subject in figure.on(shown):
            number = figure.number_on(subject)
            name = f"{number or figure.name}{_suffix(subject, shown, bool(number))}"
            name = _free(name, {plan.name for plan in plans})
            draw = lambda draw=figure.draw, subject=subject: draw(subject)  # noqa: E731
            plans.append(Planned(name, (figure.name, number), figure.title_on(subject), draw))
    return plans


def _suffix(subject: object, shown: Shown, numbered: bool) -> str:
    """What tells apart the figures of several seeds, and of several data sets that the paper lacks."""
    if isinstance(subject, ToySeed) and len(subject.run.settings.seeds) > 1:
        return f"-seed-{subject.seed}"
    if isinstance(subject, Study) and not numbered and len(shown.studies) > 1:
        return "-" + re.sub(r"[^\w.-]+", "-", subject.label)
    return ""


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where another study has it already.

    >>> _free("15", {"15"})
    '15-2'
    """
    numbered = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in taken)


def draw_figures(
    opened: Sequence[Run],
    out: str | Path,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of opened runs into the folder `out`, as PNG and SVG with a CSV beside them: their paths,
    and why others are not drawn.

    Without `names`, all figures that the runs have the data for; named ones must be drawable. A toy run has
    several seeds, of which `seed` chooses one.
    """
    plans = planned(shown_of(opened, seed))
    for name in names or ():
        if not any(name in (plan.name, *plan.others) for plan in plans):
            known = ", ".join(
                dict.fromkeys(one for plan in plans for one in (plan.name, *plan.others) if one)
            )
            raise RankriseError(f"figure {name!r} is not known: the runs given here have {known}.")
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
