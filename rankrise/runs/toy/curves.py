"""The curves that a toy run keeps beside Algorithm 1 and the exact flow."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise import predict

ACTIVE = 1e-3
"""The size at which a coordinate counts as active, as in `predict.compare`."""


def fine_times(flow: predict.Flow) -> Tensor:
    """The steps of a flow, and three times between each two: the flow bends between steps."""
    start, step = flow.times[:-1, None], flow.times.diff()[:, None]
    return torch.cat([(start + step * start.new_tensor([0.0, 0.25, 0.5, 0.75])).flatten(), flow.times[-1:]])


@dataclass(frozen=True, eq=False)
class Descent:
    """A trained network: rescaled `times` (n,), `values` a = u*v (n, p), `losses` (n,).

    `activation_times` (p,) are of the first step with `|a| >= 1e-3`, inf if there is none; `message` says how
    it ended.
    """

    times: Tensor
    values: Tensor
    losses: Tensor
    activation_times: Tensor
    step: float
    log10_alpha: float
    message: str


@dataclass(frozen=True, eq=False)
class FullWeights:
    """A trained network of full weights: `times` (n,), not rescaled, `losses` (n,), singular values.

    Those of W_K W_Q^T and of W_V W_O^T are (n, layers*heads*d), each head's in descending order. An entry of
    a weight matrix starts with standard deviation `10**log10_scale`. `predicted_kq` and `predicted_vo` are
    the rescaled times at which a head's product is predicted to reach rank 1, 2 and so on; they are empty for
    several heads.
    """

    times: Tensor
    losses: Tensor
    singular_values_kq: Tensor
    singular_values_vo: Tensor
    log10_scale: float
    step: float
    message: str
    predicted_kq: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    predicted_vo: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @property
    def rescaled_times(self) -> Tensor:
        """t / log(1/scale), (n,): what rescaled time is to diagonal weights."""
        return self.times / (-self.log10_scale * math.log(10))


@dataclass(frozen=True)
class PerturbedCurve:
    """One perturbation: noise was added at rescaled time `start`, from which `times` (n,) count on.

    `original` and `perturbed` (n, p) are a = u*v without and with it.
    """

    start: float
    times: Tensor
    original: Tensor
    perturbed: Tensor
