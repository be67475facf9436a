"""Figures of ranks of the change: throughout training, at the end by scale, and of other matrices."""

import re
from collections.abc import Sequence
from itertools import product as pairs

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures.scaffold import (
    CHANGES,
    Drawn,
    Rows,
    epochs_of,
    figure,
    grid,
    layer_panels,
    layer_title,
    legend_below,
    mark_found_stages,
    mean_and_std,
    measured,
    noise_note,
    rows_of,
    shade_noise,
    shade_noisy_heads,
    shown_layers,
    stage_note,
    three_layers,
    tidy,
)
from rankrise.show.figures.style import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    LOOKS,
    STYLES,
    VERMILION,
    new_figure,
    plain,
    shades,
)
from rankrise.show.moments import length
from rankrise.show.tracked_words import STABLE, rank_kinds

STABLE_RANK_HEADER = (
    *("data", "scale", "seed", "product", "layer", "step", "epoch"),
    *("mean_over_heads", "std_over_heads", "noise_share", "noise_rank"),
)
MOST_MATRIX_PANELS = 9


@figure("stable-rank", "studies", {"cifar10": "12", "cifar100": "14", "imagenet": "16"}, later="4")
def draw_stable_rank(study: Study) -> Drawn:
    """Stable rank of the change throughout training."""
    run = measured(study.main[0])
    picture, panels, layers = layer_panels(run, "stable rank")
    for panel, layer in zip(panels, layers, strict=True):
        _draw_layer(panel, study, layer)
    panels[0].set_ylim(bottom=0)
    legend_below(picture, panels[0], 2)
    heads = run.layers[0]["heads"]
    picture.suptitle(
        f"{plain(study.main_label)}: stable rank of the change, mean and std over {heads} "
        f"head{'' if heads == 1 else 's'} per layer{_seed_note([study])}{stage_note(run)}{noise_note(run)}"
    )
    return Drawn(picture, STABLE_RANK_HEADER, _stable_rank_rows(study))


@figure("later-4", "side_by_side")
def draw_side_by_side(studies: Sequence[Study]) -> Drawn:
    """Stable rank throughout training, side by side (Figure 4 of the paper's later version)."""
    runs = [measured(study.main[0]) for study in studies]
    picture = new_figure(4.2)
    panels = picture.subplots(2, len(studies), sharey="row", squeeze=False)
    for upper, lower, study, run in zip(*panels, studies, runs, strict=True):
        layer = len(run.layers) // 2
        _draw_layer(upper, study, layer)
        upper.set_title(f"{plain(study.main_label)}\n{layer_title(run, layer)}")
        upper.set_xlabel(run.clock)
        for offset, name in zip((-0.12, 0.12), run.products, strict=False):
            mean, std = mean_and_std(run.ranks[name][-1])
            places, marker = np.arange(1, len(mean) + 1) + offset, "o" if name == "KQ" else "s"
            look = {"fmt": marker, "color": LOOKS[name][0], "markersize": 3}
            lower.errorbar(places, mean, std, elinewidth=0.8, capsize=1.5, **look)
        lower.set_xlabel("layer")
        lower.set_xticks([number + 1 for number in shown_layers(run)])
        lower.set_title(f"at the end, seed {run.seed}" if _further_seeds(study) else "at the end")
    for line in panels:
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel("stable rank")
    legend_below(picture, panels[0, 0], 2)
    picture.suptitle(
        f"Stable rank of the change throughout training, mean and std over heads"
        f"{_seed_note(studies)}{stage_note(*runs)}{noise_note(*runs)}"
    )
    return Drawn(picture, STABLE_RANK_HEADER, [row for study in studies for row in _stable_rank_rows(study)])


