"""A loss of products: value, gradient and second derivatives, as the algorithms need them.

The products are carried as one flat vector (size,), one after another, row by row. A diagonal network is a
loss of one vector `a`, whose entries are 1 x 1 products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line

LossFunction = Callable[..., Tensor]
"""A loss of `a` (size,), or of one matrix per product: a twice differentiable scalar, in float64."""

Shape = tuple[int, int]

_COLUMNS_AT_ONCE = 64


@dataclass
class Loss:
    """A loss of products of `shapes`, counting what is asked of it.

    The function may bring faster derivatives; autograd stands in for what it lacks:

    - `value_and_gradient(a)`, or `value_and_gradient(*products)` with one gradient per product;
    - `hessian(a)` or `hessian(*products)`, exact, (size, size) in the order of the flat vector;
    - `curvature(a)`, an approximate Hessian, good enough for Newton's method;
    - `hessian_product(*products)`, a function from one direction to one result per product;
    - `restricted(support)`, the same loss of some coordinates, the others being zero, or None where that is
      not cheaper.
    """

    function: LossFunction
    shapes: tuple[Shape, ...]
    diagonal: bool
    device: torch.device | str = "cpu"
    gradients: int = field(default=0, init=False)
    hessian_columns: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        """The number of entries of all products together."""
        return sum(rows * columns for rows, columns in self.shapes)

    def zero(self) -> Tensor:
        """All products zero, as a flat vector."""
        return torch.zeros(self.size, dtype=torch.float64, device=self.device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The products (d1, d2) in a flat vector."""
        return split_products(flat, self.shapes)

    def __call__(self, flat: Tensor) -> Tensor:
        """The loss, differentiable by autograd."""
        return self.function(*self._arguments(flat))

    def value_and_gradient(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (size,)."""
        self.gradients += 1
        supplied = getattr(self.function, "value_and_gradient", None)
        if supplied is not None:
            value, found = supplied(*self._arguments(flat))
            return value, found if self.diagonal else flattened(found)
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            value = self(flat)
            (gradient,) = torch.autograd.grad(value, flat)
        return value.detach(), gradient

    def hessian(self, flat: Tensor, columns: Tensor | None = None, rough: bool = False) -> Tensor:
        """The Hessian (size, size), or some of its columns; a `rough` one has a few digits."""
        names = ("curvature", "hessian") if rough else ("hessian",)
        supplied = next((getattr(self.function, one) for one in names if hasattr(self.function, one)), None)
        if supplied is not None:
            self.hessian_columns += self.size
            hessian: Tensor = supplied(*self._arguments(flat))
            return hessian if columns is None else hessian[:, columns]
        units = torch.eye(self.size, dtype=flat.dtype, device=flat.device)
        units = units if columns is None else units[columns]
        apply = self._by_autograd(flat)
        return torch.cat([apply(part) for part in units.split(_COLUMNS_AT_ONCE)]).T

    def hessian_product(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """The function `v -> H v` for many `v` (size,), sharing what depends on `flat` alone."""
        supplied = getattr(self.function, "hessian_product", None)
        if supplied is None:
            by_autograd = self._by_autograd(flat)
            return lambda direction: by_autograd(direction[None])[0]
        apply = supplied(*self.split(flat))

        def product(direction: Tensor) -> Tensor:
            self.hessian_columns += 1
            return flattened(apply(*self.split(direction)))

        return product

    def _by_autograd(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """The function from directions (n, size) to the Hessian times each of them."""
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(flat), flat, create_graph=True)

        def apply(directions: Tensor) -> Tensor:
            self.hessian_columns += len(directions)
            if not gradient.requires_grad or not len(directions):  # the loss is linear
                return torch.zeros_like(directions)
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            if len(directions) == 1:
                (single,) = torch.autograd.grad(gradient, flat, directions[0], **options)
                return single[None]
            (many,) = torch.autograd.grad(gradient, flat, directions, is_grads_batched=True, **options)
            return many

        return apply

    def restricted(self, support: Tensor) -> "Loss":
        """The loss of the coordinates `support` alone, all others being zero."""
        supplied = getattr(self.function, "restricted", None)
        part = None if supplied is None else supplied(support)
        return Loss(part or _Embedded(self, support), ((1, 1),) * len(support), True, self.device)

    def _arguments(self, flat: Tensor) -> Sequence[Tensor]:
        return (flat,) if self.diagonal else self.split(flat)


@dataclass(frozen=True)
class _Embedded:
    """A loss of `a` as a function of some of its coordinates, the others being zero."""

    whole: Loss
    support: Tensor

    def _embed(self, a: Tensor) -> Tensor:
        return a.new_zeros(self.whole.size).index_put((self.support,), a)

    def __call__(self, a: Tensor) -> Tensor:
        return self.whole(self._embed(a))

    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.whole.value_and_gradient(self._embed(a))
        return value, gradient[self.support]

    def hessian(self, a: Tensor) -> Tensor:
        return self.whole.hessian(self._embed(a), self.support)[self.support]

    def curvature(self, a: Tensor) -> Tensor:
        return self.whole.hessian(self._embed(a), self.support, rough=True)[self.support]


def split_products(flat: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """The matrices of these shapes that a flat vector holds, one after another."""
    parts = flat.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def flattened(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices as one flat vector."""
    return torch.cat([matrix.flatten() for matrix in matrices])


def checked_loss(
    function: LossFunction,
    size: int | None = None,
    shapes: Sequence[Shape] | None = None,
    device: torch.device | str = "cpu",
) -> Loss:
    """A loss of `size` coordinates or of products of `shapes`, tried near zero.

    A loss that has a `size` or `shapes` needs none given.
    """
    declared = getattr(function, "size", None), getattr(function, "shapes", None)
    if size is None and shapes is None:
        size, shapes = declared
    if (size is None) == (shapes is None):
        raise RankriseError(
            "pass size, the number of coordinates of a diagonal network, or shapes, one (d1, d2) per product "
            f"of matrices: size is {size} and shapes is {shapes}."
        )
    found = ((1, 1),) * size if size is not None else tuple((int(d1), int(d2)) for d1, d2 in shapes or ())
    if not found or min(map(min, found)) < 1:
        raise RankriseError(f"size is {size} and shapes is {shapes}: pass positive numbers.")
    own = declared[0] or (declared[1] and tuple(map(tuple, declared[1])))
    if own is not None and own != (size or found):
        raise RankriseError(f"size is {size} and shapes is {shapes}, but the loss has {own}: pass that.")
    loss = Loss(function, found, size is not None, device)
    _try(loss)
    return loss


def checked_columns(columns: int | Sequence[int] | None, shapes: Sequence[Shape]) -> tuple[int, ...]:
    """The inner dimension of each product: min(d1, d2) for None, one number for all, or one per product."""
    if columns is None:
        return tuple(min(shape) for shape in shapes)
    found = (columns,) * len(shapes) if isinstance(columns, int) else tuple(columns)
    if len(found) != len(shapes) or min(found) < 1:
        raise RankriseError(
            f"columns is {columns}: pass the inner dimension, at least 1, for all {len(shapes)} or for each."
        )
    return found


def _try(loss: Loss) -> None:
    """Evaluate a loss near zero; at zero its gradient may vanish although it depends on its input."""
    probe = torch.linspace(0.05, 0.1, loss.size, dtype=torch.float64, device=loss.device).requires_grad_()
    try:
        with torch.enable_grad():
            value = loss(probe)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        takes = f"size {loss.size}" if loss.diagonal else f"shapes {loss.shapes}"
        raise RankriseError(
            f"loss failed on float64 tensors of {takes} on {loss.device} ({first_line(error)}): "
            "check what it takes."
        ) from error
    if (
        not isinstance(value, Tensor)
        or value.shape != ()
        or value.dtype != torch.float64
        or not value.isfinite()
    ):
        raise RankriseError(f"loss returned {value} near zero: it must return a finite float64 scalar.")
    slope = torch.autograd.grad(value, probe, allow_unused=True)[0] if value.requires_grad else None
    if slope is None or not slope.any():
        raise RankriseError("loss does not depend on its argument: compute it with torch operations.")
