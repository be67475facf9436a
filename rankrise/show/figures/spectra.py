"""Figures of singular values: at the start, of the change since, and throughout training."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures import style
from rankrise.show.figures.style import PRODUCTS, Drawn, Rows, head_number, layer_title, plain, rows_of
from rankrise.show.tracked_words import moment

INDEX = "singular value $i$"
HEADER = ("data", "product", "layer", "heads", "step", "index")  # step 0: the initial product
MOST_SCALES = 4
INITIAL: Any = {"color": style.VERMILION, "linestyle": style.DASHES, "linewidth": 1.3}
CHANGE: Any = {"color": style.BLUE, "linestyle": "-", "linewidth": 1.3}


def draw_one_head(studies: Sequence[Study]) -> Drawn:
    """Normalised spectra of a head, at initialisation and of its change."""
    picture = style.new_figure(0.6 + 2.2 * len(studies))
    panels = picture.subplots(len(studies), 2, sharey=True, squeeze=False)
    rows: Rows = []
    for line, study in zip(panels, studies, strict=True):
        run = study.main[0]
        steps, layer, label = spread_steps(run), _second_layer(run), plain(study.main_label)
        for panel in line[len(run.products) :]:
            panel.set_axis_off()
        for panel, name in zip(line, run.products, strict=False):
            head = style.middle_head(run, name, layer)
            number = head_number(run, layer, head)
            curves = [values[layer][head] for values in _normalised_spectra(run, name, steps)]
            where = (study.label, name, layer + 1, number)
            rows += _draw_spectra(panel, run, steps, curves, where)
            panel.set_title(f"{label}: {PRODUCTS[name]}, {layer_title(run, layer)}, head {number}")
        line[0].set_ylabel(r"$\sigma_i / \sigma_1$")
        line[len(run.products) - 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    picture.suptitle("Normalised spectrum of a head at first (dashed), and of its change during training")
    return Drawn(picture, (*HEADER, "normalised_singular_value"), rows)


def draw_spectra(study: Study) -> Drawn:
    """Normalised spectra of the initial products and of their change at several epochs."""
    run = study.main[0]
    steps, layers = spread_steps(run), style.shown_layers(run)
    columns = style.columns_for(len(layers))
    lines = -(-len(layers) // columns)
    picture = style.new_figure(0.9 + 1.5 * lines * len(run.products))
    panels = picture.subplots(lines * len(run.products), columns, sharex=True, sharey=True, squeeze=False)
    rows: Rows = []
    for place, name in enumerate(run.products):
        part = panels[place * lines : (place + 1) * lines]
        shown = style.tidy(part, len(layers), INDEX, f"{PRODUCTS[name]}\n$\\sigma_i / \\sigma_1$")
        spectra = _normalised_spectra(run, name, steps)
        for panel, layer in zip(shown, layers, strict=True):
            heads = [values[layer] for values in spectra]
            where = (study.label, name, layer + 1, f"all {len(heads[0])}")
            extremes = [(values.min(0), values.max(0)) for values in heads]
            rows += _draw_spectra(panel, run, steps, [values.mean(0) for values in heads], where, extremes)
            for (least, most), colour in (
                (extremes[0], style.VERMILION),
                (extremes[-1], _greens(len(steps))[-1]),
            ):
                index = np.arange(1, len(least) + 1)
                panel.fill_between(index, least, most, color=colour, alpha=0.15, linewidth=0)
            panel.set_title(layer_title(run, layer))
    style.legend_below(picture, panels[0, 0])
    heading = "normalised spectra, mean over heads (shaded: from least to largest)"
    picture.suptitle(f"{plain(study.main_label)}: {heading}")
    return Drawn(picture, (*HEADER, "mean_over_heads", "least", "largest"), rows)


def _draw_spectra(
    panel: Axes,
    run: TrackedRun,
    steps: Sequence[int],
    curves: Sequence[np.ndarray],
    where: Sequence[object],
    beside: Sequence[tuple[np.ndarray, ...]] | None = None,
) -> Rows:
    """The initial product's spectrum dashed, and the change's at each step; the rows end with `beside`."""
    initial, *changes = curves
    for curve, step, colour in zip(changes, steps, _greens(len(steps)), strict=True):
        panel.plot(np.arange(1, len(curve) + 1), curve, color=colour, label=moment(run, step))
    label = "initial" if run.since is None else "at first"
    panel.plot(np.arange(1, len(initial) + 1), initial, label=label, **INITIAL)
    # A difference of two products has up to twice as many values as a product.
    panel.set(xlim=(1, max(map(len, curves))), ylim=(0, 1.03))
    rows: Rows = []
    for step, curve, more in zip((0, *steps), curves, beside or [()] * len(curves), strict=True):
        rows += rows_of((*where, step), np.arange(1, len(curve) + 1), curve, *more)
    return rows


def draw_singular_values(study: Study) -> Drawn:
    """Singular values of the change of a head in layer 2 throughout training."""
    runs, scales = [study.main[0]], list(study.scales)
    if len(scales) > 1:  # a column for each of some scales, the extremes among them
        kept = np.linspace(0, len(scales) - 1, min(MOST_SCALES, len(scales))).round().astype(int)
        runs = [study.scales[scales[place]][0] for place in np.unique(kept)]
    first, layer = runs[0], _second_layer(runs[0])
    picture = style.new_figure(0.7 + 1.9 * len(first.products))
    panels = picture.subplots(len(first.products), len(runs), sharex="col", sharey="row", squeeze=False)
    rows: Rows = []
    for line, name in zip(panels, first.products, strict=True):
        head = style.middle_head(first, name, layer)
        for panel, run in zip(line, runs, strict=True):
            curves = _value_curves(run, name, layer, head)
            places = np.log(np.arange(1, len(curves) + 1))
            colours = style.sequence()(places / max(places[-1], 1.0))
            scale = run.scale if "initialisation_scale" in run.recipe else ""
            where = (name, scale, run.seed if "seed" in run.recipe else "", layer + 1)
            for index, (steps, values) in enumerate(curves, start=1):
                rows += rows_of((*where, head_number(run, layer, head), index), steps, values)
            for (steps, values), colour in reversed(list(zip(curves, colours, strict=True))):
                panel.plot(run.at(steps), values, color=colour, linewidth=0.8)
            style.mark_found_stages(panel, run)
            below = [run.below_noise(one)[:, layer, head, None] for one in run.products]
            style.shade_noise(panel, run, below)
            panel.set_xlim(0, float(run.at(run.finite_spectra_steps[-1])))
        label = f"singular values of\n{style.CHANGES[name]}, head {head_number(first, layer, head)}"
        line[0].set(ylim=(0, None), ylabel=label)
    for upper, lower, run in zip(panels[0], panels[-1], runs, strict=True):
        upper.set_title(f"scale {run.scale:g}" if "initialisation_scale" in run.recipe else "")
        lower.set_xlabel(run.clock)
    seeds = f", seed {first.seed}" if len({one.seed for one in study.members}) > 1 else ""
    picture.suptitle(
        f"{plain(study.title)}: every singular value of the change of a head in {layer_title(first, layer)}"
        f"{seeds}{style.marks_note(*runs)}\n"
        f"beyond the first {first.info['settings']['top']}: straight lines between "
        f"{len(first.finite_spectra_steps)} full spectra"
    )
    header = ("product", "scale", "seed", "layer", "head", "index", "step", "singular_value")
    return Drawn(picture, header, rows)


def _value_curves(run: TrackedRun, name: str, layer: int, head: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps and values of each singular value, from zero: the leading ones at every measured step, the others
    at full spectra."""
    steps = steps_with_spectra(run)
    spectra = np.stack([run.spectrum(name, int(step))[layer][head] for step in steps])
    top = run.top(name)[run.finite, layer, head]
    curves = []
    for times, values in ((run.finite_steps, top), (steps, spectra[:, top.shape[1] :])):
        curves += [(np.append(0, times), np.append(0.0, column)) for column in values.T]
    return curves


