"""Figures of singular values: at the start, of the change since, and throughout training."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rankrise.runs import Study, TrackedRun
from rankrise.show.figures.chosen import (
    CHANGES,
    PRODUCTS,
    columns_for,
    head_number,
    layer_title,
    legend_below,
    mark_found_stages,
    middle_head,
    noise_note,
    noisy_heads,
    normalised,
    paper_layers,
    shade_noise,
    shown_layers,
    spread_steps,
    stage_note,
    steps_with_spectra,
    tidy,
)
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, DASHES, VERMILION, new_figure, plain, sequence
from rankrise.show.moments import moment, when

ALONE = 1
"""The layer of figures that show one head, counted from 0: the second, as in the paper."""
INDEX = "singular value $i$"
HEADER = ("data", "product", "layer", "heads", "step", "index")
"""Leading columns. Layers and heads count from 1; step 0 is the initial product, others are its change."""
MOST_SCALES = 4

Rows = list[tuple[object, ...]]


def draw_normalised_spectra(study: Study) -> Drawn:
    """Figures 11, 13 and 15: the mean over heads, a panel per layer and product."""
    member = study.main[0]
    steps = spread_steps(member)
    layers = shown_layers(len(member.layers))
    columns = columns_for(len(layers))
    lines = -(-len(layers) // columns)
    figure = new_figure(0.9 + 1.5 * lines * len(member.products))
    panels = figure.subplots(lines * len(member.products), columns, sharex=True, sharey=True, squeeze=False)
    rows: Rows = []
    for place, name in enumerate(member.products):
        part = panels[place * lines : (place + 1) * lines]
        for line in part:
            line[0].set_ylabel(f"{PRODUCTS[name]}\n$\\sigma_i / \\sigma_1$")
        spectra = _normalised_spectra(member, name, steps)
        for panel, layer in zip(tidy(part, len(layers), INDEX), layers, strict=True):
            heads = [values[layer] for values in spectra]
            _draw_spectra(panel, member, steps, [values.mean(0) for values in heads])
            for values, colour in ((heads[0], VERMILION), (heads[-1], _greens(len(steps))[-1])):
                index = np.arange(1, values.shape[1] + 1)
                panel.fill_between(index, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            panel.set_title(layer_title(member, layer))
            where = (study.label, name, layer + 1, f"all {len(heads[0])}")
            for step, values in zip((0, *steps), heads, strict=True):
                drawn = np.stack([values.mean(0), values.min(0), values.max(0)], axis=1).tolist()
                rows += [(*where, step, index, *three) for index, three in enumerate(drawn, start=1)]
    legend_below(figure, panels[0, 0])
    figure.suptitle(
        f"{plain(study.main_label)}: normalised spectra, mean over heads (shaded: from least to largest)"
    )
    return figure, table((*HEADER, "mean_over_heads", "least", "largest"), rows)


def draw_one_head(studies: Sequence[Study]) -> Drawn:
    """Figure 1: one head in the second layer, a row per data set."""
    figure = new_figure(0.6 + 2.2 * len(studies))
    panels = figure.subplots(len(studies), 2, sharey=True, squeeze=False)
    rows: Rows = []
    for line, study in zip(panels, studies, strict=True):
        member = study.main[0]
        steps, layer = spread_steps(member), min(ALONE, len(member.layers) - 1)
        for panel in line[len(member.products) :]:
            panel.set_axis_off()
        for panel, name in zip(line, member.products, strict=False):
            head = middle_head(member, name, layer)
            curves = [values[layer][head] for values in _normalised_spectra(member, name, steps)]
            _draw_spectra(panel, member, steps, curves)
            number = head_number(member, layer, head)
            title = (
                f"{plain(study.main_label)}: {PRODUCTS[name]}, {layer_title(member, layer)}, head {number}"
            )
            panel.set_title(title)
            for step, values in zip((0, *steps), curves, strict=True):
                where = (study.label, name, layer + 1, number, step)
                rows += [(*where, index, value) for index, value in enumerate(values.tolist(), start=1)]
        line[0].set_ylabel(r"$\sigma_i / \sigma_1$")
        line[len(member.products) - 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    figure.suptitle("Normalised spectrum of a head at first (dashed), and of its change during training")
    return figure, table((*HEADER, "normalised_singular_value"), rows)


def _greens(count: int) -> list[Any]:
    """From light (the first) to dark (the last)."""
    return list(matplotlib.colormaps["YlGn"](np.linspace(0.45, 1.0, count) if count > 1 else [1.0]))


def _normalised_spectra(member: TrackedRun, name: str, steps: Sequence[int]) -> list[list[np.ndarray]]:
    """[heads, values] by step, the initial product first, and by layer."""
    return [[normalised(values) for values in member.spectrum(name, step)] for step in (None, *steps)]


def _draw_spectra(panel: Axes, member: TrackedRun, steps: Sequence[int], curves: list[np.ndarray]) -> None:
    """The initial product's spectrum dashed, and that of the change at each step."""
    initial, *changes = curves
    for curve, step, colour in zip(changes, steps, _greens(len(steps)), strict=True):
        panel.plot(np.arange(1, len(curve) + 1), curve, color=colour, label=moment(member, step))
    label = "initial" if member.since is None else "at first"
    look: Any = {"color": VERMILION, "linestyle": DASHES, "linewidth": 1.3}
    panel.plot(np.arange(1, len(initial) + 1), initial, label=label, **look)
    panel.set_xlim(1, max(map(len, curves)))  # a difference of two products has up to twice as many
    panel.set_ylim(0, 1.03)


