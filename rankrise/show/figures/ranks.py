"""Figures of ranks of the change: throughout training, at the end by scale, and of other matrices."""

import re
from collections.abc import Sequence
from itertools import product as pairs
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankrise.runs import NotRecorded, Study, TrackedRun
from rankrise.show.figures import style
from rankrise.show.figures.style import CHANGES, DASHES, LOOKS, Drawn, Rows, mean_and_std, plain, rows_of
from rankrise.show.tracked_words import STABLE, rank_kinds

HEADER = ("data", "scale", "seed", "product", "layer", "step", "epoch", "mean_over_heads", "std_over_heads")
MOST_MATRIX_PANELS = 9


def draw_ranks(study: Study) -> Drawn:
    """Stable rank of the change throughout training."""
    run = study.main[0]
    picture, panels = style.layer_panels(run, "stable rank")
    for layer, panel in panels.items():
        _draw_layer(panel, study, layer)
    panels[0].set_ylim(bottom=0)
    style.legend_below(picture, panels[0], 2)
    heading = f"{plain(study.main_label)}: stable rank of the change, mean and std over heads"
    picture.suptitle(f"{heading}{_notes([study])}")
    return Drawn(picture, HEADER, _stable_rank_rows(study))


def draw_side_by_side(studies: Sequence[Study]) -> Drawn:
    """Stable rank throughout training, side by side (Figure 4 of the paper's later version)."""
    picture = style.new_figure(4.2)
    panels = picture.subplots(2, len(studies), sharey="row", squeeze=False)
    for upper, lower, study in zip(*panels, studies, strict=True):
        run = style.measured(study.main[0])
        layer = len(run.layers) // 2
        _draw_layer(upper, study, layer)
        title = f"{plain(study.main_label)}\n{style.layer_title(run, layer)}"
        upper.set(title=title, xlabel=run.clock)
        for offset, name, marker in zip((-0.12, 0.12), run.products, "os", strict=False):
            mean, std = mean_and_std(run.ranks[name][-1])
            look: Any = {"fmt": marker, "color": LOOKS[name][0], "markersize": 3, "capsize": 1.5}
            lower.errorbar(np.arange(1, len(mean) + 1) + offset, mean, std, elinewidth=0.8, **look)
        ticks = [number + 1 for number in style.shown_layers(run)]
        lower.set(xlabel="layer", xticks=ticks, title=f"at the end, seed {run.seed}")
    for line in panels:
        line[0].set(ylim=(0, None), ylabel="stable rank")
    style.legend_below(picture, panels[0, 0], 2)
    heading = "Stable rank of the change throughout training, mean and std over heads"
    picture.suptitle(f"{heading}{_notes(studies)}")
    return Drawn(picture, HEADER, [row for study in studies for row in _stable_rank_rows(study)])


