"""Figures of ranks of the change: throughout training, at the end by scale, and of other matrices."""

import re
from collections.abc import Sequence
from itertools import product as pairs

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures.chosen import (
    CHANGES,
    epochs_of,
    grid,
    layer_title,
    legend_below,
    mark_found_stages,
    mean_and_std,
    measured,
    noise_note,
    noisy_heads,
    paper_layers,
    shade_noise,
    shown_layers,
    stage_note,
    tidy,
)
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    STYLES,
    VERMILION,
    new_figure,
    plain,
    shades,
)
from rankrise.show.moments import length
from rankrise.show.tracked_words import STABLE, rank_kinds

LOOKS = {"KQ": (BLUE, "-"), "VO": (VERMILION, DASHES)}
ENERGY_SHARE = "95 % energy"
MOST_MATRIX_PANELS = 9

Rows = list[tuple[object, ...]]


def draw_stable_rank(study: Study) -> Drawn:
    """Figures 12, 14 and 16: mean and standard deviation over heads, a panel per layer."""
    member = measured(study.main[0])
    layers = shown_layers(len(member.layers))
    figure, all_panels = grid(len(layers), "stable rank")
    panels = tidy(all_panels, len(layers), member.clock)
    for panel, layer in zip(panels, layers, strict=True):
        _draw_layer(panel, study, layer)
        panel.set_title(layer_title(member, layer))
    panels[0].set_ylim(bottom=0)
    legend_below(figure, panels[0], 2)
    heads = member.layers[0]["heads"]
    figure.suptitle(
        f"{plain(study.main_label)}: stable rank of the change, mean and std over {heads} "
        f"head{'' if heads == 1 else 's'} per layer{_seed_note([study])}{stage_note(member)}"
        f"{noise_note(member)}"
    )
    return figure, table(STABLE_RANK_HEADER, _stable_rank_rows(study))


def draw_side_by_side(studies: Sequence[Study]) -> Drawn:
    """A column per study: a middle layer throughout training, and every layer at the end."""
    members = [measured(study.main[0]) for study in studies]
    figure = new_figure(4.2)
    panels = figure.subplots(2, len(studies), sharey="row", squeeze=False)
    for upper, lower, study, member in zip(*panels, studies, members, strict=True):
        layer = len(member.layers) // 2
        _draw_layer(upper, study, layer)
        upper.set_title(f"{plain(study.main_label)}\n{layer_title(member, layer)}")
        upper.set_xlabel(member.clock)
        for offset, name in zip((-0.12, 0.12), member.products, strict=False):
            mean, std = mean_and_std(member.ranks[name][-1])
            places, marker = np.arange(1, len(mean) + 1) + offset, "o" if name == "KQ" else "s"
            look = {"fmt": marker, "color": LOOKS[name][0], "markersize": 3}
            lower.errorbar(places, mean, std, elinewidth=0.8, capsize=1.5, **look)
        lower.set_xlabel("layer")
        lower.set_xticks([number + 1 for number in shown_layers(len(member.layers))])
        lower.set_title(f"at the end, seed {member.seed}" if _further_seeds(study) else "at the end")
    for line in panels:
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel("stable rank")
    legend_below(figure, panels[0, 0], 2)
    figure.suptitle(
        f"Stable rank of the change throughout training, mean and std over heads"
        f"{_seed_note(studies)}{stage_note(*members)}{noise_note(*members)}"
    )
    return figure, table(STABLE_RANK_HEADER, [row for study in studies for row in _stable_rank_rows(study)])


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
        panel.plot(moments, mean, color=colour, linestyle=style, label=CHANGES[name])
    mark_found_stages(panel, member)
    shade_noise(panel, member, noisy_heads(member, layer))
    panel.set_xlim(0, max(float(drawn.at(drawn.finite_steps)[-1]) for drawn in (member, *others)))


def _further_seeds(study: Study) -> list[TrackedRun]:
    return [other for other in study.main[1:] if len(other.finite_steps)]


