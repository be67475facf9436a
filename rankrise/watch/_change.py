"""`Change`: what was learned between two moments, of heads' products or of whole matrices, as factors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rankrise.foundations.device import in_parallel
from rankrise.foundations.errors import RankriseError

Matrix = Tensor | ArrayLike
"""A tensor, a NumPy array or nested lists of numbers, [..., m, n]."""
Factors = tuple[Matrix, Matrix]
"""Left and right factor of a product, [..., m, r] and [..., n, r]."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CHUNK_BYTES = 2**23  # in float64, of the heads that are measured together on a CPU: they stay in the caches
ACCELERATOR_CHUNK_BYTES = 2**30


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

    def blocks(self, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Column blocks of `left` and `right`, whose product `left @ right^T` [..., m, n] is the change.

        `kt qt^T - k0 q0^T = kt (qt - q0)^T + (kt - k0) q0^T`: the small differences are taken first. In
        float64 they are exact. For whole matrices, `left` is the difference and `right` the identity.
        """
        wide = [weight.to(dtype) for weight in self.weights]
        if self.is_whole:
            eye = torch.eye(self.shape[1], dtype=dtype, device=wide[0].device)
            return (wide[1] - wide[0],), (eye.expand(*wide[0].shape[:-2], -1, -1),)
        if not self.before:
            return (wide[0],), (wide[1],)
        k0, q0, kt, qt = wide
        return (kt, kt - k0), (qt - q0, q0)

    def factors(self) -> tuple[Tensor, Tensor]:
        """`left` and `right` in float64, of all columns."""
        left, right = (torch.cat(columns, -1) for columns in self.blocks(torch.float64))
        return left, right

    def in_chunks(self, function: Callable[["Change"], Tensor], larger: int = 1) -> Tensor:
        """Apply `function` to a few heads [heads, d, r] at a time, on all cores, without gradients.

        Chunks are `larger` times the usual size for a function of many small steps.
        """
        batch, device = self.after[0].shape[:-2], self.after[0].device.type
        flat = [weight.reshape(-1, *weight.shape[-2:]) for weight in self.weights]
        heads = len(flat[0])
        room = larger * CHUNK_BYTES if device == "cpu" else ACCELERATOR_CHUNK_BYTES
        most = max(1, room // sum(8 * weight[0].numel() for weight in flat))
        pieces = 2 * torch.get_num_threads() if device == "cpu" and heads > 1 else 1
        parts = zip(*(weight.split(min(most, math.ceil(heads / pieces))) for weight in flat), strict=True)
        split = len(self.before)
        chunks = [Change(part[:split], part[split:]) for part in parts]
        result = torch.cat(in_parallel(function, chunks, device))
        return result.reshape((*batch, *result.shape[1:]))


def change(before: Matrix | Factors, after: Matrix | Factors) -> Change:
    """What was learned between two moments: of a head's product, or of a whole matrix.

    A tuple of two is the factors (left, right) of a product, such as (W_K, W_Q); anything else is a matrix.

    >>> from rankrise import watch
    >>> k0, q0 = torch.eye(4)[:, :2], torch.eye(4)[:, :2]
    >>> learned = change((k0, q0), (2 * k0, q0))
    >>> watch.stable_rank(learned), watch.stable_rank(change([[1, 0], [0, 1]], [[3, 0], [0, 2]]))
    (tensor(2., dtype=torch.float64), tensor(1.2500, dtype=torch.float64))
    """
    old, new = _checked(before), _checked(after)
    was, now = ([list(one.shape) for one in side] for side in (old, new))
    if was != now:
        raise RankriseError(f"Weights are {was} before and {now} after: pass two moments of one model.")
    return Change(old, new)


def as_change(left: Matrix | Factors | Change, right: Matrix | None = None, *, name: str = "") -> Change:
    """A change as it is; a product (of two factors, or a tuple of them) or a matrix as a change from zero."""
    if isinstance(left, Change | tuple):
        if right is not None:
            raise RankriseError("It has no further factor: name other arguments, such as count=2.")
        if isinstance(left, Change):
            return left
    elif right is not None:
        left = (left, right)
    weights = _checked(left, name=name)
    if len(weights) == 2:
        return Change((), weights)
    return Change((weights[0].new_zeros(()).expand_as(weights[0]),), weights)


def as_tensor(given: Matrix) -> Tensor:
    """A tensor as it is, an array in its own dtype, lists of numbers in float64."""
    if isinstance(given, Tensor):
        return given
    return torch.from_numpy(np.array(given, dtype=np.float64 if isinstance(given, list | tuple) else None))


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


def _checked(given: Matrix | Factors, *, name: str = "") -> tuple[Tensor, ...]:
    """Factors or a matrix without gradients, with the same leading sizes, on a device that has float64."""
    parts = given if isinstance(given, tuple) and len(given) == 2 else (given,)
    weights = [as_tensor(one).detach() for one in parts]
    for weight in weights:
        refuse_quantised(weight, name or "The matrix")
    if min(weight.ndim for weight in weights) < 2 or len({weight.shape[-1] for weight in weights}) > 1:
        shapes = " and ".join(str(list(weight.shape)) for weight in weights)
        raise RankriseError(f"{name or 'The matrix'} has shapes {shapes}: pass [..., m, r] and [..., n, r].")
    batch = torch.broadcast_shapes(*(weight.shape[:-2] for weight in weights))
    weights = [weight.expand(*batch, -1, -1) for weight in weights]
    return tuple(weight.cpu() if weight.device.type == "mps" else weight for weight in weights)
