"""Figures of toy runs: the paper's Figures 3 and 6 to 10."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes

from rankrise.recipes.toy_settings import log10_of
from rankrise.runs import NotRecorded, PerturbedCurve, ToyRun
from rankrise.runs.toy import pieces_of
from rankrise.show.figures import style
from rankrise.show.figures.style import BLUE, DASHES, INK, Drawn, Rows, new_figure, rows_of, sequence, shades

NAMES = {"KQ": r"$\mathrm{diag}(w_K)\,\mathrm{diag}(w_Q)$", "VO": r"$\mathrm{diag}(w_V)\,\mathrm{diag}(w_O)$"}
RESCALED = r"rescaled time $t\,/\,\log(1/\alpha)$"
ALGORITHM = "Algorithm 1"
POINTS = 401
PERTURBATIONS = 5
VISIBLE = 1e-3
MOST_MOVED = 10

Curve = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Times (n,), coordinates (n, p) and losses (n,)."""


def draw_diagonal_and_full(run: ToyRun) -> Drawn:
    """Diagonal and full weights trained by gradient descent, at the smallest scale at which it was run."""
    alphas = [piece.alpha for piece in pieces_of(run.settings) if piece.kind == "descent"]
    if not alphas:
        raise NotRecorded(f"{run.folder} has no gradient descent: run it with the experiment 'descent'.")
    seed, alpha = _seed(run), min(alphas, key=log10_of)
    descent, full = run.descent(seed, alpha), run.full(seed)
    times, points, losses = _staircase(run)
    diagonal, rescaled = descent.times.numpy(), full.rescaled_times.numpy()
    singular = {"VO": full.singular_values_vo.numpy(), "KQ": full.singular_values_kq.numpy()}
    predicted = {"VO": full.predicted_vo.tolist(), "KQ": full.predicted_kq.tolist()}
    picture = new_figure(4.4)
    panels = picture.subplots(2, 3)
    for column, (kind, title) in enumerate({"VO": "$W_V W_O^T$", "KQ": "$W_K W_Q^T$"}.items()):
        chosen = _coordinates(run, kind)
        upper, lower = panels[:, column]
        _plot_entries(upper, diagonal, descent.values.numpy()[:, chosen])
        _plot_staircase(upper, times, points[:, chosen])
        upper.set_title(f"({'ab'[column]}) {NAMES[kind]}", pad=11)
        _plot_entries(lower, rescaled, singular[kind])
        _mark_predicted(lower, predicted[kind])
        lower.set_title(f"({'de'[column]}) singular values of {title}")
    panels[0, 0].set_ylabel(f"diagonal weights, $\\alpha$ = {alpha}\nentry")
    panels[0, 2].plot(diagonal, descent.losses, color=BLUE, label="gradient descent")
    panels[0, 2].plot(times, losses, color=INK, linewidth=0.6, linestyle=DASHES, label=ALGORITHM)
    panels[0, 2].set_title("(c) loss", pad=11)
    panels[1, 0].set_ylabel(f"full weights, std {run.settings.full_scale}\nsingular value")
    panels[1, 2].plot(rescaled, full.losses, color=BLUE)
    panels[1, 2].set_title("(f) loss")
    _mark_predicted(panels[1, 2], predicted["VO"] + predicted["KQ"])
    for panel in panels[:, 2]:
        if panel.get_legend_handles_labels()[1]:
            panel.legend(loc="upper right", handlelength=1.2)
    for panel in panels[0]:
        _over_rescaled_time(panel, run, r"$t\,/\,\log(1/\alpha)$")
    for panel in panels[1]:
        panel.set(xlim=(0, float(rescaled[-1])), xlabel=r"$t\,/\,\log(1/\mathrm{std})$")
    picture.suptitle(f"Attention head trained by gradient descent, step {descent.step:g} (numbers: stage)")
    names = [f"singular value {at} of {kind}" for kind in singular for at in range(singular[kind].shape[1])]
    labels = run.labels(seed)
    blank = [[""] * len(rescaled) for _ in labels]
    rows = rows_of(("diagonal",), diagonal, descent.losses.numpy(), *descent.values.numpy().T)
    values = [column for part in singular.values() for column in part.T]
    rows += rows_of(("full",), rescaled, full.losses.numpy(), *blank, *values)
    for kind, predicted_times in predicted.items():
        ranks = enumerate(predicted_times, start=1)
        rows += [(f"full, predicted rank {rank} of {kind}", time) for rank, time in ranks]
    return Drawn(picture, ("weights", "rescaled_time", "loss", *labels, *names), rows)


