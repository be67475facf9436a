"""How every figure looks, and what figures share: panels, legends, marks, and the rows of their data.

Colours survive colour blindness and grey. Layers and heads count from 0 here, and from 1 where shown.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rankrise.runs import NotRecorded, TrackedRun, found_stages
from rankrise.show.tracked_words import layer_titles

WIDTH = 6.5
"""Inches: the width of the paper's text."""

# Okabe & Ito's colours, in an order that also differs in lightness, each with its own line style.
INK, SKY, GREEN, BLUE, VERMILION = "#000000", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
STYLES: Any = ((0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)), (0, (4, 1, 1, 1)), (0, (3, 1)), (0, (6, 1)), "-")
DASHES: Any = (0, (2, 1.5))
GREY, FAINT = "#666666", "#C8C8C8"
LOOKS = {"KQ": (BLUE, "-"), "VO": (VERMILION, DASHES)}
PRODUCTS = {"KQ": r"$W_K W_Q^\top$", "VO": r"$W_V W_O^\top$"}
CHANGES = {"KQ": r"$\Delta W_K W_Q^\top$", "VO": r"$\Delta W_V W_O^\top$"}

SETTINGS: Any = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.fonttype": "none",
    "mathtext.fontset": "dejavusans",
}
paper_style = partial(matplotlib.rc_context, SETTINGS)
"""A context in which figures look like the paper's."""

Rows = list[tuple[object, ...]]


def plain(name: str) -> str:
    """A name from a run, with no part of it read as a formula."""
    return name.replace("$", r"\$")


def new_figure(height: float) -> Figure:
    """An empty figure of the paper's width."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def sequence() -> Colormap:
    """From dark to light, even in grey; its lightest end is left out, which would vanish on paper."""
    return ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.86, 256)))


def shades(count: int) -> list[Any]:
    """`count` colours of the sequence, from light (the first) to dark (the last)."""
    parts = np.linspace(0.0, 1.0, count) if count > 1 else np.ones(count)
    return [sequence()(1 - part) for part in parts]


def mark_stages(axes: Axes, times: Sequence[float], until: float | None = None) -> None:
    """Stages as thin lines, and if the axis ends at `until`, their numbers above plateaus with room."""
    strength = min(1.0, max(0.3, 25 / max(1, len(times))))
    for time in times:
        axes.axvline(time, color=FAINT, linewidth=0.35, alpha=strength, zorder=0)
    if until is None:
        return
    room = until * 0.025 / max(axes.get_position().width, 0.1)
    look: Any = {"ha": "center", "va": "bottom", "fontsize": 7, "color": GREY}
    above: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    taken = -np.inf
    for stage, (start, end) in enumerate(pairwise([0.0, *times, until])):
        middle = (start + end) / 2
        if end - start >= 0.35 * room and middle - taken >= room:
            axes.annotate(f"{stage}", (middle, 1.0), xytext=(0, 1.5), **above, **look)
            taken = middle


class Drawn(NamedTuple):
    """A picture and its data as a table."""

    figure: Figure
    header: Sequence[str]
    rows: Rows


def rows_of(where: Sequence[object], *columns: Iterable[object] | np.ndarray) -> Rows:
    """A row per entry of the columns, each after the same leading cells."""
    cells = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
    return [(*where, *row) for row in zip(*cells, strict=True)]


def measured(run: TrackedRun) -> TrackedRun:
    """The run, if it has been measured at all."""
    if not len(run.finite_steps):
        raise NotRecorded(f"{run.folder} has no measured step with finite weights yet.")
    return run


def epochs_of(run: TrackedRun) -> list[float] | list[str]:
    """The epoch of each finite step, blank if epochs are not known."""
    steps = run.finite_steps
    return run.at(steps).tolist() if run.epoch_steps else [""] * len(steps)


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over heads, the last axis, ignoring nan."""
    return np.nanmean(values, axis=-1), np.nanstd(values, axis=-1)