def _seed_note(studies: Sequence[Study]) -> str:
    return "; thin: further seeds" if any(map(_further_seeds, studies)) else ""


STABLE_RANK_HEADER = (
    *("data", "scale", "seed", "product", "layer", "step", "epoch"),
    *("mean_over_heads", "std_over_heads", "noise_share", "noise_rank"),
)


def _stable_rank_rows(study: Study) -> Rows:
    rows: Rows = []
    for member, name in pairs(study.main, study.main[0].products):
        means, stds = mean_and_std(member.ranks[name])
        noise = [member.mean_noise_share(name)[member.finite], member.mean_noise_rank(name)[member.finite]]
        for layer in range(means.shape[1]):
            curves = [means[:, layer].tolist(), stds[:, layer].tolist()]
            curves += [["" if np.isnan(one) else float(one) for one in curve[:, layer]] for curve in noise]
            moments = zip(member.finite_steps.tolist(), epochs_of(member), *curves, strict=True)
            rows += [(study.label, member.scale, member.seed, name, layer + 1, *line) for line in moments]
    return rows


def draw_energy_rank(study: Study) -> Drawn:
    """Directions with 90, 95 and 99 % of the change's energy, and the entropy rank, a panel per layer."""
    member = measured(study.main[0])
    ranks = {name: rank_kinds(member, name) for name in member.products}
    kinds = [kind for kind in next(iter(ranks.values()), {}) if kind != STABLE]
    if not kinds:
        raise NotRecorded(f"{member.folder} was recorded without energy ranks: track the run again for them.")
    layers = shown_layers(len(member.layers))
    figure, all_panels = grid(len(layers), "directions")
    panels = tidy(all_panels, len(layers), member.clock)
    moments = member.at(member.finite_steps)
    looks = ((STYLES[0], 0.8), ("-", 1.2), (DASHES, 0.8), (STYLES[2], 0.8))
    for panel, layer in zip(panels, layers, strict=True):
        for (kind, (style, width)), name in pairs(zip(kinds, looks, strict=False), member.products):
            mean, _ = mean_and_std(ranks[name][kind][member.finite][:, layer])
            label = f"{CHANGES[name]}, {kind.removesuffix(' energy')}"
            panel.plot(moments, mean, color=LOOKS[name][0], linestyle=style, linewidth=width, label=label)
        panel.set_title(layer_title(member, layer))
        panel.set_xlim(0, float(moments[-1]))
    panels[0].set_ylim(bottom=0)
    legend_below(figure, panels[0], max(2, len(kinds)))
    figure.suptitle(
        f"{plain(study.main_label)}: directions that hold 90, 95 and 99 % of the change's energy,\n"
        "and its entropy rank; mean over heads (at most twice the head size)"
    )
    steps, epochs = member.finite_steps.tolist(), epochs_of(member)
    rows: Rows = []
    for name, of_kind in ranks.items():
        for kind, curves in of_kind.items():
            means, stds = (each.T.tolist() for each in mean_and_std(curves[member.finite]))
            for layer, mean_std in enumerate(zip(means, stds, strict=True)):
                where = (study.label, member.name, name, layer + 1, member.layers[layer]["name"])
                lines = zip(steps, epochs, *mean_std, strict=True)
                rows += [(*where, step, epoch, kind, *ends) for step, epoch, *ends in lines]
    header = (
        *("data", "run", "product", "layer", "name", "step", "epoch", "rank"),
        *("mean_over_heads", "std_over_heads"),
    )
    return figure, table(header, rows)


