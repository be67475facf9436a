"""The exact flow against what a user would reach for, on the paper's toy: time, gradients, error of the stage
times.

    python benchmarks/flow.py                # about 25 minutes on 2 cores
    python benchmarks/flow.py --only ours    # seconds
    python benchmarks/flow.py --only z       # ours, and plain solvers of scipy in our coordinate: minutes
    python benchmarks/flow.py --only sizes   # ours for transformers of up to 4,000 coordinates: minutes

The toy: one diagonal head, d = 50, 10 tokens, 1000 samples (p = 100), float64, alpha = 1e-32, to rescaled
time 2.0. Ours is scipy's BDF in the exact coordinate z, told of plateaus; plain BDF in z shows what that is
worth. The reference is our flow at a tolerance a hundred times tighter, itself checked in the tests
against an integration in other coordinates. A method that would run long is timed on a part, and its whole
time extrapolated (marked ~).
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.files import to_json, write_json
from rankrise.predict.types import DiagonalHead

LOG10_ALPHA, UNTIL, STAGES = -32.0, 2.0, 10
UNIT = -LOG10_ALPHA * math.log(10)
PATIENCE = 45.0
"""Seconds given to each alternative."""
PATIENCE_IN_Z = 8 * PATIENCE
"""More for those that come closest, so that they reach the end and their error is known."""
AS_GOOD = 3e-5
"""The error of our stage times at our default tolerance, about: what an alternative in z has to reach."""

Row = dict[str, float | int | str]


class Counted:
    """The network's gradient by plain autograd, as a user writes it, counting its calls."""

    def __init__(self, network: DiagonalHead) -> None:
        self.network, self.calls = network, 0

    def __call__(self, a: Tensor) -> Tensor:
        self.calls += 1
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.network(a), a)
        return gradient


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "z", "sizes", "all"], default="all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    rows = [] if options.only == "sizes" else on_the_toy(options)
    if options.only in ("sizes", "all"):
        rows += scaling()
    if options.json:
        write_json(options.json, rows)
    print(to_json(rows))


def on_the_toy(options: argparse.Namespace) -> list[Row]:
    """Ours on the paper's toy, and the alternatives that are asked for."""
    network = predict.diagonal_head(options.dimension, 10, options.samples, seed=0, device=options.device)
    u0, v0 = predict.random_initialisation(network.size, seed=1, device=options.device)
    network.value_and_gradient(u0 * v0)  # warm up
    reference = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, UNTIL, tolerance=1e-7).activation_times()
    scales = (LOG10_ALPHA,) if options.only == "z" else (LOG10_ALPHA, -300.0)
    rows = ours(network, u0, v0, reference, scales)
    show(rows)
    in_z, others = (bdf_in_z, lsoda_in_z), (descent, accurate_descent, lsoda, bdf, dopri5)
    alternatives = {"ours": (), "z": in_z, "all": in_z + others}
    for alternative in alternatives[options.only]:
        row = alternative(network, u0, v0, reference)
        row["times ours"] = float(row["seconds"]) / float(rows[0]["seconds"])
        rows.append(row)
        show(rows[-1:])
    return rows


def ours(
    network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor, scales: tuple[float, ...]
) -> list[Row]:
    """The flow at some scales and Algorithm 1, at their defaults; the best of three runs each."""
    rows = []
    for log10_alpha in scales:
        seconds, flow = best(lambda scale=log10_alpha: predict.gradient_flow(network, u0, v0, scale, UNTIL))
        row: Row = {
            "method": f"rankrise flow, 1e{log10_alpha:.0f}",
            "seconds": seconds,
            "steps": len(flow.times) - 1,
            "gradients": flow.gradients,
            "hessian columns": flow.hessian_columns,
            "active": int((flow.values[-1].abs() > 1e-3).sum()),
            "loss": float(flow.losses[-1]),
        }
        exact = reference
        if log10_alpha != LOG10_ALPHA:
            exact = predict.gradient_flow(
                network, u0, v0, log10_alpha, UNTIL, tolerance=1e-8
            ).activation_times()
        row["error, all stages"] = stage_error(flow.activation_times(), exact)
        rows.append(row)
    seconds, stages = best(lambda: predict.greedy(network, until=UNTIL, device=u0.device))
    rows.append({"method": "Algorithm 1", "seconds": seconds, "stages": len(stages)})
    for row in rows[1:]:
        row["times ours"] = float(row["seconds"]) / float(rows[0]["seconds"])
    return rows


