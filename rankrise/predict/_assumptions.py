"""The theory's assumptions, named by what they say: their numbers moved between versions of the paper."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.predict._diagonal import Coordinates, land
from rankrise.predict._flow import Flow, diagonal_flow
from rankrise.predict._greedy import Stage, Stages
from rankrise.predict._loss import Loss, LossFunction, checked_loss
from rankrise.predict._matrices.active import FactorSpace, Linearised, balanced

_SAME_POINT = 1e-3  # two ends this close, as a fraction of the largest weight, are the same point
_DURATION = 20.0  # The paper trains on for 1000 epochs without naming its step; 0.02 is stable at its size


@dataclass(frozen=True)
class Assumption:
    """Whether an assumption holds: its `margin`, the smallest of the `margins` of the stages, is above 0."""

    holds: bool
    margin: float
    margins: tuple[float, ...]


class Assumptions(dict[str, Assumption]):
    """What the theory assumes along the stages that were found, by name."""

    @property
    def hold(self) -> bool:
        """Whether all of them hold."""
        return all(one.holds for one in self.values())

    def to_dict(self) -> dict[str, Any]:
        """Every assumption, for JSON."""
        return {name: asdict(one) for name, one in self.items()}

    def __repr__(self) -> str:
        columns = {
            "assumption": [name.replace("_", " ") for name in self],
            "holds": ["yes" if one.holds else "no" for one in self.values()],
            "margin": [f"{one.margin:.3g}" for one in self.values()],
        }
        return text_table("All hold:" if self.hold else "Not all hold:", columns)


def check_assumptions(
    loss: LossFunction, stages: Stages, noise: float = 1e-2, trials: int = 2, seed: int = 0
) -> Assumptions:
    """Check what the theory assumes of each stage.

    - `"nondegeneracy"`: no other direction is due at the same time, and a coordinate that left the support is
      driven away from it. The margin is the gap to the runner-up as a fraction of the stage's time, or the
      drive on one that left as a fraction of the largest drive at zero.
    - `"strict_minima"`: the smallest eigenvalue of the Hessian at the point of rest, the margin, is above 0:
      in u, with v equal to u up to its sign; for matrices in U and V, apart from the gauge `U g, V g^-T`.
    - `"noise_robustness"` (diagonal): stage B, started with Gaussian noise of standard deviation `noise` on
      the weights of the old support, ends at the same point in every one of the `trials`. The margin is 1
      minus the distance of the two ends, in thousandths of the largest weight.
    - `"gradient_at_zero"` (matrices): the margin is its largest singular value.
    - `"mixing"` (matrices): transitions couple the directions of a product, so ordered exponents add. The
      margin is the weakest link, as a fraction of the gradient, and 0 where directions fall into blocks.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> predict.check_assumptions(loss, predict.greedy(loss, 2))
    All hold:
            assumption  holds  margin
         nondegeneracy    yes       1
         strict minima    yes       4
      noise robustness    yes       1
    """
    if not stages:
        raise RankriseError(f"stages is empty, so there is nothing to check ({stages.message}): pass others.")
    size = len(stages.shapes) if stages.diagonal else None
    checked = checked_loss(loss, size, None if size else stages.shapes)
    _, at_zero = checked.value_and_gradient(checked.zero())
    gaps = [0.0 if stage.tied else stage.gap / stage.time for stage in stages]
    margins = {"nondegeneracy": gaps, "strict_minima": [_curvature(checked, stage) for stage in stages]}
    if stages.diagonal:
        for number, stage in enumerate(stages):
            if stage.left:
                drive = checked.value_and_gradient(stage.point)[1][list(stage.left)].abs().min()
                gaps[number] = min(gaps[number], float(drive / at_zero.abs().max()))
        source = torch.Generator().manual_seed(seed)
        margins["noise_robustness"] = _returns(checked, stages, noise, trials, source)
    else:
        slopes = checked.split(at_zero)
        margins["gradient_at_zero"] = [max(float(torch.linalg.matrix_norm(part, 2)) for part in slopes)]
        margins["mixing"] = [stage.mixing for stage in stages]
    return Assumptions(
        {name: Assumption(min(every) > 0, min(every), tuple(every)) for name, every in margins.items()}
    )


def _curvature(loss: Loss, stage: Stage) -> float:
    """The smallest eigenvalue of the Hessian in the weights, of matrices modulo the gauge."""
    if loss.diagonal:
        support = torch.tensor(stage.support)
        if not len(support):
            return math.inf
        # In u of `a = s * u^2` it is `4 (su) (su)^T * H`: the gradient's part vanishes at a stationary point.
        weights = stage.point[support].sign() * stage.point[support].abs().sqrt()
        hessian = 4 * weights[:, None] * weights * loss.hessian(stage.point, support)[support]
        return float(torch.linalg.eigvalsh(hessian)[0])
    space = FactorSpace(loss, stage.ranks)
    x = space.pack(balanced(stage.points, stage.ranks))
    values = -Linearised(space, space.here(x), dense=True).whole.values
    gauge = sum(rank * rank for rank in stage.ranks)
    kept = values[values.abs().argsort(descending=True)[: len(values) - gauge]]
    return float(kept.min()) if len(kept) else math.inf


def _returns(loss: Loss, stages: Stages, noise: float, trials: int, source: torch.Generator) -> list[float]:
    """For each stage, the worst margin by which stage B ends at the same point from noisy weights."""
    before, margins = torch.zeros_like(stages[0].point), []
    for stage in stages:
        allowed = _SAME_POINT * float(stage.point.abs().max().sqrt())
        worst = math.inf
        for _ in range(trials):
            # Noise on the weights u of `a = s * u^2` that are not zero; none changes its sign.
            shift = noise * torch.randn(len(before), generator=source, dtype=before.dtype)
            start = before.sign() * (before.abs().sqrt() + shift).square()
            start[stage.product] = stage.sign * noise**2
            limit = land(loss, start)
            if limit is None:
                worst = -math.inf
                continue
            distance = (limit.abs().sqrt() - stage.point.abs().sqrt())[start != 0].abs().max()
            worst = min(worst, 1 - float(distance) / allowed)
        margins.append(worst)
        before = stage.point
    return margins


def perturb(
    loss: LossFunction,
    flow: Flow,
    time: float,
    noise: float,
    threshold: float = 1e-5,
    duration: float = _DURATION,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> tuple[Flow, Flow]:
    """Add noise to a diagonal network's flow at a rescaled `time`, and follow it on for a `duration` (not
    rescaled). Returns the flow without and with noise, their times counted from `time`.

    The noise is Gaussian, of standard deviation `noise`, on every weight above `threshold`. The paper adds
    0.05 at random times, where the flow returns to a strict minimum, and 0.01 as a coordinate crosses the
    threshold, where it keeps to its path if stage B is robust.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], until=1.0)
    >>> before, after = predict.perturb(loss, flow, time=0.7, noise=0.05)
    >>> [f"{float((before.at(t) - after.at(t)).abs().max()):.1g}" for t in (0, 0.27)]
    ['0.06', '4e-07']
    """
    source = torch.Generator().manual_seed(seed)
    place, coordinates = flow.place_at(time), flow.coordinates
    if coordinates is None:
        raise RankriseError("flow is of full matrices: perturb takes flows of diagonal networks.")
    # A pair without a weight above the threshold keeps its exact place, however small.
    u, v = coordinates.weights(place)
    shifts = noise * torch.randn(2, len(place), generator=source, dtype=place.dtype)
    large = (u.abs() > threshold) | (v.abs() > threshold)
    u, v = (torch.where(w.abs() > threshold, w + shift, w) for w, shift in zip((u, v), shifts, strict=True))
    moved, there = Coordinates.of_weights(torch.where(large, u, 1.0), torch.where(large, v, 0.0))
    shaken = (torch.where(large, *both) for both in zip(moved, coordinates, strict=True))
    checked = checked_loss(loss, len(place))
    unit, span = flow.log_inverse_alpha, duration / flow.log_inverse_alpha
    if time + span <= float(flow.times[-1]):
        original = replace(flow, times=flow.times - time)
    else:
        original = diagonal_flow(checked, coordinates, place, unit, span, tolerance)
    there = torch.where(large, there, place)
    return original, diagonal_flow(checked, Coordinates(*shaken), there, unit, span, tolerance)
