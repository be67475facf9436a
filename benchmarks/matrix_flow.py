"""The flow of full matrices against what a user would pick: seconds, their ratio, error of the stage times.

    python benchmarks/matrix_flow.py                # some minutes on one core
    python benchmarks/matrix_flow.py --only ours

One softmax head with full weights, d = 6, taught by a full one, to just after the eleventh of its twelve
stages. The reference is our flow at a hundred times tighter tolerance, which the tests check against scipy
and the limit. The alternatives get our gradient in closed form, which is faster than autograd. A method
that would run long is timed on a part, and its whole time extrapolated (marked ~).
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise import predict
from rankrise.predict.types import FullHead

STAGES = 11
PATIENCE = 30.0
"""Seconds given to each alternative."""

Start = tuple[list[Tensor], list[Tensor]]


class OutOfPatience(Exception):
    """The solver took longer than it was given."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "all"], default="all")
    parser.add_argument("--dimension", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)

    network = predict.full_head(options.dimension, 6, 100, teacher="full")
    start = predict.random_start(network)
    until = 1.05 * predict.greedy(network, max_stages=STAGES)[-1].time
    limit, stages = timed(lambda: predict.greedy(network, until=until))
    seconds, tight = {}, {}
    for scale in (-8, -32, -300):
        seconds[scale], flow = timed(lambda at=scale: predict.gradient_flow(network, *start, at, until))
        tight[scale] = times_of(predict.gradient_flow(network, *start, scale, until, tolerance=1e-7))
        worst = error(times_of(flow), tight[scale])
        show(f"rankrise flow, 1e{scale}", seconds[scale], seconds[-8], flow.gradients, worst)
    show(f"the algorithm, {len(stages)} stages", limit, seconds[-8], stages.gradients)
    print(
        f"goals: 1e-300 within 2 times 1e-32 ({seconds[-300] / seconds[-32]:.2f}); the algorithm 0.5 "
        f"({limit / seconds[-32]:.2f})"
    )
    if options.only == "all":
        for method in ("DOP853", "LSODA"):
            scipy_in_weights(method, network, start, -8, until, tight[-8], seconds[-8])
        for scale in (-8, -32):
            descent(network, start, scale, until, tight[scale], seconds[scale])


def times_of(flow: predict.Flow) -> Tensor:
    """All stage times of a flow, product by product."""
    return torch.cat(list(flow.activation_times()))


class Weights:
    """The plain flow in (U, V), as one vector; products below 1e-308 are zero, so alpha > 1e-150."""

    def __init__(self, network: FullHead, start: Start, log10_alpha: float) -> None:
        self.network, self.calls, self.deadline = network, 0, time.process_time() + PATIENCE
        self.shapes = [tensor.shape for pair in zip(*start, strict=True) for tensor in pair]
        tensors = [tensor.flatten() for pair in zip(*start, strict=True) for tensor in pair]
        self.start = 10.0**log10_alpha * torch.cat(tensors)

    def pairs(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        weights = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(weights[::2], weights[1::2], strict=True))

    def rate(self, flat: Tensor) -> Tensor:
        self.calls += 1
        if time.process_time() > self.deadline:
            raise OutOfPatience
        pairs = self.pairs(flat)
        _, slopes = self.network.value_and_gradient(*(u @ v.T for u, v in pairs))
        moved = [part for (u, v), g in zip(pairs, slopes, strict=True) for part in (-g @ v, -g.T @ u)]
        return torch.cat([part.flatten() for part in moved])

    def logs(self, flat: Tensor) -> Tensor:
        values = torch.cat([torch.linalg.svdvals(u @ v.T) for u, v in self.pairs(flat)])
        return values.clamp(min=1e-300).log()


def scipy_in_weights(
    method: str, network: FullHead, start: Start, scale: int, until: float, tight: Tensor, ours: float
) -> None:
    """scipy in (U, V); the absolute tolerance lies below the weights, or they are invisible."""
    from scipy.integrate import solve_ivp

    weights, unit, seen = Weights(network, start, scale), -scale * math.log(10), [0.0]

    def rate(at: float, y: numpy.ndarray) -> numpy.ndarray:
        seen[0] = max(seen[0], at)
        return unit * weights.rate(torch.from_numpy(y)).numpy()

    name, began = f"scipy {method} in (U, V), 1e{scale}", time.process_time()
    try:
        solved = solve_ivp(
            rate, (0, until), weights.start.numpy(), method, rtol=1e-6, atol=1e-6 * 10.0**scale
        )
    except OutOfPatience:
        part = max(seen[0] / until, 1e-9)
        show(name, PATIENCE / part, ours, weights.calls, part=part)
        return
    seconds = time.process_time() - began
    logs = [weights.logs(torch.from_numpy(numpy.ascontiguousarray(y))) for y in solved.y.T]
    show(name, seconds, ours, weights.calls, error(crossings(solved.t.tolist(), logs), tight))


def descent(network: FullHead, start: Start, scale: int, until: float, tight: Tensor, ours: float) -> None:
    """Gradient descent at a step whose stage times are within 1 % at 1e-8. At 1e-32 no step is: next to
    weights of size 1, float64 does not hold what waits at 1e-32.
    """
    step, unit, weights = 0.00625, -scale * math.log(10), Weights(network, start, scale)
    flat, number, every = weights.start, 0, max(1, round(0.002 * unit / step))
    times, logs, began = list[float](), list[Tensor](), time.process_time()
    try:
        while number * step < until * unit:
            if number % every == 0:
                times.append(number * step / unit)
                logs.append(weights.logs(flat))
            flat, number = flat + step * weights.rate(flat), number + 1
    except OutOfPatience:
        pass
    part = min(1.0, number * step / (until * unit))
    seconds = (time.process_time() - began) / part
    reached = torch.where(tight < 0.98 * part * until, tight, math.inf)
    worst = error(crossings(times, logs), reached)
    show(f"gradient descent, 1e{scale}", seconds, ours, weights.calls, worst, part)


def crossings(times: list[float], logs: list[Tensor]) -> Tensor:
    """When each singular value first passes 1e-3, on straight lines of its logarithm."""
    level, at, found = math.log(1e-3), torch.tensor(times, dtype=torch.float64), []
    for column in torch.stack(logs).T:
        above = (column > level).nonzero()[:, 0]
        after = int(above[0]) if len(above) else 0
        part = (level - column[after - 1]) / (column[after] - column[after - 1])
        found.append(float(at[after - 1] + part * (at[after] - at[after - 1])) if after else math.inf)
    return torch.tensor(found, dtype=torch.float64)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The processor's seconds, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def error(found: Tensor, tight: Tensor) -> float:
    """The largest relative error of the stages that the reference has."""
    both = tight.isfinite()
    return float(((found - tight)[both] / tight[both]).abs().max()) if both.any() else math.nan


def show(
    name: str, seconds: float, ours: float, gradients: int, worst: float = math.nan, part: float = 1.0
) -> None:
    mark = "~" if part < 1 else " "
    print(
        f"{name:32s} {mark}{seconds:7.1f} s, {seconds / ours:6.2f} times ours, {gradients:7d} gradients, "
        f"error {worst:.2g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
