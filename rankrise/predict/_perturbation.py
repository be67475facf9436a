"""The paper's two perturbation experiments (its Figures 9 and 10): add noise to a trained network's
weights, and train on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.predict._coordinates import Coordinates
from rankrise.predict._flow import Flow, follow
from rankrise.predict._loss import LossFunction, checked_loss

EPOCHS = 1000
STEP = 0.02
"""The paper trains on for 1000 epochs and does not give its step; 0.02 is a stable one at its size, so 20
units of flow time.
"""


@dataclass(frozen=True, eq=False)
class Perturbation:
    """The flow from a moment on, as it was and after noise on its weights; times of both count from `time`
    of the original flow.
    """

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


def strict_minima_experiment(
    loss: LossFunction,
    flow: Flow,
    times: Sequence[float] | None = None,
    noise: float = 0.05,
    threshold: float = 1e-5,
    duration: float = EPOCHS * STEP,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> list[Perturbation]:
    """At five random `times` (rescaled), add noise of standard deviation 0.05 to every weight above 1e-5, and
    follow the flow on.

    It returns to where it was if the network sat at a strict minimum. `duration` is in time t, not rescaled.
    """
    source = torch.Generator().manual_seed(seed)
    if times is None:
        times = sorted(
            (torch.rand(5, generator=source, dtype=torch.float64) * float(flow.times[-1])).tolist()
        )
    return [_perturb(loss, flow, time, noise, threshold, duration, source, tolerance) for time in times]


def noise_robustness_experiment(
    loss: LossFunction,
    flow: Flow,
    noise: float = 1e-2,
    threshold: float = 1e-5,
    duration: float = EPOCHS * STEP,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> list[Perturbation]:
    """The same at every time at which a coordinate has just crossed `threshold`, with noise of standard
    deviation 1e-2.

    The perturbed flow follows the unperturbed one through the transition if the dynamics of stage B is
    robust.
    """
    source = torch.Generator().manual_seed(seed)
    times = [crossing.time for crossing in flow.crossings(threshold) if crossing.upward and crossing.time > 0]
    return [_perturb(loss, flow, time, noise, threshold, duration, source, tolerance) for time in times]


def _perturb(
    loss: LossFunction,
    flow: Flow,
    time: float,
    noise: float,
    threshold: float,
    duration: float,
    source: torch.Generator,
    tolerance: float,
) -> Perturbation:
    if not (noise > 0 and threshold > 0 and duration > 0):
        raise RankriseError(
            f"noise, threshold and duration are {noise}, {threshold} and {duration}: all must be above 0"
        )
    coordinates, shaken = _shake(flow.coordinates, flow.place_at(time), noise, threshold, source)
    checked = checked_loss(loss, len(shaken), shaken.device)
    unit, span = flow.log_inverse_alpha, duration / flow.log_inverse_alpha
    if time + span <= float(flow.times[-1]):
        original = flow.part(checked, time, time + span)
    else:
        place = flow.place_at(time)
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
