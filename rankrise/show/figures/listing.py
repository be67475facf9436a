"""Every figure. To add one, write a function that draws it from a subject, and list it here."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.runs import Run, Study, ToyRun, TrackedRun, choices_of, studies
from rankrise.show.figures import ranks, spectra, toy, training
from rankrise.show.figures.saving import Drawn


@dataclass(frozen=True)
class Shown:
    """What opened runs have to draw: a seed of a toy run, and the studies of tracked runs."""

    seeds: Sequence[toy.ToySeed]
    studies: Sequence[Study]
    with_matrices: Sequence[Study] = ()
    """Studies of runs that tracked other matrices than heads, perhaps only those."""


@dataclass(frozen=True)
class Figure:
    """A figure: `on` finds its subjects, and `draw` draws one of them.

    `number` is the paper's, or a mapping from the data set to it; on other data the figure goes by its name.
    `later` is the number in the paper's later version.
    """

    name: str
    on: Callable[[Shown], Sequence[Any]]
    draw: Callable[[Any], Drawn]
    caption: str
    number: str | Mapping[str, str] = ""
    later: str = ""


@dataclass(frozen=True)
class Planned:
    """A figure to draw: the name of its files, other names for it, its title, and how to draw it."""

    name: str
    others: tuple[str, ...]
    title: str
    draw: Callable[[], Drawn]


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


def planned(shown: Shown) -> list[Planned]:
    """Every figure that some runs could have."""
    plans: list[Planned] = []
    for figure in FIGURES:
        for subject in figure.on(shown):
            number = figure.number if isinstance(figure.number, str) else ""
            if not isinstance(figure.number, str) and isinstance(subject, Study):
                number = figure.number.get(subject.family or "", "")
            caption = f"{subject.label}: {figure.caption}" if isinstance(subject, Study) else figure.caption
            later = f", {figure.later} of the later version" if figure.later else ""
            title = f"{caption} (Figure {number} of the paper{later})" if number else caption
            name = f"{number or figure.name}{_suffix(subject, shown, bool(number))}"
            free = _free(name, {plan.name for plan in plans})
            plans.append(Planned(free, (figure.name, number), title, partial(figure.draw, subject)))
    return plans


def _suffix(subject: object, shown: Shown, numbered: bool) -> str:
    """Tells apart the figures of several seeds, and of several data sets without a number."""
    if isinstance(subject, toy.ToySeed) and len(subject.run.settings.seeds) > 1:
        return f"-seed-{subject.seed}"
    if isinstance(subject, Study) and not numbered and len(shown.studies) > 1:
        return "-" + re.sub(r"[^\w.-]+", "-", subject.label)
    return ""


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered if another study has it already.

    >>> _free("15", {"15"})
    '15-2'
    """
    return next(one for one in chain([name], (f"{name}-{at}" for at in count(2))) if one not in taken)


def each_seed(shown: Shown) -> Sequence[toy.ToySeed]:
    """One figure per toy run."""
    return shown.seeds


def each_study(shown: Shown) -> Sequence[Study]:
    """One figure per data set."""
    return shown.studies


def each_study_with_matrices(shown: Shown) -> Sequence[Study]:
    """One figure per data set on which other matrices than heads were tracked."""
    return shown.with_matrices


def each_study_of_several_runs(shown: Shown) -> Sequence[Study]:
    """One figure per data set with several runs."""
    return [study for study in shown.studies if len(study.members) > 1]


def each_study_of_choices(shown: Shown) -> Sequence[Study]:
    """One figure per data set with a base and choices."""
    return [study for study in shown.studies if len(choices_of(study)) > 1]


def cifar10_and_imagenet(shown: Shown) -> Sequence[Sequence[Study]]:
    """One figure of the studies on CIFAR-10 and ImageNet, or of one of them."""
    found = [study for study in shown.studies if study.family in ("cifar10", "imagenet")]
    return [found] if found else []


