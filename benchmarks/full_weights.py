"""The evidence for the stages of full weight matrices: tables, and the figure of docs/full-weights.md.

    python benchmarks/full_weights.py --out docs/images     # some minutes on one core
    python benchmarks/full_weights.py --only optimisers

- *flows*: predicted stage times against the slopes of exact flows between alpha = 1e-100 and 1e-300.
- *heads*: the same for softmax heads over seeds, with the relative error at each alpha: the figure.
- *optimisers*: when singular values appear under gradient descent, Adam and Muon on one of these heads.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.files import to_json, write_json
from rankrise.predict.types import FullHead, MatrixConvergence, MatrixStages

Row = dict[str, Any]
SCALES = (-8, -32, -100, -300)
FAR = 40.0
"""Stages after this rescaled time are left out: their flows are long, and say no more."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["flows", "heads", "optimisers", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="folder for full-weights.json and the figure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = ("flows", "heads", "optimisers") if options.only == "all" else (options.only,)
    found: dict[str, list[Row]] = {}
    if "flows" in chosen:
        found["flows"] = flows()
    if "heads" in chosen:
        found["heads"] = heads(options.seeds)
    if "optimisers" in chosen:
        found["optimisers"] = optimisers()
    if options.out:
        write_json(options.out / "full-weights.json", found)
        if "heads" in found:
            draw(found["heads"], options.out / "full-weights")
    else:
        print(to_json(found))


