"""`Change`: a head's product, or a whole matrix, at two moments. All that is measured here is of one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._batches import batched
from rankrise.watch._factors import Factors, Matrix, checked


@dataclass(frozen=True, eq=False)
class Change:
    """`after` minus `before`, each of them the product of two factors (left, right), or one whole matrix.

    `stable_rank`, `singular_values` and the rest take it. It holds the tensors that were passed, not copies:
    clone weights that go on training. An empty `before` is zero: then it is `after` itself that is measured.
    """

    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """(k0, q0, kt, qt) or (w0, wt); (kt, qt) or (wt,) without a `before`."""
        return *self.before, *self.after

    @property
    def is_whole(self) -> bool:
        """Whether the matrices are whole, not products of two factors."""
        return len(self.after) == 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix that changed."""
        rows, columns = self.after[0].shape[-2], self.after[-1].shape[-1 if self.is_whole else -2]
        return rows, columns

    @property
    def highest_rank(self) -> int:
        """The most that its rank can be, by its shape and its factors."""
        inner = min(self.shape) if self.is_whole else len(self.weights) // 2 * self.after[0].shape[-1]
        return min(*self.shape, inner)

    def factors(self) -> Factors:
        """`left` and `right` in float64, whose product `left @ right^T` [..., m, n] is the change.

        With `(k0, q0)` before and `(kt, qt)` after, `kt qt^T - k0 q0^T = kt (qt - q0)^T + (kt - k0) q0^T`, so

            left = [kt, kt - k0],   right = [qt - q0, q0],   each [..., d, 2 r].

        `[kt, k0]` and `[qt, -q0]` stand for the same matrix, but then a change of 1e-6 of the weights is a
        small difference of large numbers. Here the small differences are taken first, in float64, where they
        are exact. For whole matrices, `left` is the difference and `right` the identity.
        """
        wide = [weight.double() for weight in self.weights]
        if self.is_whole:
            return wide[-1] - wide[0] if self.before else wide[0], identity(wide[0])
        if not self.before:
            return wide[0], wide[1]
        left, right = blocks(*wide)
        return torch.cat(left, -1), torch.cat(right, -1)

    def in_chunks(self, function: Callable[["Change"], Tensor], larger: int = 1) -> Tensor:
        """`function` of a few heads [heads, d, r] at a time, on all cores (see `batched`)."""
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
    learned = Change(_weights(before), _weights(after))
    was, now = ([(*one.shape, str(one.device)) for one in side] for side in (learned.before, learned.after))
    if was != now:
        raise RankriseError(
            f"The weights are {was} before and {now} after: pass the same weights at two moments, on one "
            "device."
        )
    return learned


def as_change(left: Matrix | Change, right: Matrix | None = None, *, name: str = "") -> Change:
    """A change as it is; a product or a matrix by itself as a change from zero."""
    if not isinstance(left, Change):
        return Change((), _whole(left, name) if right is None else checked(left, right, name=name))
    if right is not None:
        raise RankriseError("A change has no right factor: name further arguments, such as count=2.")
    return left


def blocks(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> tuple[Factors, Factors]:
    """The column blocks of the two factors of a change, in the weights' own type."""
    return (kt, kt - k0), (qt - q0, q0)


def identity(matrix: Tensor) -> Tensor:
    """The right factor that makes a whole matrix [..., m, n] a product."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return eye.expand(*matrix.shape[:-2], -1, -1)


def _weights(side: Matrix | tuple[Matrix, Matrix]) -> tuple[Tensor, ...]:
    return checked(*cast(Factors, side)) if isinstance(side, tuple) else _whole(side)


def _whole(matrix: Matrix, name: str = "") -> tuple[Tensor]:
    return checked(matrix, matrix, name=name)[:1]
