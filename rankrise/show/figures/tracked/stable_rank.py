"""Figures 12, 14, 16: the stable rank of both changes in training; and the later version's Figure 4."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from rankrise.foundations.counted import counted
from rankrise.runs import Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, DASHES, VERMILION, new_figure, plain
from rankrise.show.figures.tracked.chosen import (
    change,
    clock_grid,
    epochs_of,
    layer_title,
    mark_found_stages,
    mean_and_std,
    measured,
    noise_note,
    shade_noise,
    shown_layers,
    stage_note,
)

LOOKS = {"KQ": (BLUE, "-"), "VO": (VERMILION, DASHES)}
HEADER = (
    "data",
    "scale",
    "seed",
    "product",
    "layer",
    "step",
    "epoch",
    "mean_over_heads",
    "std_over_heads",
    "noise_share",
    "noise_rank",
)


def draw_stable_rank(study: Study) -> Drawn:
    """One panel per layer: mean and standard deviation over heads, never over time; and the data.

    Of further seeds there is the mean alone.
    """
    member = measured(study.main[0])
    layers = shown_layers(len(member.layers))
    figure, panels = clock_grid(len(layers), member.clock, "stable rank")
    for panel, layer in zip(panels, layers, strict=True):
        _draw_layer(panel, study, layer)
        panel.set_title(layer_title(member, layer))
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    heads = member.layers[0]["heads"]
    figure.suptitle(
        f"{plain(study.main_label)}: stable rank of the change, mean and std over "
        f"{counted(heads, 'head')} per layer{_seed_note([study])}{stage_note(member)}{noise_note(member)}"
    )
    return figure, table(HEADER, _rows(study))


def draw_side_by_side(studies: Sequence[Study]) -> Drawn:
    """A column per study: a layer in the middle throughout training, and every layer at the end; the data.

    Of further seeds there is the mean throughout training.
    """
    members = [measured(study.main[0]) for study in studies]
    figure = new_figure(4.2)
    panels = figure.subplots(2, len(studies), sharey="row", squeeze=False)
    for upper, lower, study, member in zip(*panels, studies, members, strict=True):
        layer = len(member.layers) // 2
        _draw_layer(upper, study, layer)
        upper.set_title(f"{plain(study.main_label)}\n{layer_title(member, layer)}")
        upper.set_xlabel(member.clock)
        for offset, name in zip((-0.12, 0.12), member.products, strict=False):
            colour, _ = LOOKS[name]
            mean, std = mean_and_std(member.ranks[name][-1])
            places = np.arange(1, len(mean) + 1) + offset
            marker = "o" if name == "KQ" else "s"
            lower.errorbar(
                places, mean, std, fmt=marker, color=colour, markersize=3, elinewidth=0.8, capsize=1.5
            )
        lower.set_xlabel("layer")
        lower.set_xticks([number + 1 for number in shown_layers(len(member.layers))])
        lower.set_title(f"at the end, seed {member.seed}" if _further_seeds(study) else "at the end")
    for line in panels:
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel("stable rank")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(
        f"Stable rank of the change throughout training, mean and std over heads"
        f"{_seed_note(studies)}{stage_note(*members)}{noise_note(*members)}"
    )
    return figure, table(HEADER, [row for study in studies for row in _rows(study)])


def _draw_layer(panel: Axes, study: Study, layer: int) -> None:
    member, others = study.main[0], _further_seeds(study)
    for other in others:
        for name in other.products:
            colour, style = LOOKS[name]
            mean, _ = mean_and_std(other.ranks[name][:, layer])
            panel.plot(other.at(other.finite_steps), mean, color=colour, linestyle=style, linewidth=0.6)
    moments = member.at(member.finite_steps)
    for name in member.products:
        colour, style = LOOKS[name]
        mean, std = mean_and_std(member.ranks[name][:, layer])
        panel.fill_between(moments, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
        panel.plot(moments, mean, color=colour, linestyle=style, label=change(name))
    mark_found_stages(panel, member)
    shade_noise(panel, member, layer)
    panel.set_xlim(0, max(float(drawn.at(drawn.finite_steps)[-1]) for drawn in (member, *others)))


def _further_seeds(study: Study) -> list[TrackedRun]:
    return [other for other in study.main[1:] if len(other.finite_steps)]


def _seed_note(studies: Sequence[Study]) -> str:
    return "; thin: further seeds" if any(map(_further_seeds, studies)) else ""


def _rows(study: Study) -> list[tuple[object, ...]]:
    return [row for member in study.main for row in _rows_of(member, study.label)]


def _rows_of(member: TrackedRun, label: str) -> list[tuple[object, ...]]:
    epochs = epochs_of(member)
    rows: list[tuple[object, ...]] = []
    for name in member.products:
        means, stds = mean_and_std(member.ranks[name])
        noise = [member.mean_noise_share(name)[member.finite], member.mean_noise_rank(name)[member.finite]]
        for layer in range(means.shape[1]):
            curves = [means[:, layer].tolist(), stds[:, layer].tolist()]
            curves += [["" if np.isnan(one) else float(one) for one in curve[:, layer]] for curve in noise]
            numbers = zip(member.finite_steps.tolist(), epochs, *curves, strict=True)
            rows += [(label, member.scale, member.seed, name, layer + 1, *line) for line in numbers]
    return rows
