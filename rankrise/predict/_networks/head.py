"""One attention head with diagonal weights (Eq. 1), taught by a random head of the same form."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array
from rankrise.foundations.passed import typed
from rankrise.predict._networks.attention_entry import AttentionEntry, attention_entry
from rankrise.predict._networks.checks import check_sizes, checked_point, take_data
from rankrise.predict._networks.head_loss import HeadLoss
from rankrise.predict._networks.objectives import Objective, check_objective, mean_loss, targets_of
from rankrise.predict._networks.randomness import gaussian, generator


@dataclass(frozen=True, eq=False)
class DiagonalHead:
    """The loss of a diagonal attention head on its data, as a function of `a = [w_K * w_Q, w_V * w_O]`.

    The head computes `softmax(X diag(a_KQ) X^T) X diag(a_VO)` (Eq. 1, without 1/sqrt(d)).
    `inputs` and `targets` are (samples, tokens, d) in float64; the `a` of `teacher` (p,) set the targets.
    """

    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective)
        take_data(self, "samples, tokens, d")

    @property
    def size(self) -> int:
        """The number of coordinates, p = 2d."""
        return 2 * self.inputs.shape[-1]

    def __call__(self, a: Array) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        return self.loss_of(attend(self.inputs, checked_point(a, self.size)))

    def loss_of(self, outputs: Tensor) -> Tensor:
        """The loss of other outputs (samples, tokens, d) on the same data, as of full weights."""
        return mean_loss(outputs, self.targets, self.objective)

    def value_and_gradient(self, a: Array) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (p,) at `a`, in closed form."""
        return self._loss.value_and_gradient(checked_point(a, self.size))

    def hessian(self, a: Array) -> Tensor:
        """The exact Hessian (p, p) at `a`."""
        return self._loss.hessian(checked_point(a, self.size))

    def curvature(self, a: Array) -> Tensor:
        """The Hessian (p, p) to about six digits, for a Newton iteration."""
        return self._loss.curvature(checked_point(a, self.size))

    def restricted(self, support: Tensor) -> HeadLoss | None:
        """The loss of the coordinates `support` (m,) alone, at the price of m; None where that costs as
        much as the whole.
        """
        return self._loss.restricted(support)

    def place(self, coordinate: int) -> AttentionEntry:
        """Which entry a coordinate of `a` is: (0, 0, "KQ" or "VO", entry)."""
        return attention_entry(coordinate, layers=1, heads=1, dimension=self.inputs.shape[-1])

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "VO 7"."""
        place = self.place(coordinate)
        return f"{place.kind} {place.entry}"

    @cached_property
    def _loss(self) -> HeadLoss:
        return HeadLoss(self.inputs, self.inputs, self.targets, self.objective)


@typed
def diagonal_head(
    dimension: int = 50,
    tokens: int = 10,
    samples: int = 1000,
    seed: int = 0,
    objective: Objective = "squared",
    device: str | torch.device = "cpu",
) -> DiagonalHead:
    """The paper's toy: Gaussian tokens, and targets from a head whose weights are standard Gaussian too.

    >>> network = diagonal_head(dimension=3, tokens=4, samples=5)
    >>> network.size, network.label(4), float(network(network.teacher))
    (6, 'VO 1', 0.0)
    """
    check_sizes(dimension=dimension, tokens=tokens, samples=samples)
    check_objective(objective)
    source = generator(seed)
    inputs = gaussian(source, samples, tokens, dimension)
    teacher = gaussian(source, 2 * dimension) * gaussian(source, 2 * dimension)
    targets = targets_of(attend(inputs, teacher), objective)
    return DiagonalHead(inputs.to(device), targets.to(device), objective, teacher.to(device))


def attend(inputs: Tensor, a: Tensor) -> Tensor:
    """The output of the head (Eq. 1), the shape of `inputs`, (..., tokens, dimension)."""
    key_query, value_output = a.chunk(2)
    return ((inputs * key_query) @ inputs.mT).softmax(-1) @ inputs * value_output
