"""From stages to smooth: how many stages are found as the initialisation grows and batches get smaller."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rankrise.recipes.train_settings import science_of
from rankrise.runs import NotRecorded, Study, TrackedRun, found_stages
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import INK, STYLES, mark_stages, new_figure, plain, sequence, shades
from rankrise.show.figures.tracked.chosen import change

VARIED = ("initialisation_scale", "batch_size", "seed", "epochs", "warm_up_epochs")
"""In what runs may differ. Epochs follow the batch size, where the number of steps is to be the same."""
MARKERS = "osD^v<>"
VALUES = 4
"""Singular values per head that are drawn."""


class Condition(NamedTuple):
    """What a run was trained under."""

    scale: float
    batch_size: int


def draw_stages_to_smooth(study: Study) -> Drawn:
    """Loss and singular values where most stages are, and from there to larger scales and smaller batches;
    below, the number of stages found under every condition, mean over seeds; and the data.
    """
    runs = _by_condition(study)
    if len(runs) < 2:
        raise NotRecorded(f"{study.label} has runs at one initialisation scale and batch size: pass others.")
    counts = {place: [len(found_stages(one)) for one in members] for place, members in runs.items()}
    if not any(map(any, counts.values())):
        raise NotRecorded(f"{study.label} has no run in which a stage was found: see 'rankrise watch'.")
    columns = _columns(counts)
    figure = new_figure(5.4)
    grid = figure.add_gridspec(3, len(columns), height_ratios=(1, 1, 1.25))
    rows: list[tuple[object, ...]] = []
    for column, place in enumerate(columns):
        member = runs[place][0]
        loss, values = (figure.add_subplot(grid[line, column]) for line in (0, 1))
        rows += _draw_course(loss, values, member, place)
        loss.set_title(f"scale {place.scale:g}\nbatch {place.batch_size}")
        values.set_xlabel("step")
        if column == 0:
            loss.set_ylabel("loss")
            values.set_ylabel(f"singular values\nof {change(member.products[0])}")
    counted = figure.add_subplot(grid[2, :])
    _draw_counts(counted, counts)
    rows += [
        (*place, member.seed, "stages", "", float(count))
        for place, members in runs.items()
        for member, count in zip(members, counts[place], strict=True)
    ]
    marks = "upright lines: stages found; one colour per head"
    figure.suptitle(f"{plain(study.title)}: from stages to smooth ({marks})")
    return figure, table(("scale", "batch_size", "seed", "quantity", "step", "value"), rows)


def _by_condition(study: Study) -> dict[Condition, list[TrackedRun]]:
    """The runs that differ in nothing else, where they are the most: by condition, and there by seed."""
    alike: dict[str, list[TrackedRun]] = {}
    for one in study.members:
        science = science_of(one.recipe) if one.recipe else {}
        rest = {name: value for name, value in science.items() if name not in VARIED}
        if one.batch_size:
            alike.setdefault(str(sorted(rest.items(), key=str)), []).append(one)
    if not alike:
        raise NotRecorded(f"{study.label} does not say its batch size: pass runs of 'rankrise train'.")
    found: dict[Condition, list[TrackedRun]] = {}
    most: list[TrackedRun] = max(alike.values(), key=len)
    for one in sorted(most, key=lambda one: one.seed):
        found.setdefault(Condition(one.scale, one.batch_size), []).append(one)
    return dict(sorted(found.items()))


def _columns(counts: dict[Condition, list[int]]) -> list[Condition]:
    """Where most stages are; then two larger scales at that batch, and two smaller batches at that scale: the
    last of them, and before it the one where about half of the stages are left.
    """
    mean = {place: float(np.mean(found)) for place, found in counts.items()}
    most = max(counts, key=lambda place: (mean[place], place.batch_size, place.scale))
    scales = [one for one in counts if one.batch_size == most.batch_size and one.scale > most.scale]
    batches = [one for one in counts if one.scale == most.scale and one.batch_size < most.batch_size]
    columns = [most]
    for *before, last in filter(None, (scales, batches[::-1])):
        columns += [*sorted(before, key=lambda place: abs(mean[place] - mean[most] / 2))[:1], last]
    return columns


def _draw_course(loss: Axes, values: Axes, member: TrackedRun, place: Condition) -> list[tuple[object, ...]]:
    """The loss, and the leading singular values of the first product in layer 1, one colour per head."""
    product, record = member.products[0], member.steps()
    known = np.isfinite(record["loss"])
    steps, losses = record["step"][known].tolist(), record["loss"][known].tolist()
    loss.plot(steps, losses, color=INK, linewidth=0.7)
    told: list[tuple[object, ...]] = [
        (*place, member.seed, "loss", int(step), one) for step, one in zip(steps, losses, strict=True)
    ]
    top = member.top(product)[member.finite, 0][..., :VALUES]
    heads = top.shape[1]
    for head, colour in zip(range(heads), sequence()(np.linspace(0, 0.8, heads)), strict=True):
        for index in range(top.shape[2]):
            curve = top[:, head, index]
            values.plot(member.finite_steps, curve, color=colour, linewidth=0.8)
            name = f"{product} head {head + 1} singular value {index + 1}"
            told += [
                (*place, member.seed, name, int(step), float(one))
                for step, one in zip(member.finite_steps, curve, strict=True)
            ]
    for panel in (loss, values):
        panel.set_xlim(0, member.last_finite_step)
        panel.set_ylim(bottom=0)
        mark_stages(panel, [stage.step for stage in found_stages(member)], 0.0, number=False)
    return told


def _draw_counts(panel: Axes, counts: dict[Condition, list[int]]) -> None:
    """Stages against the scale: a line per batch size through the means, a point per seed."""
    batches = sorted({place.batch_size for place in counts}, reverse=True)
    for number, (size, colour) in enumerate(zip(batches, reversed(shades(len(batches))), strict=True)):
        places = [place for place in counts if place.batch_size == size]
        scales = [place.scale for place in places]
        apart = 1.06 ** (number - (len(batches) - 1) / 2)
        panel.plot(
            [scale * apart for scale in scales],
            [np.mean(counts[place]) for place in places],
            color=colour,
            linestyle=STYLES[-1 - number % len(STYLES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            label=f"batch {size}",
        )
        for place in places:
            panel.plot(
                [place.scale * apart] * len(counts[place]), counts[place], ".", color=colour, markersize=3
            )
    panel.set_xscale("log")
    panel.set_ylim(bottom=-0.2)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("initialisation scale (1: default)")
    panel.set_ylabel("stages found")
    panel.legend(loc="upper right")
