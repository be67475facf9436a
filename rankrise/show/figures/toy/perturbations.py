"""Figures 9 and 10: the network after noise on its weights, beside the network without."""

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rankrise.runs import PerturbedCurve
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import DASHES, FAINT, INK, mark_stages, new_figure, sequence, shades
from rankrise.show.figures.toy.seed import ToySeed

SHOWN = 5
VISIBLE = 1e-3
MOST_MOVED = 10


def draw_perturbations(source: ToySeed, kind: str) -> Drawn:
    """Up to five perturbations, entry by entry, and how far all are from the original; and the data."""
    settings = source.run.settings
    curves = source.run.perturbations(source.seed, kind)
    std = settings.strict_minima_std if kind == "strict-minima" else settings.noise_robustness_std
    count = min(SHOWN, len(curves))
    shown = [round(part * (len(curves) - 1) / max(1, count - 1)) for part in range(count)]
    figure = new_figure(4.4)
    panels = figure.subplots(2, 3)
    for panel in panels.flat[len(shown) : SHOWN]:
        panel.set_axis_off()
    for panel, number in zip(panels.flat, shown, strict=False):
        _draw_one(panel, curves[number], source)
    _draw_distances(panels.flat[-1], curves)
    for line in panels:
        line[0].set_ylabel("entry of $a = u \\odot v$")
    for panel in panels[1]:
        panel.set_xlabel("rescaled time since the noise")
    crossed = f"{settings.threshold:g}".replace("e-0", "e-")
    times = "at random times" if kind == "strict-minima" else f"when a coordinate has just crossed {crossed}"
    figure.suptitle(
        rf"Noise of std {std:g} on nonnegligible weights, {times} ($\alpha$ = {settings.smallest_alpha})"
    )
    crowded = (curves[0].original.shape[1] if curves else 0) > MOST_MOVED
    handles = [
        Line2D([], [], color=sequence()(0.4), linewidth=1.1),
        Line2D([], [], color=INK, linewidth=0.7, linestyle=DASHES),
    ]
    figure.legend(
        handles,
        [f"with noise{f', the {MOST_MOVED} entries it moved most' if crowded else ''}", "without"],
        loc="outside lower center",
        ncols=2,
    )
    return figure, _data(source, curves, shown)


def _data(source: ToySeed, curves: list[PerturbedCurve], shown: list[int]) -> str:
    """The distances of all, and the entries of those that are shown."""
    rows: list[tuple[object, ...]] = []
    for number, curve in enumerate(curves):
        distances = (curve.perturbed - curve.original).abs().amax(1).tolist()
        pairs = (("perturbed", curve.perturbed.tolist()), ("original", curve.original.tolist()))
        for name, values in pairs if number in shown else (("distance", [[]] * len(distances)),):
            lines = zip(curve.times.tolist(), distances, values, strict=True)
            rows += [
                (number, curve.start, time, name, distance, *entries) for time, distance, entries in lines
            ]
    header = ("experiment", "start", "rescaled_time_since", "curve", "largest_distance", *source.labels)
    return table(header, rows)


def _draw_one(panel: Axes, curve: PerturbedCurve, source: ToySeed) -> None:
    """The entries that the noise moved most, with and without it; the others faintly behind them."""
    moments = curve.times.numpy()
    moved = (curve.perturbed - curve.original).abs().amax(0)
    visible = curve.original.abs().amax(0).maximum(curve.perturbed.abs().amax(0)) > VISIBLE
    most = [number for number in moved.argsort(descending=True).tolist() if visible[number]][:MOST_MOVED]
    others = [number for number in visible.nonzero()[:, 0].tolist() if number not in most]
    panel.plot(moments, curve.perturbed[:, others], color=FAINT, linewidth=0.4, zorder=1)
    for coordinate, colour in zip(most, shades(len(most))[::-1], strict=True):
        panel.plot(moments, curve.perturbed[:, coordinate], color=colour, linewidth=1.1)
    panel.plot(moments, curve.original[:, most], color=INK, linewidth=0.7, linestyle=DASHES)
    since = [time - curve.start for time in source.times]
    mark_stages(panel, [time for time in since if 0 <= time <= moments[-1]], source.until, number=False)
    _logarithmic_from_zero(panel, moments[-1])
    active = int((curve.original[0].abs() > VISIBLE).sum())
    panel.set_title(f"from {curve.start:.3f}, {active} active")


def _draw_distances(panel: Axes, curves: list[PerturbedCurve]) -> None:
    for curve, colour in zip(curves, shades(len(curves)), strict=True):
        distance = (curve.perturbed - curve.original).abs().amax(1)
        panel.plot(curve.times, distance.clamp(min=1e-8), color=colour, linewidth=0.9)
    panel.set_yscale("log")
    panel.set_xlim(left=0)
    panel.set_title(f"largest distance, all {len(curves)}")


def _logarithmic_from_zero(panel: Axes, last: float) -> None:
    """Time since the noise on an axis that shows both the quick return and the stages that follow."""
    panel.set_xscale("symlog", linthresh=1e-3, linscale=0.4)
    panel.set_xlim(0, last)
    panel.minorticks_off()
    ticks = [0.0, *(10.0**power for power in range(-3, 1) if 10.0**power <= last)]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
