"""The exact flow against what a user would pick: seconds, their ratio, and the error of the stage times.

    python benchmarks/flow.py                         # about 10 minutes on 2 cores
    python benchmarks/flow.py --only ours             # seconds
    python benchmarks/flow.py --weights full          # some minutes on one core

Diagonal: the paper's toy, one head with d = 50, 10 tokens and 1000 samples (p = 100), from 1e-32 to rescaled
time 2. Full: one softmax head with d = 6, taught by a full one, from 1e-8 to just after the eleventh of its
twelve stages. The error is the largest relative error of a stage time against our flow at a hundred times
tighter tolerance. The alternatives work on the weights (u, v) with the network's own gradient. One that would
run long is timed on a part, and its whole time extrapolated (marked ~).
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise import predict

THRESHOLD = 1e-3
PATIENCE = 60.0
"""Seconds given to each alternative."""


class OutOfPatience(Exception):
    """The solver took longer than it was given."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "all"], default="all")
    parser.add_argument("--weights", choices=["diagonal", "full"], default="diagonal")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--samples", type=int)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    network: Any
    if options.weights == "diagonal":
        network = predict.diagonal_head(options.dimension or 50, 10, options.samples or 1000)
        scales, until, alternatives = (-32, -300), 2.0, ("LSODA", "BDF")
    else:
        network = predict.full_head(options.dimension or 6, 6, options.samples or 100, teacher="full")
        scales, until = (-8, -32, -300), 1.05 * predict.greedy(network, max_stages=11)[-1].time
        alternatives = ("DOP853", "LSODA")
    start = predict.random_start(network)
    predict.gradient_flow(network, *start, -8, 0.01)  # warm up
    seconds, tight = dict[int, float](), dict[int, Tensor]()
    for scale in scales:
        seconds[scale], flow = timed(lambda at=scale: predict.gradient_flow(network, *start, at, until))
        finer = predict.gradient_flow(network, *start, scale, until, tolerance=1e-7)
        tight[scale] = times_of(finer)
        worst = error(times_of(flow), tight[scale])
        show(f"rankrise flow, 1e{scale}", seconds[scale], seconds[scales[0]], flow.gradients, worst)
    limit, stages = timed(lambda: predict.greedy(network, until=until))
    show(f"Algorithm 1, {len(stages)} stages", limit, seconds[scales[0]], stages.gradients)
    print(f"1e-300 over 1e-32: {seconds[-300] / seconds[-32]:.2f}")
    print(f"Algorithm 1 over 1e-32: {limit / seconds[-32]:.2f}")
    if options.only == "all":
        for method in alternatives:
            scipy(method, Weights(network, start, scales[0]), until, tight[scales[0]], seconds[scales[0]])
        # From 1e-32 no step is good with full weights: float64 does not hold it beside weights of size 1.
        runs = (
            ((-32, 0.02), (-32, 0.0025)) if options.weights == "diagonal" else ((-8, 0.00625), (-32, 0.00625))
        )
        for scale, step in runs:
            descent(step, Weights(network, start, scale), until, tight[scale], seconds[scale])


def times_of(flow: predict.Flow) -> Tensor:
    """All stage times of a flow."""
    found = flow.activation_times(THRESHOLD)
    return found if flow.diagonal else torch.cat(found)


