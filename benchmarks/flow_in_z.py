"""scipy's solvers in our exact coordinate z, without what ours is told of plateaus."""

import math
import time
from collections.abc import Callable

import numpy
import torch
from flow_rows import LOG10_ALPHA, PATIENCE, UNIT, UNTIL, OutOfPatience, Row, gave_up, stage_error
from torch import Tensor

from rankrise.predict.types import DiagonalHead

PATIENCE_IN_Z = 8 * PATIENCE
"""More for those that come closest, so that they reach the end and their error is known."""
AS_GOOD = 3e-5
"""The error of our stage times at our default tolerance, about: what an alternative in z has to reach."""


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
