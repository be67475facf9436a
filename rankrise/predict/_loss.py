"""A loss of products and its derivatives; the products are one flat vector (size,), row by row."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

LossFunction = Callable[..., Tensor]
"""A loss of `a` (size,), or of one matrix per product: a twice differentiable scalar, in float64."""

Shape = tuple[int, int]

_DIRECTIONS_AT_ONCE = 64


@dataclass
class Loss:
    """A loss of products of `shapes`, counting its gradients.

    The function may bring faster derivatives; autograd stands in for what it lacks:

    - `value_and_gradient(a)`, or `value_and_gradient(*products)` with one gradient per product;
    - `hessian(a)` or `hessian(*products)`, exact, (size, size) in the order of the flat vector;
    - `hessian_product(*products)`, a function from directions (m, d1, d2) per product to its result on each;
    - `curvature(a)`, an approximate Hessian, good enough for Newton's method;
    - `restricted(support)`, the same loss of some coordinates, or None where that is not cheaper.

    With a `support`, it takes these coordinates of `a` alone, the others being zero.
    """

    function: LossFunction
    shapes: tuple[Shape, ...]
    diagonal: bool
    support: Tensor | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """The number of entries of all products together."""
        return sum(rows * columns for rows, columns in self.shapes)

    def zero(self) -> Tensor:
        """All products zero, as a flat vector."""
        return torch.zeros(self.size, dtype=torch.float64)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The products (d1, d2) in a flat vector."""
        return split_products(flat, self.shapes)

    def restricted(self, support: Tensor) -> "Loss":
        """The loss of the coordinates `support` alone, all others being zero."""
        supplied = getattr(self.function, "restricted", None)
        part = None if supplied is None else supplied(support)
        if part is None:
            return replace(self, support=support)
        return Loss(part, ((1, 1),) * len(support), True, counts=self.counts)

    def __call__(self, flat: Tensor) -> Tensor:
        """The loss, differentiable by autograd."""
        return self.function(*self._arguments(flat))

    def value_and_gradient(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient, as long as `flat`."""
        self.counts["gradients"] += 1
        supplied = getattr(self.function, "value_and_gradient", None)
        if supplied is None:
            with torch.enable_grad():
                flat = flat.detach().requires_grad_()
                value = self(flat)
                return value.detach(), torch.autograd.grad(value, flat)[0]
        value, found = supplied(*self._arguments(flat))
        gradient = found if self.diagonal else flattened(found)
        return value, gradient if self.support is None else gradient[self.support]

    def hessian(self, flat: Tensor, columns: Tensor | None = None, rough: bool = False) -> Tensor:
        """The Hessian at `flat`, or some of its columns; a `rough` one has a few digits."""
        names = ("curvature", "hessian") if rough else ("hessian",)
        supplied = next((getattr(self.function, one) for one in names if hasattr(self.function, one)), None)
        if supplied is not None:
            hessian: Tensor = supplied(*self._arguments(flat))
            hessian = hessian if self.support is None else hessian[self.support][:, self.support]
            return hessian if columns is None or len(columns) == len(flat) else hessian[:, columns]
        units = torch.eye(len(flat), dtype=flat.dtype)
        units = units if columns is None else units[columns]
        product = self._by_autograd(flat, batched=True)
        return torch.cat([product(part) for part in units.split(_DIRECTIONS_AT_ONCE)]).T

    def hessian_product(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """The function from a direction (size,) to the Hessian at `flat` times it."""
        supplied = getattr(self.function, "hessian_product", None)
        if supplied is None:
            return self._by_autograd(flat, batched=False)
        product = supplied(*self.split(flat))
        return lambda direction: flattened(product(*self.split(direction[None])))[0]

    def _by_autograd(self, flat: Tensor, batched: bool) -> Callable[[Tensor], Tensor]:
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(flat), flat, create_graph=True)
        if not gradient.requires_grad:  # the loss is linear
            return torch.zeros_like
        options = {"retain_graph": True, "is_grads_batched": batched, "materialize_grads": True}
        return lambda direction: torch.autograd.grad(gradient, flat, direction, **options)[0]

    def _arguments(self, flat: Tensor) -> Sequence[Tensor]:
        if not self.diagonal:
            return self.split(flat)
        if self.support is None:
            return (flat,)
        return (flat.new_zeros(self.size).index_put((self.support,), flat),)


def split_products(flat: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """The matrices of these shapes that a flat vector, or each of several (..., size), holds in a row."""
    parts = flat.split([rows * columns for rows, columns in shapes], dim=-1)
    return [part.view(*part.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def flattened(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices (..., d1, d2) as one flat vector (..., size)."""
    return torch.cat([matrix.flatten(-2) for matrix in matrices], -1)


def checked_loss(
    function: LossFunction,
    size: int | None = None,
    shapes: Sequence[Shape] | None = None,
) -> Loss:
    """A loss of `size` coordinates or of products of `shapes`, by default its own, tried near zero."""
    if size is None and shapes is None:
        size, shapes = getattr(function, "size", None), getattr(function, "shapes", None)
    if (size is None) == (shapes is None):
        raise RankriseError(
            "pass size, the number of coordinates of a diagonal network, or shapes, one (d1, d2) per product "
            f"of matrices: size is {size} and shapes is {shapes}."
        )
    products = ((1, 1),) * size if size is not None else tuple((d1, d2) for d1, d2 in shapes or ())
    loss = Loss(function, products, size is not None)
    value = loss(torch.linspace(0.05, 0.1, loss.size, dtype=torch.float64))
    scalar = isinstance(value, Tensor) and value.shape == () and value.dtype == torch.float64
    if not (scalar and value.isfinite()):
        raise RankriseError(f"loss returned {value} near zero: it must return a finite float64 scalar.")
    return loss