def best(work: Callable[[], object], repeats: int = 3) -> tuple[float, object]:
    """The least time of a few runs, and the result."""
    seconds, result = math.inf, None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


def descend(
    network: DiagonalHead,
    u0: Tensor,
    v0: Tensor,
    step: float,
    until: float,
    patience: float = PATIENCE,
) -> tuple[Row, Tensor]:
    """Plain gradient descent on (u, v): when each coordinate passes 1e-3, and how long it took."""
    gradient = Counted(network)
    u, v = u0 * 10**LOG10_ALPHA, v0 * 10**LOG10_ALPHA
    active = torch.full_like(u, math.inf)
    steps = math.ceil(UNTIL * UNIT / step)
    start = time.perf_counter()
    done = 0
    while done < until * UNIT / step:
        g = gradient(u * v)
        u, v = u - step * v * g, v - step * u * g
        done += 1
        newly = ((u * v).abs() >= 1e-3) & active.isinf()
        active[newly] = done * step / UNIT
        if time.perf_counter() - start > patience:
            break
    seconds = (time.perf_counter() - start) * steps / done
    row: Row = {"seconds": seconds, "gradients": steps, "extrapolated from": done / steps}
    if done >= steps:
        row |= {"active": int(((u * v).abs() > 1e-3).sum()), "loss": float(network(u * v))}
    return row, active.cpu()


