"""Curves of what remains of training at each rank: their picture with its data, and tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.show.console import plain_table, safe_console

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from rankrise.use.types import GainCurve, Truncation

LEFT = ("group", "method")

LITTLE = 0.01
"""A group with a smaller share of the whole gain is too small to be cut by ranks."""

FALLS = 0.02
"""The functional rank is doubtful if a higher rank keeps this much less of the gain."""


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

    groups = list(dict.fromkeys(curve.group for curve in truncation.curves))
    columns = min(3, len(groups))
    figure = new_figure(0.4 + 1.9 * -(-len(groups) // columns))
    panels = figure.subplots(-(-len(groups) // columns), columns, squeeze=False, sharey=True).flatten()
    for place, (panel, name) in enumerate(zip(panels, groups, strict=False)):
        panel.axhline(1.0, color=FAINT, linewidth=0.6)
        for curve in (each for each in truncation.curves if each.group == name):
            points = [(point.parameters, point.gain) for point in curve.points if point.gain is not None]
            if points:
                plain = curve.method == "plain"
                panel.plot(
                    *zip(*points, strict=True),
                    color=BLUE if plain else VERMILION,
                    marker="o" if plain else "s",
                    markersize=2.5,
                    label="plain SVD, one rank" if plain else "weighted by the loss",
                )
        panel.set(xscale="log", ylim=(-0.15, 1.1), title=name, xlabel="parameters")
        if place % columns == 0:
            panel.set_ylabel("share of the gain")
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    fullest = max(panels[: len(groups)], key=lambda panel: len(panel.get_legend_handles_labels()[0]))
    fullest.legend(loc="lower right")
    return figure


def print_truncation(
    truncation: "Truncation", measured_on: str, gain: float, every_rank: bool, written: Sequence[Path]
) -> None:
    console = safe_console()
    if every_rank:
        console.print(_points(truncation))
    console.print(_summary(truncation))
    for note in notes(truncation, measured_on, gain, every_rank):
        console.print(note, markup=False, highlight=False)
    if written:
        console.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)


def notes(truncation: "Truncation", measured_on: str, gain: float, every_rank: bool) -> list[str]:
    """Notes on the tables: the scores of base and tuned model, and which rank is enough."""
    base = truncation.base["loss"]
    beside = "; other scores are of the validation set" if "validation_loss" in truncation.base else ""
    told = [
        f"The loss is that of {measured_on}{beside}. One group is cut at a time and the rest stays tuned, so "
        f"the initial loss differs from group to group; that of the whole base is {base:.4g}.",
        "full rank: directions beyond rounding noise. gain: what remains of the fall from initial to trained "
        "loss." + ("" if every_rank else " Pass --all to see what remains at each rank."),
    ]
    little = [one.group for one in truncation.curves if _gains_little(one, truncation)]
    if little:
        told.append(
            f"*{', '.join(dict.fromkeys(little))}: less than {LITTLE:.0%} of the fall of the loss is due to "
            "this change, so its functional rank says little."
        )
    falling = [f"{one.group} ({one.method})" for one in truncation.curves if _falls_again(one)]
    if falling:
        told.append(
            f"*{', '.join(falling)}: higher ranks keep less of the gain, so the functional rank says little."
        )
    ranks = {one.method: one.functional_rank for one in truncation.curves if one.group == "all"}
    ways = {
        "plain": "rank {} for every matrix",
        "weighted": "the parameters of rank {}, spent where they matter",
    }
    enough = [ways[method].format(rank) for method, rank in ranks.items() if rank is not None]
    if enough:
        told.append(f"Enough to keep {100 * gain:g} % of the gain: {', or '.join(enough)}.")
    return told


def _gains_little(curve: "GainCurve", truncation: "Truncation") -> bool:
    trained, whole = truncation.trained["loss"], truncation.base["loss"] - truncation.trained["loss"]
    return 0 < curve.initial["loss"] - trained < LITTLE * whole


def _falls_again(curve: "GainCurve") -> bool:
    gains = {point.rank: point.gain for point in curve.points if point.gain is not None}
    at = curve.functional_rank
    return at in gains and any(gain < gains[at] - FALLS for rank, gain in gains.items() if rank > at)


def _summary(truncation: "Truncation") -> "Table":
    """The functional ranks, with a star where they say little."""
    rows = []
    for curve in truncation.curves:
        found = "none" if curve.at_most is None else f"at most {curve.at_most}"
        found = found if curve.functional_rank is None else str(curve.functional_rank)
        star = "*" if _gains_little(curve, truncation) or _falls_again(curve) else ""
        losses = f"{curve.initial['loss']:.4g}", f"{truncation.trained['loss']:.4g}"
        rows.append((curve.group, curve.method, *losses, found + star, str(curve.full_rank)))
    titles = (*LEFT, "initial loss", "trained loss", "functional rank", "full rank")
    return plain_table(titles, rows, LEFT, "Functional rank")


def _points(truncation: "Truncation") -> "Table":
    """The scores of every group at each rank."""
    points = [point for curve in truncation.curves for point in curve.points]
    names = list(dict.fromkeys(name for point in points for name in point.scores))
    rows = []
    for p in points:
        gain = "none" if p.gain is None else f"{p.gain:.2%}"
        scores = [f"{p.scores[name]:.5g}" for name in names]
        rows.append((p.group, p.method, str(p.rank), f"{p.parameters:,}", f"{p.kept:.1%}", gain, *scores))
    return plain_table((*LEFT, "rank", "parameters", "kept", "gain", *names), rows, LEFT, "What remains")
