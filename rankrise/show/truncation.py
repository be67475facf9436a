"""Curves of what remains of training at each rank: their picture with its data, and tables."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from rankrise.use.types import GainCurve, Truncation

LITTLE = 0.01
"""The share of the whole gain below which that of a group is too small to be cut by ranks."""
FALLS = 0.02
"""How much of the gain a higher rank may lose again before the functional rank is doubtful."""


def draw_curves(truncation: "Truncation", folder: Path) -> list[Path]:
    """Write truncation.csv, .png and .svg, and give their paths."""
    from rankrise.show.figures.saving import save, table
    from rankrise.show.figures.style import paper_style

    header = ("group", "method", "rank", "parameters", "kept", "loss", "gain")
    rows = [
        (p.group, p.method, p.rank, p.parameters, p.kept, p.scores["loss"], p.gain)
        for curve in truncation.curves
        for p in curve.points
    ]
    with paper_style():
        return save(
            draw_truncation(truncation),
            table(header, rows),
            "What remains of training when its change is cut to few directions",
            folder / "truncation",
        )


def draw_truncation(truncation: "Truncation") -> "Figure":
    """Parameters against the share of the gain: each group in a panel, plain beside weighted."""
    from rankrise.show.figures.style import BLUE, FAINT, VERMILION, new_figure

    groups = list(dict.fromkeys(curve.group for curve in truncation.curves))
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = new_figure(0.4 + 1.9 * lines)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for place, name in enumerate(groups):
        panel = axes[place // columns][place % columns]
        panel.axhline(1.0, color=FAINT, linewidth=0.6)
        for curve in (each for each in truncation.curves if each.group == name):
            points = [point for point in curve.points if point.gain is not None]
            if not points:
                continue
            colour, mark = (BLUE, "o") if curve.method == "plain" else (VERMILION, "s")
            panel.plot(
                [point.parameters for point in points],
                [point.gain for point in points],
                color=colour,
                marker=mark,
                markersize=2.5,
                label="plain SVD, one rank" if curve.method == "plain" else "weighted by the loss",
            )
        panel.set_xscale("log")
        panel.set_ylim(-0.15, 1.1)
        panel.set_title(name)
        panel.set_xlabel("parameters")
        if place % columns == 0:
            panel.set_ylabel("share of the gain")
    for place in range(len(groups), lines * columns):
        axes[place // columns][place % columns].set_visible(False)
    drawn = [axes[place // columns][place % columns] for place in range(len(groups))]
    most = max(drawn, key=lambda panel: len(panel.get_legend_handles_labels()[0]), default=None)
    if most is not None:  # heads' products have a plain curve alone
        most.legend(loc="lower right")
    return figure


def notes(truncation: "Truncation", measured_on: str, gain: float, every_rank: bool) -> list[str]:
    """What has to be known to read the tables, and which rank is enough to keep a share of the gain."""
    base = truncation.base["loss"]
    beside = "; other scores are of the validation set" if "validation_loss" in truncation.base else ""
    return [
        f"The loss is that of {measured_on}{beside}.",
        "One group is cut at a time, and everything outside it is the tuned model's. So the initial loss, "
        f"with the group as in the base, differs from group to group; that of the whole base is {base:.4g}.",
        "full rank: how many directions stand out from rounding noise. gain: what remains of the fall from "
        "initial to trained loss.",
        "kept: what remains of the change's energy (plain), or of its square weighted by what it does to the "
        "loss (weighted)."
        if every_rank
        else "What remains at each rank: pass --all to see it, or --out FOLDER to keep it.",
        *_doubts(truncation),
        *_enough(truncation, f"{100 * gain:g} % of the gain"),
    ]


def _enough(truncation: "Truncation", what: str) -> list[str]:
    """Which rank is enough for all matrices together, where they were cut."""
    ranks = {one.method: one.functional_rank for one in truncation.curves if one.group == "all"}
    one_for_all, budget = ranks.get("plain"), ranks.get("weighted")
    ways = [] if one_for_all is None else [f"rank {one_for_all} for every matrix"]
    ways += [] if budget is None else [f"the parameters of rank {budget}, spent where they matter"]
    return [f"Enough to keep {what}: {', or '.join(ways)}."] if ways else []


def _doubts(truncation: "Truncation") -> list[str]:
    """Which functional ranks say little, and why."""
    little = [one.group for one in truncation.curves if _gains_little(one, truncation)]
    falling = [one for one in truncation.curves if _falls_again(one)]
    told = []
    if little:
        told += [
            f"*{', '.join(dict.fromkeys(little))}: less than {100 * LITTLE:g} % of the fall of the loss from "
            "base to tuned is due to what changed there, so that their functional ranks say little."
        ]
    if falling:
        told += [
            f"*{', '.join(f'{one.group} ({one.method})' for one in falling)}: ranks above the functional one "
            "keep less of the gain, so that it says little."
        ]
    return told


def _gains_little(curve: "GainCurve", truncation: "Truncation") -> bool:
    """Whether next to nothing of the fall of the loss is this group's."""
    trained, whole = truncation.trained["loss"], truncation.base["loss"] - truncation.trained["loss"]
    return 0 < curve.initial["loss"] - trained < LITTLE * whole


def _falls_again(curve: "GainCurve") -> bool:
    """Whether a higher rank than the functional one keeps clearly less."""
    gains = {point.rank: point.gain for point in curve.points if point.gain is not None}
    at = curve.functional_rank
    return at in gains and any(gain < gains[at] - FALLS for rank, gain in gains.items() if rank > at)


def tables(truncation: "Truncation", every_rank: bool) -> "list[Table]":
    """The functional ranks, with a star where they say little; before them, for a terminal shows the end,
    the loss of every group at each rank, if that is wanted."""
    from rich.table import Table

    summary = Table(title="Functional rank", box=None, padding=(0, 1, 0, 0), title_justify="left")
    for title in ("group", "method", "initial loss", "trained loss", "functional rank", "full rank"):
        summary.add_column(title, justify="left" if title in ("group", "method") else "right", no_wrap=True)
    for curve in truncation.curves:
        found = "none" if curve.at_most is None else f"at most {curve.at_most}"
        found = found if curve.functional_rank is None else str(curve.functional_rank)
        found += "*" if _gains_little(curve, truncation) or _falls_again(curve) else ""
        losses = f"{curve.initial['loss']:.4g}", f"{truncation.trained['loss']:.4g}"
        summary.add_row(curve.group, curve.method, *losses, found, str(curve.full_rank))
    if not every_rank:
        return [summary]
    each = Table(title="What remains", box=None, padding=(0, 1, 0, 0), title_justify="left")
    names = list(
        dict.fromkeys(name for curve in truncation.curves for p in curve.points for name in p.scores)
    )
    for title in ("group", "method", "rank", "parameters", "kept", "gain", *names):
        each.add_column(title, justify="left" if title in ("group", "method") else "right", no_wrap=True)
    for curve in truncation.curves:
        for p in curve.points:
            scores = [f"{p.scores[name]:.5g}" if name in p.scores else "" for name in names]
            share = "none" if p.gain is None else f"{p.gain:.2%}"
            each.add_row(p.group, p.method, str(p.rank), f"{p.parameters:,}", f"{p.kept:.1%}", share, *scores)
    return [each, summary]