def descent(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    """Gradient descent at step 0.02, to the end."""
    row, active = descend(network, u0, v0, 0.02, UNTIL, patience=4 * PATIENCE)
    first = first_error(active, reference)
    return (
        {"method": "gradient descent, step 0.02"}
        | row
        | {"error, first ten": first, "error, all stages": stage_error(active, reference)}
    )


def accurate_descent(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    """Gradient descent at the largest step (halving from 0.01) whose first ten stage times are within 1 %."""
    tenth = float(reference.sort().values[STAGES - 1])
    step = 0.01
    while True:
        row, active = descend(network, u0, v0, step, 1.05 * tenth, patience=4 * PATIENCE)
        error = first_error(active, reference)
        if error <= 0.01 or float(row["extrapolated from"]) * UNTIL < tenth:
            return {"method": f"gradient descent, step {step:g} (1 %)"} | row | {"error, first ten": error}
        step /= 2


def lsoda(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return scipy_row("LSODA", network, u0, v0, reference)


def bdf(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return scipy_row("BDF", network, u0, v0, reference)


class OutOfPatience(Exception):
    """The solver took longer than it was given."""


def flow_in_weights(
    network: DiagonalHead,
) -> tuple[Counted, Callable[[float, Tensor], Tensor], dict[str, float]]:
    """`d(u, v)/dt` in rescaled time, stopping by exception when patience ends; the last time it saw is
    kept.
    """
    gradient, seen = Counted(network), {"time": 0.0}
    deadline = time.perf_counter() + PATIENCE

    def rate(at: float, weights: Tensor) -> Tensor:
        if time.perf_counter() > deadline:
            raise OutOfPatience
        seen["time"] = max(seen["time"], float(at))
        u, v = weights.chunk(2)
        g = gradient(u * v)
        return -UNIT * torch.cat([v * g, u * g])

    return gradient, rate, seen


def scipy_row(method: str, network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    """scipy in (u, v) with rtol 1e-6; an absolute tolerance below the weights' own size, or they are
    invisible.
    """
    from scipy.integrate import solve_ivp

    gradient, rate, seen = flow_in_weights(network)
    start = torch.cat([u0, v0]) * 10**LOG10_ALPHA
    began = time.perf_counter()
    row: Row = {"method": f"scipy {method} in (u, v)"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve_ivp(
                lambda at, y: rate(at, torch.from_numpy(y)).numpy(),
                (0, UNTIL),
                start.numpy(),
                method=method,
                rtol=1e-6,
                atol=1e-38,
            )
        row |= outcome(solution.t, solution.y.T, solution.message if not solution.success else "", reference)
        row["seconds"] = time.perf_counter() - began
    except OutOfPatience:
        row |= gave_up(seen["time"], time.perf_counter() - began)
    return row | {"gradients": gradient.calls}


def bdf_in_z(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return as_accurate_in_z("BDF", network, u0, v0, reference)


def lsoda_in_z(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return as_accurate_in_z("LSODA", network, u0, v0, reference)


def as_accurate_in_z(method: str, network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    """scipy in z at the loosest of some tolerances whose stage times are as good as ours are."""
    row: Row = {}
    for tolerance in (1e-5, 3e-6, 1e-6, 3e-7):
        row = scipy_in_z(method, network, u0, v0, reference, tolerance)
        if "failed" in row or "error, all stages" not in row or float(row["error, all stages"]) <= AS_GOOD:
            break
    return row


def scipy_in_z(
    method: str, network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor, tolerance: float
) -> Row:
    """`solve_ivp` in the exact coordinate z, with the gradient in closed form, the Jacobian `-2 H(a)
    diag(da/dz)` where it is not zero, and trial `|a|` clipped to a bound that the flow never reaches. The
    tolerance is in the unit of ours, but of the root mean square over coordinates.
    """
    from scipy.integrate import solve_ivp

    from rankrise.predict._loss import checked_loss

    loss = checked_loss(network, network.size)
    gap = (u0**2 - v0**2).abs()
    lift = gap.log() + 2 * LOG10_ALPHA * math.log(10) - math.log(4)
    highest = math.log(4 * float(network.teacher.abs().max())) - lift
    seen, jacobians = {"time": 0.0}, []
    deadline = time.perf_counter() + PATIENCE_IN_Z

    def place(z: numpy.ndarray) -> tuple[Tensor, Tensor]:
        """`a` and `da/dz`."""
        clipped = torch.clamp(torch.from_numpy(z), -highest, highest)
        rising, falling = torch.exp(lift + clipped), torch.exp(lift - clipped)
        return rising - falling, rising + falling

    def rate(at: float, z: numpy.ndarray) -> numpy.ndarray:
        if time.perf_counter() > deadline:
            raise OutOfPatience
        seen["time"] = max(seen["time"], float(at))
        return (-2 * UNIT * loss.value_and_gradient(place(z)[0])[1]).numpy()

    def jacobian(at: float, z: numpy.ndarray) -> numpy.ndarray:
        jacobians.append(at)
        a, slope = place(z)
        active = (slope > 1e-6).nonzero()[:, 0]
        columns = torch.zeros(len(a), len(a), dtype=a.dtype)
        if len(active):
            columns[:, active] = loss.curvature(a, active) * slope[active]
        return (-2 * UNIT * columns).numpy()

    row: Row = {"method": f"scipy {method} in z, tolerance {tolerance:g}"}
    began = time.perf_counter()
    try:
        solution = solve_ivp(
            rate,
            (0, UNTIL),
            torch.asinh(2 * u0 * v0 / gap).numpy(),
            method=method,
            jac=jacobian,
            rtol=1e-13,
            atol=tolerance * UNIT,
            dense_output=True,
        )
        row["seconds"] = time.perf_counter() - began
        if not solution.success:
            row["failed"] = f"stopped at rescaled time {solution.t[-1]:.3g}: {solution.message}"
        else:
            found = first_times(solution.sol, (math.log(1e-3) - lift).numpy())
            row |= {"steps": len(solution.t) - 1, "error, all stages": stage_error(found, reference)}
    except OutOfPatience:
        row |= gave_up(seen["time"], time.perf_counter() - began)
    return row | {"gradients": loss.gradients, "Jacobians": len(jacobians), "hessian columns": loss.columns}


def first_times(solution: Callable[[numpy.ndarray], numpy.ndarray], level: numpy.ndarray) -> Tensor:
    """When each |z| first reaches its level (p,), on a fine grid of a dense solution with straight lines
    between its points; inf where it never does.
    """
    times = torch.linspace(0, UNTIL, 20_001, dtype=torch.float64)
    height = torch.from_numpy(solution(times.numpy())).abs() - torch.from_numpy(level)[:, None]
    after = (height >= 0).int().argmax(1).clamp(min=1)
    before, here = (height.gather(1, index[:, None])[:, 0] for index in (after - 1, after))
    crossed = times[after] - (times[1] - times[0]) * here / (here - before)
    return torch.where((height >= 0).any(1), crossed, math.inf)


def dopri5(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    """torchdiffeq's default solver in (u, v), rtol 1e-6."""
    from torchdiffeq import odeint

    gradient, rate, seen = flow_in_weights(network)
    start = torch.cat([u0, v0]) * 10**LOG10_ALPHA
    times = torch.linspace(0, UNTIL, 2001, dtype=torch.float64)
    began = time.perf_counter()
    row: Row = {"method": "torchdiffeq dopri5 in (u, v)"}
    try:
        with torch.no_grad():
            weights = odeint(
                lambda at, y: rate(float(at), y), start, times, rtol=1e-6, atol=1e-38, method="dopri5"
            )
        row |= outcome(times.numpy(), weights.numpy(), "", reference)
        row["seconds"] = time.perf_counter() - began
    except OutOfPatience:
        row |= gave_up(seen["time"], time.perf_counter() - began)
    except (AssertionError, RuntimeError) as error:
        row |= {"seconds": time.perf_counter() - began, "failed": str(error).splitlines()[0]}
    return row | {"gradients": gradient.calls}


def outcome(times: object, weights: object, message: str, reference: Tensor) -> Row:
    """The error of a solution's stage times, or how it failed."""
    times, weights = torch.as_tensor(times), torch.as_tensor(weights)
    if message or float(times[-1]) < UNTIL * (1 - 1e-9):
        return {"failed": f"stopped at rescaled time {float(times[-1]):.3g}: {message}"}
    half = weights.shape[1] // 2
    products = (weights[:, :half] * weights[:, half:]).abs()
    above = products >= 1e-3
    first = above.int().argmax(0)
    found = torch.where(above.any(0), times[first], math.inf)
    return {
        "error, first ten": first_error(found, reference),
        "error, all stages": stage_error(found, reference),
    }


def gave_up(reached: float, seconds: float) -> Row:
    """What a method that ran out of patience would have taken at its mean pace."""
    if reached <= 0:
        return {"seconds": math.inf, "failed": f"no progress in {seconds:.0f} s"}
    return {"seconds": seconds * UNTIL / reached, "extrapolated from": reached / UNTIL}


def first_error(found: Tensor, reference: Tensor) -> float:
    """The largest relative error of the first ten stage times."""
    first = reference.argsort()[:STAGES]
    return float(((found - reference)[first] / reference[first]).abs().max())


def stage_error(found: Tensor, reference: Tensor) -> float:
    """The largest relative error over all stages that both have; the number missing is in the row's
    `active`.
    """
    both = reference.isfinite() & found.isfinite()
    return float(((found - reference)[both] / reference[both]).abs().max())


def scaling() -> list[Row]:
    """Time of the flow against p for the diagonal transformer: the same rescaled time in every size."""
    rows = []
    for dimension, layers, heads in ((25, 2, 2), (25, 4, 5), (50, 4, 5), (50, 4, 10)):
        network = predict.diagonal_transformer(dimension, layers, heads, tokens=8, samples=50)
        u0, v0 = predict.random_initialisation(network.size, seed=1)
        gradient_seconds, _ = best(lambda net=network, u=u0, v=v0: net.value_and_gradient(u * v * 1e-3))
        start = time.perf_counter()
        first = 1 / float(network.value_and_gradient(torch.zeros_like(u0))[1].abs().max())
        until = 1.5 * first
        flow = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, until=until)
        rows.append(
            {
                "method": f"rankrise flow, transformer, p = {network.size}",
                "seconds": time.perf_counter() - start,
                "gradients": flow.gradients,
                "hessian columns": flow.hessian_columns,
                "active": int((flow.values[-1].abs() > 1e-3).sum()),
                "seconds per gradient": gradient_seconds,
            }
        )
        tight = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, until, tolerance=1e-7)
        rows[-1]["error, all stages"] = stage_error(flow.activation_times(), tight.activation_times())
        show(rows[-1:])
    return rows


def show(rows: list[Row] | Row) -> None:
    for row in [rows] if isinstance(rows, dict) else rows:
        cells = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
            if name != "method"
        ]
        print(f"{row['method']:44s} {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
