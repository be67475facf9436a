"""What solvers of a flow yield, and how they fail."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


class StepTooSmall(Exception):
    """The step size fell to nothing: the flow leaves every bound, or the loss is not smooth there."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A moment of a flow: time t, the loss, the place with its rate, and logarithms of singular values.

    A diagonal network's `place` is z; for matrices it is the flat products.
    """

    time: float
    loss: float
    place: Tensor
    rate: Tensor
    log_singular_values: Sequence[Tensor] = ()
