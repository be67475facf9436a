"""The evidence for the stages of full weight matrices: a table, and the figure of docs/full-weights.md.

    python benchmarks/full_weights.py --out docs/images     # some minutes on one core

- *problems*: predicted stage times against the slopes of flows between alpha = 1e-100 and 1e-300.
- *heads*: the same for softmax heads over seeds, with the relative error at each alpha: the figure.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from rankrise import predict
from rankrise.foundations.files import write_json
from rankrise.predict.types import Convergence

Row = dict[str, Any]
SCALES = (-8, -32, -100, -300)
FAR = 40.0
"""Stages after this rescaled time are left out: their flows are long, and show no more."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="folder for full-weights.json and the figure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {"problems": problems(), "heads": heads(options.seeds)}
    if options.out:
        write_json(options.out / "full-weights.json", found)
        draw(found["heads"], options.out / "full-weights")


def problems() -> list[Row]:
    """One row per problem: its stages, and the largest error of a slope and of a time."""
    cases: dict[str, tuple[Any, int | None]] = {
        "sensing 4 x 4": (predict.matrix_sensing(4, samples=100, seed=1), None),
        "sensing 4 x 4, c = 2": (predict.matrix_sensing(4, samples=100, seed=1), 2),
        "sensing 3 x 3, c = 5": (predict.matrix_sensing(3, samples=60, seed=1), 5),
        "sensing 3 x 5": (predict.matrix_sensing(3, 5, samples=60, seed=1), None),
        "sensing 2 x 2, the sign flips": (predict.matrix_sensing(2, samples=6, seed=49), None),
        "linear network 4 x 4": (predict.linear_network(4, samples=100, seed=1), None),
        "head, d = 4": (predict.full_head(4, 6, 100, seed=1, teacher="full"), None),
        "head, d = 4, the toy's teacher": (predict.full_head(4, 6, 100, seed=1), None),
        "head, d = 3, cross-entropy": (
            predict.full_head(3, 6, 100, seed=1, teacher="full", objective="cross-entropy"),
            None,
        ),
    }
    rows = []
    for name, (network, columns) in cases.items():
        convergence = converge(network, columns, (-100, -300))
        row = {
            "problem": name,
            "stages": len(convergence.slopes),
            "error of a slope": max(convergence.slope_errors),
            "of a time at 1e-100": convergence.time_errors[0],
            "at 1e-300": convergence.time_errors[1],
        }
        print(", ".join(f"{key} {value:.3g}" if key != "problem" else value for key, value in row.items()))
        rows.append(row)
    return rows


def converge(network: Any, columns: int | None, scales: tuple[int, ...]) -> Convergence:
    """Flows at several scales against the stages of a network."""
    stages = predict.greedy(network, columns=columns, until=FAR)
    start, until = predict.random_start(network, columns, seed=7), 1.15 * stages[-1].time
    return predict.compare(stages, [predict.gradient_flow(network, *start, one, until) for one in scales])


def heads(seeds: int) -> list[Row]:
    """One row per stage of softmax heads of several seeds: predicted, and measured at every scale."""
    rows: list[Row] = []
    for seed in range(seeds):
        network = predict.full_head(3, 6, 100, seed=seed, teacher="full")
        convergence = converge(network, None, SCALES)
        for number, same in enumerate(zip(*(one.stages for one in convergence.comparisons), strict=False)):
            row: Row = {
                "seed": seed,
                "stage": number + 1,
                "product": network.label(same[0].product),
                "rank": same[0].rank,
                "predicted": same[0].time,
                "slope, 1e-100 to 1e-300": convergence.slopes[number],
                "error of the slope": convergence.slope_errors[number],
            }
            for scale, stage in zip(SCALES, same, strict=True):
                row |= {f"time at 1e{scale}": stage.flow_time, f"error at 1e{scale}": stage.time_error}
            rows.append(row)
        print(f"head {seed}: {convergence!r}")
    return rows


def draw(rows: list[Row], stem: Path) -> None:
    """Predicted against measured times, and the relative error against the scale; the data beside it."""
    from matplotlib.ticker import NullFormatter

    from rankrise.show.figures.style import FAINT, GREY, INK, new_figure, paper_style, shades
    from rankrise.show.pictures import save_with_data

    count = len({row["seed"] for row in rows})
    title = f"Stages of {count} softmax heads with full weights, d = 3: predicted and measured"
    with paper_style():
        figure = new_figure(2.9)
        left, right = figure.subplots(1, 2)
        for scale, colour in zip(SCALES, shades(len(SCALES)), strict=True):
            label = rf"flow, $\alpha = 10^{{{scale}}}$"
            times = [row[f"time at 1e{scale}"] for row in rows]
            left.plot([row["predicted"] for row in rows], times, ".", color=colour, label=label)
        ends = [min(row["predicted"] for row in rows), max(row["predicted"] for row in rows)]
        left.plot(ends, ends, color=GREY, linewidth=0.7, zorder=0)
        left.set(xscale="log", yscale="log", xlabel="predicted stage time", ylabel="measured stage time")
        units = [-scale * math.log(10) for scale in SCALES]
        errors = [[row[f"error at 1e{scale}"] for scale in SCALES] for row in rows]
        for line in errors:
            right.plot(units, line, color=FAINT, linewidth=0.6)
        medians = torch.tensor(errors).double().median(0).values.tolist()
        right.plot(units, medians, ".-", color=INK, label="median")
        line = [medians[0] * units[0] / unit for unit in units]
        right.plot(units, line, "--", color=GREY, label=r"$\propto 1/\log(1/\alpha)$")
        right.set(xscale="log", yscale="log", xlabel=r"$\log(1/\alpha)$", ylabel="relative error")
        right.set_xticks(units, [f"{unit:.0f}" for unit in units])
        right.xaxis.set_minor_formatter(NullFormatter())
        for panel in (left, right):
            panel.legend()
        figure.suptitle(title)
        save_with_data(figure, list(rows[0]), [list(row.values()) for row in rows], stem)


if __name__ == "__main__":
    main()
