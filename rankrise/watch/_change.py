"""What became of a matrix between two moments, as one value that everything here measures.

The change of W_K W_Q^T has thin factors too, of twice the inner size, so that no d x d matrix is formed.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._factors import Blocks, Factors, Matrix, checked, shape_of


@dataclass(frozen=True, eq=False)
class Change:
    """`after` minus `before`, each of them the product of two factors (left, right), or one whole matrix.

    `stable_rank`, `singular_values` and the rest take it. The tensors in it are those that were passed, not
    copies: clone weights that go on training.
    """

    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Those before, then those after: (k0, q0, kt, qt), or (w0, wt)."""
        return *self.before, *self.after

    @property
    def is_whole(self) -> bool:
        """Whether it is of whole matrices, not of products of two factors."""
        return len(self.before) == 1

    def factors(self) -> Factors:
        """`left` and `right` in float64, whose product `left @ right^T` [..., m, n] is the change.

        With `(k0, q0)` before and `(kt, qt)` after, `kt qt^T - k0 q0^T = kt (qt - q0)^T + (kt - k0) q0^T`, so

            left = [kt, kt - k0],   right = [qt - q0, q0],   each [..., d, 2 r].

        The obvious factors `[kt, k0]` and `[qt, -q0]` stand for the same matrix, but a change of 1e-6 of the
        weights is then a small difference of large numbers. Here the small differences are taken first, and
        float64 takes them exactly. (The product of the differences, `(kt - k0)(qt - q0)^T`, is something
        else.) Of whole matrices, `left` is the difference and `right` the identity.
        """
        return change_factors(*self.weights)

    def __iter__(self) -> Iterator[Tensor]:
        """The factors, as `change` gave them before it gave one value."""
        warnings.warn(
            "change(before, after) is now one value: pass it as it is, stable_rank(change(before, after)), "
            "which is several times faster, or take its .factors(); unpacking it goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        return iter(self.factors())


def change(before: Matrix | tuple[Matrix, Matrix], after: Matrix | tuple[Matrix, Matrix]) -> Change:
    """The learned perturbation of Section 5 of the paper: of a head's product, or of a whole matrix.

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
    old, new = _factors(before), _factors(after)
    was, now = (" and ".join(map(shape_of, side)) for side in (old, new))
    if was != now:
        raise RankriseError(
            f"What was before is {was}, what is after {now}: pass the same weights at two moments, on one "
            "device."
        )
    return Change(old, new)


def change_factors(*weights: Tensor) -> Factors:
    """`Change.factors` of the weights of a chunk."""
    wide = [weight.double() for weight in weights]
    if len(wide) == 2:
        difference = wide[1] - wide[0]
        return difference, identity(difference)
    left, right = change_blocks(*wide)
    return torch.cat(left, -1), torch.cat(right, -1)


def change_blocks(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> tuple[Blocks, Blocks]:
    """The column blocks of the two factors of a change, in the weights' own type."""
    return (kt, kt - k0), (qt - q0, q0)


def identity(matrix: Tensor) -> Tensor:
    """What makes a whole matrix [..., m, n] a product of two factors."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand(
        *matrix.shape[:-2], -1, -1
    )


def refuse_beside_a_change(right: object) -> None:
    """A change is whole: nothing can stand where another matrix has its right factor."""
    if right is not None:
        raise RankriseError(
            f"{type(right).__name__} was passed beside a change, which is one value: name further "
            "arguments, such as count=2."
        )


def _factors(side: Matrix | tuple[Matrix, Matrix]) -> tuple[Tensor, ...]:
    if isinstance(side, tuple) and len(side) == 2:
        return checked(*side)
    matrix, _ = checked(side, side)
    return (matrix,)
