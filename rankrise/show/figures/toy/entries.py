"""Figures 7 and 8: the entries of w_K*w_Q, or of w_V*w_O, against rescaled time for each scale."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import DASHES, INK, mark_stages, new_figure, sequence
from rankrise.show.figures.toy.seed import ToySeed

NAMES = {"KQ": r"$\mathrm{diag}(w_K)\,\mathrm{diag}(w_Q)$", "VO": r"$\mathrm{diag}(w_V)\,\mathrm{diag}(w_O)$"}


def draw_entries(source: ToySeed, kind: str) -> Drawn:
    """A panel for each scale: every entry in the exact flow under Algorithm 1's staircase; and the data."""
    alphas = source.run.settings.alphas
    chosen = source.coordinates(kind)
    curves = {alpha: source.flow(alpha) for alpha in alphas}
    times, points, _ = source.staircase()
    columns = min(3, len(alphas))
    lines = -(-len(alphas) // columns)
    figure = new_figure(0.8 + (1.8 if len(chosen) <= 20 else 2.4) * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(alphas) :]:
        panel.set_axis_off()
    for panel, alpha in zip(panels.flat, alphas, strict=False):
        plot_entries(panel, curves[alpha][0], curves[alpha][1][:, chosen])
        plot_staircase(panel, times, points[:, chosen])
        mark_stages(panel, source.times, source.until)
        panel.set_title(rf"$\alpha$ = {alpha}", pad=11)
        panel.set_xlim(0, source.until)
    for panel in panels[-1]:
        panel.set_xlabel(r"rescaled time $t\,/\,\log(1/\alpha)$")
    for line in panels:
        line[0].set_ylabel("entry")
    figure.suptitle(f"Entries of {NAMES[kind]}, exact flow (numbers: stage)")
    flow = Line2D([], [], color=sequence()(0.4))
    limit = Line2D([], [], color=INK, linewidth=0.5, linestyle=DASHES)
    labels = ["flow, dark to light in Algorithm 1's order", "Algorithm 1"]
    figure.legend([flow, limit], labels, loc="outside lower center", ncols=2)
    rows = [
        (alpha, float(time), *row.tolist())
        for alpha, t, a in [
            *((alpha, *curve[:2]) for alpha, curve in curves.items()),
            ("Algorithm 1", times, points),
        ]
        for time, row in zip(t, a[:, chosen], strict=True)
    ]
    return figure, table(("alpha", "rescaled_time", *(source.labels[c] for c in chosen)), rows)


def plot_entries(panel: Axes, times: np.ndarray, values: np.ndarray) -> None:
    """Lines (n, m), the first dark and the last light."""
    colours = sequence()(np.linspace(0, 1, values.shape[1]))
    width = 0.9 if values.shape[1] <= 20 else 0.7
    for line in reversed(range(values.shape[1])):
        panel.plot(times, values[:, line], color=colours[line], linewidth=width)


def plot_staircase(panel: Axes, times: np.ndarray, values: np.ndarray) -> None:
    """Algorithm 1's values (n, m), dashed over the flow, from where they leave zero."""
    still = (values == 0) & (np.roll(values, -1, axis=0) == 0)
    width = 0.5 if values.shape[1] <= 20 else 0.3
    panel.plot(times, np.where(still, np.nan, values), color=INK, linewidth=width, linestyle=DASHES)
