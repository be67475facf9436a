"""A figure of the paper: what it is drawn from, how, and what its files are called and say of themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rankrise.foundations.errors import RankriseError
from rankrise.runs import Run, Study, ToyRun, TrackedRun, choices_of, studies
from rankrise.show.figures.saving import Drawn
from rankrise.show.figures.toy.seed import ToySeed

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Shown:
    """What figures are drawn from: seeds of toy runs, and the studies that tracked runs make up."""

    seeds: Sequence[ToySeed]
    studies: Sequence[Study]
    with_matrices: Sequence[Study] = ()
    """Of runs that tracked other matrices than heads, perhaps those alone."""


@dataclass(frozen=True)
class Figure(Generic[Subject]):
    """A figure: its plain name, which parts of `Shown` it is drawn on, one by one, how, and its caption.

    `number` is the paper's, or by data set the paper's (the submission's); on other data the figure goes by
    its plain name. `later` is the number in the paper's later version.
    """

    name: str
    on: Callable[[Shown], Sequence[Subject]]
    draw: Callable[[Subject], Drawn]
    caption: str
    number: str | Mapping[str, str] = ""
    later: str = ""

    def number_on(self, subject: Subject) -> str:
        """The paper's number, empty where the paper has no such figure of that data."""
        if isinstance(self.number, str):
            return self.number
        return self.number.get(subject.family or "", "") if isinstance(subject, Study) else ""

    def title_on(self, subject: Subject) -> str:
        """What the files say of themselves: the caption, and the number in both versions of the paper."""
        caption = f"{subject.label}: {self.caption}" if isinstance(subject, Study) else self.caption
        number = self.number_on(subject)
        later = f", {self.later} of the later version" if self.later else ""
        return f"{caption} (Figure {number} of the paper{later})" if number else caption


def shown_of(opened: Sequence[Run], seed: int | None = None) -> Shown:
    """What there is to draw of opened runs: a `seed` of a toy run, by default its first, and all studies."""
    toys = [run for run in opened if isinstance(run, ToyRun)]
    if len(toys) > 1:
        raise RankriseError(f"{len(toys)} toy runs were passed: draw the figures of one toy run at a time.")
    if seed is not None and not toys:
        raise RankriseError(
            f"--seed {seed} chooses among a toy run's seeds: of tracked runs, pass those to draw."
        )
    tracked = [run for run in opened if isinstance(run, TrackedRun)]
    return Shown(
        [ToySeed.of(run, seed) for run in toys],
        studies([run for run in tracked if run.layers or not run.matrices]),
        studies([run for run in tracked if run.matrices], of_heads=False),
    )


def each_seed(shown: Shown) -> Sequence[ToySeed]:
    """One figure per seed of a toy run."""
    return shown.seeds


def each_study(shown: Shown) -> Sequence[Study]:
    """One figure per data set."""
    return shown.studies


def studies_with_matrices(shown: Shown) -> Sequence[Study]:
    """One figure per data set on which other matrices than heads were tracked."""
    return shown.with_matrices


def each_study_of_several(shown: Shown) -> Sequence[Study]:
    """One figure per data set on which there are several runs."""
    return [study for study in shown.studies if len(study.members) > 1]


def studies_on(*families: str) -> Callable[[Shown], Sequence[Sequence[Study]]]:
    """One figure of the studies of some of the paper's data sets, where there is any."""

    def of_families(shown: Shown) -> Sequence[Sequence[Study]]:
        found = [study for study in shown.studies if study.family in families]
        return [found] if found else []

    return of_families


def studies_of_choices(shown: Shown) -> Sequence[Study]:
    """One figure per data set on which a base and choices were trained."""
    return [study for study in shown.studies if len(choices_of(study)) > 1]


def several_studies(shown: Shown) -> Sequence[Sequence[Study]]:
    """One figure of all studies, where there are several."""
    return [shown.studies] if len(shown.studies) > 1 else []
