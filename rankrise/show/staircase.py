"""Algorithm 1 as a picture: the staircase of loss and coordinates, with a flow over it where there is one."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankrise.predict import Flow, Stages
from rankrise.show.pictures import save_picture

Label = Callable[[int], str]


def save_stages(
    folder: Path, name: str, stages: Stages, label: Label, flow: Flow | None = None
) -> list[Path]:
    """Draw the loss and the value of every coordinate that is ever active: predicted, and of a flow over
    them."""
    figure = Figure(figsize=(6.5, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.set_ylabel("loss")
    lower.set_ylabel("$a = u \\odot v$")
    lower.set_xlabel("rescaled time $t / \\log(1/\\alpha)$")
    _draw_staircase(upper, lower, stages, label, flow)
    if flow is not None:
        times, values = flow.times.cpu(), flow.values.cpu()
        upper.plot(times, flow.losses.cpu(), color="black", linewidth=1.5, label="flow")
        upper.legend(frameon=False, fontsize=8)
        for coordinate, colour in _colours(stages).items():
            lower.plot(times, values[:, coordinate], color=colour, linewidth=1.3)
    return save_picture(figure, folder, name)


def _draw_staircase(upper: Axes, lower: Axes, stages: Stages, label: Label, flow: Flow | None) -> None:
    """Dashed where there is a flow."""
    times = [0.0, *(stage.time for stage in stages)]
    times.append(max(0.0 if flow is None else float(flow.times[-1]), 1.1 * times[-1], 0.1))
    style = "-" if flow is None else "--"
    losses = [stages.initial_loss, *(stage.loss for stage in stages)]
    upper.stairs(
        losses, times, baseline=None, color="0.45", linestyle=style, linewidth=1.2, label="Algorithm 1"
    )
    for time in times[1:-1]:
        for axes in (upper, lower):
            axes.axvline(time, color="0.8", linewidth=0.5, zorder=0)
    ends: dict[int, float] = {}
    for coordinate, colour in _colours(stages).items():
        steps = [0.0, *(float(stage.point[coordinate]) for stage in stages)]
        ends[coordinate] = steps[-1]
        lower.stairs(steps, times, baseline=None, color=colour, linestyle=style, linewidth=1.0)
    if 0 < len(ends) <= 16:
        _label_ends(lower, times[-1], ends, label)
    lower.set_xlim(0, 1.06 * times[-1])


def _label_ends(axes: Axes, time: float, ends: dict[int, float], label: Label) -> None:
    """Names of the curves at their ends, moved apart where they would overlap."""
    gap = 0.05 * (max(ends.values()) - min(ends.values()) or 1.0)
    height = -float("inf")
    for coordinate, end in sorted(ends.items(), key=lambda item: item[1]):
        height = max(end, height + gap)
        axes.annotate(
            label(coordinate), (time, height), (3, 0), textcoords="offset points", fontsize=7, va="center"
        )


def _colours(stages: Stages) -> dict[int, tuple[float, float, float, float]]:
    """A colour for each coordinate, from dark to light in the order in which they become active."""
    from matplotlib import colormaps

    order = list(dict.fromkeys(stage.coordinate for stage in stages))
    return {c: colormaps["viridis"](0.9 * place / max(1, len(order) - 1)) for place, c in enumerate(order)}
