"""Which choice decides: growth and end of the stable rank for each change from a base, with intervals."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from rankrise.claims import Effect, Estimate, Learned, effects, learned
from rankrise.runs import Choice, Study, at_their_best, choices_of
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import DASHES, FAINT, GREY, INK, new_figure, plain, shades
from rankrise.show.figures.tracked.chosen import change
from rankrise.show.moments import length

HEADER = (
    "choice",
    "run",
    "seeds",
    "best_rate",
    "accuracy",
    "training_loss",
    "validation_loss",
    "product",
    "layer",
    *(f"{name}{bound}" for name in ("growth", "stable_rank", "over_base") for bound in ("", "_low", "_high")),
)
MEASURES = {"growth": "growth since\nepoch 1", "final": "stable rank\nat the end"}
TICKS = (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150)


def draw_choices(study: Study) -> Drawn:
    """A line per choice: of both products the growth and the end, over all layers and of each; the data."""
    choices = choices_of(study)
    base = choices[0]
    found = [effects(choice, base) for choice in choices]
    scores = [learned(choice.runs) for choice in choices]
    best = at_their_best(choices, [one.score for one in scores])
    products = base.runs[0].products
    figure = new_figure(1.5 + 0.17 * len(choices))
    panels = figure.subplots(1, 2 * len(products), sharey=True, squeeze=False)[0]
    kinds = [(kind, name) for kind in MEASURES for name in products]
    for panel, (kind, name) in zip(panels, kinds, strict=True):
        _draw(panel, [[one for one in each if one.product == name] for each in found], kind, best)
        panel.set_title(change(name))
        panel.set_xlabel(MEASURES[kind])
    panels[0].set_yticks(range(len(choices)), list(map(_label, choices, scores)))
    panels[0].set_ylim(len(choices) - 0.4, -0.6)
    for text, shown in zip(panels[0].get_yticklabels(), best, strict=True):
        text.set_color(INK if shown else GREY)
    count = len(base.runs[0].layers)
    handles = [panels[0].plot([], [], linestyle="", marker="|", color=colour)[0] for colour in shades(count)]
    figure.legend(
        handles,
        [f"layer {layer}" for layer in range(1, count + 1)],
        loc="outside lower center",
        ncols=min(6, count),
        handlelength=1.0,
    )
    others = "" if all(best) else ", and rates that are not the best"
    figure.suptitle(
        f"{plain(study.title)}, {length(base.runs[0])}: changes from the base, and their accuracy. "
        f"Dots: mean over layers with 90 % interval; grey: the base{others}"
    )
    rows = [
        row
        for choice, each, score, is_best in zip(choices, found, scores, best, strict=True)
        for row in _rows(choice, each, score, is_best)
    ]
    return figure, table(HEADER, rows)


def _draw(panel: Axes, found: Sequence[Sequence[Effect]], kind: str, best: Sequence[bool]) -> None:
    """One measure of one product: a line per choice, behind it the interval of the first, the base."""
    usual: Estimate = getattr(found[0][0], kind)
    panel.axvspan(usual.low, usual.high, color=FAINT, alpha=0.6, linewidth=0)
    if kind == "growth":
        panel.axvline(1.0, color=GREY, linestyle=DASHES, linewidth=0.6)
    colours = shades(len(found[0]) - 1)
    for place, (each, shown) in enumerate(zip(found, best, strict=True)):
        whole: Estimate = getattr(each[0], kind)
        for one in each[1:]:
            panel.plot(
                getattr(one, kind).value,
                place,
                marker="|",
                markersize=5,
                color=colours[(one.layer or 1) - 1],
                alpha=1.0 if shown else 0.35,
            )
        panel.errorbar(
            whole.value,
            place,
            xerr=[[whole.value - whole.low], [whole.high - whole.value]],
            color=INK if shown else GREY,
            marker="o",
            markersize=3,
            elinewidth=0.9,
        )
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // 4))]  # there is room for four
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(axis="y", color=FAINT, linewidth=0.3)


def _label(choice: Choice, score: Learned) -> str:
    said = f", {100 * score.accuracy:.1f} %" if np.isfinite(score.accuracy) else ""
    return plain(f"{choice.label}{said}")


def _rows(choice: Choice, found: Sequence[Effect], score: Learned, best: bool) -> list[tuple[object, ...]]:
    return [
        (
            choice.label,
            choice.runs[0].name,
            len(choice.runs),
            "yes" if best else "no",
            score.accuracy,
            score.loss,
            score.validation_loss,
            one.product,
            one.layer or "all",
            *(
                getattr(estimate, bound)
                for estimate in (one.growth, one.final, one.against_base)
                for bound in ("value", "low", "high")
            ),
        )
        for one in found
    ]
