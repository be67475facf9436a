"""Figure 5: the spectrum of the change after training against that of the initial product, several layers."""

import numpy as np

from rankrise.runs import Study
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, DASHES, VERMILION, new_figure, plain
from rankrise.show.figures.tracked.chosen import (
    at_first,
    head_number,
    layer_title,
    middle_head,
    paper_layers,
    product,
    spread_steps,
)
from rankrise.show.figures.tracked.normalised_spectra import INDEX
from rankrise.show.moments import moment, when

FLOOR = 1e-3
"""The fraction of the axis's upper end below which nothing is drawn."""
CUT_NOTE = "; values below a thousandth of the axis's upper end are cut off"


def draw_final_spectra(study: Study) -> Drawn:
    """One row per product, one column per layer: all heads thin, the middle one thick; and the data."""
    member = study.main[0]
    last = spread_steps(member)[-1]
    layers = paper_layers(len(member.layers))
    figure = new_figure(0.9 + 1.8 * len(member.products))
    panels = figure.subplots(len(member.products), len(layers), sharex=True, sharey="row", squeeze=False)
    rows: list[tuple[object, ...]] = []
    cut = False
    for line, name in zip(panels, member.products, strict=True):
        spectra = {"initial": member.spectrum(name, None), "change": member.spectrum(name, last)}
        for panel, layer in zip(line, layers, strict=True):
            head = middle_head(member, name, layer)
            for kind, colour, style in (("initial", VERMILION, DASHES), ("change", BLUE, "-")):
                values = np.asarray(spectra[kind][layer], dtype=float)
                index = np.arange(1, values.shape[1] + 1)
                panel.plot(index, values.T, color=colour, linewidth=0.4, alpha=0.35)
                panel.plot(index, values[head], color=colour, linestyle=style, linewidth=1.3)
                rows += [
                    (name, layer + 1, head_number(member, layer, number) + 1, kind, place, float(value))
                    for number, one in enumerate(values)
                    for place, value in enumerate(one, start=1)
                ]
            panel.set_title(f"{layer_title(member, layer)}, head {head_number(member, layer, head) + 1}")
            panel.set_xlim(1, values.shape[1])
        line[0].set_yscale("log")
        smallest = min(float(panel.dataLim.minposy) for panel in line)
        line[0].set_ylim(bottom=max(smallest, FLOOR * line[0].get_ylim()[1]))
        cut = cut or smallest < line[0].get_ylim()[0]
        line[0].set_ylabel(f"{product(name)}\nsingular values")
    for panel in panels[-1]:
        panel.set_xlabel(INDEX)
    handles = [
        panels[0, 0].plot([], [], color=c, linestyle=s, linewidth=1.3)[0]
        for c, s in ((VERMILION, DASHES), (BLUE, "-"))
    ]
    labels = [at_first(member), f"its change at {moment(member, last)}"]
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(
        f"{plain(study.main_label)}: the change {when(member, last)} against the {at_first(member)}\n"
        f"thin: other heads{CUT_NOTE if cut else ''}"
    )
    return figure, table(("product", "layer", "head", "spectrum", "index", "singular_value"), rows)
