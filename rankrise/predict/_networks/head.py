"""One attention head with diagonal weights (Eq. 1), taught by a random head of the same form."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import (
    check_choice,
    check_sizes,
    checked_point,
    gaussian,
    generator,
    mean_loss,
    take_data,
    targets_of,
)
from rankrise.predict._networks.head_derivatives import HeadLoss


class AttentionEntry(NamedTuple):
    """Layer and head, "KQ" for an entry of w_K * w_Q or "VO" for one of w_V * w_O, and which entry: indices,
    from 0."""

    layer: int
    head: int
    kind: Literal["KQ", "VO"]
    entry: int


def attention_entry(coordinate: int, layers: int, heads: int, dimension: int) -> AttentionEntry:
    """The entry of a coordinate of `[w_K * w_Q, w_V * w_O]` over layers and heads (Example 3.2).

    >>> attention_entry(7, layers=2, heads=1, dimension=3)
    AttentionEntry(layer=1, head=0, kind='KQ', entry=1)
    """
    size = 2 * dimension * heads * layers
    if not 0 <= coordinate < size:
        raise RankriseError(f"coordinate {coordinate} does not exist: pass one from 0 to {size - 1}.")
    block, entry = divmod(coordinate, dimension)
    position, kind = divmod(block, 2)
    layer, head = divmod(position, heads)
    return AttentionEntry(layer, head, "VO" if kind else "KQ", entry)


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
        take_data(self, "samples, tokens, d")

    @property
    def size(self) -> int:
        """The number of coordinates, p = 2d."""
        return 2 * self.inputs.shape[-1]

    def __call__(self, a: Array) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        return self.loss_of(attend(self.inputs, checked_point(a, self.size)))

    def loss_of(self, outputs: Tensor) -> Tensor:
        """The loss of other outputs (samples, tokens, d) on the same data, such as those of full weights."""
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
        """The loss of the coordinates `support` (m,) alone, at the price of m; None if that costs as much as
        the whole.
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
    check_choice("objective", objective, get_args(Objective))
    source = generator(seed)
    inputs = gaussian(source, samples, tokens, dimension)
    teacher = gaussian(source, 2 * dimension) * gaussian(source, 2 * dimension)
    targets = targets_of(attend(inputs, teacher), objective)
    return DiagonalHead(inputs.to(device), targets.to(device), objective, teacher.to(device))


def attend(inputs: Tensor, a: Tensor) -> Tensor:
    """The output of the head (Eq. 1), the shape of `inputs`, (..., tokens, dimension)."""
    key_query, value_output = a.chunk(2)
    return ((inputs * key_query) @ inputs.mT).softmax(-1) @ inputs * value_output
