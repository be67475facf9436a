"""Curves of what remains of training at each rank: their picture with its data, and a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.show.console import plain_table, safe_console

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankrise.use.types import Truncation


def draw_curves(truncation: "Truncation", folder: Path) -> list[Path]:
    """Write truncation.csv, .png and .svg, and return their paths."""
    from rankrise.show.figures.style import paper_style
    from rankrise.show.pictures import save_with_data

    header = ("group", "method", "rank", "parameters", "kept", "loss", "gain")
    rows = [
        (p.group, p.method, p.rank, p.parameters, p.kept, p.scores["loss"], p.gain)
        for curve in truncation.curves
        for p in curve.points
    ]
    with paper_style():
        return save_with_data(_figure(truncation), header, rows, folder / "truncation")


def _figure(truncation: "Truncation") -> "Figure":
    """A panel per group: parameters against the share of the gain, plain beside weighted."""
    from rankrise.show.figures.style import BLUE, FAINT, VERMILION, new_figure

    styles = {
        "plain": {"color": BLUE, "marker": "o", "label": "plain SVD, one rank"},
        "weighted": {"color": VERMILION, "marker": "s", "label": "weighted by the loss"},
    }
    groups = list(dict.fromkeys(curve.group for curve in truncation.curves))
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = new_figure(0.4 + 1.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    for name, panel in zip(groups, panels, strict=False):
        panel.axhline(1.0, color=FAINT, linewidth=0.6)
        panel.set(xscale="log", ylim=(-0.15, 1.1), title=name, xlabel="parameters")
    for panel in panels[::columns]:
        panel.set_ylabel("share of the gain")
    for curve in truncation.curves:
        panel = panels[groups.index(curve.group)]
        points = [(point.parameters, point.gain) for point in curve.points if point.gain is not None]
        if points:
            panel.plot(*zip(*points, strict=True), markersize=2.5, **styles[curve.method])
    fullest = max(panels[: len(groups)], key=lambda panel: len(panel.get_legend_handles_labels()[0]))
    fullest.legend(loc="lower right")
    return figure


def print_truncation(
    truncation: "Truncation", measured_on: str, gain: float, written: Sequence[Path]
) -> None:
    """Print the functional ranks, and which rank is enough."""
    rows = []
    for curve in truncation.curves:
        losses = f"{curve.initial['loss']:.4g}", f"{truncation.trained['loss']:.4g}"
        rank = "none" if curve.functional_rank is None else str(curve.functional_rank)
        rows.append((curve.group, curve.method, *losses, rank, str(curve.full_rank)))
    titles = ("group", "method", "initial loss", "trained loss", "functional rank", "full rank")
    console = safe_console()
    console.print(plain_table(titles, rows, ("group", "method"), "Functional rank"))
    notes = [
        f"The loss is that of {measured_on}. One group is cut at a time and the rest stays tuned, so the "
        f"initial loss differs from group to group; that of the whole base is {truncation.base['loss']:.4g}. "
        "A functional rank says little where the two losses hardly differ. Full rank: directions beyond "
        "rounding noise."
    ]
    ways = {
        "plain": "rank {} for every matrix",
        "weighted": "the parameters of rank {}, spent where they matter",
    }
    of_all = [one for one in truncation.curves if one.group == "all" and one.functional_rank is not None]
    if of_all:
        enough = ", or ".join(ways[one.method].format(one.functional_rank) for one in of_all)
        notes.append(f"Enough to keep {100 * gain:g} % of the gain: {enough}.")
    for note in notes:
        console.print(note, markup=False, highlight=False)
    if written:
        console.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)
