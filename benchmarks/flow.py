"""The exact flow against what a user would pick, on the paper's toy: seconds, ratio, error of the times.

    python benchmarks/flow.py                # about 15 minutes on 2 cores
    python benchmarks/flow.py --only ours    # seconds

The toy: one diagonal head, d = 50, 10 tokens, 1000 samples (p = 100), float64, alpha = 1e-32, to rescaled
time 2. The error is the largest relative error of a stage time against our flow at a hundred times tighter
tolerance, which the tests check against an integration in other coordinates. A method that would run long is
timed on a part, and its whole time extrapolated (marked ~).
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise import predict
from rankrise.predict.types import Coordinates, DiagonalHead

LOG10_ALPHA, UNTIL = -32.0, 2.0
UNIT = -LOG10_ALPHA * math.log(10)
THRESHOLD = 1e-3
PATIENCE = 60.0
"""Seconds given to each alternative."""


class OutOfPatience(Exception):
    """The solver took longer than it was given."""


class Gradient:
    """The network's gradient by plain autograd, as a user writes it, until patience ends."""

    def __init__(self, network: DiagonalHead) -> None:
        self.network, self.calls, self.deadline = network, 0, time.perf_counter() + PATIENCE

    def __call__(self, a: Tensor) -> Tensor:
        self.calls += 1
        if time.perf_counter() > self.deadline:
            raise OutOfPatience
        a = a.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.network(a), a)
        return gradient


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "all"], default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    network = predict.diagonal_head(options.dimension, 10, options.samples)
    u0, v0 = predict.random_start(network)
    network.value_and_gradient(u0 * v0)  # warm up
    seconds, flow = timed(lambda: predict.gradient_flow(network, u0, v0, LOG10_ALPHA, UNTIL))
    tight = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, UNTIL, tolerance=1e-7).activation_times()
    show("rankrise flow, 1e-32", seconds, seconds, flow.gradients, error(flow.activation_times(), tight))
    later, small = timed(lambda: predict.gradient_flow(network, u0, v0, -300.0, UNTIL))
    show("rankrise flow, 1e-300", later, seconds, small.gradients)
    limit, stages = timed(lambda: predict.greedy(network, until=UNTIL))
    show(f"Algorithm 1, {len(stages)} stages", limit, seconds)
    print(
        f"goals: 1e-300 within 1.3 times 1e-32: {later / seconds:.2f}; Algorithm 1 0.4: {limit / seconds:.2f}"
    )
    if options.only == "all":
        for method in (descent, bdf_in_z, lsoda, bdf):
            method(network, u0, v0, tight, seconds)


def descent(network: DiagonalHead, u0: Tensor, v0: Tensor, tight: Tensor, ours: float) -> None:
    """Gradient descent on (u, v)."""
    for step in (0.02, 0.0025):
        gradient = Gradient(network)
        u, v = u0 * 10**LOG10_ALPHA, v0 * 10**LOG10_ALPHA
        active, number, began = torch.full_like(u, math.inf), 0, time.perf_counter()
        try:
            while number * step < UNTIL * UNIT:
                slope = gradient(u * v)
                u, v, number = u - step * v * slope, v - step * u * slope, number + 1
                newly = ((u * v).abs() >= THRESHOLD) & active.isinf()
                active[newly] = number * step / UNIT
        except OutOfPatience:
            pass
        part = min(1.0, number * step / (UNTIL * UNIT))
        seconds = (time.perf_counter() - began) / part
        show(f"gradient descent, step {step:g}", seconds, ours, gradient.calls, error(active, tight), part)


def lsoda(network: DiagonalHead, u0: Tensor, v0: Tensor, tight: Tensor, ours: float) -> None:
    """scipy's LSODA in (u, v)."""
    in_weights("LSODA", network, u0, v0, tight, ours)


def bdf(network: DiagonalHead, u0: Tensor, v0: Tensor, tight: Tensor, ours: float) -> None:
    """scipy's BDF in (u, v)."""
    in_weights("BDF", network, u0, v0, tight, ours)


