"""Stages as a picture: the staircase of the loss and of what is learned, with a flow over it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rankrise.predict import Flow, Stages
from rankrise.show.pictures import save_picture

MOST_LABELS = 16


@dataclass(frozen=True)
class _Panel:
    """Curves with their predicted `steps` (stages + 1, n), what the `flow` (m, n) has, and their names."""

    title: str
    steps: Tensor
    flow: Tensor | None
    names: list[str]


def save_stages(
    folder: Path, name: str, stages: Stages, label: Callable[[int], str], flow: Flow | None = None
) -> list[Path]:
    """Draw the loss, and every coordinate that is ever active or the singular values of every product."""
    panels = [_coordinates(stages, label, flow)] if stages.diagonal else _products(stages, label, flow)
    times = [0.0, *(stage.time for stage in stages)]
    times.append(max(0.0 if flow is None else float(flow.times[-1]), 1.1 * times[-1], 0.1))
    style = "-" if flow is None else "--"
    figure = Figure(
        figsize=(6.5, 2.2 + (3.0 if stages.diagonal else 1.7) * len(panels)), layout="constrained"
    )
    top, *below = figure.subplots(1 + len(panels), 1, sharex=True)

    losses = [stages.initial_loss, *(stage.loss for stage in stages)]
    top.stairs(losses, times, baseline=None, color="0.45", linestyle=style, linewidth=1.2, label="predicted")
    top.set_ylabel("loss")
    if flow is not None:
        top.plot(flow.times.cpu(), flow.losses.cpu(), color="black", linewidth=1.3, label="flow")
        top.legend(frameon=False, fontsize=8)
    for axes, panel in zip(below, panels, strict=True):
        axes.set_ylabel(panel.title)
        count = panel.steps.shape[1]
        for place, steps in enumerate(panel.steps.T):
            colour = colormaps["viridis"](0.9 * place / max(1, count - 1))
            axes.stairs(steps, times, baseline=None, color=colour, linestyle=style, linewidth=1.0)
            if flow is not None and panel.flow is not None:
                axes.plot(flow.times.cpu(), panel.flow[:, place], color=colour, linewidth=1.3)
        if panel.names and count <= MOST_LABELS:
            _label_ends(axes, times[-1], dict(zip(panel.names, panel.steps[-1].tolist(), strict=True)))
    for axes in (top, *below):
        for time in times[1:-1]:
            axes.axvline(time, color="0.8", linewidth=0.5, zorder=0)
        axes.set_xlim(0, 1.06 * times[-1])
    below[-1].set_xlabel("rescaled time $t / \\log(1/\\alpha)$")
    return save_picture(figure, folder, name)


def _coordinates(stages: Stages, label: Callable[[int], str], flow: Flow | None) -> _Panel:
    """The coordinates in the order in which they become active."""
    order = list(dict.fromkeys(stage.product for stage in stages))
    steps = torch.zeros(len(stages) + 1, len(order), dtype=torch.float64)
    for number, stage in enumerate(stages):
        steps[number + 1] = stage.point[order].cpu()
    values = None if flow is None else flow.values[:, order].cpu()
    return _Panel("$a = u \\odot v$", steps, values, [label(coordinate) for coordinate in order])


def _products(stages: Stages, label: Callable[[int], str], flow: Flow | None) -> list[_Panel]:
    """The singular values of each product."""
    panels = []
    for product, shape in enumerate(stages.shapes):
        values = [torch.linalg.svdvals(stage.points[product]).cpu() for stage in stages]
        steps = torch.stack([torch.zeros(min(shape), dtype=torch.float64), *values])
        of_flow = None if flow is None else flow.singular_values(product).cpu()
        panels.append(_Panel(f"singular values\nof {label(product)}", steps, of_flow, []))
    return panels


def _label_ends(axes: Axes, time: float, ends: dict[str, float]) -> None:
    """Names of the curves at their ends, moved apart where they would overlap."""
    gap = 0.05 * (max(ends.values()) - min(ends.values()) or 1.0)
    height = -float("inf")
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        height = max(end, height + gap)
        axes.annotate(name, (time, height), (3, 0), textcoords="offset points", fontsize=7, va="center")
