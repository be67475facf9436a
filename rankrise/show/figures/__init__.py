"""The paper's figures, drawn from opened runs, each with its data beside it.

To add one, write a function that draws it in a module of this folder, and list it in `FIGURES`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, Run, Study, ToyRun, TrackedRun, choices_of, studies
from rankrise.show.figures import ranks, spectra, toy, training
from rankrise.show.figures.style import Drawn, paper_style
from rankrise.show.pictures import save_with_data


class Kind(NamedTuple):
    """A figure, drawn once for each subject of a kind in `subjects_of`.

    `numbers` are the paper's by data set, "" on any; on other data the figure goes by its name.
    """

    name: str
    subjects: str
    numbers: Mapping[str, str]
    draw: Callable[[Any], Drawn]

    def number_of(self, subject: object) -> str:
        """The paper's number of the figure of a subject, or ""."""
        return self.numbers.get(getattr(subject, "family", None) or "", "")


FIGURES = (
    Kind("choices", "with_choices", {}, training.draw_choices),
    Kind("choice-courses", "with_choices", {}, training.draw_choice_courses),
    Kind("stable-rank", "studies", {"cifar10": "12", "cifar100": "14", "imagenet": "16"}, ranks.draw_ranks),
    Kind("later-4", "side_by_side", {}, ranks.draw_side_by_side),
    Kind("energy-rank", "studies", {}, ranks.draw_energy_rank),
    Kind("scales", "studies", {"cifar10": "4"}, ranks.draw_rank_by_scale),
    Kind("matrices", "with_matrices", {}, ranks.draw_matrices),
    Kind("one-head", "cifar10_and_imagenet", {"": "1"}, spectra.draw_one_head),
    Kind("spectra", "studies", {"cifar10": "11", "cifar100": "13", "imagenet": "15"}, spectra.draw_spectra),
    Kind("singular-values", "studies", {"cifar10": "2"}, spectra.draw_singular_values),
    Kind("final-spectra", "studies", {"cifar10": "5"}, spectra.draw_final_spectra),
    Kind("diagonal-and-full", "toy", {"": "3"}, toy.draw_diagonal_and_full),
    Kind("loss", "toy", {"": "6"}, toy.draw_loss),
    Kind("entries-kq", "toy", {"": "7"}, partial(toy.draw_entries, kind="KQ")),
    Kind("entries-vo", "toy", {"": "8"}, partial(toy.draw_entries, kind="VO")),
    Kind("strict-minima", "toy", {"": "9"}, partial(toy.draw_perturbations, kind="strict-minima")),
    Kind("noise-robustness", "toy", {"": "10"}, partial(toy.draw_perturbations, kind="noise-robustness")),
    Kind("training", "studies", {}, training.draw_course),
)


def draw_figures(
    opened: Sequence[Run],
    out: str | Path,
    names: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw all figures that runs have the data for, or those of `names`, into the folder `out`.

    Returns the paths of each figure, and the reason for each that is not drawn.
    """
    plans = _named(opened)
    others = {name: {name, kind.name, kind.number_of(subject)} for name, (kind, subject) in plans.items()}
    known = dict.fromkeys(filter(None, chain(*others.values())))
    for name in names or ():
        if name not in known:
            raise RankriseError(f"figure {name!r} is not known: the runs given here have {', '.join(known)}.")
    asked = [name for name in plans if names is None or others[name] & {*names}]
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    with paper_style():
        for place, name in enumerate(asked, start=1):
            kind, subject = plans[name]
            try:
                drawn[name] = save_with_data(*kind.draw(subject), Path(out) / f"figure-{name}")
            except NotRecorded as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
            if progress is not None:
                progress(place / len(asked))
    return drawn, skipped


def subjects_of(opened: Sequence[Run]) -> dict[str, Sequence[object]]:
    """What there is to draw figures of, by kind."""
    toys = [run for run in opened if isinstance(run, ToyRun)]
    if len(toys) > 1:
        raise RankriseError(f"{len(toys)} toy runs were passed: draw the figures of one toy run at a time.")
    tracked = [run for run in opened if isinstance(run, TrackedRun)]
    found = studies([run for run in tracked if run.layers or not run.matrices])
    of_the_paper = [study for study in found if study.family in ("cifar10", "imagenet")]
    return {
        "toy": toys,
        "studies": found,
        "with_choices": [study for study in found if len(choices_of(study)) > 1],
        "with_matrices": studies([run for run in tracked if run.matrices], of_heads=False),
        "cifar10_and_imagenet": [of_the_paper] if of_the_paper else [],
        "side_by_side": [found] if len(found) > 1 else [],
    }


def _named(opened: Sequence[Run]) -> dict[str, tuple[Kind, object]]:
    """Every figure that some runs could have, by the name of its files."""
    subjects = subjects_of(opened)
    plans: dict[str, tuple[Kind, object]] = {}
    for kind in FIGURES:
        for subject in subjects[kind.subjects]:
            name = kind.number_of(subject)
            if not name and isinstance(subject, Study) and len(subjects["studies"]) > 1:
                name = f"{kind.name}-" + re.sub(r"[^\w.-]+", "-", subject.label)
            name = name or kind.name
            free = chain([name], (f"{name}-{at}" for at in count(2)))  # another study may have it already
            plans[next(one for one in free if one not in plans)] = kind, subject
    return plans
