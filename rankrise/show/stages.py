"""Predicted stages as a table on the terminal and as a picture, with a flow beside them."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from rankrise.predict import Flow, Stages

MEANINGS = {
    "T_k": "the rescaled time t / log(1/alpha) at which stage k begins, as predicted.",
    "flow": "the rescaled time at which it does so in the flow, at a size of 1e-3.",
    "rank": "of that product from then on.",
    "gap": "how much later another would have been next; times log(1/alpha) it should be far above 1.",
    "loss": "on the plateau that follows.",
    "left": "what falls back to zero in the stage.",
}
RULES = {
    "ordered": "transitions mix directions, so ordered exponents add.",
    "tracked": "directions fall into blocks, so exponents ride on them.",
}
MOST_LABELS = 16


def print_stages(stages: Stages, label: Callable[[int], str], flow: Flow | None = None) -> None:
    """Print one line per stage, what the columns mean, and why there are no more stages."""
    from rich import box

    from rankrise.show.console import Fitting, safe_console, table_of

    console = safe_console(highlight=False, soft_wrap=True)
    columns = stages.table(label)
    if flow is not None:
        rises = flow.rises()
        times = [
            min(
                rises.get((stage.product, stage.rank), ()),
                key=lambda rise, at=stage.time: abs(rise - at),
                default=math.inf,
            )
            for stage in stages
        ]
        first = {name: columns.pop(name) for name in ("stage", "T_k") if name in columns}
        columns = first | {"flow": [f"{time:.4f}" for time in times]} | columns
    if stages:
        title = "Algorithm 1" if stages.diagonal else "Stages of full weight matrices"
        title += " and the flow" if flow is not None else ""
        left = ("coordinate", "product", "left")
        console.print(Fitting(table_of(columns, left, title=title, box=box.SIMPLE_HEAD)))
        for name in columns:
            if name in MEANINGS:
                console.print(f"{name}: {MEANINGS[name]}")
    more = " Raise --until to see it." if stages.ending == "until" else ""
    console.print(f"{'The end' if stages else 'No stage'}: {stages.message}{more}")
    for number, stage in enumerate(stages, start=1):
        if stage.tied:
            names = ", ".join(map(label, stage.tied))
            console.print(f"Stage {number} is tied with {names}: the theory does not cover it.")
    if stages.mixing is not None:
        console.print(f"Mixing: {stages.mixing}; {RULES[stages.mixing]}")
    for note in stages.notes:
        console.print(note)


def save_stages(
    folder: Path, name: str, stages: Stages, label: Callable[[int], str], flow: Flow | None = None
) -> list[Path]:
    """Draw the loss, and every coordinate that is ever active or the singular values of every product."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    from rankrise.show.pictures import save_picture

    panels = _panels(stages, label, flow)
    times = [0.0, *(stage.time for stage in stages)]
    times.append(max(0.0 if flow is None else float(flow.times[-1]), 1.1 * times[-1], 0.1))
    style = "-" if flow is None else "--"
    height = 2.2 + (3.0 if stages.diagonal else 1.7) * len(panels)
    figure = Figure(figsize=(6.5, height), layout="constrained")
    top, *below = figure.subplots(1 + len(panels), 1, sharex=True)

    losses = [stages.initial_loss, *(stage.loss for stage in stages)]
    top.stairs(losses, times, baseline=None, color="0.45", linestyle=style, linewidth=1.2, label="predicted")
    top.set_ylabel("loss")
    if flow is not None:
        top.plot(flow.times.cpu(), flow.losses.cpu(), color="black", linewidth=1.3, label="flow")
        top.legend(frameon=False, fontsize=8)
    for axes, (title, steps, curves, names) in zip(below, panels, strict=True):
        axes.set_ylabel(title)
        count = steps.shape[1]
        for place in range(count):
            colour = colormaps["viridis"](0.9 * place / max(1, count - 1))
            axes.stairs(steps[:, place], times, baseline=None, color=colour, linestyle=style, linewidth=1.0)
            if flow is not None and curves is not None:
                axes.plot(flow.times.cpu(), curves[:, place], color=colour, linewidth=1.3)
        if 0 < len(names) <= MOST_LABELS:
            ends = dict(zip(names, steps[-1].tolist(), strict=True))
            height, gap = -math.inf, 0.05 * (max(ends.values()) - min(ends.values()) or 1.0)
            for text, end in sorted(ends.items(), key=lambda item: item[1]):
                height = max(end, height + gap)  # apart where they would overlap
                at = (times[-1], height)
                axes.annotate(text, at, (3, 0), textcoords="offset points", fontsize=7, va="center")
    for axes in (top, *below):
        for time in times[1:-1]:
            axes.axvline(time, color="0.8", linewidth=0.5, zorder=0)
        axes.set_xlim(0, 1.06 * times[-1])
    below[-1].set_xlabel("rescaled time $t / \\log(1/\\alpha)$")
    return save_picture(figure, folder, name)


def _panels(
    stages: Stages, label: Callable[[int], str], flow: Flow | None
) -> list[tuple[str, Tensor, Tensor | None, list[str]]]:
    """Per panel its title, the predicted values (stages + 1, n), the flow's (m, n), and names of the curves:
    coordinates in the order in which they become active, or each product's singular values."""
    if stages.diagonal:
        order = list(dict.fromkeys(stage.product for stage in stages))
        rows = [torch.zeros(len(order), dtype=torch.float64), *(stage.point[order].cpu() for stage in stages)]
        values = None if flow is None else flow.values[:, order].cpu()
        return [("$a = u \\odot v$", torch.stack(rows), values, [label(coordinate) for coordinate in order])]
    panels: list[tuple[str, Tensor, Tensor | None, list[str]]] = []
    for product, shape in enumerate(stages.shapes):
        rows = [torch.linalg.svdvals(stage.points[product]).cpu() for stage in stages]
        steps = torch.stack([torch.zeros(min(shape), dtype=torch.float64), *rows])
        of_flow = None if flow is None else flow.singular_values(product).cpu()
        panels.append((f"singular values\nof {label(product)}", steps, of_flow, []))
    return panels
