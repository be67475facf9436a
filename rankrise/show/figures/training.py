"""Figures of training itself, and of runs that differ in a choice, a scale or a batch size."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rankrise.claims import Effect, Estimate, Learned, effects, learned
from rankrise.recipes.train_settings import science_of
from rankrise.runs import Choice, NotRecorded, Study, TrackedRun, at_their_best, choices_of, found_stages
from rankrise.show.figures.chosen import (
    CHANGES,
    columns_for,
    mark_found_stages,
    measured,
    recorded,
    stage_note,
    tidy,
)
from rankrise.show.figures.ranks import LOOKS
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import (
    DASHES,
    FAINT,
    GREY,
    INK,
    STYLES,
    mark_stages,
    new_figure,
    plain,
    sequence,
    shades,
)
from rankrise.show.moments import length

Rows = list[tuple[object, ...]]

METRICS = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "accuracy": "validation accuracy",
    "perplexity": "validation perplexity",
    "learning_rate": "learning rate",
}
WINDOWS = 200
"""A curve of more points is drawn as medians over this many windows; the data has every point."""
WIDE = 3
"""A loss that spans this factor is drawn on a logarithmic axis."""

VARIED = ("initialisation_scale", "batch_size", "seed", "epochs", "warm_up_epochs")
"""Settings in which runs "from stages to smooth" may differ."""
LEADING = 4
"""Singular values per head drawn in that figure."""


def draw_course(study: Study) -> Drawn:
    """Loss, accuracy or perplexity, and learning rate throughout training, every run of the study."""

    def place(member: TrackedRun) -> tuple[float, int]:
        return -member.scale, member.seed

    members = sorted(study.members, key=place)
    others = {name for one in members for name in one.steps() if name.startswith("perplexity/")}
    titles = METRICS | {name: f"perplexity, {name.partition('/')[2]}" for name in sorted(others)}
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
    looks = _looks(list(map(place, members)))
    rows: Rows = []
    for panel, name in zip(panels, shown, strict=True):
        for member, (colour, style) in zip(members, looks, strict=True):
            steps, values = recorded(member, name)
            if len(steps):
                moments, drawn = _windowed(member.at(steps), values)
                look: Any = {"color": colour, "linestyle": style, "markersize": 4}
                marker = "o" if len(drawn) == 1 else ""
                panel.plot(moments, drawn, marker=marker, label=plain(member.name), **look)
                pairs = zip(steps.tolist(), values.tolist(), strict=True)
                rows += [(member.name, name, int(step), value) for step, value in pairs]
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


def _looks(places: Sequence[tuple[float, int]]) -> list[tuple[Any, Any]]:
    """A colour and a line style per run: one colour per scale, or per run if there is one scale."""
    scales, seeds = (list(dict.fromkeys(one)) for one in zip(*places, strict=True))
    looks = [(number, number) for number in range(len(places))]
    if len(scales) > 1:
        looks = [(scales.index(scale), seeds.index(seed)) for scale, seed in places]
    colours = shades(1 + max(colour for colour, _ in looks))
    return [(colours[colour], STYLES[-1 - line % len(STYLES)]) for colour, line in looks]


def _windowed(moments: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) <= WINDOWS:
        return moments, values
    windows = np.array_split(np.arange(len(values)), WINDOWS)
    means, medians = [moments[one].mean() for one in windows], [np.median(values[one]) for one in windows]
    return np.array(means), np.array(medians)


def _wide(panel: Axes) -> bool:
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in panel.get_lines()])
    above = drawn[drawn > 0]
    return bool(len(above) and above.max() >= WIDE * above.min())


def draw_choices(study: Study) -> Drawn:
    """A line per choice: growth and end of the stable rank of both products, over all layers and in each."""
    choices = choices_of(study)
    base = choices[0]
    found = [effects(choice, base) for choice in choices]
    scores = [learned(choice.runs) for choice in choices]
    best = at_their_best(choices, [one.score for one in scores])
    products = base.runs[0].products
    figure = new_figure(1.5 + 0.17 * len(choices))
    panels = figure.subplots(1, 2 * len(products), sharey=True, squeeze=False)[0]
    measures = {"growth": "growth since\nepoch 1", "final": "stable rank\nat the end"}
    kinds = [(kind, name) for kind in measures for name in products]
    for panel, (kind, name) in zip(panels, kinds, strict=True):
        _draw_effects(panel, [[one for one in each if one.product == name] for each in found], kind, best)
        panel.set_title(CHANGES[name])
        panel.set_xlabel(measures[kind])
    panels[0].set_yticks(range(len(choices)), list(map(_choice_label, choices, scores)))
    panels[0].set_ylim(len(choices) - 0.4, -0.6)
    for text, shown in zip(panels[0].get_yticklabels(), best, strict=True):
        text.set_color(INK if shown else GREY)
    count = len(base.runs[0].layers)
    marks = [panels[0].plot([], [], linestyle="", marker="|", color=colour)[0] for colour in shades(count)]
    labels = [f"layer {layer}" for layer in range(1, count + 1)]
    figure.legend(marks, labels, loc="outside lower center", ncols=min(6, count), handlelength=1.0)
    others = "" if all(best) else ", and rates that are not the best"
    figure.suptitle(
        f"{plain(study.title)}, {length(base.runs[0])}: changes from the base, and their accuracy. "
        f"Dots: mean over layers with 90 % interval; grey: the base{others}"
    )
    bounds = ("value", "low", "high")
    rows = [
        (
            *(choice.label, choice.runs[0].name, len(choice.runs), "yes" if is_best else "no"),
            *(score.accuracy, score.loss, score.validation_loss, one.product, one.layer or "all"),
            *(getattr(part, bound) for part in (one.growth, one.final, one.against_base) for bound in bounds),
        )
        for choice, each, score, is_best in zip(choices, found, scores, best, strict=True)
        for one in each
    ]
    return figure, table(CHOICES_HEADER, rows)


CHOICES_HEADER = (
    *("choice", "run", "seeds", "best_rate", "accuracy", "training_loss", "validation_loss"),
    *("product", "layer"),
    *(f"{name}{bound}" for name in ("growth", "stable_rank", "over_base") for bound in ("", "_low", "_high")),
)


def _draw_effects(panel: Axes, found: list[list[Effect]], kind: str, best: Sequence[bool]) -> None:
    """One measure of one product, a line per choice, on the interval of the base in grey."""
    usual: Estimate = getattr(found[0][0], kind)
    panel.axvspan(usual.low, usual.high, color=FAINT, alpha=0.6, linewidth=0)
    if kind == "growth":
        panel.axvline(1.0, color=GREY, linestyle=DASHES, linewidth=0.6)
    colours = shades(len(found[0]) - 1)
    for place, ((whole, *layers), shown) in enumerate(zip(found, best, strict=True)):
        for one in layers:
            look: Any = {"color": colours[(one.layer or 1) - 1], "alpha": 1.0 if shown else 0.35}
            panel.plot(getattr(one, kind).value, place, marker="|", markersize=5, **look)
        mean: Estimate = getattr(whole, kind)
        error = [[mean.value - mean.low], [mean.high - mean.value]]
        look = {"color": INK if shown else GREY, "marker": "o", "markersize": 3}
        panel.errorbar(mean.value, place, xerr=error, elinewidth=0.9, **look)
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    possible = (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150)
    ticks = [tick for tick in possible if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // 4))]  # there is room for four
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(axis="y", color=FAINT, linewidth=0.3)


def _choice_label(choice: Choice, score: Learned) -> str:
    said = f", {100 * score.accuracy:.1f} %" if np.isfinite(score.accuracy) else ""
    return plain(f"{choice.label}{said}")


def draw_choice_courses(study: Study) -> Drawn:
    """The stable rank of both changes and the training loss throughout training, a panel per choice."""
    choices, columns = choices_of(study), 4
    lines = -(-len(choices) // columns)
    figure = new_figure(0.8 + 1.35 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    shown = tidy(panels, len(choices), choices[0].runs[0].clock)
    others = [panel.twinx() for panel in shown]
    losses = [recorded(run, "loss")[1] for choice in choices for run in choice.runs]
    highest = max((float(one.max()) for one in losses if len(one)), default=1.0)
    rows: Rows = []
    for place, (choice, panel, other) in enumerate(zip(choices, shown, others, strict=True)):
        for run in choice.runs:
            rows += _draw_choice_run(panel, other, choice, measured(run))
        panel.set_title(fill(plain(choice.label), 24), fontsize=7)
        other.set_ylim(0, 1.05 * highest)
        other.spines["right"].set_visible(True)
        last = place == len(choices) - 1 or place % columns == columns - 1
        other.tick_params(colors=GREY, labelright=last)
        if last:
            other.set_ylabel("loss", color=GREY)
    shown[0].set_yscale("log")
    low, high = shown[0].get_ylim()
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
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
    return figure, table(("choice", "run", "seed", "quantity", "step", "epoch", "value"), rows)


def _draw_choice_run(panel: Axes, other: Axes, choice: Choice, run: TrackedRun) -> Rows:
    curves = {name: (run.finite_steps, run.ranks[name].mean(axis=(1, 2))) for name in run.products}
    curves["training loss"] = recorded(run, "loss")
    rows: Rows = []
    for name, (steps, values) in curves.items():
        moments = run.at(steps)
        if name in LOOKS:
            (colour, style), first = LOOKS[name], run is choice.runs[0]
            width, label = (1.0, CHANGES[name]) if first else (0.5, None)
            panel.plot(moments, values, color=colour, linestyle=style, linewidth=width, label=label)
        else:
            other.plot(moments, values, color=GREY, linewidth=0.6)
        lines = zip(steps.tolist(), moments.tolist(), values.tolist(), strict=True)
        rows += [(choice.label, run.name, run.seed, name, int(step), *line) for step, *line in lines]
    return rows


class Condition(NamedTuple):
    """The scale and batch size that a run was trained with."""

    scale: float
    batch_size: int


def draw_stages_to_smooth(study: Study) -> Drawn:
    """Runs from many stages to none, and below them the stages found at every scale and batch size."""
    runs = _by_condition(study)
    if len(runs) < 2:
        raise NotRecorded(f"{study.label} has runs at one initialisation scale and batch size: pass others.")
    counts = {place: [len(found_stages(one)) for one in members] for place, members in runs.items()}
    if not any(map(any, counts.values())):
        raise NotRecorded(f"{study.label} has no run in which a stage was found: see 'rankrise watch'.")
    columns = _from_most_stages(counts)
    figure = new_figure(5.4)
    gridded = figure.add_gridspec(3, len(columns), height_ratios=(1, 1, 1.25))
    rows: Rows = []
    for column, place in enumerate(columns):
        member = runs[place][0]
        loss, values = (figure.add_subplot(gridded[line, column]) for line in (0, 1))
        rows += _draw_condition(loss, values, member, place)
        loss.set_title(f"scale {place.scale:g}\nbatch {place.batch_size}")
        values.set_xlabel("step")
        if column == 0:
            loss.set_ylabel("loss")
            values.set_ylabel(f"singular values\nof {CHANGES[member.products[0]]}")
    _draw_counts(figure.add_subplot(gridded[2, :]), counts)
    for place, members in runs.items():
        for member, count in zip(members, counts[place], strict=True):
            rows.append((*place, member.seed, "stages", "", float(count)))
    figure.suptitle(
        f"{plain(study.title)}: from stages to smooth (upright lines: stages found; one colour per head)"
    )
    return figure, table(("scale", "batch_size", "seed", "quantity", "step", "value"), rows)


def _by_condition(study: Study) -> dict[Condition, list[TrackedRun]]:
    """The largest set of runs that differ in nothing else, by condition and then by seed."""
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


def _draw_condition(loss: Axes, values: Axes, member: TrackedRun, place: Condition) -> Rows:
    """The loss, and the leading singular values of the first product in layer 1, one colour per head."""
    product = member.products[0]
    steps, losses = recorded(member, "loss")
    loss.plot(steps, losses, color=INK, linewidth=0.7)
    curves = {"loss": (steps, losses)}
    top = member.top(product)[member.finite, 0][..., :LEADING]
    for head, colour in enumerate(sequence()(np.linspace(0, 0.8, top.shape[1]))):
        for index in range(top.shape[2]):
            values.plot(member.finite_steps, top[:, head, index], color=colour, linewidth=0.8)
            name = f"{product} head {head + 1} singular value {index + 1}"
            curves[name] = (member.finite_steps, top[:, head, index])
    for panel in (loss, values):
        panel.set_xlim(0, member.last_finite_step)
        panel.set_ylim(bottom=0)
        mark_stages(panel, [stage.step for stage in found_stages(member)], 0.0, number=False)
    return [
        (*place, member.seed, name, int(step), value)
        for name, (moments, curve) in curves.items()
        for step, value in zip(moments.tolist(), curve.tolist(), strict=True)
    ]


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
    panel.set_xscale("log")
    panel.set_ylim(bottom=-0.2)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("initialisation scale (1: default)")
    panel.set_ylabel("stages found")
    panel.legend(loc="upper right")
