"""What figures of tracked runs draw: chosen layers, heads and moments, and statistics over heads."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankrise.runs import NotRecorded, TrackedRun, found_stages
from rankrise.show.figures.style import FAINT, mark_stages, new_figure, plain
from rankrise.show.layer_names import layer_titles

WRITTEN = {"KQ": r"W_K W_Q^\top", "VO": r"W_V W_O^\top"}


def measured(member: TrackedRun) -> TrackedRun:
    """The run, if it has been measured at all."""
    if not len(member.finite_steps):
        raise NotRecorded(f"{member.folder} has no measured step with finite weights yet.")
    return member


def recorded(member: TrackedRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a metric was recorded and is finite, and its values there."""
    record = member.steps()
    if name not in record:
        return np.empty(0), np.empty(0)
    known = np.isfinite(record[name])
    return record["step"][known], record[name][known]


def product(name: str) -> str:
    """A product as the paper writes it."""
    return f"${WRITTEN[name]}$"


def change(name: str) -> str:
    """The change of a product as the paper writes it."""
    return rf"$\Delta {WRITTEN[name]}$"


def at_first(member: TrackedRun) -> str:
    """The product at the beginning of a run, in words: a history may begin at any checkpoint."""
    return "initial product" if member.since is None else "product at first"


def shown_layers(count: int, most: int = 6) -> list[int]:
    """All layers, or where they are too many, some spread from the first to the last (counted from 0).

    >>> shown_layers(3), shown_layers(12, most=4)
    ([0, 1, 2], [0, 4, 7, 11])
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def paper_layers(count: int) -> list[int]:
    """Layers 1, 3 and 5 of the paper's six (here counted from 0); of another number, three spread over it."""
    return [0, 2, 4] if 5 <= count <= 6 else shown_layers(count, 3)


def columns_for(layers: int) -> int:
    """Panels in a row, so that few places stay empty."""
    return layers if layers in (1, 2, 4) else 3


def clock_grid(count: int, clock: str, ylabel: str, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels over one clock, and these panels."""
    columns = columns_for(count)
    lines = -(-count // columns)
    figure = new_figure(0.9 + 1.7 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=sharey, squeeze=False)
    for line in panels:
        line[0].set_ylabel(ylabel)
    return figure, tidy(panels, count, clock)


def tidy(panels: np.ndarray, used: int, label: str = "") -> list[Axes]:
    """The first `used` panels of a grid; the others vanish, and the lowest in each column have labels."""
    columns = panels.shape[1]
    for place, panel in enumerate(panels.flat):
        panel.set_visible(place < used)
        if used - columns <= place < used:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(label)
    return list(panels.flat[:used])


def middle_head(member: TrackedRun, product: str, layer: int) -> int:
    """The head whose change has the layer's median stable rank at the end: neither the best nor the worst."""
    ranks = measured(member).ranks[product][-1, layer]
    known = np.flatnonzero(np.isfinite(ranks))
    return int(known[np.argsort(ranks[known], kind="stable")[(len(known) - 1) // 2]])


def head_number(member: TrackedRun, layer: int, head: int) -> int:
    """The head's number in the model, of which not all may have been tracked."""
    return int(member.layers[layer]["tracked_heads"][head])


def epochs_of(member: TrackedRun) -> list[float] | list[str]:
    """The epoch of each of the finite steps, as a table has it; blank where epochs are not known."""
    steps = member.finite_steps
    return member.at(steps).tolist() if member.epoch_steps else [""] * len(steps)


def steps_with_spectra(member: TrackedRun) -> np.ndarray:
    """The steps with full spectra; refused where there is none."""
    steps = member.finite_spectra_steps
    if not len(steps) and member.finished:
        raise NotRecorded(
            f"{member.folder} is finished and has no full spectra: restore its folder spectra, or train "
            "again with a schedule that takes some."
        )
    if not len(steps):
        raise NotRecorded(
            f"{member.folder} has no full spectra yet: run this again when its schedule has taken some."
        )
    return steps


def spread_steps(member: TrackedRun) -> list[int]:
    """Five steps with full spectra, evenly on a logarithmic clock, ends of epochs where there are enough."""
    steps, count = steps_with_spectra(member), 5
    epoch = member.epoch_steps or 1
    for preferred in (steps[steps % epoch == 0], steps[steps >= epoch]):
        if len(preferred) >= count:
            steps = preferred
            break
    wanted = np.geomspace(steps[0], steps[-1], count)
    return sorted({int(steps[np.abs(np.log(steps / aim)).argmin()]) for aim in wanted})


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over heads, the last axis; heads that a layer does not have (NaN) are left out."""
    return np.nanmean(values, axis=-1), np.nanstd(values, axis=-1)


def layer_title(member: TrackedRun, layer: int) -> str:
    """What a run's layer is called: counted from 1, as in the paper, with its name where that says more."""
    return plain(layer_titles([one["name"] for one in member.layers])[layer])


def mark_found_stages(panel: Axes, member: TrackedRun) -> None:
    """Thin lines where the run's stages are."""
    steps = [stage.step for stage in found_stages(member)]
    mark_stages(panel, member.at(steps).tolist(), 0.0, number=False)


def stage_note(*members: TrackedRun) -> str:
    """What a title says of these lines, if there are any."""
    return " (upright lines: stages)" if any(map(found_stages, members)) else ""


def shade_noise(panel: Axes, member: TrackedRun, layer: int, heads: Sequence[int] | None = None) -> None:
    """Grey where the change of most heads of a layer is rounding noise, halfway to the steps beside."""
    places = slice(None) if heads is None else list(heads)
    below = [member.below_noise(name)[member.finite, layer][:, places] for name in member.products]
    _shade(panel, member, np.concatenate(below, axis=1))


def shade_matrix_noise(panel: Axes, member: TrackedRun, names: Sequence[str]) -> None:
    """Grey where the change of most of these matrices is rounding noise."""
    _shade(panel, member, np.stack([member.below_noise(name)[member.finite] for name in names], axis=1))


def _shade(panel: Axes, member: TrackedRun, below: np.ndarray) -> None:
    """Grey at those of the measured steps, the first axis, at which most are below the noise."""
    share = below.mean(axis=1)
    moments = member.at(member.finite_steps)
    edges = np.concatenate([[0.0], (moments[1:] + moments[:-1]) / 2, moments[-1:]])
    for place in np.flatnonzero(share > 0.5):
        panel.axvspan(edges[place], edges[place + 1], color=FAINT, alpha=0.5, linewidth=0, zorder=-1)


def noise_note(*members: TrackedRun) -> str:
    """What a title says of the grey, if there is any."""
    return "; grey: rounding noise" if any(len(member.noisy_steps) for member in members) else ""


def normalised(values: np.ndarray) -> np.ndarray:
    """Singular values [..., k] over their largest; zeros stay zeros."""
    largest = values[..., :1]
    return np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