def draw_rank_by_scale(study: Study) -> Drawn:
    """Figure 4: the stable rank after training against the initialisation scale, heads of all seeds."""
    scales = study.scales
    if len(scales) < 2:
        raise NotRecorded(
            f"{study.label} was trained at one initialisation scale: pass runs that differ in it alone."
        )
    first = next(iter(scales.values()))[0]
    looks = ((BLUE, "o", STYLES[5]), (VERMILION, "s", STYLES[3]), (GREEN, "^", STYLES[0]))
    figure = new_figure(2.9)
    panels = figure.subplots(1, len(first.products), sharey=True, squeeze=False)[0]
    rows: Rows = []
    for panel, name in zip(panels, first.products, strict=True):
        ends = {}  # by scale and layer, the finite ranks of the heads of all seeds
        for scale, members in scales.items():
            heads = np.concatenate([one.ranks[name][-1] for one in members], axis=1)
            ends[scale] = [layer[np.isfinite(layer)] for layer in heads]
        shown = zip(paper_layers(len(first.layers)), looks, strict=False)
        for place, (layer, (colour, marker, style)) in enumerate(shown):
            panel.errorbar(
                [scale * 1.03 ** (place - 1) for scale in scales],
                [float(np.mean(ends[scale][layer])) for scale in scales],
                [float(np.std(ends[scale][layer])) for scale in scales],
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
        panel.set_title(CHANGES[name])
        for scale, members in scales.items():
            for layer, heads in enumerate(ends[scale], start=1):
                numbers = float(np.mean(heads)), float(np.std(heads))
                rows.append((name, scale, layer, len(members), len(heads), *numbers))
    panels[0].set_ylim(bottom=0)
    lengths = {length(one) for members in scales.values() for one in members}
    panels[0].set_ylabel(f"stable rank after {lengths.pop() if len(lengths) == 1 else 'training'}")
    panels[-1].legend(loc="upper left")
    figure.suptitle(f"{plain(study.title)}: stable rank of the change, mean and std over heads, by scale")
    header = ("product", "scale", "layer", "seeds", "heads", "mean_over_heads", "std_over_heads")
    return figure, table(header, rows)


def draw_matrices(study: Study) -> Drawn:
    """Other weight matrices, a panel per kind: stable rank, and dashed the directions with 95 % energy."""
    member = measured(study.main[0])
    ranks = {name: rank_kinds(member, name) for name in member.matrices}
    kinds = matrix_kinds(member.matrices)
    shown = dict(list(kinds.items())[:MOST_MATRIX_PANELS])
    figure, all_panels = grid(len(shown), "rank", sharey=False)
    panels = tidy(all_panels, len(shown), member.clock)
    moments = member.at(member.finite_steps)
    for panel, (kind, names) in zip(panels, shown.items(), strict=True):
        for name, colour in zip(names, shades(len(names)), strict=True):
            panel.plot(moments, ranks[name][STABLE][member.finite], color=colour)
            if ENERGY_SHARE in ranks[name]:
                curve = ranks[name][ENERGY_SHARE][member.finite]
                known = np.isfinite(curve)  # a large matrix has it at its full spectra only
                panel.plot(moments[known], curve[known], color=colour, linestyle=DASHES, linewidth=0.8)
        below = [member.below_noise(name)[member.finite] for name in names]
        shade_noise(panel, member, np.stack(below, axis=1))
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
    steps, epochs = member.finite_steps.tolist(), epochs_of(member)
    rows: Rows = []
    for name, of_kind in ranks.items():
        noise = {"noise share": member.noise_share(name), "noise rank": member.noise_rank(name)}
        known_noise = {kind: curve for kind, curve in noise.items() if np.isfinite(curve).any()}
        for kind, curve in (of_kind | known_noise).items():
            lines = zip(steps, epochs, curve[member.finite].tolist(), strict=True)
            rows += [(study.label, member.name, name, step, epoch, kind, one) for step, epoch, one in lines]
    return figure, table(("data", "run", "matrix", "step", "epoch", "rank", "value"), rows)


def matrix_kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Matrices whose names differ only in layer numbers, together.

    >>> matrix_kinds(["layers.0.up", "layers.0.down", "layers.1.up"])
    {'layers.*.up': ['layers.0.up', 'layers.1.up'], 'layers.0.down': ['layers.0.down']}
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name), []).append(name)
    return {kind if len(same) > 1 else same[0]: same for kind, same in kinds.items()}