def in_weights(
    method: str, network: DiagonalHead, u0: Tensor, v0: Tensor, tight: Tensor, ours: float
) -> None:
    """scipy in (u, v); with a usual absolute tolerance it would not see a weight of 1e-32 at all."""
    gradient = Gradient(network)

    def rate(_: float, weights: numpy.ndarray) -> numpy.ndarray:
        u, v = torch.from_numpy(weights).chunk(2)
        slope = gradient(u * v)
        return (-UNIT * torch.cat([v * slope, u * slope])).numpy()

    def values(weights: numpy.ndarray) -> numpy.ndarray:
        u, v = numpy.split(weights, 2)
        return numpy.abs(u * v)

    start = torch.cat([u0, v0]).numpy() * 10**LOG10_ALPHA
    solve(
        f"scipy {method} in (u, v)",
        rate,
        start,
        gradient,
        values,
        tight,
        ours,
        method=method,
        rtol=1e-6,
        atol=1e-38,
    )


def bdf_in_z(network: DiagonalHead, u0: Tensor, v0: Tensor, tight: Tensor, ours: float) -> None:
    """scipy's BDF in the exact coordinate z with the exact Jacobian, without what ours knows of plateaus."""
    coordinates, z0 = Coordinates.of_weights(u0, v0, LOG10_ALPHA * math.log(10))
    assert network.teacher is not None
    low, high = coordinates.level(4 * float(network.teacher.abs().max()))
    gradient = Gradient(network)

    def clipped(z: numpy.ndarray) -> Tensor:
        return torch.clamp(torch.from_numpy(z), low, high)

    def rate(_: float, z: numpy.ndarray) -> numpy.ndarray:
        return (-2 * UNIT * gradient(coordinates.product(clipped(z)))).numpy()

    def jacobian(_: float, z: numpy.ndarray) -> numpy.ndarray:
        place = clipped(z)
        hessian = network.curvature(coordinates.product(place))
        return (-2 * UNIT * hessian * coordinates.slope(place)).numpy()

    def values(z: numpy.ndarray) -> numpy.ndarray:
        return coordinates.product(torch.from_numpy(z)).abs().numpy()

    options = {"method": "BDF", "jac": jacobian, "rtol": 1e-13, "atol": 1e-5 * UNIT}
    solve("scipy BDF in z", rate, z0.numpy(), gradient, values, tight, ours, **options)


def solve(
    name: str,
    rate: Callable[[float, numpy.ndarray], numpy.ndarray],
    start: numpy.ndarray,
    gradient: Gradient,
    values: Callable[[numpy.ndarray], numpy.ndarray],
    tight: Tensor,
    ours: float,
    **options: Any,
) -> None:
    """Run a solver of scipy until patience ends, and show what came of it."""
    from scipy.integrate import solve_ivp

    seen = [0.0]

    def watched(at: float, y: numpy.ndarray) -> numpy.ndarray:
        seen[0] = max(seen[0], at)
        return rate(at, y)

    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve_ivp(watched, (0, UNTIL), start, dense_output=True, **options)
    except OutOfPatience:
        part = max(seen[0] / UNTIL, 1e-9)
        show(name, PATIENCE / part, ours, gradient.calls, part=part)
        return
    seconds = time.perf_counter() - began
    times = torch.linspace(0, float(solution.t[-1]), 20_001, dtype=torch.float64)
    above = torch.from_numpy(numpy.stack([values(solution.sol(float(at))) for at in times])) >= THRESHOLD
    found = torch.where(above.any(0), times[above.int().argmax(0)], math.inf)
    show(name, seconds, ours, gradient.calls, error(found, tight), float(solution.t[-1]) / UNTIL)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def error(found: Tensor, tight: Tensor) -> float:
    """The largest relative error over the stages that both have."""
    both = tight.isfinite() & found.isfinite()
    return float(((found - tight)[both] / tight[both]).abs().max()) if both.any() else math.nan


def show(
    name: str, seconds: float, ours: float, gradients: int = 0, worst: float = math.nan, part: float = 1.0
) -> None:
    mark = "~" if part < 1 else " "
    print(
        f"{name:32s} {mark}{seconds:8.1f} s, {seconds / ours:6.2f} times ours, {gradients:7d} gradients, "
        f"error {worst:.2g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
