"""Figures of toy runs: the paper's Figures 3 and 6 to 10, and gradient descent beside the exact flow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Self

import numpy as np
import torch
from matplotlib.axes import Axes

from rankrise import predict
from rankrise.foundations.errors import RankriseError
from rankrise.recipes.toy_settings import log10_of
from rankrise.runs import NotRecorded, PerturbedCurve, ToyRun
from rankrise.runs.toy.pieces import pieces_of
from rankrise.runs.toy.run import ACTIVE
from rankrise.show.figures import style
from rankrise.show.figures.scaffold import Drawn, Rows, figure, grid, legend_of, rows_of
from rankrise.show.figures.style import BLUE, DASHES, FAINT, INK, STYLES, new_figure, sequence, shades

NAMES = {"KQ": r"$\mathrm{diag}(w_K)\,\mathrm{diag}(w_Q)$", "VO": r"$\mathrm{diag}(w_V)\,\mathrm{diag}(w_O)$"}
RESCALED = r"rescaled time $t\,/\,\log(1/\alpha)$"
POINTS = 401
PERTURBATIONS = 5
VISIBLE = 1e-3
MOST_MOVED = 10


@dataclass(frozen=True)
class ToySeed:
    """One seed of a toy run."""

    run: ToyRun
    seed: int

    @classmethod
    def of(cls, run: ToyRun, seed: int | None = None) -> Self:
        """A seed of the run, by default its first."""
        known = run.settings.seeds
        if seed is not None and seed not in known:
            named = ", ".join(map(str, known))
            raise RankriseError(f"seed {seed} is not in the run {run.folder}: pass one of {named}.")
        return cls(run, known[0] if seed is None else seed)

    @property
    def descent_alpha(self) -> str:
        """The smallest scale at which gradient descent was run."""
        alphas = [piece.alpha for piece in pieces_of(self.run.settings) if piece.kind == "descent"]
        if not alphas:
            raise NotRecorded(
                f"{self.run.folder} has no gradient descent: run it with the experiment 'descent'."
            )
        return min(alphas, key=log10_of)

    @cached_property
    def stages(self) -> predict.Stages:
        """Algorithm 1's stages."""
        return self.run.stages(self.seed)

    def coordinates(self, kind: str) -> list[int]:
        """The coordinates of "KQ" or "VO" in Algorithm 1's order, with those it does not activate last."""
        first: dict[int, int] = {}
        for number, stage in enumerate(self.stages):
            first.setdefault(stage.coordinate, number)
        chosen = [number for number, place in enumerate(self.run.places(self.seed)) if place.kind == kind]
        return sorted(chosen, key=lambda coordinate: (first.get(coordinate, math.inf), coordinate))

    @cached_property
    def staircase(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Algorithm 1 as a curve with two points at each jump: times (n,), a (n, p), losses (n,)."""
        zero = torch.zeros(len(self.run.labels(self.seed)), dtype=torch.float64)
        points = torch.stack([zero, *(stage.point for stage in self.stages)])
        losses = [self.stages.initial_loss, *(stage.loss for stage in self.stages)]
        times = [stage.time for stage in self.stages]
        edges = [0.0, *times, max([self.run.settings.until, *times])]
        jumps = np.array([edge for pair in pairwise(edges) for edge in pair])
        return jumps, points.repeat_interleave(2, 0).numpy(), np.repeat(losses, 2)

    def flow(self, alpha: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The exact flow at a scale: times (n,), a (n, p), losses (n,)."""
        flow = self.run.flow(self.seed, alpha)
        times = torch.linspace(0, 1, POINTS, dtype=torch.float64) * float(flow.times[-1])
        losses = np.exp(np.interp(times.numpy(), flow.times.numpy(), flow.losses.log().numpy()))
        return times.numpy(), flow.at(times).numpy(), losses

    def flows_and_staircase(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The flow at each scale, and last the staircase as "Algorithm 1"."""
        curves = {alpha: self.flow(alpha) for alpha in self.run.settings.alphas}
        return curves | {"Algorithm 1": self.staircase}


@figure("diagonal-and-full", "seeds", "3")
def draw_diagonal_and_full(source: ToySeed) -> Drawn:
    """Diagonal and full weights trained by gradient descent."""
    alpha = source.descent_alpha
    descent, full = source.run.descent(source.seed, alpha), source.run.full(source.seed)
    times, points, losses = source.staircase
    diagonal, rescaled = descent.times.numpy(), full.rescaled_times.numpy()
    singular = {"VO": full.singular_values_vo.numpy(), "KQ": full.singular_values_kq.numpy()}
    predicted = {"VO": full.predicted_vo.tolist(), "KQ": full.predicted_kq.tolist()}
    picture = new_figure(4.4)
    panels = picture.subplots(2, 3)
    for column, (kind, title) in enumerate({"VO": "$W_V W_O^T$", "KQ": "$W_K W_Q^T$"}.items()):
        chosen = source.coordinates(kind)
        upper, lower = panels[:, column]
        _plot_entries(upper, diagonal, descent.values.numpy()[:, chosen])
        _plot_staircase(upper, times, points[:, chosen])
        upper.set_title(f"({'ab'[column]}) {NAMES[kind]}", pad=11)
        _plot_entries(lower, rescaled, singular[kind])
        _mark_predicted(lower, predicted[kind])
        lower.set_title(f"({'de'[column]}) singular values of {title}")
    panels[0, 0].set_ylabel(f"diagonal weights, $\\alpha$ = {alpha}\nentry")
    panels[0, 2].plot(diagonal, descent.losses, color=BLUE, label="gradient descent")
    panels[0, 2].plot(times, losses, color=INK, linewidth=0.6, linestyle=DASHES, label="Algorithm 1")
    panels[0, 2].set_title("(c) loss", pad=11)
    panels[1, 0].set_ylabel(f"full weights, std {source.run.settings.full_scale}\nsingular value")
    panels[1, 2].plot(rescaled, full.losses, color=BLUE)
    panels[1, 2].set_title("(f) loss")
    _mark_predicted(panels[1, 2], predicted["VO"] + predicted["KQ"])
    for panel in panels[:, 2]:
        if panel.get_legend_handles_labels()[1]:
            panel.legend(loc="upper right", handlelength=1.2)
    for panel in panels[0]:
        _over_rescaled_time(panel, source, r"$t\,/\,\log(1/\alpha)$")
    for panel in panels[1]:
        panel.set(xlim=(0, float(rescaled[-1])), xlabel=r"$t\,/\,\log(1/\mathrm{std})$")
    picture.suptitle(f"Attention head trained by gradient descent, step {descent.step:g} (numbers: stage)")
    names = [f"singular value {at} of {kind}" for kind in singular for at in range(singular[kind].shape[1])]
    labels = source.run.labels(source.seed)
    blank = [[""] * len(rescaled) for _ in labels]
    rows = rows_of(("diagonal",), diagonal, descent.losses.numpy(), *descent.values.numpy().T)
    values = [column for part in singular.values() for column in part.T]
    rows += rows_of(("full",), rescaled, full.losses.numpy(), *blank, *values)
    for kind, predicted_times in predicted.items():
        ranks = enumerate(predicted_times, start=1)
        rows += [(f"full, predicted rank {rank} of {kind}", time) for rank, time in ranks]
    return Drawn(picture, ("weights", "rescaled_time", "loss", *labels, *names), rows)


@figure("loss", "seeds", "6", later="2")
def draw_loss(source: ToySeed) -> Drawn:
    """Loss against rescaled time for each initialisation scale."""
    curves = source.flows_and_staircase()
    alphas = source.run.settings.alphas
    picture = new_figure(3.0)
    panels = picture.subplots(1, 2)
    for panel, scale in zip(panels, ("linear", "log"), strict=True):
        for number, (alpha, colour) in enumerate(zip(alphas, shades(len(alphas)), strict=True)):
            line = STYLES[-1 - (len(alphas) - 1 - number) % len(STYLES)]
            times, _, losses = curves[alpha]
            panel.plot(times, losses, color=colour, linestyle=line, label=rf"$\alpha$ = {alpha}")
        times, _, losses = source.staircase
        panel.plot(times, losses, color=INK, linewidth=0.6, label="Algorithm 1")
        panel.set_yscale(scale)
        _over_rescaled_time(panel, source)
    panels[0].set(ylim=(0, None), ylabel="loss")
    panels[1].set_ylabel("loss (log)")
    panels[0].legend(loc="upper right")
    picture.suptitle(r"Loss of a diagonal attention head, exact flow, as $\alpha \to 0$ (numbers: stage)")
    rows = [row for name, (times, _, losses) in curves.items() for row in rows_of((name,), times, losses)]
    return Drawn(picture, ("alpha", "rescaled_time", "loss"), rows)


@figure("entries-kq", "seeds", "7", later="2")
def draw_entries_kq(source: ToySeed) -> Drawn:
    """Entries of w_K*w_Q for each initialisation scale."""
    return _draw_entries(source, "KQ")


@figure("entries-vo", "seeds", "8", later="2")
def draw_entries_vo(source: ToySeed) -> Drawn:
    """Entries of w_V*w_O for each initialisation scale."""
    return _draw_entries(source, "VO")


def _draw_entries(source: ToySeed, kind: str) -> Drawn:
    """Every entry in the exact flow under Algorithm 1's staircase, a panel per scale."""
    alphas = source.run.settings.alphas
    chosen = source.coordinates(kind)
    curves = source.flows_and_staircase()
    times, points, _ = source.staircase
    labels = source.run.labels(source.seed)
    heights = (0.8, 1.8 if len(chosen) <= 20 else 2.4)
    picture, panels = grid(len(alphas), heights, min(3, len(alphas)), sharex=True, sharey=True)
    for panel in panels.flat[len(alphas) :]:
        panel.set_axis_off()
    for panel, alpha in zip(panels.flat, alphas, strict=False):
        _plot_entries(panel, curves[alpha][0], curves[alpha][1][:, chosen])
        _plot_staircase(panel, times, points[:, chosen])
        panel.set_title(rf"$\alpha$ = {alpha}", pad=11)
        _over_rescaled_time(panel, source, "")
    for panel in panels[-1]:
        panel.set_xlabel(RESCALED)
    for panel in panels[:, 0]:
        panel.set_ylabel("entry")
    picture.suptitle(f"Entries of {NAMES[kind]}, exact flow (numbers: stage)")
    looks = {
        "flow, dark to light in Algorithm 1's order": {"color": sequence()(0.4)},
        "Algorithm 1": {"color": INK, "linewidth": 0.5, "linestyle": DASHES},
    }
    legend_of(picture, looks)
    rows: Rows = []
    for name, (moments, values, _) in curves.items():
        rows += rows_of((name,), moments, *values[:, chosen].T)
    return Drawn(picture, ("alpha", "rescaled_time", *(labels[c] for c in chosen)), rows)


@figure("strict-minima", "seeds", "9", later="3")
def draw_strict_minima(source: ToySeed) -> Drawn:
    """Noise at random times."""
    std = source.run.settings.strict_minima_std
    return _draw_perturbations(source, "strict-minima", std, "at random times")


@figure("noise-robustness", "seeds", "10", later="3")
def draw_noise_robustness(source: ToySeed) -> Drawn:
    """Noise when a coordinate wakes."""
    settings = source.run.settings
    crossed = f"{settings.threshold:g}".replace("e-0", "e-")
    when = f"when a coordinate has just crossed {crossed}"
    return _draw_perturbations(source, "noise-robustness", settings.noise_robustness_std, when)


def _draw_perturbations(source: ToySeed, kind: str, std: float, when: str) -> Drawn:
    """Up to five perturbations, entry by entry, and how far all are from the original."""
    curves = source.run.perturbations(source.seed, kind)
    count = min(PERTURBATIONS, len(curves))
    shown = [round(part * (len(curves) - 1) / max(1, count - 1)) for part in range(count)]
    distances = [(curve.perturbed - curve.original).abs().amax(1) for curve in curves]
    picture = new_figure(4.4)
    panels = picture.subplots(2, 3)
    for panel in panels.flat[len(shown) : PERTURBATIONS]:
        panel.set_axis_off()
    for panel, number in zip(panels.flat, shown, strict=False):
        _draw_perturbation(panel, curves[number], source)
    last = panels.flat[-1]
    for curve, apart, colour in zip(curves, distances, shades(len(curves)), strict=True):
        last.plot(curve.times, apart.clamp(min=1e-8), color=colour, linewidth=0.9)
    last.set(yscale="log", xlim=(0, None), title=f"largest distance, all {len(curves)}")
    for line in panels:
        line[0].set_ylabel("entry of $a = u \\odot v$")
    for panel in panels[1]:
        panel.set_xlabel("rescaled time since the noise")
    alpha = source.run.settings.alphas[-1]
    picture.suptitle(rf"Noise of std {std:g} on nonnegligible weights, {when} ($\alpha$ = {alpha})")
    crowded = bool(curves) and curves[0].original.shape[1] > MOST_MOVED
    noisy = f"with noise{f', the {MOST_MOVED} entries it moved most' if crowded else ''}"
    without = {"color": INK, "linewidth": 0.7, "linestyle": DASHES}
    legend_of(picture, {noisy: {"color": sequence()(0.4), "linewidth": 1.1}, "without": without})
    rows: Rows = []
    for number, (curve, apart) in enumerate(zip(curves, distances, strict=True)):
        where, moments = (number, curve.start), list(zip(curve.times.tolist(), apart.tolist(), strict=True))
        drawn = {"perturbed": curve.perturbed.tolist(), "original": curve.original.tolist()}
        for name, values in (drawn if number in shown else {"distance": [[]] * len(moments)}).items():
            for (time, distance), entries in zip(moments, values, strict=True):
                rows.append((*where, time, name, distance, *entries))
    header = ("experiment", "start", "rescaled_time_since", "curve", "largest_distance")
    return Drawn(picture, (*header, *source.run.labels(source.seed)), rows)


def _draw_perturbation(panel: Axes, curve: PerturbedCurve, source: ToySeed) -> None:
    """The entries that the noise moved most, with and without it, over the others in grey."""
    moments = curve.times.numpy()
    moved = (curve.perturbed - curve.original).abs().amax(0)
    visible = curve.original.abs().amax(0).maximum(curve.perturbed.abs().amax(0)) > VISIBLE
    most = [number for number in moved.argsort(descending=True).tolist() if visible[number]][:MOST_MOVED]
    others = [number for number in visible.nonzero()[:, 0].tolist() if number not in most]
    panel.plot(moments, curve.perturbed[:, others], color=FAINT, linewidth=0.4, zorder=1)
    for coordinate, colour in zip(most, shades(len(most))[::-1], strict=True):
        panel.plot(moments, curve.perturbed[:, coordinate], color=colour, linewidth=1.1)
    panel.plot(moments, curve.original[:, most], color=INK, linewidth=0.7, linestyle=DASHES)
    since = [stage.time - curve.start for stage in source.stages]
    style.mark_stages(panel, [time for time in since if 0 <= time <= moments[-1]])
    panel.set_xscale("symlog", linthresh=1e-3, linscale=0.4)  # shows the quick return and the later stages
    panel.set_xlim(0, moments[-1])
    panel.minorticks_off()
    ticks = [0.0, *(10.0**power for power in range(-3, 1) if 10.0**power <= moments[-1])]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_title(f"from {curve.start:.3f}, {int((curve.original[0].abs() > VISIBLE).sum())} active")


@figure("descent", "seeds")
def draw_descent(source: ToySeed) -> Drawn:
    """Gradient descent beside the exact flow."""
    run, seed, alpha = source.run, source.seed, source.descent_alpha
    descents = [run.descent(seed, alpha, step) for step in (None, *run.settings.other_steps)]
    descents.sort(key=lambda descent: descent.step, reverse=True)
    flow_times, _, flow_losses = source.flow(alpha)
    activation = run.flow(seed, alpha).activation_times(ACTIVE).numpy()
    picture = new_figure(3.0)
    left, right = picture.subplots(1, 2)
    left.plot(flow_times, flow_losses, color=INK, linewidth=1.2, label="exact flow")
    rows = rows_of(("loss", "flow"), flow_times, flow_losses)
    colours = style.VERMILION, BLUE, style.SKY, style.GREEN
    for number, descent in enumerate(descents):
        colour, marker = colours[number % 4], ("o", "s", "^", "D")[number % 4]
        name, line = f"step {descent.step:g}", STYLES[number % len(STYLES)]
        times, losses = descent.times.numpy(), descent.losses.numpy()
        left.plot(times, losses, color=colour, linestyle=line, label=f"descent, {name}")
        reached = descent.activation_times.numpy()
        both = np.isfinite(reached) & np.isfinite(activation) & (activation > 0)
        late = 100 * (reached[both] / activation[both] - 1)
        label = f"{name}: median {median(late.tolist()):.1f} %" if late.size else f"{name}: none active"
        look: Any = {"markersize": 3, "color": colour, "markerfacecolor": "none"}
        right.plot(activation[both], late, marker, label=label, **look)
        rows += rows_of(("loss", name), times, losses)
        rows += rows_of(("percent late", name), activation[both], late)
    left.set(yscale="log", ylabel="loss (log)")
    left.legend(loc="lower left")
    right.axhline(0, color=INK, linewidth=0.6)
    right.set_ylabel("% later than in the flow")
    low, high = right.get_ylim()
    right.set_ylim(min(0.0, low), high + 0.3 * (high - low))
    right.legend(loc="upper left", handlelength=1.0)
    left.set_title(rf"loss, $\alpha$ = {alpha}", pad=11)
    right.set_title("when each coordinate becomes active", pad=11)
    for panel in (left, right):
        _over_rescaled_time(panel, source)
    picture.suptitle("Gradient descent beside the exact flow")
    return Drawn(picture, ("quantity", "curve", "rescaled_time", "value"), rows)


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


def _over_rescaled_time(panel: Axes, source: ToySeed, label: str = RESCALED) -> None:
    style.mark_stages(panel, [stage.time for stage in source.stages], source.run.settings.until)
    panel.set(xlim=(0, source.run.settings.until), xlabel=label)
