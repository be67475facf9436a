"""Ranks of the other weight matrices that were tracked, such as those of MLPs, throughout training."""

import re

import numpy as np
from matplotlib.lines import Line2D

from rankrise.runs import Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import DASHES, GREY, plain, shades
from rankrise.show.figures.tracked.chosen import (
    clock_grid,
    epochs_of,
    measured,
    noise_note,
    shade_matrix_noise,
)
from rankrise.show.rank_kinds import STABLE, rank_kinds

SHARE = "95 % energy"
MOST_PANELS = 9
HEADER = ("data", "run", "matrix", "step", "epoch", "rank", "value")


def draw_matrices(study: Study) -> Drawn:
    """One panel per kind of matrix, one line per matrix: its stable rank, and dashed how many directions hold
    95 % of the change's energy where that is recorded; the data, with every other rank and, of a history, the
    share of the change's square that rounding explains."""
    member = measured(study.main[0])
    ranks = {name: rank_kinds(member, name) for name in member.matrices}
    kinds = _kinds(member.matrices)
    shown = dict(list(kinds.items())[:MOST_PANELS])
    figure, panels = clock_grid(len(shown), member.clock, "rank", sharey=False)
    moments = member.at(member.finite_steps)
    for panel, (kind, names) in zip(panels, shown.items(), strict=True):
        for name, colour in zip(names, shades(len(names)), strict=True):
            panel.plot(moments, ranks[name][STABLE][member.finite], color=colour)
            if SHARE in ranks[name]:
                curve = ranks[name][SHARE][member.finite]
                known = np.isfinite(curve)  # of a large matrix, at its full spectra alone
                panel.plot(moments[known], curve[known], color=colour, linestyle=DASHES, linewidth=0.8)
        shade_matrix_noise(panel, member, names)
        panel.set_title(plain(kind))
        panel.set_ylim(bottom=0)
        panel.set_xlim(0, float(moments[-1]))
    styles = [Line2D([], [], color=GREY), Line2D([], [], color=GREY, linestyle=DASHES)]
    labels = ["stable rank", "directions with 95 % of the energy"]
    figure.legend(styles, labels, loc="outside lower center", ncols=2)
    left_out = f"; {len(kinds) - len(shown)} kinds more in the table" if len(kinds) > len(shown) else ""
    figure.suptitle(
        f"{plain(study.main_label)}: ranks of the change of other matrices, the later ones darker{left_out}"
        f"{'' if member.products else noise_note(member)}"
    )
    return figure, table(HEADER, _rows(member, study.label, ranks))


def _kinds(names: list[str]) -> dict[str, list[str]]:
    """Matrices that differ in the numbers of layers alone, together.

    >>> _kinds(["layers.0.up", "layers.0.down", "layers.1.up"])
    {'layers.*.up': ['layers.0.up', 'layers.1.up'], 'layers.0.down': ['layers.0.down']}
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name), []).append(name)
    return {kind if len(same) > 1 else same[0]: same for kind, same in kinds.items()}


def _rows(
    member: TrackedRun, label: str, ranks: dict[str, dict[str, np.ndarray]]
) -> list[tuple[object, ...]]:
    steps, epochs = member.finite_steps.tolist(), epochs_of(member)
    noise = {
        name: {"noise share": member.noise_share(name), "noise rank": member.noise_rank(name)}
        for name in ranks
    }
    return [
        (label, member.name, name, step, epoch, kind, value)
        for name, kinds in ranks.items()
        for kind, curve in (kinds | noise[name]).items()
        if kind in kinds or np.isfinite(curve).any()
        for step, epoch, value in zip(steps, epochs, curve[member.finite].tolist(), strict=True)
    ]