def _draw_layer(panel: Axes, study: Study, layer: int) -> None:
    """Mean and std over heads of the main run, and thin lines for further seeds."""
    run, others = study.main[0], _further_seeds(study)
    for one in (*others, run):
        moments = one.at(one.finite_steps)
        for name in one.products:
            colour, line = LOOKS[name]
            mean, std = mean_and_std(one.ranks[name][:, layer])
            look: Any = {"linewidth": 0.6} if one is not run else {"label": CHANGES[name]}
            panel.plot(moments, mean, color=colour, linestyle=line, **look)
            if one is run:
                panel.fill_between(moments, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    style.mark_found_stages(panel, run)
    style.shade_noise(panel, run, [run.below_noise(name)[:, layer] for name in run.products])
    panel.set_xlim(0, max(float(one.at(one.last_finite_step)) for one in (run, *others)))


def _further_seeds(study: Study) -> list[TrackedRun]:
    return [other for other in study.main[1:] if len(other.finite_steps)]


def _notes(studies: Sequence[Study]) -> str:
    seeds = "; thin: further seeds" if any(map(_further_seeds, studies)) else ""
    return f"{seeds}{style.marks_note(*(study.main[0] for study in studies))}"


def _stable_rank_rows(study: Study) -> Rows:
    rows: Rows = []
    for run, name in pairs(study.main, study.main[0].products):
        means, stds = mean_and_std(run.ranks[name])
        for layer in range(means.shape[1]):
            where = (study.label, run.scale, run.seed, name, layer + 1)
            moments = run.finite_steps, style.epochs_of(run)
            rows += rows_of(where, *moments, means[:, layer], stds[:, layer])
    return rows


def draw_energy_rank(study: Study) -> Drawn:
    """Directions that hold 90, 95 and 99 % of the change's energy, and entropy rank, throughout training."""
    run = study.main[0]
    picture, panels = style.layer_panels(run, "directions")
    ranks = {name: rank_kinds(run, name) for name in run.products}
    if any(len(of_kind) == 1 for of_kind in ranks.values()):
        raise NotRecorded(f"{run.folder} was recorded without energy ranks: track the run again for them.")
    moments = run.at(run.finite_steps)
    lines = {"90 % energy": style.STYLES[0], "95 % energy": "-", "99 % energy": DASHES}
    lines["entropy"] = style.STYLES[2]
    for layer, panel in panels.items():
        for (kind, line), name in pairs(lines.items(), run.products):
            look: Any = {"color": LOOKS[name][0], "linestyle": line, "linewidth": 1.2 if line == "-" else 0.8}
            mean, _ = mean_and_std(ranks[name][kind][run.finite, layer])
            panel.plot(moments, mean, label=f"{CHANGES[name]}, {kind.removesuffix(' energy')}", **look)
        panel.set_xlim(0, float(moments[-1]))
    rows: Rows = []
    for name, kind in pairs(run.products, (STABLE, *lines)):
        means, stds = mean_and_std(ranks[name][kind][run.finite])
        for number, about in enumerate(run.layers):
            where = (study.label, run.name, name, number + 1, about["name"])
            columns = style.epochs_of(run), [kind] * len(means), means[:, number], stds[:, number]
            rows += rows_of(where, run.finite_steps, *columns)
    panels[0].set_ylim(bottom=0)
    style.legend_below(picture, panels[0], len(lines))
    picture.suptitle(
        f"{plain(study.main_label)}: directions that hold 90, 95 and 99 % of the change's energy,\n"
        "and its entropy rank; mean over heads (at most twice the head size)"
    )
    header = ("data", "run", "product", "layer", "name", "step", "epoch", "rank")
    return Drawn(picture, (*header, "mean_over_heads", "std_over_heads"), rows)


def draw_rank_by_scale(study: Study) -> Drawn:
    """Stable rank of the change after training against the initialisation scale."""
    scales = study.scales
    if len(scales) < 2:
        advice = "pass runs that differ in it alone"
        raise NotRecorded(f"{study.label} was trained at one initialisation scale: {advice}.")
    first = next(iter(scales.values()))[0]
    colours, lines = (style.BLUE, style.VERMILION, style.GREEN), (style.STYLES[at] for at in (5, 3, 0))
    looks = list(zip(style.three_layers(first), colours, "os^", lines, strict=False))
    picture = style.new_figure(2.9)
    panels = picture.subplots(1, len(first.products), sharey=True, squeeze=False)[0]
    rows: Rows = []
    for panel, name in zip(panels, first.products, strict=True):
        ends = []  # mean and std by scale and layer, over the finite ranks of the heads of all seeds
        for scale, runs in scales.items():
            heads = np.concatenate([run.ranks[name][-1] for run in runs], axis=1)
            ends.append(np.stack(mean_and_std(heads), axis=1))
            for number, (layer, end) in enumerate(zip(heads, ends[-1].tolist(), strict=True), start=1):
                rows.append((name, scale, number, len(runs), int(np.isfinite(layer).sum()), *end))
        for place, (layer, colour, marker, line) in enumerate(looks):
            means, stds = np.stack(ends)[:, layer].T
            look: Any = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4}
            apart = [scale * 1.03 ** (place - 1) for scale in scales]
            label = style.layer_title(first, layer)
            panel.errorbar(apart, means, stds, elinewidth=0.8, capsize=2, label=label, **look)
        panel.set(xscale="log", title=CHANGES[name], xlabel="initialisation scale (1: default)")
        panel.set_xticks(list(scales), [f"{scale:g}" for scale in scales])
        panel.minorticks_off()
    panels[0].set(ylim=(0, None), ylabel="stable rank after training")
    panels[-1].legend(loc="upper left")
    picture.suptitle(f"{plain(study.title)}: stable rank of the change, mean and std over heads, by scale")
    header = ("product", "scale", "layer", "seeds", "heads", "mean_over_heads", "std_over_heads")
    return Drawn(picture, header, rows)


def draw_matrices(study: Study) -> Drawn:
    """Ranks of the change of other weight matrices throughout training."""
    run = style.measured(study.main[0])
    ranks = {name: rank_kinds(run, name) for name in run.matrices}
    kinds = matrix_kinds(run.matrices)
    count = min(len(kinds), MOST_MATRIX_PANELS)
    picture, panels = style.grid(count, (0.9, 1.7), (run.clock, "rank"), sharex=True)
    moments = run.at(run.finite_steps)
    for panel, (kind, names) in zip(panels, kinds.items(), strict=False):
        for name, colour in zip(names, style.shades(len(names)), strict=True):
            panel.plot(moments, ranks[name][STABLE][run.finite], color=colour)
            if "95 % energy" in ranks[name]:
                curve = ranks[name]["95 % energy"][run.finite]
                known = np.isfinite(curve)  # a large matrix has it at its full spectra only
                panel.plot(moments[known], curve[known], color=colour, linestyle=DASHES, linewidth=0.8)
        style.shade_noise(panel, run, [run.below_noise(name)[:, None] for name in names])
        panel.set(title=plain(kind), ylim=(0, None), xlim=(0, float(moments[-1])))
    grey: Any = {"color": style.GREY}
    energy = "directions with 95 % of the energy"
    style.legend_of(picture, {"stable rank": grey, energy: grey | {"linestyle": DASHES}})
    left_out = f"; {len(kinds) - count} kinds more in the table" if len(kinds) > count else ""
    picture.suptitle(
        f"{plain(study.main_label)}: ranks of the change of other matrices, the later ones darker{left_out}"
        f"{'' if run.products else style.noise_note(run)}"
    )
    rows: Rows = []
    for name, of_kind in ranks.items():
        for kind, curve in of_kind.items():
            columns = style.epochs_of(run), [kind] * len(moments), curve[run.finite]
            rows += rows_of((study.label, run.name, name), run.finite_steps, *columns)
    return Drawn(picture, ("data", "run", "matrix", "step", "epoch", "rank", "value"), rows)


def matrix_kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Matrices whose names differ only in layer numbers, together, such as all "layers.*.up"."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name), []).append(name)
    return {kind if len(same) > 1 else same[0]: same for kind, same in kinds.items()}
