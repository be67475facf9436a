"""Figure 4: the stable rank of the change after training against the initialisation scale."""

import numpy as np

from rankrise.runs import NotRecorded, Study
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, GREEN, STYLES, VERMILION, new_figure, plain
from rankrise.show.figures.tracked.chosen import change, layer_title, paper_layers
from rankrise.show.moments import length

LOOKS = ((BLUE, "o", STYLES[5]), (VERMILION, "s", STYLES[3]), (GREEN, "^", STYLES[0]))


def draw_rank_by_scale(study: Study) -> Drawn:
    """Layers 1, 3 and 5: mean and standard deviation over heads (of all seeds) at each scale; the data."""
    scales = study.scales
    if len(scales) < 2:
        raise NotRecorded(
            f"{study.label} was trained at one initialisation scale: pass runs that differ in it alone."
        )
    first = next(iter(scales.values()))[0]
    layers = paper_layers(len(first.layers))
    figure = new_figure(2.9)
    panels = figure.subplots(1, len(first.products), sharey=True, squeeze=False)[0]
    rows: list[tuple[object, ...]] = []
    for panel, name in zip(panels, first.products, strict=True):
        ends = {
            scale: np.concatenate([one.ranks[name][-1] for one in members], axis=1)
            for scale, members in scales.items()
        }
        for place, (layer, (colour, marker, style)) in enumerate(zip(layers, LOOKS, strict=False)):
            mean = [float(np.mean(_finite(ends[scale][layer]))) for scale in scales]
            std = [float(np.std(_finite(ends[scale][layer]))) for scale in scales]
            apart = 1.03 ** (place - 1)
            panel.errorbar(
                [scale * apart for scale in scales],
                mean,
                std,
                color=colour,
                marker=marker,
                linestyle=style,
                markersize=4,
                elinewidth=0.8,
                capsize=2,
                label=layer_title(first, layer),
            )
        panel.set_xscale("log")
        panel.set_xticks(list(scales), [f"{scale:g}" for scale in scales])
        panel.minorticks_off()
        panel.set_xlabel("initialisation scale (1: default)")
        panel.set_title(change(name))
        rows += [
            (name, scale, layer, len(members), len(heads), float(np.mean(heads)), float(np.std(heads)))
            for scale, members in scales.items()
            for layer, heads in enumerate(map(_finite, ends[scale]), start=1)
        ]
    panels[0].set_ylim(bottom=0)
    lengths = {length(one) for members in scales.values() for one in members}
    panels[0].set_ylabel(f"stable rank after {lengths.pop() if len(lengths) == 1 else 'training'}")
    panels[-1].legend(loc="upper left")
    figure.suptitle(f"{plain(study.title)}: stable rank of the change, mean and std over heads, by scale")
    header = ("product", "scale", "layer", "seeds", "heads", "mean_over_heads", "std_over_heads")
    return figure, table(header, rows)


def _finite(values: np.ndarray) -> np.ndarray:
    """Without the places of heads that a layer does not have."""
    return values[np.isfinite(values)]
