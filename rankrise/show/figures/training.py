"""Figures of training itself, of stages as scale and batch size change, and of single choices."""

from collections.abc import Sequence
from itertools import product
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, NullLocator

from rankrise.claims.heads import Effect, Estimate, effects, learned, recorded
from rankrise.recipes.train_settings import science_of
from rankrise.runs import NotRecorded, Study, TrackedRun, choices_of, found_stages
from rankrise.show.figures import style
from rankrise.show.figures.style import CHANGES, STYLES, Drawn, Rows, plain, rows_of, shades
from rankrise.show.tracked_words import length

METRICS = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "accuracy": "validation accuracy",
    "perplexity": "validation perplexity",
    "learning_rate": "learning rate",
}
WINDOWS = 200  # a curve of more points is drawn as medians over windows; the data has every point
VARIED = ("initialisation_scale", "batch_size", "seed", "epochs", "warm_up_epochs")
CHOICES_HEADER = (
    *("choice", "run", "seeds", "accuracy", "training_loss", "validation_loss"),
    *("product", "layer"),
    *(f"{name}{bound}" for name in ("growth", "stable_rank", "over_base") for bound in ("", "_low", "_high")),
)
MEASURES = {"growth": "growth since\nepoch 1", "final": "stable rank\nat the end"}


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
        lacking = "no stage in any run, or no two initialisation scales or batch sizes"
        raise NotRecorded(f"{study.label} has {lacking}.")
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
    heading = "from stages to smooth (upright lines: stages found; one colour per head)"
    picture.suptitle(f"{plain(study.title)}: {heading}")
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
    first = run.products[0]
    steps, losses = recorded(run, "loss")
    loss.plot(steps, losses, color=style.INK, linewidth=0.7)
    rows = rows_of((*place, run.seed, "loss"), steps, losses)
    top = run.top(first)[run.finite, 0][..., :4]
    for head, colour in enumerate(style.sequence()(np.linspace(0, 0.8, top.shape[1]))):
        for index, curve in enumerate(top[:, head].T, start=1):
            values.plot(run.finite_steps, curve, color=colour, linewidth=0.8)
            name = f"{first} head {head + 1} singular value {index}"
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


def draw_choices(study: Study) -> Drawn:
    """Which choice decides: growth and end of the stable rank, by changes from a base."""
    choices = choices_of(study)
    base = choices[0]
    found = [effects(choice, base) for choice in choices]
    scores = [learned(choice.runs) for choice in choices]
    picture = style.new_figure(1.5 + 0.17 * len(choices))
    kinds = [(kind, name) for kind in MEASURES for name in base.runs[0].products]
    panels = picture.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for panel, (kind, name) in zip(panels, kinds, strict=True):
        _draw_effects(panel, [[one for one in each if one.product == name] for each in found], kind)
        panel.set(title=CHANGES[name], xlabel=MEASURES[kind])
    labels = [
        choice.label + (f", {100 * score['accuracy']:.1f} %" if np.isfinite(score["accuracy"]) else "")
        for choice, score in zip(choices, scores, strict=True)
    ]
    panels[0].set_yticks(range(len(choices)), list(map(plain, labels)))
    panels[0].set_ylim(len(choices) - 0.4, -0.6)
    count = len(base.runs[0].layers)
    marks = [panels[0].plot([], [], linestyle="", marker="|", color=colour)[0] for colour in shades(count)]
    labels = [f"layer {layer}" for layer in range(1, count + 1)]
    picture.legend(marks, labels, loc="outside lower center", ncols=min(6, count), handlelength=1.0)
    picture.suptitle(
        f"{plain(study.title)}, {length(base.runs[0])}: changes from the base, and their accuracy. "
        f"Dots: mean over layers with 90 % interval; grey: the base"
    )
    bounds = ("value", "low", "high")
    rows = [
        (
            *(choice.label, choice.runs[0].name, len(choice.runs)),
            *(score["accuracy"], score["loss"], score["validation_loss"], one.product, one.layer or "all"),
            *(getattr(part, bound) for part in (one.growth, one.final, one.against_base) for bound in bounds),
        )
        for choice, each, score in zip(choices, found, scores, strict=True)
        for one in each
    ]
    return Drawn(picture, CHOICES_HEADER, rows)


def _draw_effects(panel: Axes, found: list[list[Effect]], kind: str) -> None:
    """One measure of one product, a line per choice, on the interval of the base in grey."""
    usual: Estimate = getattr(found[0][0], kind)
    panel.axvspan(usual.low, usual.high, color=style.FAINT, alpha=0.6, linewidth=0)
    if kind == "growth":
        panel.axvline(1.0, color=style.GREY, linestyle=style.DASHES, linewidth=0.6)
    colours = shades(len(found[0]) - 1)
    for place, (whole, *layers) in enumerate(found):
        for one in layers:
            colour = colours[(one.layer or 1) - 1]
            panel.plot(getattr(one, kind).value, place, marker="|", markersize=5, color=colour)
        mean: Estimate = getattr(whole, kind)
        error = [[mean.value - mean.low], [mean.high - mean.value]]
        look: Any = {"color": style.INK, "marker": "o", "markersize": 3, "elinewidth": 0.9}
        panel.errorbar(mean.value, place, xerr=error, **look)
    panel.set_xscale("log")
    _log_ticks(panel.xaxis, (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150), 4)
    panel.grid(axis="y", color=style.FAINT, linewidth=0.3)


def draw_choice_courses(study: Study) -> Drawn:
    """Stable rank throughout training, by changes from a base."""
    choices = choices_of(study)
    labels = choices[0].runs[0].clock, "stable rank"
    picture, panels = style.grid(len(choices), (0.8, 1.35), labels, 4, sharex=True, sharey=True)
    rows: Rows = []
    for choice, panel in zip(choices, panels, strict=True):
        for (number, run), name in product(enumerate(choice.runs), choices[0].runs[0].products):
            moments, values = run.at(run.finite_steps), run.ranks[name].mean(axis=(1, 2))
            rows += rows_of((choice.label, run.name, run.seed, name), run.finite_steps, moments, values)
            look: Any = {"linewidth": 0.5} if number else {"linewidth": 1.0, "label": CHANGES[name]}
            panel.plot(moments, values, color=style.LOOKS[name][0], linestyle=style.LOOKS[name][1], **look)
        panel.set_title(fill(plain(choice.label), 24), fontsize=7)
    panels[0].set(yscale="log", xlim=(0, None))
    _log_ticks(panels[0].yaxis, (1, 2, 5, 10, 20, 50, 100))
    style.legend_below(picture, panels[0])
    seeds = "; thin: further seeds" if any(len(choice.runs) > 1 for choice in choices) else ""
    picture.suptitle(f"{plain(study.title)}: changes from the base, mean over all heads{seeds}")
    return Drawn(picture, ("choice", "run", "seed", "quantity", "step", "epoch", "value"), rows)


def _log_ticks(axis: Axis, possible: Sequence[float], most: int = 7) -> None:
    """At most so many ticks in view."""
    low, high = axis.get_view_interval()
    ticks = [tick for tick in possible if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // most))]
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())
