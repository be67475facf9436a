"""The paper's figures, drawn from opened runs, each with its data beside it.

To add one, write a function that draws it in a module of this folder, with `figure` above it.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, Run, Study, ToyRun, TrackedRun, studies
from rankrise.show.figures import choices, ranks, spectra, toy, training  # noqa: F401 (lists their figures)
from rankrise.show.figures.scaffold import FIGURES, FigureKind, Shown
from rankrise.show.figures.style import paper_style
from rankrise.show.pictures import save_with_data

__all__ = ["FIGURES", "draw_figures"]


def draw_figures(
    opened: Sequence[Run],
    out: str | Path,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of opened runs into the folder `out`: PNG, SVG, and the data as CSV.

    Returns the paths of each figure, and the reason for each that is not drawn. Draws all figures that the
    runs have the data for, or those of `names`, which must be drawable.
    """
    shown = shown_of(opened, seed)
    plans = named_figures(shown)
    known = dict.fromkeys(
        one for name, (kind, subject) in plans.items() for one in (name, kind.name, kind.number_of(subject))
    )
    for name in names or ():
        if not name or name not in known:
            listed = ", ".join(filter(None, known))
            raise RankriseError(f"figure {name!r} is not known: the runs given here have {listed}.")
    asked = {
        name: (kind, subject)
        for name, (kind, subject) in plans.items()
        if names is None or {name, kind.name, kind.number_of(subject)} & {*names}
    }
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    with paper_style():
        for place, (name, (kind, subject)) in enumerate(asked.items(), start=1):
            try:
                picture = kind.draw(subject)
            except NotRecorded as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
            else:
                stem = Path(out) / f"figure-{name}"
                drawn[name] = save_with_data(*picture, _title(kind, subject), stem)
            if progress is not None:
                progress(place / len(asked))
    return drawn, skipped


def shown_of(opened: Sequence[Run], seed: int | None = None) -> Shown:
    """What there is to draw; `seed` chooses one of a toy run's, by default its first."""
    toys = [run for run in opened if isinstance(run, ToyRun)]
    if len(toys) > 1:
        raise RankriseError(f"{len(toys)} toy runs were passed: draw the figures of one toy run at a time.")
    if seed is not None and not toys:
        raise RankriseError(f"--seed {seed} chooses a seed of a toy run, and tracked runs were passed.")
    tracked = [run for run in opened if isinstance(run, TrackedRun)]
    return Shown(
        [toy.ToySeed.of(run, seed) for run in toys],
        studies([run for run in tracked if run.layers or not run.matrices]),
        studies([run for run in tracked if run.matrices], of_heads=False),
    )


def named_figures(shown: Shown) -> dict[str, tuple[FigureKind, object]]:
    """Every figure that some runs could have, by the name of its files: its kind and what it is drawn of."""
    plans: dict[str, tuple[FigureKind, object]] = {}
    for kind in FIGURES:
        for subject in getattr(shown, kind.of):
            number = kind.number_of(subject)
            name = number or kind.name
            if isinstance(subject, toy.ToySeed) and len(subject.run.settings.seeds) > 1:
                name += f"-seed-{subject.seed}"
            elif isinstance(subject, Study) and not number and len(shown.studies) > 1:
                name += "-" + re.sub(r"[^\w.-]+", "-", subject.label)
            names = chain([name], (f"{name}-{at}" for at in count(2)))  # another study may have it already
            plans[next(one for one in names if one not in plans)] = kind, subject
    return plans


def _title(kind: FigureKind, subject: object) -> str:
    caption = f"{subject.label}: {kind.caption}" if isinstance(subject, Study) else kind.caption
    later = f", {kind.later} of the later version" if kind.later else ""
    number = kind.number_of(subject)
    return f"{caption} (Figure {number} of the paper{later})" if number else caption
