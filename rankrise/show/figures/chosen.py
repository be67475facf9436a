"""What figures of tracked runs share: chosen layers, heads and steps, statistics over heads, and marks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankrise.runs import NotRecorded, TrackedRun, found_stages
from rankrise.show.figures.style import FAINT, mark_stages, new_figure, plain
from rankrise.show.tracked_words import layer_titles

PRODUCTS = {"KQ": r"$W_K W_Q^\top$", "VO": r"$W_V W_O^\top$"}
CHANGES = {"KQ": r"$\Delta W_K W_Q^\top$", "VO": r"$\Delta W_V W_O^\top$"}


def measured(member: TrackedRun) -> TrackedRun:
    """The run, if it has been measured at all."""
    if not len(member.finite_steps):
        raise NotRecorded(f"{member.folder} has no measured step with finite weights yet.")
    return member


def recorded(member: TrackedRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a metric was recorded and is finite, and its values."""
    record = member.steps()
    if name not in record:
        return np.empty(0), np.empty(0)
    known = np.isfinite(record[name])
    return record["step"][known], record[name][known]


def shown_layers(count: int, most: int = 6) -> list[int]:
    """All layers, or at most 6 from the first to the last (counted from 0).

    >>> shown_layers(3), shown_layers(12, most=4)
    ([0, 1, 2], [0, 4, 7, 11])
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def paper_layers(count: int) -> list[int]:
    """The paper's layers 1, 3 and 5 of 6 (here counted from 0); otherwise three from first to last."""
    return [0, 2, 4] if 5 <= count <= 6 else shown_layers(count, 3)


def columns_for(panels: int) -> int:
    """Panels in a row, so that few places stay empty."""
    return panels if panels in (1, 2, 4) else 3


def grid(count: int, label: str, sharey: bool = True) -> tuple[Figure, np.ndarray]:
    """A figure with room for `count` panels; `tidy` hides those left over."""
    columns = columns_for(count)
    lines = -(-count // columns)
    figure = new_figure(0.9 + 1.7 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=sharey, squeeze=False)
    for line in panels:
        line[0].set_ylabel(label)
    return figure, panels


def tidy(panels: np.ndarray, used: int, label: str = "") -> list[Axes]:
    """The first `used` panels of a grid, the lowest of each column labelled; the others are hidden."""
    columns = panels.shape[1]
    for place, panel in enumerate(panels.flat):
        panel.set_visible(place < used)
        if used - columns <= place < used:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(label)
    return list(panels.flat[:used])


def legend_below(figure: Figure, panel: Axes, columns: int | None = None) -> None:
    """One legend for all panels, from one of them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or len(labels))


def middle_head(member: TrackedRun, product: str, layer: int) -> int:
    """The head whose change has the layer's median stable rank at the end."""
    ranks = measured(member).ranks[product][-1, layer]
    known = np.flatnonzero(np.isfinite(ranks))
    return int(known[np.argsort(ranks[known], kind="stable")[(len(known) - 1) // 2]])


def head_number(member: TrackedRun, layer: int, head: int) -> int:
    """The head's number in the model from 1; not every head need be tracked."""
    return int(member.layers[layer]["tracked_heads"][head]) + 1


def layer_title(member: TrackedRun, layer: int) -> str:
    """A layer's number from 1, with its name if that says more."""
    return plain(layer_titles(member)[layer])


def epochs_of(member: TrackedRun) -> list[float] | list[str]:
    """The epoch of each finite step, blank if epochs are not known."""
    steps = member.finite_steps
    return member.at(steps).tolist() if member.epoch_steps else [""] * len(steps)


def steps_with_spectra(member: TrackedRun) -> np.ndarray:
    """The steps with full spectra, of which there must be one."""
    steps = member.finite_spectra_steps
    if not len(steps):
        advice = (
            "train again with a schedule that takes some"
            if member.finished
            else "run this again when its schedule has taken some"
        )
        raise NotRecorded(
            f"{member.folder} has no full spectra{'' if member.finished else ' yet'}: {advice}."
        )
    return steps


def spread_steps(member: TrackedRun) -> list[int]:
    """Five steps with full spectra, evenly in log(step), at ends of epochs if there are enough."""
    steps, count = steps_with_spectra(member), 5
    epoch = member.epoch_steps or 1
    for preferred in (steps[steps % epoch == 0], steps[steps >= epoch]):
        if len(preferred) >= count:
            steps = preferred
            break
    wanted = np.geomspace(steps[0], steps[-1], count)
    return sorted({int(steps[np.abs(np.log(steps / aim)).argmin()]) for aim in wanted})


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over heads, the last axis, ignoring NaN."""
    return np.nanmean(values, axis=-1), np.nanstd(values, axis=-1)


def normalised(values: np.ndarray) -> np.ndarray:
    """Singular values [..., k] over their largest; zeros stay zeros."""
    values = np.asarray(values, dtype=float)
    largest = values[..., :1]
    return np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)


def mark_found_stages(panel: Axes, member: TrackedRun) -> None:
    """Thin vertical lines at the run's stages."""
    steps = [stage.step for stage in found_stages(member)]
    mark_stages(panel, member.at(steps).tolist(), 0.0, number=False)


def shade_noise(panel: Axes, member: TrackedRun, below: np.ndarray) -> None:
    """Grey at the measured steps, the first axis of `below`, at which most changes are rounding noise."""
    moments = member.at(member.finite_steps)
    edges = np.concatenate([[0.0], (moments[1:] + moments[:-1]) / 2, moments[-1:]])
    for place in np.flatnonzero(below.mean(axis=1) > 0.5):
        panel.axvspan(edges[place], edges[place + 1], color=FAINT, alpha=0.5, linewidth=0, zorder=-1)


def noisy_heads(member: TrackedRun, layer: int, heads: Sequence[int] | None = None) -> np.ndarray:
    """Whether the changes of a layer's heads are rounding noise, [steps, heads of all products]."""
    places = slice(None) if heads is None else list(heads)
    below = [member.below_noise(name)[member.finite, layer][:, places] for name in member.products]
    return np.concatenate(below, axis=1)


def stage_note(*members: TrackedRun) -> str:
    """Explains the lines of `mark_found_stages`, if there are any."""
    return " (upright lines: stages)" if any(map(found_stages, members)) else ""


def noise_note(*members: TrackedRun) -> str:
    """Explains the grey of `shade_noise`, if there is any."""
    return "; grey: rounding noise" if any(len(member.noisy_steps) for member in members) else ""