def draw_final_spectra(study: Study) -> Drawn:
    """Figure 5: the change after training against the initial product, the middle head thick."""
    member = study.main[0]
    last = spread_steps(member)[-1]
    layers = paper_layers(len(member.layers))
    figure = new_figure(0.9 + 1.8 * len(member.products))
    panels = figure.subplots(len(member.products), len(layers), sharex=True, sharey="row", squeeze=False)
    looks = {"initial": (VERMILION, DASHES), "change": (BLUE, "-")}
    rows: Rows = []
    cut = False
    for line, name in zip(panels, member.products, strict=True):
        spectra = {"initial": member.spectrum(name, None), "change": member.spectrum(name, last)}
        for panel, layer in zip(line, layers, strict=True):
            head = middle_head(member, name, layer)
            for kind, (colour, style) in looks.items():
                values = np.asarray(spectra[kind][layer], dtype=float)
                index = np.arange(1, values.shape[1] + 1)
                panel.plot(index, values.T, color=colour, linewidth=0.4, alpha=0.35)
                panel.plot(index, values[head], color=colour, linestyle=style, linewidth=1.3)
                for number, one in enumerate(values):
                    where = (name, layer + 1, head_number(member, layer, number), kind)
                    rows += [(*where, place, value) for place, value in enumerate(one.tolist(), start=1)]
            panel.set_title(f"{layer_title(member, layer)}, head {head_number(member, layer, head)}")
            panel.set_xlim(1, values.shape[1])
        line[0].set_yscale("log")
        smallest = min(float(panel.dataLim.minposy) for panel in line)
        line[0].set_ylim(bottom=max(smallest, 1e-3 * line[0].get_ylim()[1]))
        cut = cut or smallest < line[0].get_ylim()[0]
        line[0].set_ylabel(f"{PRODUCTS[name]}\nsingular values")
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    handles = [Line2D([], [], color=colour, linestyle=s, linewidth=1.3) for colour, s in looks.values()]
    first = "initial product" if member.since is None else "product at first"
    labels = [first, f"its change at {moment(member, last)}"]
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    note = "; values below a thousandth of the axis's upper end are cut off" if cut else ""
    figure.suptitle(
        f"{plain(study.main_label)}: the change {when(member, last)} against the {first}\n"
        f"thin: other heads{note}"
    )
    return figure, table(("product", "layer", "head", "spectrum", "index", "singular_value"), rows)