def flows() -> list[Row]:
    """One row per problem: its stages, and the largest error of a slope."""
    problems: dict[str, tuple[Any, int | None]] = {
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
    for name, (network, columns) in problems.items():
        stages, convergence = converge(network, columns, (-100, -300))
        rows.append(
            {
                "problem": name,
                "stages": len(convergence.slopes),
                "first": stages[0].time,
                "last": max((stage.time for stage in convergence.comparisons[0].stages), default=math.nan),
                "smallest gap": min(stage.gap for stage in stages[: len(convergence.slopes)]),
                "largest error of a slope": convergence.largest_slope_error,
                "error of a time at 1e-100": convergence.time_errors[0],
                "error of a time at 1e-300": convergence.time_errors[1],
            }
        )
        show(rows[-1])
    return rows


def converge(
    network: Any, columns: int | None, scales: tuple[int, ...]
) -> tuple[MatrixStages, MatrixConvergence]:
    """The stages of a network, and flows at several scales against them."""
    stages = predict.greedy_matrices(network, columns=columns, until=FAR)
    start = predict.random_start(network.shapes, columns, seed=7)
    until = 1.15 * stages[-1].time
    solved = [predict.matrix_flow(network, start, scale, until) for scale in scales]
    return stages, predict.compare_matrices(stages, solved)


def heads(seeds: int) -> list[Row]:
    """One row per stage of softmax heads of several seeds: predicted, and measured at every scale."""
    rows: list[Row] = []
    for seed in range(seeds):
        network = predict.full_head(3, 6, 100, seed=seed, teacher="full")
        _, convergence = converge(network, None, SCALES)
        stages = zip(*(one.stages for one in convergence.comparisons), strict=False)
        for number, same in enumerate(stages):
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
        show({"head": seed, "stages": len(convergence.slopes), "errors": convergence.time_errors})
    return rows


def draw(rows: list[Row], stem: Path) -> None:
    """Predicted against measured times, and the relative error against the scale; the data beside it."""
    from matplotlib.ticker import NullFormatter

    from rankrise.show.figures.saving import save, table
    from rankrise.show.figures.style import FAINT, GREY, INK, new_figure, paper_style, shades

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
        for row in rows:
            right.plot(units, [row[f"error at 1e{scale}"] for scale in SCALES], color=FAINT, linewidth=0.6)
        errors = torch.tensor([[row[f"error at 1e{scale}"] for scale in SCALES] for row in rows])
        medians = errors.double().median(0).values.tolist()
        right.plot(units, medians, ".-", color=INK, label="median")
        line = [medians[0] * units[0] / unit for unit in units]
        right.plot(units, line, "--", color=GREY, label=r"$\propto 1/\log(1/\alpha)$")
        right.set(xscale="log", yscale="log", xlabel=r"$\log(1/\alpha)$", ylabel="relative error")
        right.set_xticks(units, [f"{unit:.0f}" for unit in units])
        right.xaxis.set_minor_formatter(NullFormatter())
        for panel in (left, right):
            panel.legend()
        figure.suptitle(title)
        save(figure, table(list(rows[0]), [list(row.values()) for row in rows]), title, stem)


def optimisers() -> list[Row]:
    """When each singular value appears, as a fraction of the time of the first, beside the prediction."""
    network = predict.full_head(3, 6, 100, seed=0, teacher="full")
    stages = predict.greedy_matrices(network, until=8.0)
    shown = [(stage.product, stage.rank - 1) for stage in stages]
    rows: list[Row] = [{"method": "predicted", **relative([stage.time for stage in stages])}]
    show(rows[0])
    start = predict.random_start(network.shapes, seed=7)
    for scale in (-8, -32):
        flow = predict.matrix_flow(network, start, scale, 9.0)
        times = flow.activation_times(1e-2)
        rows.append(
            {"method": f"flow, 1e{scale}", **relative([float(times[product][k]) for product, k in shown])}
        )
        show(rows[-1])
    for name, (rate, steps, update) in METHODS.items():
        for log10_alpha in (-2, -4):
            values = train(network, start, 10.0**log10_alpha, rate, steps, update)
            appeared = [first_above(values[product][:, k], 1e-2) for product, k in shown]
            row = {"method": f"{name}, 1e{log10_alpha}", "rate": rate, "steps": steps, **relative(appeared)}
            rows.append(row | {"loss": float(values[-1][-1, 0])})
            show(rows[-1])
    return rows


def relative(times: list[float]) -> Row:
    """Times as multiples of the first one to appear, and their rank correlation with the predicted order."""
    first = min(times)
    order = torch.tensor(times, dtype=torch.float64).argsort().argsort().double()
    place = torch.arange(len(times), dtype=torch.float64)
    together = torch.corrcoef(torch.stack([order, place]))[0, 1]
    parts = [round(time / first, 3) for time in times]
    return {"times over the first": parts, "order agrees": round(float(together), 3)}


def first_above(curve: Tensor, threshold: float) -> float:
    """The first step at which a curve is above a threshold."""
    above = (curve > threshold).nonzero()[:, 0]
    return float(above[0] + 1) if len(above) else math.inf


State = list[Tensor]
Update = Callable[[list[Tensor], list[Tensor], int, dict[str, State]], list[Tensor]]


def descent(weights: list[Tensor], slopes: list[Tensor], step: int, state: dict[str, State]) -> list[Tensor]:
    """Plain gradient descent."""
    return slopes


def adam(weights: list[Tensor], slopes: list[Tensor], step: int, state: dict[str, State]) -> list[Tensor]:
    """Adam (Kingma & Ba 2015), with an epsilon far below the gradients of tiny weights."""
    means = state.setdefault("means", [torch.zeros_like(slope) for slope in slopes])
    squares = state.setdefault("squares", [torch.zeros_like(slope) for slope in slopes])
    moved = []
    for mean, square, slope in zip(means, squares, slopes, strict=True):
        mean.mul_(0.9).add_(0.1 * slope)
        square.mul_(0.999).add_(0.001 * slope**2)
        corrected = (square / (1 - 0.999**step)).sqrt() + 1e-12
        moved.append(mean / (1 - 0.9**step) / corrected)
    return moved


def muon(weights: list[Tensor], slopes: list[Tensor], step: int, state: dict[str, State]) -> list[Tensor]:
    """Muon (Jordan et al. 2024): momentum, made orthogonal, here exactly by its singular vectors."""
    means = state.setdefault("means", [torch.zeros_like(slope) for slope in slopes])
    moved = []
    for mean, slope in zip(means, slopes, strict=True):
        mean.mul_(0.95).add_(slope)
        left, _, right = torch.linalg.svd(slope + 0.95 * mean, full_matrices=False)
        moved.append(left @ right)
    return moved


METHODS: dict[str, tuple[float, int, Update]] = {
    "gradient descent": (0.02, 5000, descent),
    "Adam": (1e-3, 5000, adam),
    "Muon": (1e-3, 5000, muon),
}


def train(
    network: FullHead,
    start: list[tuple[Tensor, Tensor]],
    alpha: float,
    rate: float,
    steps: int,
    update: Update,
) -> list[Tensor]:
    """Singular values (steps, d) per product after every step, and last the loss (steps, 1)."""
    weights = [alpha * tensor for pair in start for tensor in pair]
    state: dict[str, State] = {}
    kept: list[list[Tensor]] = [[] for _ in range(len(start) + 1)]
    for step in range(1, steps + 1):
        products = [u @ v.T for u, v in zip(weights[::2], weights[1::2], strict=True)]
        value, gradients = network.value_and_gradient(*products)
        slopes = []
        for u, v, gradient in zip(weights[::2], weights[1::2], gradients, strict=True):
            slopes += [gradient @ v, gradient.T @ u]
        moves = update(weights, slopes, step, state)
        weights = [weight - rate * move for weight, move in zip(weights, moves, strict=True)]
        for place, product in enumerate(products):
            kept[place].append(torch.linalg.svdvals(product))
        kept[-1].append(value.reshape(1))
    return [torch.stack(many) for many in kept]


def show(row: Row) -> None:
    cells = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    ]
    print(", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
