"""Figures of training itself, and of stages from run to run as scale and batch size change."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rankrise.recipes.train_settings import science_of
from rankrise.runs import NotRecorded, Study, TrackedRun, found_stages
from rankrise.show.figures import style
from rankrise.show.figures.style import CHANGES, STYLES, Drawn, Rows, plain, recorded, rows_of, shades

METRICS = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "accuracy": "validation accuracy",
    "perplexity": "validation perplexity",
    "learning_rate": "learning rate",
}
WINDOWS = 200  # a curve of more points is drawn as medians over windows; the data has every point
VARIED = ("initialisation_scale", "batch_size", "seed", "epochs", "warm_up_epochs")


def draw_course(study: Study) -> Drawn:
    """What was recorded of training."""
    runs = sorted(study.members, key=lambda run: (-run.scale, run.seed))
    others = {name for run in runs for name in run.steps() if name.startswith("perplexity/")}
    titles = METRICS | {name: f"perplexity, {name.partition('/')[2]}" for name in sorted(others)}
    shown = [name for name in titles if any(len(recorded(run, name)[0]) for run in runs)]
    if not shown:
        raise NotRecorded(f"{study.label} has no record of loss or metrics.")
    picture, panels = style.grid(len(shown), (0.4, 2.1), ("", ""), 2 if len(shown) == 4 else 0)
    rows: Rows = []
    for panel, name in zip(panels, shown, strict=True):
        for number, (run, colour) in enumerate(zip(runs, shades(len(runs)), strict=True)):
            steps, values = recorded(run, name)
            if len(steps):
                moments, drawn = _windowed(run.at(steps), values)
                look: Any = {"color": colour, "linestyle": STYLES[-1 - number % len(STYLES)], "markersize": 4}
                marker = "o" if len(drawn) == 1 else ""
                panel.plot(moments, drawn, marker=marker, label=plain(run.name), **look)
                rows += rows_of((run.name, name), steps, values)
        panel.set(title=plain(titles[name]), xlabel=study.members[0].clock, xlim=(0, None))
        if "loss" in name or "perplexity" in name:
            panel.set_yscale("log")
        elif name == "learning_rate":
            panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        style.mark_found_stages(panel, study.main[0])
    if len(runs) > 1:
        style.legend_below(picture, panels[0], min(3, len(runs)))
    stages = " (upright lines: stages)" if found_stages(study.main[0]) else ""
    picture.suptitle(f"{plain(study.title)}: the course of training{stages}")
    return Drawn(picture, ("run", "quantity", "step", "value"), rows)


def _windowed(moments: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) <= WINDOWS:
        return moments, values
    windows = np.array_split(np.arange(len(values)), WINDOWS)
    means, medians = [moments[one].mean() for one in windows], [np.median(values[one]) for one in windows]
    return np.array(means), np.array(medians)


class Condition(NamedTuple):
    """The scale and batch size that a run was trained with."""

    scale: float
    batch_size: int


def draw_stages_to_smooth(study: Study) -> Drawn:
    """Stages found as the initialisation and the noise of small batches grow."""
    runs = _by_condition(study)
    counts = {place: [len(found_stages(one)) for one in same] for place, same in runs.items()}
    if len(runs) < 2 or not any(map(any, counts.values())):
        raise NotRecorded(
            f"{study.label} has no stage in any run, or no two initialisation scales or batch sizes."
        )
    columns = _from_most_stages(counts)
    picture = style.new_figure(5.4)
    gridded = picture.add_gridspec(3, len(columns), height_ratios=(1, 1, 1.25))
    rows: Rows = []
    for column, place in enumerate(columns):
        run = runs[place][0]
        loss, values = (picture.add_subplot(gridded[line, column]) for line in (0, 1))
        rows += _draw_condition(loss, values, run, place)
        loss.set_title(f"scale {place.scale:g}\nbatch {place.batch_size}")
        values.set_xlabel("step")
        if column == 0:
            loss.set_ylabel("loss")
            values.set_ylabel(f"singular values\nof {CHANGES[run.products[0]]}")
    _draw_counts(picture.add_subplot(gridded[2, :]), counts)
    for place, same in runs.items():
        for run, count in zip(same, counts[place], strict=True):
            rows.append((*place, run.seed, "stages", "", float(count)))
    picture.suptitle(
        f"{plain(study.title)}: from stages to smooth (upright lines: stages found; one colour per head)"
    )
    return Drawn(picture, ("scale", "batch_size", "seed", "quantity", "step", "value"), rows)


def _by_condition(study: Study) -> dict[Condition, list[TrackedRun]]:
    """The largest set of runs that differ in nothing else, by condition and then by seed."""
    alike: dict[str, list[TrackedRun]] = {}
    for one in study.members:
        science = science_of(one.recipe) if one.recipe else {}
        rest = sorted((name, str(value)) for name, value in science.items() if name not in VARIED)
        if one.batch_size:
            alike.setdefault(str(rest), []).append(one)
    if not alike:
        raise NotRecorded(f"{study.label} does not say its batch size: pass runs of 'rankrise train'.")
    found: dict[Condition, list[TrackedRun]] = {}
    most: list[TrackedRun] = max(alike.values(), key=len)
    for one in sorted(most, key=lambda one: one.seed):
        found.setdefault(Condition(one.scale, one.batch_size), []).append(one)
    return dict(sorted(found.items()))


def _from_most_stages(counts: dict[Condition, list[int]]) -> list[Condition]:
    """The condition with most stages, then two larger scales, and two smaller batches.

    Each pair ends with the extreme one, after the one with about half of the stages left.
    """
    mean = {place: float(np.mean(found)) for place, found in counts.items()}
    most = max(counts, key=lambda place: (mean[place], place.batch_size, place.scale))
    scales = [one for one in counts if one.batch_size == most.batch_size and one.scale > most.scale]
    batches = [one for one in counts if one.scale == most.scale and one.batch_size < most.batch_size]
    columns = [most]
    for *before, last in filter(None, (scales, batches[::-1])):
        columns += [*sorted(before, key=lambda place: abs(mean[place] - mean[most] / 2))[:1], last]
    return columns


def _draw_condition(loss: Axes, values: Axes, run: TrackedRun, place: Condition) -> Rows:
    """The loss, and the leading singular values of the first product in layer 1, one colour per head."""
    product = run.products[0]
    steps, losses = recorded(run, "loss")
    loss.plot(steps, losses, color=style.INK, linewidth=0.7)
    rows = rows_of((*place, run.seed, "loss"), steps, losses)
    top = run.top(product)[run.finite, 0][..., :4]
    for head, colour in enumerate(style.sequence()(np.linspace(0, 0.8, top.shape[1]))):
        for index, curve in enumerate(top[:, head].T, start=1):
            values.plot(run.finite_steps, curve, color=colour, linewidth=0.8)
            name = f"{product} head {head + 1} singular value {index}"
            rows += rows_of((*place, run.seed, name), run.finite_steps, curve)
    for panel in (loss, values):
        panel.set(xlim=(0, run.last_finite_step), ylim=(0, None))
        style.mark_stages(panel, [stage.step for stage in found_stages(run)])
    return rows


def _draw_counts(panel: Axes, counts: dict[Condition, list[int]]) -> None:
    """Stages against the scale: a line per batch size through the means, a point per seed."""
    batches, markers = sorted({place.batch_size for place in counts}, reverse=True), "osD^v<>"
    for number, (size, colour) in enumerate(zip(batches, reversed(shades(len(batches))), strict=True)):
        places = [place for place in counts if place.batch_size == size]
        apart = 1.06 ** (number - (len(batches) - 1) / 2)
        scales, means = [apart * one.scale for one in places], [np.mean(counts[one]) for one in places]
        style, marker = STYLES[-1 - number % len(STYLES)], markers[number % len(markers)]
        look: Any = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4}
        panel.plot(scales, means, label=f"batch {size}", **look)
        for scale, place in zip(scales, places, strict=True):
            panel.plot([scale] * len(counts[place]), counts[place], ".", color=colour, markersize=3)
    panel.set(xscale="log", xlabel="initialisation scale (1: default)", ylabel="stages found")
    panel.set_ylim(bottom=-0.2)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="upper right")
