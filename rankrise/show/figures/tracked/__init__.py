"""The paper's figures of real transformers, from tracked runs; other data sets have them by plain names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from matplotlib.figure import Figure

from rankrise.foundations.errors import RankriseError
from rankrise.runs import NotRecorded, Study, TrackedRun, studies
from rankrise.show.figures.saving import save, titled
from rankrise.show.figures.style import paper_style
from rankrise.show.figures.tracked.final_spectra import draw_final_spectra
from rankrise.show.figures.tracked.scales import draw_scales
from rankrise.show.figures.tracked.singular_values import draw_singular_values
from rankrise.show.figures.tracked.spectra import draw_one_head, draw_spectra
from rankrise.show.figures.tracked.stable_rank import draw_side_by_side, draw_stable_rank
from rankrise.show.figures.tracked.training import draw_training


@dataclass(frozen=True)
class Drawing:
    """A figure of a study: how it is drawn, its caption, and by data set its number in the paper."""

    draw: Callable[[Study], tuple[Figure, str]]
    caption: str
    numbers: dict[str, str] = field(default_factory=dict)
    later_number: str = ""


FIGURES = {
    "spectra": Drawing(
        draw_spectra,
        "Normalised spectra of the initial products and of their change at several epochs",
        {"cifar10": "11", "cifar100": "13", "imagenet": "15"},
    ),
    "stable-rank": Drawing(
        draw_stable_rank,
        "Stable rank of the change throughout training",
        {"cifar10": "12", "cifar100": "14", "imagenet": "16"},
        "4",
    ),
    "singular-values": Drawing(
        draw_singular_values,
        "Singular values of the change of a head in layer 2 throughout training",
        {"cifar10": "2"},
        "6",
    ),
    "scales": Drawing(
        draw_scales,
        "Stable rank of the change after training against the initialisation scale",
        {"cifar10": "4"},
        "7",
    ),
    "final-spectra": Drawing(
        draw_final_spectra,
        "Spectrum of the change, at its last full one, against the initial one",
        {"cifar10": "5"},
    ),
    "training": Drawing(draw_training, "What was recorded of training"),
}
"""By plain name. On the paper's data sets they go by the number in its submission."""

ONE_HEAD, SIDE_BY_SIDE = "1", "later-4"
"""Figures of several studies: a head of CIFAR-10 and of ImageNet; all of them, as in the later version."""


@dataclass(frozen=True)
class Task:
    """A figure to draw: its files' name, what they say of themselves, and how."""

    name: str
    plain: str
    title: str
    draw: Callable[[], tuple[Figure, str]]


def tasks_of(these: Sequence[Study]) -> list[Task]:
    """Every figure that some studies could have."""
    tasks: list[Task] = []
    with_head = [study for study in these if study.family in ("cifar10", "imagenet")]
    if with_head:
        title = titled("Normalised spectra of a head, at initialisation and of its change", ONE_HEAD)
        tasks.append(Task(ONE_HEAD, "", title, lambda: draw_one_head(with_head)))
    for study in these:
        for plain, drawing in FIGURES.items():
            number = drawing.numbers.get(study.family or "", "")
            name = number or (plain if len(these) == 1 else f"{plain}-{study.label.replace('/', '-')}")
            name = _free(name, {task.name for task in tasks})
            title = titled(f"{study.label}: {drawing.caption}", number, drawing.later_number)
            tasks.append(Task(name, plain, title, lambda study=study, draw=drawing.draw: draw(study)))  # type: ignore[misc]
    if len(these) > 1:
        title = "Stable rank throughout training, side by side (Figure 4 of the paper's later version)"
        tasks.append(Task(SIDE_BY_SIDE, "", title, lambda: draw_side_by_side(these)))
    return tasks


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where another study has it already.

    >>> _free("15", {"15"})
    '15-2'
    """
    numbered = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in taken)


def draw_tracked(
    runs: Sequence[TrackedRun],
    names: list[str] | None,
    out: Path,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of tracked runs: their paths, and why others are not drawn (see `draw_figures`)."""
    tasks = tasks_of(studies(runs))
    for name in names or ():
        if not any(name in (task.name, task.plain) for task in tasks):
            known = ", ".join(
                dict.fromkeys(name for task in tasks for name in (task.name, task.plain) if name)
            )
            raise RankriseError(f"figure {name!r} is not known: the tracked runs given here have {known}")
    asked = [task for task in tasks if names is None or task.name in names or task.plain in names]
    drawn: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    with paper_style():
        for number, task in enumerate(asked):
            try:
                figure, data = task.draw()
                drawn[task.name] = save(figure, data, task.title, out / f"figure-{task.name}")
            except NotRecorded as error:
                if names is not None:
                    raise
                skipped[task.name] = str(error)
            if progress is not None:
                progress((number + 1) / len(asked))
    return drawn, skipped
