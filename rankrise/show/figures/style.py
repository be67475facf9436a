"""How every figure looks: legible at the paper's width, in colours that survive colour blindness and grey."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

WIDTH = 6.5
"""Inches: the width of the paper's text."""

# Okabe & Ito's colours, in an order that also differs in lightness, each with its own line style.
INK, SKY, GREEN, BLUE, VERMILION = "#000000", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
STYLES: tuple[Any, ...] = (
    (0, (1, 1)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (4, 1, 1, 1)),
    (0, (3, 1)),
    (0, (6, 1)),
    "-",
)
DASHES: Any = (0, (2, 1.5))
GREY, FAINT = "#666666", "#C8C8C8"
LOOKS = {"KQ": (BLUE, "-"), "VO": (VERMILION, DASHES)}

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
    "svg.hashsalt": "rankrise",  # the same run gives the same file
    "svg.fonttype": "none",
    "mathtext.fontset": "dejavusans",
}
paper_style = partial(matplotlib.rc_context, SETTINGS)
"""A context in which figures look like the paper's."""


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
