"""Perturb and follow: add noise to a trained network's weights, and train on (Figures 9 and 10)."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._flow import Flow, diagonal_flow
from rankrise.predict._loss import Loss, LossFunction, checked_loss
from rankrise.predict._paths import DiagonalPath

DURATION = 20.0
"""The paper trains on for 1000 epochs without naming its step; 0.02 is stable at its size."""


@dataclass(frozen=True, eq=False)
class Perturbation:
    """A flow from `time` on, as it was and after noise on its weights; the times of both count from there."""

    time: float
    original: Flow
    perturbed: Flow

    @property
    def disturbance(self) -> float:
        """The largest change of an `a` by the noise."""
        return float((self.perturbed.values[0] - self.original.values[0]).abs().max())

    @property
    def remainder(self) -> float:
        """The largest distance between the two at the end."""
        return float((self.perturbed.values[-1] - self.original.values[-1]).abs().max())

    def __repr__(self) -> str:
        return (
            f"Perturbation(at rescaled time {self.time:g}: {self.disturbance:.3g} at first, "
            f"{self.remainder:.3g} at the end)"
        )


def perturb(
    loss: LossFunction,
    flow: Flow,
    time: float,
    noise: float,
    threshold: float = 1e-5,
    duration: float = DURATION,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> Perturbation:
    """Add Gaussian noise of standard deviation `noise` to every weight above `threshold` at the rescaled
    `time` of a diagonal network's flow, and follow both on for a `duration`, in time t, not rescaled.

    The paper has two experiments of this form. Strict minima: noise of 0.05 at random times; the flow returns
    if the network sat at a strict minimum. Noise robustness: noise of 0.01 as a coordinate crosses the
    threshold; the flow keeps to its path through the transition if stage B is robust.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], until=1.0)
    >>> predict.perturb(loss, flow, time=0.7, noise=0.05)
    Perturbation(at rescaled time 0.7: 0.0614 at first, 7.11e-07 at the end)
    """
    if not (noise > 0 and threshold > 0 and 0 < duration < math.inf and tolerance > 0):
        raise RankriseError(
            f"noise, threshold, duration and tolerance are {noise}, {threshold}, {duration} and {tolerance}: "
            "pass numbers above 0."
        )
    if not isinstance(flow.path, DiagonalPath):
        raise RankriseError("flow is of full matrices: perturb takes flows of diagonal networks.")
    source = torch.Generator().manual_seed(seed)
    place, before = flow.place_at(time), flow.path.coordinates
    coordinates, shaken = _shake(before, place, noise, threshold, source)
    checked = checked_loss(loss, len(shaken), device=shaken.device)
    unit, span = flow.log_inverse_alpha, duration / flow.log_inverse_alpha
    if time + span <= float(flow.times[-1]):
        original = _part(flow, flow.path, checked, time, time + span)
    else:
        original = diagonal_flow(checked, before, place, unit, span, tolerance)
    perturbed = diagonal_flow(checked, coordinates, shaken, unit, span, tolerance)
    return Perturbation(time, original, perturbed)


def _shake(
    coordinates: Coordinates, z: Tensor, noise: float, threshold: float, source: torch.Generator
) -> tuple[Coordinates, Tensor]:
    """Noise on every weight u or v above `threshold`; a pair without one keeps its exact place, however
    small.
    """
    u, v = coordinates.weights(z)
    shifts = noise * torch.randn(2, len(z), generator=source, dtype=z.dtype).to(z.device)
    shaken = (u.abs() > threshold) | (v.abs() > threshold)
    u, v = (torch.where(w.abs() > threshold, w + shift, w) for w, shift in zip((u, v), shifts, strict=True))
    moved, place = Coordinates.of_weights(torch.where(shaken, u, 1.0), torch.where(shaken, v, 0.0))
    return moved.where(shaken, coordinates), torch.where(shaken, place, z)


def _part(flow: Flow, path: DiagonalPath, loss: Loss, start: float, end: float) -> Flow:
    """The flow from `start` to `end`, its times counted from `start`, interpolated at both."""
    inside = (flow.times > start) & (flow.times < end)
    ends = flow.times.new_tensor([start, end])
    places = flow.place_at(ends)
    at_ends = [loss.value_and_gradient(a) for a in path.coordinates.product(places)]
    rates = torch.stack([-2 * flow.log_inverse_alpha * gradient for _, gradient in at_ends])
    losses = torch.stack([value for value, _ in at_ends])
    return replace(
        flow,
        times=torch.cat([ends[:1], flow.times[inside], ends[1:]]) - start,
        losses=torch.cat([losses[:1], flow.losses[inside], losses[1:]]),
        path=DiagonalPath(
            path.coordinates,
            places=torch.cat([places[:1], path.places[inside], places[1:]]),
            rates=torch.cat([rates[:1], path.rates[inside], rates[1:]]),
        ),
        message=f"A part of a flow, of {end - start:g} in rescaled time.",
    )
