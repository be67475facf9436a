"""What the benchmarks of flows measure: errors of stage times, and the time of what was cut short."""

import math

import torch
from torch import Tensor

LOG10_ALPHA, UNTIL, STAGES = -32.0, 2.0, 10
UNIT = -LOG10_ALPHA * math.log(10)
PATIENCE = 45.0
"""Seconds given to each alternative."""
Row = dict[str, float | int | str]


class OutOfPatience(Exception):
    """The solver took longer than it was given."""


def show(row: dict[str, float | int | str | bool]) -> None:
    """Print a row as soon as it is measured."""
    cells = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if name != "method"
    ]
    print(f"{row['method']:44s} {', '.join(cells)}", flush=True)


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
