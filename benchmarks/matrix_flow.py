"""The flow of full matrices against what a user would reach for: time, gradients, error of the stage times.

    python benchmarks/matrix_flow.py                # some 15 minutes on one core
    python benchmarks/matrix_flow.py --only ours    # one or two

One softmax head with full weights, d = 6, taught by a full one, to just after the eleventh of its twelve
stages. Seconds are those of the processor. The reference is our flow at a hundred times tighter tolerance,
itself checked in the tests against scipy and against the limit. A method that would run long is timed on a
part and its whole time extrapolated. Gradient descent and scipy are given our gradient in closed form, which
is faster than autograd.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from flow_rows import OutOfPatience, show
from torch import Tensor

from rankrise import predict
from rankrise.foundations.files import to_json, write_json
from rankrise.predict.types import FullHead, MatrixFlow

STAGES = 11
PATIENCE = 25.0
"""Seconds given to each alternative."""

Row = dict[str, float | int | str | bool]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "all"], default="all")
    parser.add_argument("--dimension", type=int, default=6)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    network = predict.full_head(options.dimension, 6, options.samples, seed=0, teacher="full")
    start = predict.random_start(network.shapes, seed=1)
    predict.greedy_matrices(network, max_stages=1)  # warm up
    until = 1.05 * predict.greedy_matrices(network, max_stages=STAGES)[-1].time
    seconds, stages = timed(lambda: predict.greedy_matrices(network, until=until))
    print(f"{len(stages)} stages until rescaled time {until:.4g}: {[round(s.time, 3) for s in stages]}")
    rows: list[Row] = [
        {
            "method": "the algorithm",
            "seconds": seconds,
            "gradients": stages.gradients,
            "hessian columns": stages.hessian_columns,
            "stages": len(stages),
        }
    ]
    show(rows[-1])
    references: dict[int, Tensor] = {}
    for scale in (-8, -32, -300):
        seconds, flow = timed(lambda scale=scale: predict.matrix_flow(network, start, scale, until))
        references[scale] = times_of(predict.matrix_flow(network, start, scale, until, tolerance=1e-7))
        rows.append(
            {
                "method": f"rankrise flow, 1e{scale}",
                "seconds": seconds,
                "gradients": flow.gradients,
                "hessian columns": flow.hessian_columns,
                "steps": flow.steps,
                "error": error(times_of(flow), references[scale]),
            }
        )
        show(rows[-1])
    ours = {scale: float(row["seconds"]) for scale, row in zip((-8, -32, -300), rows[1:], strict=True)}
    if options.only == "all":
        for method in ("DOP853", "LSODA"):
            for scale in (-8, -16):
                if scale not in references:
                    references[scale] = times_of(predict.matrix_flow(network, start, scale, until))
                rows.append(scipy_row(method, network, start, scale, until, references[scale]))
                show(rows[-1])
        for row in accurate_descent(network, start, until, references):
            scale = -8 if "1e-8" in str(row["method"]) else -32
            row["times ours at the same scale"] = float(row["seconds"]) / ours[scale]
            rows.append(row)
            show(row)
    rows.append(goals(rows, ours))
    if options.json:
        write_json(options.json, rows)
    print(to_json(rows))


def goals(rows: list[Row], ours: dict[int, float]) -> Row:
    """The three goals, as ratios."""
    found: Row = {
        "method": "goals",
        "1e-300 over 1e-32 (at most 2)": ours[-300] / ours[-32],
        "the algorithm over 1e-32 (at most 0.5)": float(rows[0]["seconds"]) / ours[-32],
    }
    if rows[-1]["method"] == "gradient descent, same step, 1e-32":
        found["gradient descent over the flow at 1e-32 (at least 20)"] = (
            float(rows[-1]["seconds"]) / ours[-32]
        )
    show(found)
    return found


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The processor's seconds of a run, and its result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def times_of(flow: MatrixFlow) -> Tensor:
    """All stage times of a flow, product by product."""
    return torch.cat(list(flow.activation_times()))


def error(found: Tensor, reference: Tensor) -> float:
    """The largest relative error of a stage time that the reference has."""
    there = reference.isfinite()
    return float(((found - reference)[there] / reference[there]).abs().max())


class Weights:
    """The plain flow in (U, V), as one vector: products below 1e-308 are zero, so alpha > 1e-150."""

    def __init__(self, network: FullHead, start: list[tuple[Tensor, Tensor]], log10_alpha: float) -> None:
        self.network, self.calls = network, 0
        self.shapes = [tensor.shape for pair in start for tensor in pair]
        self.start = 10.0**log10_alpha * torch.cat([tensor.flatten() for pair in start for tensor in pair])
        self.deadline = math.inf

    def split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def products(self, flat: Tensor) -> list[Tensor]:
        weights = self.split(flat)
        return [u @ v.T for u, v in zip(weights[::2], weights[1::2], strict=True)]

    def rate(self, flat: Tensor) -> Tensor:
        self.calls += 1
        if time.process_time() > self.deadline:
            raise OutOfPatience
        weights = self.split(flat)
        _, slopes = self.network.value_and_gradient(*self.products(flat))
        pairs = zip(weights[::2], weights[1::2], slopes, strict=True)
        return torch.cat([part.flatten() for u, v, g in pairs for part in (-g @ v, -g.T @ u)])

    def values(self, flat: Tensor) -> Tensor:
        return torch.cat([torch.linalg.svdvals(product) for product in self.products(flat)])


def scipy_row(
    method: str,
    network: FullHead,
    start: list[tuple[Tensor, Tensor]],
    scale: int,
    until: float,
    reference: Tensor,
) -> Row:
    """scipy in (U, V) at rtol 1e-6; an absolute tolerance below the weights, or they are invisible."""
    from scipy.integrate import solve_ivp

    weights, unit = Weights(network, start, scale), -scale * math.log(10)
    seen = [0.0]

    def rate(at: float, y: numpy.ndarray) -> numpy.ndarray:
        seen[0] = max(seen[0], at)
        return unit * weights.rate(torch.from_numpy(y)).numpy()

    row: Row = {"method": f"scipy {method} in (U, V), 1e{scale}"}
    began = time.process_time()
    weights.deadline = began + PATIENCE
    try:
        solved = solve_ivp(
            rate, (0, until), weights.start.numpy(), method, rtol=1e-6, atol=1e-6 * 10.0**scale
        )
    except OutOfPatience:
        part = seen[0] / until
        return row | {
            "seconds": PATIENCE / max(part, 1e-9),
            "gradients": weights.calls,
            "extrapolated from": part,
        }
    row |= {"seconds": time.process_time() - began, "gradients": weights.calls}
    if not solved.success:
        return row | {"failed": solved.message}
    values = torch.stack([weights.values(torch.from_numpy(numpy.ascontiguousarray(y))) for y in solved.y.T])
    return row | {"error": error(crossings(torch.from_numpy(solved.t), values), reference)}


def crossings(times: Tensor, values: Tensor, threshold: float = 1e-3) -> Tensor:
    """When each singular value first passes the threshold, on straight lines of its logarithm."""
    logs, level = values.clamp(min=1e-300).log(), math.log(threshold)
    found = []
    for column in logs.T:
        above = (column > level).nonzero()[:, 0]
        if not len(above) or int(above[0]) == 0:
            found.append(math.inf if not len(above) else 0.0)
            continue
        after = int(above[0])
        part = (level - column[after - 1]) / (column[after] - column[after - 1])
        found.append(float(times[after - 1] + part * (times[after] - times[after - 1])))
    return torch.tensor(found, dtype=torch.float64)


def accurate_descent(
    network: FullHead, start: list[tuple[Tensor, Tensor]], until: float, references: dict[int, Tensor]
) -> list[Row]:
    """Gradient descent at the largest step, halving from 0.1, whose stage times are within 1 % at 1e-8; and
    the same step at 1e-32.

    At 1e-32 no step is within 1 %: next to weights of size 1, float64 does not hold what waits at 1e-32.
    """
    step = 0.1
    while True:
        row = descend(network, start, -8, step, until, references[-8])
        if float(row["error"]) <= 0.01 or step < 1e-3:
            row["method"] = "gradient descent at 1 %, 1e-8"
            same = descend(network, start, -32, step, until, references[-32])
            same["method"] = "gradient descent, same step, 1e-32"
            return [row, same]
        step /= 2


def descend(
    network: FullHead,
    start: list[tuple[Tensor, Tensor]],
    scale: int,
    step: float,
    until: float,
    reference: Tensor,
) -> Row:
    """Gradient descent with a fixed step, for the time it is given; judged on the stages that it reaches."""
    unit, weights = -scale * math.log(10), Weights(network, start, scale)
    flat, times, values = weights.start, [], []
    began = time.process_time()
    number, every = 0, max(1, round(0.002 * unit / step))
    while number * step < until * unit and time.process_time() - began < PATIENCE:
        if number % every == 0:
            times.append(number * step / unit)
            values.append(weights.values(flat))
        flat = flat + step * weights.rate(flat)
        number += 1
    seconds, reached = time.process_time() - began, number * step / unit
    judged = torch.where(reference < reached / 1.02, reference, math.inf)
    found = crossings(torch.tensor(times, dtype=torch.float64), torch.stack(values))
    row: Row = {
        "method": "gradient descent",
        "step": step,
        "seconds": seconds * until / reached,
        "gradients": math.ceil(until * unit / step),
        "extrapolated from": min(1.0, reached / until),
        "error": error(found, judged) if judged.isfinite().any() else math.inf,
        "stages judged": int(judged.isfinite().sum()),
    }
    show(row)
    return row


if __name__ == "__main__":
    main()
