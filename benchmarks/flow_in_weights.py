"""What a user would reach for to follow the flow: descent, and solvers of scipy and torchdiffeq in (u, v)."""

import math
import time
import warnings
from collections.abc import Callable

import torch
from flow_rows import (
    LOG10_ALPHA,
    PATIENCE,
    STAGES,
    UNIT,
    UNTIL,
    OutOfPatience,
    Row,
    first_error,
    gave_up,
    outcome,
    stage_error,
)
from torch import Tensor

from rankrise.predict.types import DiagonalHead


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


def lsoda(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return scipy_row("LSODA", network, u0, v0, reference)


def bdf(network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor) -> Row:
    return scipy_row("BDF", network, u0, v0, reference)


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
