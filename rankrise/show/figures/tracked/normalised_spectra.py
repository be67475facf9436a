"""Figures 1, 11, 13, 15: normalised spectra of the products at initialisation, and of their change since."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from rankrise.runs import Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import DASHES, VERMILION, new_figure, plain
from rankrise.show.figures.tracked.chosen import (
    columns_for,
    head_number,
    layer_title,
    middle_head,
    normalised,
    product,
    shown_layers,
    spread_steps,
    tidy,
)
from rankrise.show.moments import moment

ALONE = 1
"""The layer of the figures that show one head, counted from 0: the second, as in the paper."""

INDEX = "singular value $i$"
LEADING = ("data", "product", "layer", "heads", "step", "index")
"""Columns of the data. Layers, heads count from 1; step 0 is the initial product, others are its change."""


def draw_normalised_spectra(study: Study) -> Drawn:
    """One panel per layer and product: the mean over heads, first and last with their range."""
    member = study.main[0]
    steps = spread_steps(member)
    layers = shown_layers(len(member.layers))
    columns = columns_for(len(layers))
    lines = -(-len(layers) // columns)
    figure = new_figure(0.9 + 1.5 * lines * len(member.products))
    panels = figure.subplots(lines * len(member.products), columns, sharex=True, sharey=True, squeeze=False)
    rows: list[tuple[object, ...]] = []
    for place, name in enumerate(member.products):
        part = panels[place * lines : (place + 1) * lines]
        for line in part:
            line[0].set_ylabel(f"{product(name)}\n$\\sigma_i / \\sigma_1$")
        spectra = _spectra(member, name, steps)
        for panel, layer in zip(tidy(part, len(layers), INDEX), layers, strict=True):
            heads = [values[layer] for values in spectra]
            _draw(panel, member, steps, [values.mean(0) for values in heads])
            for values, colour in ((heads[0], VERMILION), (heads[-1], greens(len(steps))[-1])):
                index = np.arange(1, values.shape[1] + 1)
                panel.fill_between(index, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            panel.set_title(layer_title(member, layer))
            where = (study.label, name, layer + 1, f"all {len(heads[0])}")
            for step, values in zip((0, *steps), heads, strict=True):
                drawn = zip(
                    values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist(), strict=True
                )
                rows += [(*where, step, index, *three) for index, three in enumerate(drawn, start=1)]
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(
        f"{plain(study.main_label)}: normalised spectra, mean over heads (shaded: from least to largest)"
    )
    return figure, table((*LEADING, "mean_over_heads", "least", "largest"), rows)


def draw_one_head(studies: Sequence[Study]) -> Drawn:
    """One head in the second layer, one row per data set; and the data."""
    figure = new_figure(0.6 + 2.2 * len(studies))
    panels = figure.subplots(len(studies), 2, sharey=True, squeeze=False)
    rows: list[tuple[object, ...]] = []
    for line, study in zip(panels, studies, strict=True):
        member = study.main[0]
        steps, layer = spread_steps(member), min(ALONE, len(member.layers) - 1)
        for panel in line[len(member.products) :]:
            panel.set_axis_off()
        for panel, name in zip(line, member.products, strict=False):
            head = middle_head(member, name, layer)
            curves = [values[layer][head] for values in _spectra(member, name, steps)]
            _draw(panel, member, steps, curves)
            number = head_number(member, layer, head) + 1
            panel.set_title(
                f"{plain(study.main_label)}: {product(name)}, {layer_title(member, layer)}, head {number}"
            )
            where = (study.label, name, layer + 1, number)
            rows += [
                (*where, step, index, value)
                for step, values in zip((0, *steps), curves, strict=True)
                for index, value in enumerate(values.tolist(), start=1)
            ]
        line[0].set_ylabel(r"$\sigma_i / \sigma_1$")
        line[len(member.products) - 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    figure.suptitle("Normalised spectrum of a head at first (dashed), and of its change during training")
    return figure, table((*LEADING, "normalised_singular_value"), rows)


def greens(count: int) -> list[Any]:
    """Green from light (the first) to dark (the last)."""
    return list(matplotlib.colormaps["YlGn"](np.linspace(0.45, 1.0, count) if count > 1 else [1.0]))


def _spectra(member: TrackedRun, name: str, steps: Sequence[int]) -> list[list[np.ndarray]]:
    """By moment, the initial product first, and by layer: [heads, values], normalised."""
    return [
        [normalised(np.asarray(values, dtype=float)) for values in member.spectrum(name, step)]
        for step in (None, *steps)
    ]


def _draw(panel: Axes, member: TrackedRun, steps: Sequence[int], curves: Sequence[np.ndarray]) -> None:
    """The initial product's spectrum, and all of that of the change at each step."""
    for curve, step, colour in zip(curves[1:], steps, greens(len(steps)), strict=True):
        panel.plot(np.arange(1, len(curve) + 1), curve, color=colour, label=moment(member, step))
    initial = curves[0]
    panel.plot(
        np.arange(1, len(initial) + 1),
        initial,
        color=VERMILION,
        linestyle=DASHES,
        linewidth=1.3,
        label="initial" if member.since is None else "at first",
    )
    panel.set_xlim(1, max(map(len, curves)))  # a difference of two products has up to twice as many
    panel.set_ylim(0, 1.03)
