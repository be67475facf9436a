"""Loss, accuracy or perplexity, and learning rate throughout training, every run of a study."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import STYLES, new_figure, plain, shades
from rankrise.show.figures.tracked.chosen import (
    columns_for,
    mark_found_stages,
    recorded,
    stage_note,
    tidy,
)

TITLES = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "accuracy": "validation accuracy",
    "perplexity": "validation perplexity",
    "learning_rate": "learning rate",
}
SMOOTHED = 200
"""A curve of more points is drawn as medians over this many windows; the data has every point."""
LOGARITHMIC = 3
"""A loss that spans this factor is drawn on a logarithmic axis."""


def draw_course(study: Study) -> Drawn:
    """A panel for each that was recorded; and the data."""
    members = sorted(study.members, key=_place)
    others = {name for one in members for name in one.steps() if name.startswith("perplexity/")}
    titles = TITLES | {name: f"perplexity, {name.partition('/')[2]}" for name in sorted(others)}
    shown = [name for name in titles if any(len(recorded(one, name)[0]) for one in members)]
    if not shown:
        advice = "pass them to tracker.step"
        if all("history" in member.extra for member in study.members):
            advice = "checkpoints hold none"
        elif all(member.recipe for member in study.members):
            advice = "let it train for longer"
        raise NotRecorded(f"{study.label} has no record of loss or metrics: {advice}.")
    columns = columns_for(len(shown)) if len(shown) != 4 else 2
    lines = -(-len(shown) // columns)
    figure = new_figure(0.4 + 2.1 * lines)
    panels = tidy(figure.subplots(lines, columns, squeeze=False), len(shown))
    rows: list[tuple[object, ...]] = []
    for panel, name in zip(panels, shown, strict=True):
        for member, (colour, style) in zip(members, _looks(study.members), strict=True):
            steps, values = recorded(member, name)
            if not len(steps):
                continue
            _draw(panel, member, steps, values, colour, style)
            rows += [
                (member.name, name, int(step), float(value))
                for step, value in zip(steps, values, strict=True)
            ]
        panel.set_title(plain(titles[name]))
        panel.set_xlabel(study.members[0].clock)
        panel.set_xlim(left=0)
        if ("loss" in name or "perplexity" in name) and _wide(panel):
            panel.set_yscale("log")
        elif name == "learning_rate":
            panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        mark_found_stages(panel, study.main[0])
    if len(members) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
    figure.suptitle(f"{plain(study.title)}: the course of training{stage_note(study.main[0])}")
    return figure, table(("run", "quantity", "step", "value"), rows)


def _place(member: TrackedRun) -> tuple[float, int]:
    return -member.scale, member.seed


def _looks(members: Sequence[TrackedRun]) -> list[tuple[Any, Any]]:
    """Colour and line of each, in their order: one colour per scale and one line per seed.

    At a single scale there is one colour per run.
    """
    places = sorted(map(_place, members))
    scales, seeds = (list(dict.fromkeys(one)) for one in zip(*places, strict=True))
    if len(scales) > 1:
        looks = [(scales.index(scale), seeds.index(seed)) for scale, seed in places]
    else:
        looks = [(number, number) for number in range(len(places))]
    colours = shades(1 + max(colour for colour, _ in looks))
    return [(colours[colour], STYLES[-1 - line % len(STYLES)]) for colour, line in looks]


def _wide(panel: Axes) -> bool:
    """Whether what is drawn spans a factor for which a logarithmic axis is worth its while."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in panel.get_lines()])
    above = drawn[drawn > 0]
    return bool(len(above) and above.max() >= LOGARITHMIC * above.min())


def _draw(
    panel: Axes, member: TrackedRun, steps: np.ndarray, values: np.ndarray, colour: object, style: object
) -> None:
    moments = member.at(steps)
    if len(values) > SMOOTHED:
        windows = np.array_split(np.arange(len(values)), SMOOTHED)
        moments = np.array([moments[window].mean() for window in windows])
        values = np.array([np.median(values[window]) for window in windows])
    marker = "o" if len(values) == 1 else ""  # one point makes no line
    panel.plot(
        moments, values, color=colour, linestyle=style, marker=marker, markersize=4, label=plain(member.name)
    )