def several_studies(shown: Shown) -> Sequence[Sequence[Study]]:
    """One figure of all studies, if there are several."""
    return [shown.studies] if len(shown.studies) > 1 else []


FIGURES = (
    Figure(
        "diagonal-and-full",
        each_seed,
        toy.draw_diagonal_and_full,
        "Diagonal and full weights trained by gradient descent",
        number="3",
    ),
    Figure(
        "loss",
        each_seed,
        toy.draw_loss,
        "Loss against rescaled time for each initialisation scale",
        number="6",
        later="2",
    ),
    Figure(
        "entries-kq",
        each_seed,
        partial(toy.draw_entries, kind="KQ"),
        "Entries of w_K*w_Q for each initialisation scale",
        number="7",
        later="2",
    ),
    Figure(
        "entries-vo",
        each_seed,
        partial(toy.draw_entries, kind="VO"),
        "Entries of w_V*w_O for each initialisation scale",
        number="8",
        later="2",
    ),
    Figure(
        "strict-minima",
        each_seed,
        partial(toy.draw_perturbations, kind="strict-minima"),
        "Noise at random times",
        number="9",
        later="3",
    ),
    Figure(
        "noise-robustness",
        each_seed,
        partial(toy.draw_perturbations, kind="noise-robustness"),
        "Noise when a coordinate wakes",
        number="10",
        later="3",
    ),
    Figure("descent", each_seed, toy.draw_descent, "Gradient descent beside the exact flow"),
    Figure(
        "one-head",
        cifar10_and_imagenet,
        spectra.draw_one_head,
        "Normalised spectra of a head, at initialisation and of its change",
        number="1",
    ),
    Figure(
        "spectra",
        each_study,
        spectra.draw_normalised_spectra,
        "Normalised spectra of the initial products and of their change at several epochs",
        number={"cifar10": "11", "cifar100": "13", "imagenet": "15"},
    ),
    Figure(
        "stable-rank",
        each_study,
        ranks.draw_stable_rank,
        "Stable rank of the change throughout training",
        number={"cifar10": "12", "cifar100": "14", "imagenet": "16"},
        later="4",
    ),
    Figure(
        "energy-rank",
        each_study,
        ranks.draw_energy_rank,
        "Directions that hold 90, 95 and 99 % of the change's energy, and entropy rank, throughout training",
    ),
    Figure(
        "singular-values",
        each_study,
        spectra.draw_singular_values,
        "Singular values of the change of a head in layer 2 throughout training",
        number={"cifar10": "2"},
        later="6",
    ),
    Figure(
        "scales",
        each_study,
        ranks.draw_rank_by_scale,
        "Stable rank of the change after training against the initialisation scale",
        number={"cifar10": "4"},
        later="7",
    ),
    Figure(
        "final-spectra",
        each_study,
        spectra.draw_final_spectra,
        "Spectrum of the change, at its last full one, against the initial one",
        number={"cifar10": "5"},
    ),
    Figure(
        "choices",
        each_study_of_choices,
        training.draw_choices,
        "Which choice decides: growth and end of the stable rank, by changes from a base",
    ),
    Figure(
        "choice-courses",
        each_study_of_choices,
        training.draw_choice_courses,
        "Stable rank and training loss throughout training, by changes from a base",
    ),
    Figure(
        "matrices",
        each_study_with_matrices,
        ranks.draw_matrices,
        "Ranks of the change of other weight matrices throughout training",
    ),
    Figure(
        "stages-to-smooth",
        each_study_of_several_runs,
        training.draw_stages_to_smooth,
        "Stages found as the initialisation and the noise of small batches grow",
    ),
    Figure("training", each_study, training.draw_course, "What was recorded of training"),
    Figure(
        "later-4",
        several_studies,
        ranks.draw_side_by_side,
        "Stable rank throughout training, side by side (Figure 4 of the paper's later version)",
    ),
)
