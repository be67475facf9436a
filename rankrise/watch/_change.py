"""`Change`: what was learned between two moments, of heads' products or of whole matrices, as factors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._batches import batched

Matrix = Tensor | ArrayLike
"""A tensor, a NumPy array or nested lists of numbers, [..., m, n]."""
Factors = tuple[Tensor, Tensor]
"""`left` [..., m, r] and `right` [..., n, r], for the matrix `left @ right^T` [..., m, n]."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Change:
    """`after` minus `before`: each is a product of two factors (left, right), or one whole matrix.

    The tensors are those that were passed: clone weights that go on training. An empty `before` is zero.
    """

    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """(k0, q0, kt, qt), (kt, qt) or (w0, wt)."""
        return *self.before, *self.after

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole matrix, not a product of two factors."""
        return len(self.after) == 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix that changed."""
        return self.after[0].shape[-2], self.after[-1].shape[-1 if self.is_whole else -2]

    @property
    def highest_rank(self) -> int:
        """Upper bound of its rank, from its shape and its factors."""
        inner = min(self.shape) if self.is_whole else len(self.weights) // 2 * self.after[0].shape[-1]
        return min(*self.shape, inner)

    def factors(self) -> Factors:
        """`left` and `right` in float64, whose product `left @ right^T` [..., m, n] is the change.

        With `(k0, q0)` before and `(kt, qt)` after, `kt qt^T - k0 q0^T = kt (qt - q0)^T + (kt - k0) q0^T`, so

            left = [kt, kt - k0],   right = [qt - q0, q0],   each [..., d, 2 r].

        The small differences are taken first, in float64, where they are exact: `[kt, k0]` and `[qt, -q0]`
        would make a change of 1e-6 of the weights a difference of large numbers. For whole matrices, `left`
        is the difference and `right` the identity.
        """
        wide = [weight.double() for weight in self.weights]
        if self.is_whole:
            eye = torch.eye(self.shape[1], dtype=torch.float64, device=wide[0].device)
            return wide[1] - wide[0], eye.expand(*wide[0].shape[:-2], -1, -1)
        if not self.before:
            return wide[0], wide[1]
        k0, q0, kt, qt = wide
        return torch.cat((kt, kt - k0), -1), torch.cat((qt - q0, q0), -1)

    def in_chunks(self, function: Callable[["Change"], Tensor], larger: int = 1) -> Tensor:
        """Apply `function` to a few heads [heads, d, r] at a time, on all cores (see `batched`)."""
        split = len(self.before)
        return batched(
            lambda *weights: function(Change(weights[:split], weights[split:])), *self.weights, larger=larger
        )


def change(before: Matrix | tuple[Matrix, Matrix], after: Matrix | tuple[Matrix, Matrix]) -> Change:
    """What was learned between two moments: of a head's product, or of a whole matrix.

    A tuple of two is the factors (left, right) of a product, such as (W_K, W_Q); anything else is a matrix.

    >>> k0, q0 = torch.eye(4)[:, :2], torch.eye(4)[:, :2]
    >>> learned = change((k0, q0), (2 * k0, q0))
    >>> left, right = learned.factors()
    >>> torch.equal(left @ right.mT, (k0 @ q0.mT).double())
    True
    >>> from rankrise import watch
    >>> watch.stable_rank(learned), watch.stable_rank(change([[1, 0], [0, 1]], [[3, 0], [0, 2]]))
    (tensor(2., dtype=torch.float64), tensor(1.2500, dtype=torch.float64))
    """
    old, new = (
        _checked(*cast(Factors, side)) if isinstance(side, tuple) else _checked(side, side)[:1]
        for side in (before, after)
    )
    was, now = ([(*one.shape, str(one.device)) for one in side] for side in (old, new))
    if was != now:
        raise RankriseError(f"Weights are {was} before and {now} after: pass two moments on one device.")
    return Change(old, new)


def as_change(left: Matrix | Change, right: Matrix | None = None, *, name: str = "") -> Change:
    """A change as it is; a product or a matrix as a change from zero."""
    if not isinstance(left, Change):
        if right is not None:
            return Change((), _checked(left, right, name))
        matrix = _checked(left, left, name)[:1]
        return Change((matrix[0].new_zeros(()).expand_as(matrix[0]),), matrix)
    if right is not None:
        raise RankriseError("A change has no right factor: name further arguments, such as count=2.")
    return left


def as_tensor(given: Matrix) -> Tensor:
    """A tensor as it is, an array in its own dtype, lists of numbers in float64."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, list | tuple):
        return torch.tensor(given, dtype=torch.float64)
    return torch.from_numpy(np.array(given))


def refuse_quantised(weight: Tensor, what: str) -> None:
    """Refuse integers and 8-bit floats: without their scales, such numbers are not the weights."""
    if weight.dtype not in FLOATS:
        raise RankriseError(f"{what} has the quantised dtype {weight.dtype}: dequantise the model first.")


def refuse_non_finite(bad: Tensor, name: str) -> None:
    """Raise if any entry of `bad` [...] is set, naming the layer and its first bad head, counted from 1."""
    if bad.any():
        head = ", ".join(str(int(index) + 1) for index in bad.nonzero()[0])
        which = f", head {head} (counted from 1)," if head else ""
        raise RankriseError(f"{name or 'The matrix'}{which} holds nan or inf: training may have diverged.")


def divided(numerator: Tensor, denominator: Tensor) -> Tensor:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    return numerator / torch.where(denominator == 0, torch.inf, denominator)


def _checked(left: Matrix, right: Matrix, name: str = "") -> Factors:
    """Both factors without gradients, with the same leading sizes, on a device that has float64."""
    left, right = as_tensor(left).detach(), as_tensor(right).detach()
    what = name or "The matrix"
    for factor in (left, right):
        refuse_quantised(factor, what)
    if min(left.ndim, right.ndim) < 2 or left.shape[-1] != right.shape[-1]:
        raise RankriseError(
            f"{what}'s factors are {list(left.shape)} and {list(right.shape)}: pass [..., m, r], [..., n, r]."
        )
    batch = left.shape[:-2] or right.shape[:-2]
    left, right = (factor.expand(*batch, -1, -1) for factor in (left, right))
    return (left.cpu(), right.cpu()) if left.device.type == "mps" else (left, right)