def draw_singular_values(study: Study) -> Drawn:
    """Figure 2: every singular value of one head in the second layer, a column per scale."""
    members = _one_per_scale(study)
    first = members[0]
    layer = min(ALONE, len(first.layers) - 1)
    figure = new_figure(0.7 + 1.9 * len(first.products))
    panels = figure.subplots(len(first.products), len(members), sharex="col", sharey="row", squeeze=False)
    rows: Rows = []
    for line, name in zip(panels, first.products, strict=True):
        head = middle_head(first, name, layer)
        for panel, member in zip(line, members, strict=True):
            curves = _value_curves(member, name, layer, head)
            places = np.log(np.arange(1, len(curves) + 1))
            colours = sequence()(places / max(places[-1], 1.0))
            for (moments, values), colour in reversed(list(zip(curves, colours, strict=True))):
                panel.plot(moments, values, color=colour, linewidth=0.8)
            mark_found_stages(panel, member)
            shade_noise(panel, member, noisy_heads(member, layer, [head]))
            panel.set_xlim(0, float(member.at(member.finite_spectra_steps[-1])))
            scale = member.scale if "initialisation_scale" in member.recipe else ""
            seed = member.seed if "seed" in member.recipe else ""
            where = (name, scale, seed, layer + 1, head_number(member, layer, head))
            for index, (moments, values) in enumerate(curves, start=1):
                steps = (moments * (member.epoch_steps or 1)).round().astype(int).tolist()
                lines = zip(steps, values.tolist(), strict=True)
                rows += [(*where, index, step, value) for step, value in lines]
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel(f"singular values of\n{CHANGES[name]}, head {head_number(first, layer, head)}")
    for upper, lower, member in zip(panels[0], panels[-1], members, strict=True):
        upper.set_title(f"scale {member.scale:g}" if "initialisation_scale" in member.recipe else "")
        lower.set_xlabel(member.clock)
    seeds = f", seed {first.seed}" if len({one.seed for one in study.members}) > 1 else ""
    figure.suptitle(
        f"{plain(study.title)}: every singular value of the change of a head in {layer_title(first, layer)}"
        f"{seeds}{_until(members)}{stage_note(*members)}{noise_note(*members)}\n"
        f"beyond the first {first.info['settings']['top']}: straight lines between "
        f"{len(first.finite_spectra_steps)} full spectra"
    )
    header = ("product", "scale", "seed", "layer", "head", "index", "step", "singular_value")
    return figure, table(header, rows)


def _until(members: Sequence[TrackedRun]) -> str:
    """The moment of the last full spectra, if they end before the run does."""
    last = [(member, int(member.finite_spectra_steps[-1])) for member in members]
    ends = {f", until {moment(member, step)}" for member, step in last if step < member.last_finite_step}
    return ends.pop() if len(ends) == 1 else ""


def _value_curves(
    member: TrackedRun, name: str, layer: int, head: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Moments and values of each singular value, from zero: the leading ones at every measured step, the
    others at full spectra.
    """
    steps = steps_with_spectra(member)
    spectra = np.stack([member.spectrum(name, int(step))[layer][head] for step in steps])
    top = member.top(name)[member.finite, layer, head]
    curves = []
    for times, values in ((member.finite_steps, top), (steps, spectra[:, top.shape[1] :])):
        moments = np.concatenate([[0.0], member.at(times)])
        curves += [(moments, np.concatenate([[0.0], column])) for column in values.T]
    return curves


def _one_per_scale(study: Study) -> list[TrackedRun]:
    """The main run, or one for each of up to four scales, the extremes among them."""
    scales = list(study.scales)
    if len(scales) < 2:
        return [study.main[0]]
    kept = np.unique(np.linspace(0, len(scales) - 1, min(MOST_SCALES, len(scales))).round().astype(int))
    return [study.scales[scales[place]][0] for place in kept]
