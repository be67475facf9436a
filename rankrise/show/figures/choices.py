"""Figures of runs that differ from a base in one choice."""

import numpy as np
from matplotlib.axes import Axes

from rankrise.claims import Effect, Estimate, effects, learned
from rankrise.runs import Study, choices_of
from rankrise.show.figures.scaffold import CHANGES, Drawn, figure
from rankrise.show.figures.style import DASHES, FAINT, GREY, INK, new_figure, plain, shades
from rankrise.show.tracked_words import length

HEADER = (
    *("choice", "run", "seeds", "accuracy", "training_loss", "validation_loss"),
    *("product", "layer"),
    *(f"{name}{bound}" for name in ("growth", "stable_rank", "over_base") for bound in ("", "_low", "_high")),
)
TICKS = (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150)
MEASURES = {"growth": "growth since\nepoch 1", "final": "stable rank\nat the end"}


@figure("choices", "with_choices")
def draw_choices(study: Study) -> Drawn:
    """Which choice decides: growth and end of the stable rank, by changes from a base."""
    choices = choices_of(study)
    base = choices[0]
    found = [effects(choice, base) for choice in choices]
    scores = [learned(choice.runs) for choice in choices]
    picture = new_figure(1.5 + 0.17 * len(choices))
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
    return Drawn(picture, HEADER, rows)


def _draw_effects(panel: Axes, found: list[list[Effect]], kind: str) -> None:
    """One measure of one product, a line per choice, on the interval of the base in grey."""
    usual: Estimate = getattr(found[0][0], kind)
    panel.axvspan(usual.low, usual.high, color=FAINT, alpha=0.6, linewidth=0)
    if kind == "growth":
        panel.axvline(1.0, color=GREY, linestyle=DASHES, linewidth=0.6)
    colours = shades(len(found[0]) - 1)
    for place, (whole, *layers) in enumerate(found):
        for one in layers:
            colour = colours[(one.layer or 1) - 1]
            panel.plot(getattr(one, kind).value, place, marker="|", markersize=5, color=colour)
        mean: Estimate = getattr(whole, kind)
        error = [[mean.value - mean.low], [mean.high - mean.value]]
        panel.errorbar(mean.value, place, xerr=error, elinewidth=0.9, color=INK, marker="o", markersize=3)
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // 4))]  # four at most
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(axis="y", color=FAINT, linewidth=0.3)