def draw_final_spectra(study: Study) -> Drawn:
    """Spectrum of the change, at its last full one, against the initial one."""
    run = study.main[0]
    last, layers = spread_steps(run)[-1], style.three_layers(run)
    picture = style.new_figure(0.9 + 1.8 * len(run.products))
    panels = picture.subplots(len(run.products), len(layers), sharex=True, sharey="row", squeeze=False)
    rows: Rows = []
    for line, name in zip(panels, run.products, strict=True):
        spectra = {"initial": run.spectrum(name, None), "change": run.spectrum(name, last)}
        for panel, layer in zip(line, layers, strict=True):
            head = style.middle_head(run, name, layer)
            for (kind, spectrum), look in zip(spectra.items(), (INITIAL, CHANGE), strict=True):
                values = np.asarray(spectrum[layer], dtype=float)
                index = np.arange(1, values.shape[1] + 1)
                panel.plot(index, values.T, color=look["color"], linewidth=0.4, alpha=0.35)
                panel.plot(index, values[head], **look)
                for number, one in enumerate(values):
                    rows += rows_of((name, layer + 1, head_number(run, layer, number), kind), index, one)
            title = f"{layer_title(run, layer)}, head {head_number(run, layer, head)}"
            panel.set(title=title, xlim=(1, values.shape[1]))
        line[0].set_yscale("log")
        line[0].set_ylim(bottom=1e-3 * line[0].get_ylim()[1])
        line[0].set_ylabel(f"{PRODUCTS[name]}\nsingular values")
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    first = "initial product" if run.since is None else "product at first"
    style.legend_of(picture, {first: INITIAL, f"its change at {moment(run, last)}": CHANGE})
    picture.suptitle(
        f"{plain(study.main_label)}: the change at {moment(run, last)} against the {first}\n"
        "thin: other heads; values below a thousandth of the axis's upper end are cut off"
    )
    return Drawn(picture, ("product", "layer", "head", "spectrum", "index", "singular_value"), rows)