def draw_loss(run: ToyRun) -> Drawn:
    """Loss against rescaled time for each initialisation scale."""
    curves = _flows_and_staircase(run)
    alphas = run.settings.alphas
    lines = [style.STYLES[-1 - number % len(style.STYLES)] for number in reversed(range(len(alphas)))]
    picture = new_figure(3.0)
    panels = picture.subplots(1, 2)
    for panel, scale in zip(panels, ("linear", "log"), strict=True):
        for alpha, line, colour in zip(alphas, lines, shades(len(alphas)), strict=True):
            times, _, losses = curves[alpha]
            panel.plot(times, losses, color=colour, linestyle=line, label=rf"$\alpha$ = {alpha}")
        times, _, losses = curves[ALGORITHM]
        panel.plot(times, losses, color=INK, linewidth=0.6, label=ALGORITHM)
        panel.set_yscale(scale)
        _over_rescaled_time(panel, run)
    panels[0].set(ylim=(0, None), ylabel="loss")
    panels[1].set_ylabel("loss (log)")
    panels[0].legend(loc="upper right")
    picture.suptitle(r"Loss of a diagonal attention head, exact flow, as $\alpha \to 0$ (numbers: stage)")
    rows = [row for name, (times, _, losses) in curves.items() for row in rows_of((name,), times, losses)]
    return Drawn(picture, ("alpha", "rescaled_time", "loss"), rows)


def draw_entries(run: ToyRun, kind: str) -> Drawn:
    """Every entry in the exact flow under Algorithm 1's staircase, a panel per scale."""
    alphas, chosen = run.settings.alphas, _coordinates(run, kind)
    curves = _flows_and_staircase(run)
    times, points, _ = curves[ALGORITHM]
    heights, columns = (0.8, 1.8 if len(chosen) <= 20 else 2.4), min(3, len(alphas))
    picture, panels = style.grid(len(alphas), heights, (RESCALED, "entry"), columns, sharex=True, sharey=True)
    for panel, alpha in zip(panels, alphas, strict=True):
        _plot_entries(panel, curves[alpha][0], curves[alpha][1][:, chosen])
        _plot_staircase(panel, times, points[:, chosen])
        panel.set_title(rf"$\alpha$ = {alpha}", pad=11)
        _over_rescaled_time(panel, run, panel.get_xlabel())
    picture.suptitle(f"Entries of {NAMES[kind]}, exact flow (numbers: stage)")
    looks = {
        "flow, dark to light in Algorithm 1's order": {"color": sequence()(0.4)},
        ALGORITHM: {"color": INK, "linewidth": 0.5, "linestyle": DASHES},
    }
    style.legend_of(picture, looks)
    labels = run.labels(_seed(run))
    rows: Rows = []
    for name, (moments, values, _) in curves.items():
        rows += rows_of((name,), moments, *values[:, chosen].T)
    return Drawn(picture, ("alpha", "rescaled_time", *(labels[c] for c in chosen)), rows)


def draw_perturbations(run: ToyRun, kind: str) -> Drawn:
    """Up to five perturbations, entry by entry, and how far all are from the original."""
    settings = run.settings
    std, when = settings.strict_minima_std, "at random times"
    if kind == "noise-robustness":
        crossed = f"{settings.threshold:g}".replace("e-0", "e-")
        std, when = settings.noise_robustness_std, f"when a coordinate has just crossed {crossed}"
    curves = run.perturbations(_seed(run), kind)
    count = min(PERTURBATIONS, len(curves))
    shown = [round(part * (len(curves) - 1) / max(1, count - 1)) for part in range(count)]
    picture = new_figure(4.4)
    panels = picture.subplots(2, 3)
    for panel in panels.flat[count:PERTURBATIONS]:
        panel.set_axis_off()
    rows: Rows = []
    for number, (curve, colour) in enumerate(zip(curves, shades(len(curves)), strict=True)):
        apart = (curve.perturbed - curve.original).abs().amax(1)
        panels[1, 2].plot(curve.times, apart.clamp(min=1e-8), color=colour, linewidth=0.9)
        drawn = {"perturbed": curve.perturbed, "original": curve.original}
        if number in shown:
            _draw_perturbation(panels.flat[shown.index(number)], curve, run)
        else:
            drawn = {"distance": curve.original[:, :0]}
        for name, values in drawn.items():
            columns = [[name] * len(apart), apart.numpy(), *values.numpy().T]
            rows += rows_of((number, curve.start), curve.times.numpy(), *columns)
    panels[1, 2].set(yscale="log", xlim=(0, None), title=f"largest distance, all {len(curves)}")
    for line in panels:
        line[0].set_ylabel("entry of $a = u \\odot v$")
    for panel in panels[1]:
        panel.set_xlabel("rescaled time since the noise")
    alpha = run.settings.alphas[-1]
    picture.suptitle(rf"Noise of std {std:g} on nonnegligible weights, {when} ($\alpha$ = {alpha})")
    crowded = bool(curves) and curves[0].original.shape[1] > MOST_MOVED
    noisy = f"with noise{f', the {MOST_MOVED} entries it moved most' if crowded else ''}"
    without = {"color": INK, "linewidth": 0.7, "linestyle": DASHES}
    style.legend_of(picture, {noisy: {"color": sequence()(0.4), "linewidth": 1.1}, "without": without})
    header = ("experiment", "start", "rescaled_time_since", "curve", "largest_distance")
    return Drawn(picture, (*header, *run.labels(_seed(run))), rows)