def _draw_layer(panel: Axes, study: Study, layer: int) -> None:
    """Mean and std over heads of the main run, and thin lines for further seeds."""
    run, others = study.main[0], _further_seeds(study)
    for other in others:
        for name in other.products:
            colour, style = LOOKS[name]
            mean, _ = mean_and_std(other.ranks[name][:, layer])
            panel.plot(other.at(other.finite_steps), mean, color=colour, linestyle=style, linewidth=0.6)
    moments = run.at(run.finite_steps)
    for name in run.products:
        colour, style = LOOKS[name]
        mean, std = mean_and_std(run.ranks[name][:, layer])
        panel.fill_between(moments, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
        panel.plot(moments, mean, color=colour, linestyle=style, label=CHANGES[name])
    mark_found_stages(panel, run)
    shade_noisy_heads(panel, run, layer)
    panel.set_xlim(0, max(float(drawn.at(drawn.finite_steps)[-1]) for drawn in (run, *others)))


def _further_seeds(study: Study) -> list[TrackedRun]:
    return [other for other in study.main[1:] if len(other.finite_steps)]


def _seed_note(studies: Sequence[Study]) -> str:
    return "; thin: further seeds" if any(map(_further_seeds, studies)) else ""


def _stable_rank_rows(study: Study) -> Rows:
    rows: Rows = []
    for run, name in pairs(study.main, study.main[0].products):
        means, stds = mean_and_std(run.ranks[name])
        noise = [run.mean_noise_share(name)[run.finite], run.mean_noise_rank(name)[run.finite]]
        for layer in range(means.shape[1]):
            noises = [["" if np.isnan(one) else float(one) for one in curve[:, layer]] for curve in noise]
            where = (study.label, run.scale, run.seed, name, layer + 1)
            moments = run.finite_steps, epochs_of(run)
            rows += rows_of(where, *moments, means[:, layer], stds[:, layer], *noises)
    return rows


@figure("energy-rank", "studies")
def draw_energy_rank(study: Study) -> Drawn:
    """Directions that hold 90, 95 and 99 % of the change's energy, and entropy rank, throughout training."""
    run = measured(study.main[0])
    ranks = {name: rank_kinds(run, name) for name in run.products}
    kinds = [kind for kind in next(iter(ranks.values()), {}) if kind != STABLE]
    if not kinds:
        raise NotRecorded(f"{run.folder} was recorded without energy ranks: track the run again for them.")
    picture, panels, layers = layer_panels(run, "directions")
    moments = run.at(run.finite_steps)
    looks = ((STYLES[0], 0.8), ("-", 1.2), (DASHES, 0.8), (STYLES[2], 0.8))
    for panel, layer in zip(panels, layers, strict=True):
        for (kind, (style, width)), name in pairs(zip(kinds, looks, strict=False), run.products):
            mean, _ = mean_and_std(ranks[name][kind][run.finite][:, layer])
            label = f"{CHANGES[name]}, {kind.removesuffix(' energy')}"
            panel.plot(moments, mean, color=LOOKS[name][0], linestyle=style, linewidth=width, label=label)
        panel.set_xlim(0, float(moments[-1]))
    panels[0].set_ylim(bottom=0)
    legend_below(picture, panels[0], max(2, len(kinds)))
    picture.suptitle(
        f"{plain(study.main_label)}: directions that hold 90, 95 and 99 % of the change's energy,\n"
        "and its entropy rank; mean over heads (at most twice the head size)"
    )
    rows: Rows = []
    for name, of_kind in ranks.items():
        for kind, curves in of_kind.items():
            means, stds = mean_and_std(curves[run.finite])
            for number, about in enumerate(run.layers):
                where = (study.label, run.name, name, number + 1, about["name"])
                columns = [kind] * len(means), means[:, number], stds[:, number]
                rows += rows_of(where, run.finite_steps, epochs_of(run), *columns)
    header = ("data", "run", "product", "layer", "name", "step", "epoch", "rank")
    return Drawn(picture, (*header, "mean_over_heads", "std_over_heads"), rows)


@figure("scales", "studies", {"cifar10": "4"}, later="7")
def draw_rank_by_scale(study: Study) -> Drawn:
    """Stable rank of the change after training against the initialisation scale."""
    scales = study.scales
    if len(scales) < 2:
        raise NotRecorded(
            f"{study.label} was trained at one initialisation scale: pass runs that differ in it alone."
        )
    first = next(iter(scales.values()))[0]
    looks = ((BLUE, "o", STYLES[5]), (VERMILION, "s", STYLES[3]), (GREEN, "^", STYLES[0]))
    picture = new_figure(2.9)
    panels = picture.subplots(1, len(first.products), sharey=True, squeeze=False)[0]
    rows: Rows = []
    for panel, name in zip(panels, first.products, strict=True):
        ends = {}  # by scale and layer, the finite ranks of the heads of all seeds
        for scale, runs in scales.items():
            heads = np.concatenate([run.ranks[name][-1] for run in runs], axis=1)
            ends[scale] = [layer[np.isfinite(layer)] for layer in heads]
        for place, (layer, (colour, marker, style)) in enumerate(
            zip(three_layers(first), looks, strict=False)
        ):
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
        for scale, runs in scales.items():
            for number, layer_heads in enumerate(ends[scale], start=1):
                numbers = float(np.mean(layer_heads)), float(np.std(layer_heads))
                rows.append((name, scale, number, len(runs), len(layer_heads), *numbers))
    panels[0].set_ylim(bottom=0)
    lengths = {length(run) for runs in scales.values() for run in runs}
    panels[0].set_ylabel(f"stable rank after {lengths.pop() if len(lengths) == 1 else 'training'}")
    panels[-1].legend(loc="upper left")
    picture.suptitle(f"{plain(study.title)}: stable rank of the change, mean and std over heads, by scale")
    header = ("product", "scale", "layer", "seeds", "heads", "mean_over_heads", "std_over_heads")
    return Drawn(picture, header, rows)


@figure("matrices", "with_matrices")
def draw_matrices(study: Study) -> Drawn:
    """Ranks of the change of other weight matrices throughout training."""
    run = measured(study.main[0])
    ranks = {name: rank_kinds(run, name) for name in run.matrices}
    kinds = matrix_kinds(run.matrices)
    shown = dict(list(kinds.items())[:MOST_MATRIX_PANELS])
    picture, panels = grid(len(shown), (0.9, 1.7), sharex=True)
    moments = run.at(run.finite_steps)
    for panel, (kind, names) in zip(tidy(panels, len(shown), run.clock, "rank"), shown.items(), strict=True):
        for name, colour in zip(names, shades(len(names)), strict=True):
            panel.plot(moments, ranks[name][STABLE][run.finite], color=colour)
            if "95 % energy" in ranks[name]:
                curve = ranks[name]["95 % energy"][run.finite]
                known = np.isfinite(curve)  # a large matrix has it at its full spectra only
                panel.plot(moments[known], curve[known], color=colour, linestyle=DASHES, linewidth=0.8)
        shade_noise(panel, run, np.stack([run.below_noise(name)[run.finite] for name in names], axis=1))
        panel.set_title(plain(kind))
        panel.set_ylim(bottom=0)
        panel.set_xlim(0, float(moments[-1]))
    styles = [Line2D([], [], color=GREY), Line2D([], [], color=GREY, linestyle=DASHES)]
    labels = ["stable rank", "directions with 95 % of the energy"]
    picture.legend(styles, labels, loc="outside lower center", ncols=2)
    left_out = f"; {len(kinds) - len(shown)} kinds more in the table" if len(kinds) > len(shown) else ""
    picture.suptitle(
        f"{plain(study.main_label)}: ranks of the change of other matrices, the later ones darker{left_out}"
        f"{'' if run.products else noise_note(run)}"
    )
    rows: Rows = []
    for name, of_kind in ranks.items():
        noise = {"noise share": run.noise_share(name), "noise rank": run.noise_rank(name)}
        of_kind |= {kind: curve for kind, curve in noise.items() if np.isfinite(curve).any()}
        for kind, curve in of_kind.items():
            columns = epochs_of(run), [kind] * len(moments), curve[run.finite]
            rows += rows_of((study.label, run.name, name), run.finite_steps, *columns)
    return Drawn(picture, ("data", "run", "matrix", "step", "epoch", "rank", "value"), rows)


def matrix_kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Matrices whose names differ only in layer numbers, together.

    >>> matrix_kinds(["layers.0.up", "layers.0.down", "layers.1.up"])
    {'layers.*.up': ['layers.0.up', 'layers.1.up'], 'layers.0.down': ['layers.0.down']}
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name), []).append(name)
    return {kind if len(same) > 1 else same[0]: same for kind, same in kinds.items()}
