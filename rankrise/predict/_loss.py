"""What the theory needs of a loss: value, gradient and columns of the Hessian.

A loss may supply them; autograd stands in for what it does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line

LossFunction = Callable[[Tensor], Tensor]
"""A loss of `a` (size,): a twice differentiable scalar, in float64. It may say its `size`."""

_COLUMNS_AT_ONCE = 64


@dataclass
class Loss:
    """A checked loss of `a` (size,), counting what is asked of it.

    A loss may supply `value_and_gradient(a)`, `hessian(a)` (exact, (size, size)), `curvature(a)` (an
    approximate Hessian, enough for a Newton iteration) and `restricted(support)` (the same loss of some
    coordinates, the others being zero, or None where that is not cheaper).
    """

    function: LossFunction
    size: int
    gradients: int = field(default=0, init=False)
    columns: int = field(default=0, init=False)

    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """`L` and `dL/da` (size,) at `a`."""
        self.gradients += 1
        supplied = getattr(self.function, "value_and_gradient", None)
        if supplied is not None:
            value, gradient = supplied(a)
            return value, gradient
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            value = self.function(a)
            (gradient,) = torch.autograd.grad(value, a)
        return value.detach(), gradient

    def hessian(self, a: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Columns of the exact Hessian at `a`: `coordinates` of them, (size, len(coordinates)), or all."""
        supplied = getattr(self.function, "hessian", None)
        return self._columns(
            supplied, a, torch.arange(self.size, device=a.device) if coordinates is None else coordinates
        )

    def curvature(self, a: Tensor, coordinates: Tensor) -> Tensor:
        """Columns of the Hessian at `a`, (size, len(coordinates)), or something close to them."""
        supplied = getattr(self.function, "curvature", getattr(self.function, "hessian", None))
        return self._columns(supplied, a, coordinates)

    def restricted(self, support: Tensor) -> "Loss":
        """The loss of the coordinates `support` alone, all others being zero."""
        supplied = getattr(self.function, "restricted", None)
        part = None if supplied is None else supplied(support)
        return Loss(_Embedded(self, support) if part is None else part, len(support))

    def _columns(self, supplied: Callable[[Tensor], Tensor] | None, a: Tensor, coordinates: Tensor) -> Tensor:
        if supplied is not None:
            self.columns += self.size
            return supplied(a)[:, coordinates]
        self.columns += len(coordinates)
        slope = torch.func.grad(self.function)

        def column(direction: Tensor) -> Tensor:
            result: Tensor = torch.func.jvp(slope, (a,), (direction,))[1]
            return result

        directions = torch.zeros(len(coordinates), self.size, dtype=a.dtype, device=a.device)
        directions[torch.arange(len(coordinates)), coordinates] = 1
        parts = [torch.func.vmap(column)(part) for part in directions.split(_COLUMNS_AT_ONCE)]
        return torch.cat(parts).T if parts else a.new_zeros(self.size, 0)


@dataclass(frozen=True)
class _Embedded:
    """A loss seen as a function of some of its coordinates, the others being zero."""

    whole: Loss
    support: Tensor

    def _embed(self, a: Tensor) -> Tensor:
        return a.new_zeros(self.whole.size).index_put((self.support,), a)

    def __call__(self, a: Tensor) -> Tensor:
        return self.whole.function(self._embed(a))

    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.whole.value_and_gradient(self._embed(a))
        return value, gradient[self.support]

    def hessian(self, a: Tensor) -> Tensor:
        return self.whole.hessian(self._embed(a), self.support)[self.support]

    def curvature(self, a: Tensor) -> Tensor:
        return self.whole.curvature(self._embed(a), self.support)[self.support]


def checked_loss(loss: LossFunction, size: int | None, device: torch.device | str = "cpu") -> Loss:
    """Try `loss` near zero and refuse, in one sentence, what is not a smooth scalar of `size` coordinates.

    A loss that has a `size` needs none given.
    """
    declared = getattr(loss, "size", None)
    if size is None and declared is None:
        raise RankriseError(
            "size is not given, and the loss does not say its own: pass size, the number of coordinates of a."
        )
    size = declared if size is None else size
    if not isinstance(size, int) or size < 1:
        raise RankriseError(
            f"size is {size!r}: pass the number of coordinates of a, a whole number of 1 or more."
        )
    if declared not in (None, size):
        raise RankriseError(f"size is {size}, but the loss has {declared} coordinates: pass size={declared}.")
    # Not at zero itself: there a loss may be flat (its gradient exactly zero) although it depends on `a`.
    probe = torch.linspace(0.05, 0.1, size, dtype=torch.float64, device=device).requires_grad_()
    try:
        with torch.enable_grad():
            value = loss(probe)
    except (RuntimeError, IndexError) as error:
        raise RankriseError(
            f"loss failed on a float64 tensor of size {size} on {device} ({first_line(error)}): check size, "
            "and that loss takes one tensor."
        ) from error
    refuse_unfit(value, probe, "a")
    return Loss(loss, size)


def refuse_unfit(value: object, probe: Tensor, argument: str) -> None:
    """Refuse what a loss returned near zero unless it is a finite float64 scalar that depends on `probe`.

    `argument` is what the loss is a function of, in words.
    """
    if not isinstance(value, Tensor) or value.shape != ():
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise RankriseError(
            f"loss returned {found}: it must return a scalar tensor, its sum or mean for instance."
        )
    if value.dtype != torch.float64:
        raise RankriseError(
            f"loss returned {value.dtype}: it must be computed in float64; convert its data with .double()."
        )
    if not torch.isfinite(value):
        raise RankriseError(
            f"loss returned {value.item()} near zero: it must be finite where training starts."
        )
    slope = torch.autograd.grad(value, probe, allow_unused=True)[0] if value.requires_grad else None
    if slope is None or not slope.any():
        raise RankriseError(
            f"loss does not depend on {argument}: its gradient is zero; compute it with torch operations."
        )