def _draw_perturbation(panel: Axes, curve: PerturbedCurve, run: ToyRun) -> None:
    """The entries that the noise moved most, with and without it, over the others in grey."""
    moments = curve.times.numpy()
    moved = (curve.perturbed - curve.original).abs().amax(0)
    visible = curve.original.abs().amax(0).maximum(curve.perturbed.abs().amax(0)) > VISIBLE
    most = [number for number in moved.argsort(descending=True).tolist() if visible[number]][:MOST_MOVED]
    others = [number for number in visible.nonzero()[:, 0].tolist() if number not in most]
    panel.plot(moments, curve.perturbed[:, others], color=style.FAINT, linewidth=0.4, zorder=1)
    for coordinate, colour in zip(most, shades(len(most))[::-1], strict=True):
        panel.plot(moments, curve.perturbed[:, coordinate], color=colour, linewidth=1.1)
    panel.plot(moments, curve.original[:, most], color=INK, linewidth=0.7, linestyle=DASHES)
    since = [stage.time - curve.start for stage in run.stages(_seed(run))]
    style.mark_stages(panel, [time for time in since if 0 <= time <= moments[-1]])
    panel.set_xscale("symlog", linthresh=1e-3, linscale=0.4)  # shows the quick return and the later stages
    panel.set_xlim(0, moments[-1])
    panel.minorticks_off()
    ticks = [0.0, *(10.0**power for power in range(-3, 1) if 10.0**power <= moments[-1])]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_title(f"from {curve.start:.3f}, {int((curve.original[0].abs() > VISIBLE).sum())} active")


def _seed(run: ToyRun) -> int:
    """The seed that is drawn."""
    return run.settings.seeds[0]


def _coordinates(run: ToyRun, kind: str) -> list[int]:
    """The coordinates of "KQ" or "VO" in Algorithm 1's order, with those it does not activate last."""
    order = list(dict.fromkeys(stage.coordinate for stage in run.stages(_seed(run))))
    chosen = [number for number, place in enumerate(run.places(_seed(run))) if place.kind == kind]
    return sorted(chosen, key=lambda one: order.index(one) if one in order else math.inf)


def _staircase(run: ToyRun) -> Curve:
    """Algorithm 1 with two points at each jump."""
    stages = run.stages(_seed(run))
    zero = torch.zeros(len(run.labels(_seed(run))), dtype=torch.float64)
    points = torch.stack([zero, *(stage.point for stage in stages)])
    losses = [stages.initial_loss, *(stage.loss for stage in stages)]
    times = [stage.time for stage in stages]
    edges = [0.0, *times, max([run.settings.until, *times])]
    jumps = np.array([edge for pair in pairwise(edges) for edge in pair])
    return jumps, points.repeat_interleave(2, 0).numpy(), np.repeat(losses, 2)


def _flows_and_staircase(run: ToyRun) -> dict[str, Curve]:
    """The exact flow at each scale, and last the staircase."""
    curves: dict[str, Curve] = {}
    for alpha in run.settings.alphas:
        flow = run.flow(_seed(run), alpha)
        times = torch.linspace(0, 1, POINTS, dtype=torch.float64) * float(flow.times[-1])
        losses = np.exp(np.interp(times.numpy(), flow.times.numpy(), flow.losses.log().numpy()))
        curves[alpha] = times.numpy(), flow.at(times).numpy(), losses
    return curves | {ALGORITHM: _staircase(run)}


def _plot_entries(panel: Axes, times: np.ndarray, values: np.ndarray) -> None:
    """Lines (n, m), the first dark and the last light."""
    colours = sequence()(np.linspace(0, 1, values.shape[1]))
    width = 0.9 if values.shape[1] <= 20 else 0.7
    for line in reversed(range(values.shape[1])):
        panel.plot(times, values[:, line], color=colours[line], linewidth=width)


def _plot_staircase(panel: Axes, times: np.ndarray, values: np.ndarray) -> None:
    """Algorithm 1's values (n, m), dashed, from where they leave zero."""
    still = (values == 0) & (np.roll(values, -1, axis=0) == 0)
    width = 0.5 if values.shape[1] <= 20 else 0.3
    panel.plot(times, np.where(still, np.nan, values), color=INK, linewidth=width, linestyle=DASHES)


def _mark_predicted(panel: Axes, times: Sequence[float]) -> None:
    """The stages predicted for full weights."""
    for number, time in enumerate(times):
        label = None if number else "predicted stages"
        panel.axvline(time, color=INK, linewidth=0.5, linestyle=DASHES, zorder=0, label=label)


def _over_rescaled_time(panel: Axes, run: ToyRun, label: str = RESCALED) -> None:
    style.mark_stages(panel, [stage.time for stage in run.stages(_seed(run))], run.settings.until)
    panel.set(xlim=(0, run.settings.until), xlabel=label)
