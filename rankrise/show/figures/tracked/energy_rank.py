"""How many directions hold 90, 95 and 99 % of the change's energy, and its entropy rank: what the stable rank
does not tell."""

from itertools import product as pairs

import numpy as np

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, DASHES, STYLES, VERMILION, plain
from rankrise.show.figures.tracked.chosen import (
    change,
    clock_grid,
    epochs_of,
    layer_title,
    mean_and_std,
    measured,
    shown_layers,
)
from rankrise.show.rank_kinds import STABLE, product_rank_kinds

COLOURS = {"KQ": BLUE, "VO": VERMILION}
LOOKS = ((STYLES[0], 0.8), ("-", 1.2), (DASHES, 0.8), (STYLES[2], 0.8))
"""Line style and width of the shares, the smallest first, and of the entropy rank."""
HEADER = (
    "data",
    "run",
    "product",
    "layer",
    "name",
    "step",
    "epoch",
    "rank",
    "mean_over_heads",
    "std_over_heads",
)


def draw_energy_rank(study: Study) -> Drawn:
    """A panel per layer: the mean over heads at each share of the energy, and of the entropy rank, of both
    products; the data, with the stable rank beside them."""
    member = measured(study.main[0])
    ranks = product_rank_kinds(member)
    kinds = [kind for kind in next(iter(ranks.values()), {}) if kind != STABLE]
    if not kinds:
        raise NotRecorded(f"{member.folder} was recorded without energy ranks: track the run again for them.")
    layers = shown_layers(len(member.layers))
    figure, panels = clock_grid(len(layers), member.clock, "directions")
    moments = member.at(member.finite_steps)
    for panel, layer in zip(panels, layers, strict=True):
        for (kind, (style, width)), name in pairs(zip(kinds, LOOKS, strict=False), member.products):
            mean, _ = mean_and_std(ranks[name][kind][member.finite][:, layer])
            label = f"{change(name)}, {kind.removesuffix(' energy')}"
            panel.plot(moments, mean, color=COLOURS[name], linestyle=style, linewidth=width, label=label)
        panel.set_title(layer_title(member, layer))
        panel.set_xlim(0, float(moments[-1]))
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(2, len(kinds)))
    figure.suptitle(
        f"{plain(study.main_label)}: directions that hold 90, 95 and 99 % of the change's energy,\n"
        "and its entropy rank; mean over heads (at most twice the head size)"
    )
    return figure, table(HEADER, _rows(member, study.label, ranks))


def _rows(
    member: TrackedRun, label: str, ranks: dict[str, dict[str, np.ndarray]]
) -> list[tuple[object, ...]]:
    steps, epochs = member.finite_steps.tolist(), epochs_of(member)
    rows: list[tuple[object, ...]] = []
    for name, kinds in ranks.items():
        for kind, curves in kinds.items():
            means, stds = mean_and_std(curves[member.finite])
            rows += [
                (label, member.name, name, layer + 1, member.layers[layer]["name"], step, epoch, kind, *ends)
                for layer in range(len(member.layers))
                for step, epoch, *ends in zip(
                    steps, epochs, means[:, layer].tolist(), stds[:, layer].tolist(), strict=True
                )
            ]
    return rows
