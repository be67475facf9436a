"""Stages of full matrices as a table on the terminal and as a picture, beside a flow where there is one."""

from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankrise.predict import MatrixFlow, MatrixStages
from rankrise.show.pictures import save_picture
from rankrise.show.stage_table import nearest, print_columns

Label = Callable[[int], str]

MEANINGS = {
    "T_k": "the rescaled time t / log(1/alpha) at which the product gains a direction, as predicted.",
    "flow": "the rescaled time at which its singular value rises above 1e-3 in the flow.",
    "gap": "how much later another would have been next; times log(1/alpha) it should be far above 1.",
    "loss": "on the plateau that follows.",
    "lost": "products that lose a direction in the stage.",
}


def print_matrix_stages(stages: MatrixStages, label: Label, flow: MatrixFlow | None = None) -> None:
    """Print one line per stage, what the columns mean, and why there are no more stages."""
    title = "Stages of full weight matrices"
    console = print_columns(title, _columns(stages, label, flow), MEANINGS, stages)
    rule = {
        "ordered": "transitions mix directions, so ordered exponents add.",
        "tracked": "directions fall into blocks, so exponents ride on them.",
    }
    console.print(f"Mixing: {stages.mixing}; {rule[stages.mixing]}")
    for note in stages.notes:
        console.print(note)


def _columns(stages: MatrixStages, label: Label, flow: MatrixFlow | None) -> dict[str, list[str]]:
    """The cells of each column."""
    columns = {
        "stage": [str(number) for number in range(1, len(stages) + 1)],
        "T_k": [f"{stage.time:.4f}" for stage in stages],
    }
    if flow is not None:
        columns["flow"] = [nearest(flow.rises(stage.product, stage.rank - 1), stage.time) for stage in stages]
    columns["product"] = [label(stage.product) for stage in stages]
    columns["rank"] = [str(stage.rank) for stage in stages]
    columns["gap"] = [f"{stage.gap:.3g}" for stage in stages]
    columns["loss"] = [f"{stage.loss:.5g}" for stage in stages]
    columns["lost"] = [" ".join(label(product) for product in stage.dropped) for stage in stages]
    return columns


def save_matrix_stages(
    folder: Path, name: str, stages: MatrixStages, label: Label, flow: MatrixFlow | None = None
) -> list[Path]:
    """Draw the loss and the singular values of every product: predicted, and of a flow over them."""
    figure = Figure(figsize=(6.5, 2.2 + 1.7 * len(stages.shapes)), layout="constrained")
    panels = figure.subplots(1 + len(stages.shapes), 1, sharex=True)
    times = [0.0, *(stage.time for stage in stages)]
    times.append(max(0.0 if flow is None else float(flow.times[-1]), 1.1 * times[-1], 0.1))
    style = "-" if flow is None else "--"
    losses = [stages.initial_loss, *(stage.loss for stage in stages)]
    panels[0].stairs(losses, times, baseline=None, color="0.45", linestyle=style, label="predicted")
    panels[0].set_ylabel("loss")
    for product, panel in enumerate(panels[1:]):
        _draw_values(panel, stages, product, times, style, flow)
        panel.set_ylabel(f"singular values\nof {label(product)}")
    for panel in panels:
        for time in times[1:-1]:
            panel.axvline(time, color="0.8", linewidth=0.5, zorder=0)
        panel.set_xlim(0, times[-1])
    if flow is not None:
        panels[0].plot(flow.times, flow.losses, color="black", linewidth=1.3, label="flow")
        panels[0].legend(frameon=False, fontsize=8)
    panels[-1].set_xlabel("rescaled time $t / \\log(1/\\alpha)$")
    return save_picture(figure, folder, name)


def _draw_values(
    panel: Axes, stages: MatrixStages, product: int, times: list[float], style: str, flow: MatrixFlow | None
) -> None:
    from matplotlib import colormaps

    steps = torch.stack(
        [torch.zeros(min(stages.shapes[product]), dtype=torch.float64)]
        + [torch.linalg.svdvals(stage.points[product]).cpu() for stage in stages]
    )
    for k, column in enumerate(steps.T):
        colour = colormaps["viridis"](0.9 * k / max(1, steps.shape[1] - 1))
        panel.stairs(column, times, baseline=None, color=colour, linestyle=style, linewidth=1.0)
        if flow is not None:
            panel.plot(flow.times, flow.singular_values(product)[:, k], color=colour, linewidth=1.3)