def shown_layers(run: TrackedRun, most: int = 6) -> list[int]:
    """All layers, or so many from the first to the last."""
    count = len(run.layers)
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def three_layers(run: TrackedRun) -> list[int]:
    """The paper's layers 1, 3 and 5 of 6; otherwise three from first to last."""
    return [0, 2, 4] if 5 <= len(run.layers) <= 6 else shown_layers(run, 3)


def layer_title(run: TrackedRun, layer: int) -> str:
    """A layer's number, with its name if that says more."""
    return plain(layer_titles(run)[layer])


def middle_head(run: TrackedRun, product: str, layer: int) -> int:
    """The head whose change has the layer's median stable rank at the end."""
    ranks = measured(run).ranks[product][-1, layer]
    known = np.flatnonzero(np.isfinite(ranks))
    return int(known[np.argsort(ranks[known], kind="stable")[(len(known) - 1) // 2]])


def head_number(run: TrackedRun, layer: int, head: int) -> int:
    """The head's number in the model; not every head need be tracked."""
    return int(run.layers[layer]["tracked_heads"][head]) + 1


def columns_for(count: int) -> int:
    """How many panels stand beside one another."""
    return count if count in (1, 2, 4) else 3


def grid(
    count: int, heights: tuple[float, float], labels: tuple[str, str], columns: int = 0, **sharing: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, of a height for the frame and one for each line of panels; the labels of x
    and y stand at its lower and left edge."""
    columns = columns or columns_for(count)
    lines = -(-count // columns)
    picture = new_figure(heights[0] + heights[1] * lines)
    return picture, tidy(picture.subplots(lines, columns, squeeze=False, **sharing), count, *labels)


def tidy(panels: np.ndarray, used: int, xlabel: str, ylabel: str) -> list[Axes]:
    """The first `used` panels of a grid, with labels at its left and lower edge; the others are hidden."""
    columns = panels.shape[1]
    for place, panel in enumerate(panels.flat):
        panel.set_visible(place < used)
        panel.set_ylabel("" if place % columns else ylabel)
        if used - columns <= place < used:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(xlabel)
    return list(panels.flat[:used])


def layer_panels(run: TrackedRun, ylabel: str) -> tuple[Figure, dict[int, Axes]]:
    """A panel over training for each of some layers, by its number from 0."""
    layers = shown_layers(measured(run))
    picture, panels = grid(len(layers), (0.9, 1.7), (run.clock, ylabel), sharex=True, sharey=True)
    for layer, panel in zip(layers, panels, strict=True):
        panel.set_title(layer_title(run, layer))
    return picture, dict(zip(layers, panels, strict=True))


def legend_below(picture: Figure, panel: Axes, columns: int | None = None) -> None:
    """One legend for all panels, from one of them."""
    handles, labels = panel.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=columns or len(labels))


def legend_of(picture: Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """A legend below the panels of lines with these looks, by label."""
    lines = [Line2D([], [], **look) for look in looks.values()]
    picture.legend(lines, list(looks), loc="outside lower center", ncols=len(looks))


def mark_found_stages(panel: Axes, run: TrackedRun) -> None:
    """Thin vertical lines at the run's stages."""
    mark_stages(panel, run.at([stage.step for stage in found_stages(run)]).tolist())


def shade_noise(panel: Axes, run: TrackedRun, below: Sequence[np.ndarray]) -> None:
    """Grey where most of the changes, n at each measured step, are rounding noise: `below` [steps, n]."""
    moments = run.at(run.finite_steps)
    edges = np.concatenate([[0.0], (moments[1:] + moments[:-1]) / 2, moments[-1:]])
    share = np.concatenate(below, axis=1)[run.finite].mean(axis=1)
    for place in np.flatnonzero(share > 0.5):
        panel.axvspan(edges[place], edges[place + 1], color=FAINT, alpha=0.5, linewidth=0, zorder=-1)


def noise_note(*runs: TrackedRun) -> str:
    """What the grey of `shade_noise` is, for a heading."""
    return "; grey: rounding noise" if any(len(run.noisy_steps) for run in runs) else ""


def marks_note(*runs: TrackedRun) -> str:
    """What the lines of `mark_found_stages` and the grey are, for a heading."""
    return (" (upright lines: stages)" if any(map(found_stages, runs)) else "") + noise_note(*runs)
