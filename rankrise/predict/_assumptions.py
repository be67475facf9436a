"""The assumptions of Theorem 4.5, checked stage by stage, each with the margin by which it holds.

Their numbers moved between versions of the paper, so they go by what they say: *nondegeneracy*, *strict
minima*, *noise robustness*.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._landing import land
from rankrise.predict._loss import Loss, LossFunction, checked_loss
from rankrise.predict._stages import Stages

_SAME_POINT = 1e-3
"""How far apart, as a fraction of the largest weight, two ends count as the same point."""

P = ParamSpec("P")


@dataclass(frozen=True)
class Assumption:
    """One assumption: whether it holds, its smallest `margin` over the stages, and the margin of each stage.

    A margin above zero means that the assumption holds; what it measures is said by `meaning`.
    """

    name: str
    holds: bool
    margin: float
    margins: tuple[float, ...]
    meaning: str


@dataclass(frozen=True)
class Checked:
    """Several assumptions that were checked, each a field."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has them: the one spelling of assumptions in files and on the terminal."""
        return asdict(self)

    @property
    def hold(self) -> bool:
        """Whether all of them hold."""
        return all(getattr(self, one.name).holds for one in fields(self))


@dataclass(frozen=True)
class Assumptions(Checked):
    """The three assumptions of Theorem 4.5 along the stages that were found."""

    nondegeneracy: Assumption
    strict_minima: Assumption
    noise_robustness: Assumption


def _size_was_second(function: Callable[P, Assumptions]) -> Callable[P, Assumptions]:
    """Take the old spelling, `check_assumptions(loss, size, stages)`, for one version, and warn."""

    @wraps(function)
    def taken(*arguments: Any, **named: Any) -> Assumptions:
        if len(arguments) > 1 and isinstance(arguments[1], int):
            message = "check_assumptions(loss, size, stages) is now check_assumptions(loss, stages)."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            arguments = (arguments[0], *arguments[2:])
        return function(*arguments, **named)

    return taken


@_size_was_second
@typed
def check_assumptions(
    loss: LossFunction, stages: Stages, noise: float = 1e-2, trials: int = 2, seed: int = 0
) -> Assumptions:
    """Check, for each stage, what Theorem 4.5 assumes of it.

    - *Nondegeneracy*: no other coordinate is due at the same time, and one that left the support is driven
      away from it. The margin is the gap to the runner-up as a fraction of the stage's time, or the drive on
      one that left as a fraction of the largest drive at zero.
    - *Strict minima*: the loss of u, with `a = s * u^2` on the support, has a positive definite Hessian at
      the stationary point. The margin is its smallest eigenvalue.
    - *Noise robustness*: stage B, started with Gaussian noise of standard deviation `noise` on the weights u
      of the old support (the paper's 1e-2), still ends at the same point. The margin is 1 minus the distance
      of the two ends, in thousandths of the largest weight.

    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> from rankrise import predict
    >>> check = predict.check_assumptions(loss, predict.greedy(loss, 2))
    >>> check.hold, round(check.nondegeneracy.margin, 6), round(check.strict_minima.margin, 6)
    (True, 1.0, 4.0)
    """
    if not (noise > 0 and trials >= 1):
        raise RankriseError(
            f"noise is {noise!r} and trials {trials!r}: pass a noise above 0 and at least one trial."
        )
    if not len(stages):
        raise RankriseError(f"stages is empty, so there is nothing to check ({stages.message}): pass others.")
    size, declared = len(stages[0].point), getattr(loss, "size", None)
    if declared not in (None, size):
        raise RankriseError(
            f"stages have {size} coordinates and the loss has {declared}: pass stages of the same loss."
        )
    checked = checked_loss(loss, size, stages[0].point.device)
    source = torch.Generator().manual_seed(seed)
    return Assumptions(
        judged("nondegeneracy", _gaps(checked, stages), "relative gap in time to the runner-up"),
        judged(
            "strict minima",
            _curvatures(checked, stages),
            "smallest eigenvalue of the Hessian in u on the support",
        ),
        judged(
            "noise robustness",
            _returns(checked, stages, noise, trials, source),
            "1 less the distance of stage B's end from its point, in thousandths of the largest weight",
        ),
    )


def judged(name: str, margins: list[float], meaning: str) -> Assumption:
    """An assumption that holds where its smallest margin is above zero."""
    smallest = min(margins)
    return Assumption(name, smallest > 0, smallest, tuple(margins), meaning)


def _gaps(loss: Loss, stages: Stages) -> list[float]:
    largest = float(loss.value_and_gradient(torch.zeros_like(stages[0].point))[1].abs().max())
    gaps = []
    for stage in stages:
        gap = 0.0 if stage.tied else (stage.runner_up - stage.time) / stage.time
        if stage.left:
            drive = loss.value_and_gradient(stage.point)[1][list(stage.left)].abs().min()
            gap = min(gap, float(drive) / largest)
        gaps.append(gap)
    return gaps


def _curvatures(loss: Loss, stages: Stages) -> list[float]:
    """For `a = s * u^2` at a stationary point, the Hessian in u is `4 (su) (su)^T * H`: the gradient's
    part vanishes there.
    """
    smallest = []
    for stage in stages:
        support = torch.tensor(stage.support, device=stage.point.device)
        weights = stage.point[support].sign() * stage.point[support].abs().sqrt()
        hessian = 4 * weights[:, None] * weights * loss.hessian(stage.point, support)[support]
        smallest.append(float(torch.linalg.eigvalsh(hessian)[0]) if len(support) else math.inf)
    return smallest


def _returns(loss: Loss, stages: Stages, noise: float, trials: int, source: torch.Generator) -> list[float]:
    before = torch.zeros_like(stages[0].point)
    margins = []
    for stage in stages:
        worst = math.inf
        for _ in range(trials):
            start = _noisy(before, noise, source)
            start[stage.coordinate] = stage.sign * noise**2
            support = start.nonzero()[:, 0]
            limit = land(loss.restricted(support), start[support])
            distance = math.inf if limit is None else _distance(limit, stage.point[support])
            allowed = _SAME_POINT * float(stage.point.abs().max().sqrt())
            worst = min(worst, 1 - distance / allowed)
        margins.append(worst)
        before = stage.point
    return margins


def _noisy(point: Tensor, noise: float, source: torch.Generator) -> Tensor:
    """`a = s * u^2` with noise on the weights u where they are not zero; a weight does not change its
    sign.
    """
    shift = noise * torch.randn(len(point), generator=source, dtype=point.dtype).to(point.device)
    weights = (point.abs().sqrt() + shift).abs()
    return torch.where(point == 0, 0.0, point.sign() * weights.square())


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest distance between the weights |u| of two points."""
    return float((one.abs().sqrt() - other.abs().sqrt()).abs().max())
