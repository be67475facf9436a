"""Draw docs/images/regression-stages-figure-stages-to-smooth.png from the folder of a sweep, with its data.

python benchmarks/stages_to_smooth.py runs/regression-stages-sweep
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rankrise.claims.heads import recorded
from rankrise.runs import TrackedRun, found_stages, open, studies
from rankrise.show.figures import style
from rankrise.show.figures.style import CHANGES, STYLES, Drawn, Rows, paper_style, plain, rows_of, shades
from rankrise.show.pictures import save_with_data

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "regression-stages-figure-stages-to-smooth"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("runs", help="folder of a sweep over initialisation scales and batch sizes")
    with paper_style():
        save_with_data(*draw(parser.parse_args().runs), PICTURE)
    PICTURE.with_suffix(".svg").unlink()


class Condition(NamedTuple):
    """The scale and batch size that a run was trained with."""

    scale: float
    batch_size: int


def draw(folder: str) -> Drawn:
    """Stages found as the initialisation and the noise of small batches grow."""
    (study,) = studies(open(folder))
    runs: dict[Condition, list[TrackedRun]] = {}
    for one in sorted(study.members, key=lambda one: (one.scale, one.batch_size, one.seed)):
        runs.setdefault(Condition(one.scale, one.batch_size), []).append(one)
    counts = {place: [len(found_stages(one)) for one in same] for place, same in runs.items()}
    columns = _from_most_stages(counts)
    picture = style.new_figure(5.4)
    gridded = picture.add_gridspec(3, len(columns), height_ratios=(1, 1, 1.25))
    rows: Rows = []
    for column, place in enumerate(columns):
        run = runs[place][0]
        loss, values = (picture.add_subplot(gridded[line, column]) for line in (0, 1))
        rows += _draw_condition(loss, values, run, place)
        loss.set_title(f"scale {place.scale:g}\nbatch {place.batch_size}")
        values.set_xlabel("step")
        if column == 0:
            loss.set_ylabel("loss")
            values.set_ylabel(f"singular values\nof {CHANGES[run.products[0]]}")
    _draw_counts(picture.add_subplot(gridded[2, :]), counts)
    for place, same in runs.items():
        for run, count in zip(same, counts[place], strict=True):
            rows.append((*place, run.seed, "stages", "", float(count)))
    heading = "from stages to smooth (upright lines: stages found; one colour per head)"
    picture.suptitle(f"{plain(study.title)}: {heading}")
    return Drawn(picture, ("scale", "batch_size", "seed", "quantity", "step", "value"), rows)


def _from_most_stages(counts: dict[Condition, list[int]]) -> list[Condition]:
    """The condition with most stages, then two larger scales, and two smaller batches.

    Each pair ends with the extreme one, after the one with about half of the stages left.
    """
    mean = {place: float(np.mean(found)) for place, found in counts.items()}
    most = max(counts, key=lambda place: (mean[place], place.batch_size, place.scale))
    scales = [one for one in counts if one.batch_size == most.batch_size and one.scale > most.scale]
    batches = [one for one in counts if one.scale == most.scale and one.batch_size < most.batch_size]
    columns = [most]
    for *before, last in filter(None, (scales, batches[::-1])):
        columns += [*sorted(before, key=lambda place: abs(mean[place] - mean[most] / 2))[:1], last]
    return columns


def _draw_condition(loss: Axes, values: Axes, run: TrackedRun, place: Condition) -> Rows:
    """The loss, and the leading singular values of the first product in layer 1, one colour per head."""
    first = run.products[0]
    steps, losses = recorded(run, "loss")
    loss.plot(steps, losses, color=style.INK, linewidth=0.7)
    rows = rows_of((*place, run.seed, "loss"), steps, losses)
    top = run.top(first)[run.finite, 0][..., :4]
    for head, colour in enumerate(style.sequence()(np.linspace(0, 0.8, top.shape[1]))):
        for index, curve in enumerate(top[:, head].T, start=1):
            values.plot(run.finite_steps, curve, color=colour, linewidth=0.8)
            name = f"{first} head {head + 1} singular value {index}"
            rows += rows_of((*place, run.seed, name), run.finite_steps, curve)
    for panel in (loss, values):
        panel.set(xlim=(0, run.last_finite_step), ylim=(0, None))
        style.mark_stages(panel, [stage.step for stage in found_stages(run)])
    return rows


def _draw_counts(panel: Axes, counts: dict[Condition, list[int]]) -> None:
    """Stages against the scale: a line per batch size through the means, a point per seed."""
    batches, markers = sorted({place.batch_size for place in counts}, reverse=True), "osD^v<>"
    for number, (size, colour) in enumerate(zip(batches, reversed(shades(len(batches))), strict=True)):
        places = [place for place in counts if place.batch_size == size]
        apart = 1.06 ** (number - (len(batches) - 1) / 2)
        scales, means = [apart * one.scale for one in places], [np.mean(counts[one]) for one in places]
        style, marker = STYLES[-1 - number % len(STYLES)], markers[number % len(markers)]
        look: Any = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4}
        panel.plot(scales, means, label=f"batch {size}", **look)
        for scale, place in zip(scales, places, strict=True):
            panel.plot([scale] * len(counts[place]), counts[place], ".", color=colour, markersize=3)
    panel.set(xscale="log", xlabel="initialisation scale (1: default)", ylabel="stages found")
    panel.set_ylim(bottom=-0.2)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="upper right")


if __name__ == "__main__":
    main()
