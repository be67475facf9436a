"""Figures of training itself, and of single choices."""

from collections.abc import Sequence
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import NullLocator

from rankrise.claims.heads import Effect, Estimate, effects, learned, recorded
from rankrise.runs import NotRecorded, Study, choices_of, found_stages
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
