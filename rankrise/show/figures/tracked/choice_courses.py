"""Ranks and training loss throughout training, one panel per choice."""

from textwrap import fill

from matplotlib.axes import Axes

from rankrise.runs import Choice, Study, TrackedRun, choices_of
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import GREY, new_figure, plain
from rankrise.show.figures.tracked.chosen import change, measured, recorded, tidy
from rankrise.show.figures.tracked.stable_rank import LOOKS

HEADER = ("choice", "run", "seed", "quantity", "step", "epoch", "value")
COLUMNS = 4
TITLE = 24
"""Characters in a line of a panel's title."""
TICKS = (1, 2, 5, 10, 20, 50, 100)


def draw_courses(study: Study) -> Drawn:
    """Of every choice the stable rank of both changes, mean over all heads, and the training loss; the data.

    All panels have the same axes, that of the ranks logarithmic. Further seeds have lines of their own.
    """
    choices = choices_of(study)
    lines = -(-len(choices) // COLUMNS)
    figure = new_figure(0.8 + 1.35 * lines)
    panels = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
    shown = tidy(panels, len(choices), choices[0].runs[0].clock)
    others = [panel.twinx() for panel in shown]
    losses = [recorded(run, "loss")[1] for choice in choices for run in choice.runs]
    highest = max((float(one.max()) for one in losses if len(one)), default=1.0)
    rows: list[tuple[object, ...]] = []
    for place, (choice, panel, other) in enumerate(zip(choices, shown, others, strict=True)):
        for run in choice.runs:
            rows += _draw(panel, other, choice, measured(run))
        panel.set_title(fill(plain(choice.label), TITLE), fontsize=7)
        other.set_ylim(0, 1.05 * highest)
        other.spines["right"].set_visible(True)
        last = place == len(choices) - 1 or place % COLUMNS == COLUMNS - 1
        other.tick_params(colors=GREY, labelright=last)
        if last:
            other.set_ylabel("loss", color=GREY)
    shown[0].set_yscale("log")
    low, high = shown[0].get_ylim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    shown[0].set_yticks(ticks, [f"{tick}" for tick in ticks])
    shown[0].minorticks_off()
    shown[0].set_xlim(left=0)
    for line in panels:
        line[0].set_ylabel("stable rank")
    handles, labels = shown[0].get_legend_handles_labels()
    named = dict(zip([*labels, "training loss"], [*handles, others[0].get_lines()[0]], strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(named))
    seeds = "; thin: further seeds" if any(len(choice.runs) > 1 for choice in choices) else ""
    figure.suptitle(f"{plain(study.title)}: changes from the base, mean over all heads{seeds}")
    return figure, table(HEADER, rows)


def _draw(panel: Axes, other: Axes, choice: Choice, run: TrackedRun) -> list[tuple[object, ...]]:
    """The lines of one run, thin where it is a further seed; and its rows of the data."""
    curves = {name: (run.finite_steps, run.ranks[name].mean(axis=(1, 2))) for name in run.products}
    curves["training loss"] = recorded(run, "loss")
    rows: list[tuple[object, ...]] = []
    for name, (steps, values) in curves.items():
        moments = run.at(steps)
        if name in LOOKS:
            colour, style = LOOKS[name]
            first = run is choice.runs[0]
            panel.plot(
                moments,
                values,
                color=colour,
                linestyle=style,
                linewidth=1.0 if first else 0.5,
                label=change(name) if first else None,
            )
        else:
            other.plot(moments, values, color=GREY, linewidth=0.6)
        rows += [
            (choice.label, run.name, run.seed, name, int(step), float(moment), float(value))
            for step, moment, value in zip(steps, moments, values, strict=True)
        ]
    return rows