class Weights:
    """The plain flow in (u, v) as one vector, until patience ends; products below 1e-308 are zero.

    The absolute tolerance of a solver lies below the weights, or they would be invisible.
    """

    def __init__(self, network: Any, start: Sequence[Any], scale: int) -> None:
        self.network, self.calls, self.deadline = network, 0, time.perf_counter() + PATIENCE
        self.diagonal, self.scale, self.unit = hasattr(network, "size"), scale, -scale * math.log(10)
        tensors = [*start] if self.diagonal else [one for pair in zip(*start, strict=True) for one in pair]
        self.shapes = [tensor.shape for tensor in tensors]
        self.start = 10.0**scale * torch.cat([tensor.flatten() for tensor in tensors])
        self.options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6 * 10.0**scale}

    def split(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The pairs (u, v)."""
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        weights = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(weights[::2], weights[1::2], strict=True))

    def rate(self, flat: Tensor) -> Tensor:
        """The rate in time t."""
        pairs = self.split(flat)
        if self.diagonal:
            ((u, v),) = pairs
            slope = self.gradient(u * v)
            return -torch.cat([v * slope, u * slope])
        slopes = self.gradient(*(u @ v.T for u, v in pairs))
        moved = [part for (u, v), g in zip(pairs, slopes, strict=True) for part in (-g @ v, -g.T @ u)]
        return torch.cat([part.flatten() for part in moved])

    def gradient(self, *products: Tensor) -> Any:
        """The network's own gradient."""
        self.calls += 1
        if time.perf_counter() > self.deadline:
            raise OutOfPatience
        return self.network.value_and_gradient(*products)[1]

    def logs(self, flat: Tensor) -> Tensor:
        """The logarithms of all singular values."""
        pairs = self.split(flat)
        values = [(u * v).abs() if self.diagonal else torch.linalg.svdvals(u @ v.T) for u, v in pairs]
        return torch.cat(values).clamp(min=1e-300).log()


def scipy(method: str, weights: Weights, until: float, tight: Tensor, ours: float) -> None:
    """A solver of scipy."""
    from scipy.integrate import solve_ivp

    seen = [0.0]

    def rate(at: float, y: numpy.ndarray) -> numpy.ndarray:
        seen[0] = max(seen[0], at)
        return weights.unit * weights.rate(torch.from_numpy(y)).numpy()

    name, began = f"scipy {method}, 1e{weights.scale}", time.perf_counter()
    solver = {"method": method, "dense_output": True, **weights.options}
    try:
        solved = solve_ivp(rate, (0, until), weights.start.numpy(), **solver)
    except OutOfPatience:
        part = max(seen[0] / until, 1e-9)
        show(name, PATIENCE / part, ours, weights.calls, part=part)
        return
    seconds = time.perf_counter() - began
    times = numpy.linspace(0, solved.t[-1], 20_001)
    logs = [weights.logs(torch.from_numpy(solved.sol(at))) for at in times]
    show(name, seconds, ours, weights.calls, error(crossings(times.tolist(), logs), tight))


def descent(step: float, weights: Weights, until: float, tight: Tensor, ours: float) -> None:
    """Gradient descent."""
    flat, number, every = weights.start, 0, max(1, round(0.002 * weights.unit / step))
    times, logs, began = list[float](), list[Tensor](), time.perf_counter()
    try:
        while number * step < until * weights.unit:
            if number % every == 0:
                times.append(number * step / weights.unit)
                logs.append(weights.logs(flat))
            flat, number = flat + step * weights.rate(flat), number + 1
    except OutOfPatience:
        pass
    part = min(1.0, number * step / (until * weights.unit))
    seconds = (time.perf_counter() - began) / part
    reached = torch.where(tight < 0.98 * part * until, tight, math.inf)
    worst = error(crossings(times, logs), reached)
    show(f"gradient descent, 1e{weights.scale}, step {step:g}", seconds, ours, weights.calls, worst, part)


def crossings(times: list[float], logs: list[Tensor]) -> Tensor:
    """When each singular value first passes the threshold, on straight lines of its logarithm."""
    level, found = math.log(THRESHOLD), []
    for column in torch.stack(logs).T.tolist():
        after = next((number for number, one in enumerate(column) if one > level), 0)
        ends = column[after - 1], column[after]
        part = (level - ends[0]) / (ends[1] - ends[0]) if after else 0.0
        found.append(times[after - 1] + part * (times[after] - times[after - 1]) if after else math.inf)
    return torch.tensor(found, dtype=torch.float64)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def error(found: Tensor, tight: Tensor) -> float:
    """The largest relative error of the stages that the reference has."""
    both = tight.isfinite()
    return float(((found - tight)[both] / tight[both]).abs().max()) if both.any() else math.nan


def show(
    name: str, seconds: float, ours: float, gradients: int, worst: float = math.nan, part: float = 1.0
) -> None:
    mark = "~" if part < 1 else " "
    print(
        f"{name:36s} {mark}{seconds:8.1f} s, {seconds / ours:6.2f} times ours, {gradients:7d} gradients, "
        f"error {worst:.2g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
