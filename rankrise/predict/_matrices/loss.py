"""What the theory needs of a loss of matrix products: value, gradients and second derivatives.

The products `A_1, ..., A_m` are carried as one flat vector (size,), one product after another, row by row; so
are their gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.predict._loss import refuse_unfit

MatrixLossFunction = Callable[..., Tensor]
Shape = tuple[int, int]


@dataclass
class MatrixLoss:
    """A checked loss of products of `shapes`, counting what is asked of it.

    A loss may supply `value_and_gradient(*products)`, a value and one gradient per product;
    `hessian(*products)`, exact, (size, size) in the order of the flat vector; and
    `hessian_product(*products)`, a function from one direction to one result per product. Autograd stands in
    for what is missing.
    """

    function: MatrixLossFunction
    shapes: tuple[Shape, ...]
    device: torch.device | str = "cpu"
    gradients: int = field(default=0, init=False)
    hessian_columns: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        """The number of entries of all products together."""
        return sum(rows * columns for rows, columns in self.shapes)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The products (d1, d2) that a flat vector holds."""
        return split_products(flat, self.shapes)

    def zero(self) -> Tensor:
        """All products zero, as a flat vector."""
        return torch.zeros(self.size, dtype=torch.float64, device=self.device)

    def value_and_gradient(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """`L` and `dL/dA` (size,) at the products in `flat`."""
        self.gradients += 1
        supplied = getattr(self.function, "value_and_gradient", None)
        if supplied is not None:
            value, gradients = supplied(*self.split(flat))
            return value, torch.cat([gradient.flatten() for gradient in gradients])
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            value = self.function(*self.split(flat))
            (gradient,) = torch.autograd.grad(value, flat)
        return value.detach(), gradient

    def hessian(self, flat: Tensor) -> Tensor:
        """The exact Hessian (size, size)."""
        self.hessian_columns += self.size
        supplied = getattr(self.function, "hessian", None)
        if supplied is not None:
            hessian: Tensor = supplied(*self.split(flat))
            return hessian
        with torch.enable_grad():
            flat, gradient = self._gradient_with_graph(flat)
            if not gradient.requires_grad:
                return flat.new_zeros(self.size, self.size)
            identity = torch.eye(self.size, dtype=flat.dtype, device=flat.device)
            (hessian,) = torch.autograd.grad(
                gradient, flat, identity, is_grads_batched=True, allow_unused=True, materialize_grads=True
            )
        return hessian

    def hessian_product(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """`v -> H v` at `flat`, for many `v` (size,): what they share is computed once."""
        supplied = getattr(self.function, "hessian_product", None)
        if supplied is not None:
            of_matrices = supplied(*self.split(flat))

            def whole_product(direction: Tensor) -> Tensor:
                self.hessian_columns += 1
                return torch.cat([part.flatten() for part in of_matrices(*self.split(direction))])

            return whole_product
        with torch.enable_grad():
            flat, gradient = self._gradient_with_graph(flat)

        def product(direction: Tensor) -> Tensor:
            self.hessian_columns += 1
            if not gradient.requires_grad:
                return torch.zeros_like(direction)
            (result,) = torch.autograd.grad(
                gradient, flat, direction, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            return result

        return product

    def _gradient_with_graph(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        flat = flat.detach().requires_grad_()
        value = self.function(*self.split(flat))
        (gradient,) = torch.autograd.grad(value, flat, create_graph=True)
        return flat, gradient


def split_products(flat: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """The matrices of these shapes that a flat vector holds, one after another."""
    parts = flat.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def checked_matrix_loss(
    loss: MatrixLossFunction, shapes: Sequence[Shape] | None, device: torch.device | str = "cpu"
) -> MatrixLoss:
    """Try `loss` near zero and refuse, in one sentence, what is not a smooth scalar loss of such products."""
    checked = MatrixLoss(loss, _checked_shapes(loss, shapes), device)
    # Not at zero: there a loss may be flat (its gradient exactly zero) although it depends on its products.
    probe = torch.linspace(0.05, 0.1, checked.size, dtype=torch.float64, device=device).requires_grad_()
    try:
        with torch.enable_grad():
            value = loss(*checked.split(probe))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise RankriseError(
            f"loss failed on float64 matrices of shapes {checked.shapes} on {device} ({first_line(error)}): "
            "check shapes, and that loss takes one matrix per product."
        ) from error
    refuse_unfit(value, probe, "its products")
    return checked


def checked_columns(columns: int | Sequence[int] | None, shapes: Sequence[Shape]) -> tuple[int, ...]:
    """The inner dimension of each product: min(d1, d2) for None, one number for all, or one per product."""
    if columns is None:
        return tuple(min(shape) for shape in shapes)
    found = [columns] * len(shapes) if isinstance(columns, int) else list(columns)
    if len(found) != len(shapes) or not all(isinstance(count, int) and count >= 1 for count in found):
        raise RankriseError(
            f"columns is {columns!r}: pass the inner dimension of the products, one whole number of at least "
            f"1, or one for each of the {len(shapes)}."
        )
    return tuple(found)


def check_until(until: float, finite: bool = False) -> None:
    """Refuse an `until` that is not a rescaled time."""
    if isinstance(until, bool) or not isinstance(until, int | float) or not until > 0:
        raise RankriseError(f"until is {until!r}: pass the rescaled time to stop at, a number above 0.")
    if finite and until == math.inf:
        raise RankriseError("until is inf: pass the rescaled time to stop at, a finite number.")


def _checked_shapes(loss: MatrixLossFunction, shapes: Sequence[Shape] | None) -> tuple[Shape, ...]:
    if shapes is None:
        shapes = getattr(loss, "shapes", None)
    if shapes is None:
        raise RankriseError("shapes is missing: pass one pair (d1, d2) per product that loss takes.")
    try:
        found = tuple((int(rows), int(columns)) for rows, columns in shapes)
    except (TypeError, ValueError) as error:
        raise RankriseError(
            f"shapes is {shapes!r}: pass one pair (d1, d2) per product, [(6, 6), (6, 6)] for example."
        ) from error
    if not found or any(size < 1 for shape in found for size in shape):
        raise RankriseError(
            f"shapes is {shapes!r}: pass at least one pair (d1, d2) of whole numbers of at least 1."
        )
    declared = getattr(loss, "shapes", found)
    if tuple(declared) != found:
        raise RankriseError(f"shapes is {found}, but the loss has {tuple(declared)}: pass loss.shapes.")
    return found