def steps_with_spectra(run: TrackedRun) -> np.ndarray:
    """The steps with full spectra, of which there must be one."""
    if not len(run.finite_spectra_steps):
        raise NotRecorded(f"{run.folder} has no full spectra: its schedule has to take some.")
    return run.finite_spectra_steps


def spread_steps(run: TrackedRun) -> list[int]:
    """Five steps with full spectra, evenly in log(step), at ends of epochs if there are enough."""
    steps, count = steps_with_spectra(run), 5
    epoch = run.epoch_steps or 1
    for preferred in (steps[steps % epoch == 0], steps[steps >= epoch]):
        if len(preferred) >= count:
            steps = preferred
            break
    wanted = np.geomspace(steps[0], steps[-1], count)
    return sorted({int(steps[np.abs(np.log(steps / aim)).argmin()]) for aim in wanted})


def _second_layer(run: TrackedRun) -> int:
    """The layer of figures of one head, counted from 0: the second, as in the paper."""
    return min(1, len(run.layers) - 1)


def _greens(count: int) -> list[Any]:
    """From light (the first) to dark (the last)."""
    return list(matplotlib.colormaps["YlGn"](np.linspace(0.45, 1.0, count) if count > 1 else [1.0]))


def _normalised_spectra(run: TrackedRun, name: str, steps: Sequence[int]) -> list[list[np.ndarray]]:
    """Spectra over their largest value, [heads, values], by step (the initial product first) and by layer."""
    spectra = []
    for step in (None, *steps):
        layers = [np.asarray(values, dtype=float) for values in run.spectrum(name, step)]
        spectra.append([values / np.where(values[:, :1] > 0, values[:, :1], 1.0) for values in layers])
    return spectra
