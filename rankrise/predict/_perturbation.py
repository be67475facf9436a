"""Perturb and follow, the form of the paper's two perturbation experiments (its Figures 9 and 10): add noise
to a trained network's weights, and train on.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._coordinates import Coordinates
from rankrise.predict._flow import Flow, follow
from rankrise.predict._loss import LossFunction, checked_loss

EPOCHS = 1000
STEP = 0.02
"""The paper trains on for 1000 epochs and does not give its step; 0.02 is stable at its size, which makes 20
units of flow time.
"""


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


@typed
def perturb(
    loss: LossFunction,
    flow: Flow,
    time: float,
    noise: float,
    threshold: float = 1e-5,
    duration: float = EPOCHS * STEP,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> Perturbation:
    """Add Gaussian noise of standard deviation `noise` to every weight above `threshold` at the rescaled
    `time` of a flow, and follow both on for a `duration`, which is in time t, not rescaled.

    The paper's two experiments are of this form. Strict minima: noise of 0.05 at random times; the flow
    returns to where it was if the network sat at a strict minimum. Noise robustness: noise of 0.01 where a
    coordinate has just crossed the threshold; the flow follows the unperturbed one through the transition if
    the dynamics of stage B is robust.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], until=1.0)
    >>> perturbation = predict.perturb(loss, flow, time=0.7, noise=0.05)
    >>> perturbation.remainder < 0.001 * perturbation.disturbance
    True
    """
    if not (noise > 0 and threshold > 0 and 0 < duration < math.inf):
        raise RankriseError(
            f"noise, threshold and duration are {noise}, {threshold} and {duration}: pass numbers above 0."
        )
    if not tolerance > 0:
        raise RankriseError(f"tolerance is {tolerance}: pass a number above 0, such as 1e-5.")
    source = torch.Generator().manual_seed(seed)
    place = flow.place_at(time)
    coordinates, shaken = _shake(flow.coordinates, place, noise, threshold, source)
    checked = checked_loss(loss, len(shaken), shaken.device)
    unit, span = flow.log_inverse_alpha, duration / flow.log_inverse_alpha
    if time + span <= float(flow.times[-1]):
        original = flow.part(checked, time, time + span)
    else:
        original = follow(checked, flow.coordinates, place, unit, span, tolerance, max_steps=100_000)
    perturbed = follow(checked, coordinates, shaken, unit, span, tolerance, max_steps=100_000)
    return Perturbation(time, original, perturbed)


def _shake(
    coordinates: Coordinates, z: Tensor, noise: float, threshold: float, source: torch.Generator
) -> tuple[Coordinates, Tensor]:
    """Noise on every weight u or v above `threshold`; a pair with no such weight keeps its exact place,
    however small.
    """
    u, v = coordinates.weights(z)
    shifts = noise * torch.randn(2, len(z), generator=source, dtype=z.dtype).to(z.device)
    shaken = (u.abs() > threshold) | (v.abs() > threshold)
    u, v = (torch.where(w.abs() > threshold, w + shift, w) for w, shift in zip((u, v), shifts, strict=True))
    moved, place = Coordinates.of_weights(torch.where(shaken, u, 1.0), torch.where(shaken, v, 0.0))
    return moved.where(shaken, coordinates), torch.where(shaken, place, z)
