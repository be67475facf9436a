"""A matrix kept as two thin factors, `left @ right^T`: what is asked of them, and the change between two such
products.

No head's d x d product is ever formed: W_K W_Q^T has the factors (W_K, W_Q), and its change since
initialisation has factors of twice the inner size.
"""

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

Factors = tuple[Tensor, Tensor]
"""`left` [..., m, r] and `right` [..., n, r], which stand for `left @ right^T` [..., m, n]."""
Blocks = tuple[Tensor, ...]
"""Column blocks of one factor: one, or two of equal size."""


def change(before: Factors, after: Factors) -> Factors:
    """Factors of `after`'s product minus `before`'s: the learned perturbation of Section 5 of the paper.

    With `(k0, q0)` before and `(kt, qt)` after, `kt qt^T - k0 q0^T = kt (qt - q0)^T + (kt - k0) q0^T`, so

        left = [kt, kt - k0],   right = [qt - q0, q0],   each [..., d, 2 r] in float64.

    The obvious factors `[kt, k0]` and `[qt, -q0]` stand for the same matrix, but a change of 1e-6 of the
    weights is then a small difference of large numbers. Here the small differences are taken first, and
    float64 takes them exactly. (The product of the differences, `(kt - k0)(qt - q0)^T`, is something else.)

    >>> k0, q0 = torch.eye(4)[:, :2], torch.eye(4)[:, :2]
    >>> left, right = change((k0, q0), (2 * k0, q0))
    >>> torch.equal(left @ right.mT, (k0 @ q0.mT).double())
    True
    """
    left, right = change_blocks(*(weight.double() for weight in checked_change(before, after)))
    return torch.cat(left, -1), torch.cat(right, -1)


def change_blocks(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> tuple[Blocks, Blocks]:
    """The column blocks of the two factors of `change`, in the weights' own type."""
    return (kt, kt - k0), (qt - q0, q0)


def checked_change(before: Factors, after: Factors, name: str = "") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four factors, all with the same leading sizes, or an error that says what is wrong with them."""
    (k0, q0), (kt, qt) = checked(*before, name), checked(*after, name)
    if k0.shape != kt.shape or q0.shape != qt.shape or k0.device != kt.device:
        raise RankriseError(
            f"{_where(name)}the factors before are {_shape(k0)} and {_shape(q0)}, those after {_shape(kt)} "
            f"and {_shape(qt)}: pass the same weights at two moments, on one device."
        )
    return k0, q0, kt, qt


def checked(left: Tensor, right: Tensor, name: str = "") -> Factors:
    """The two factors without gradients, on a device that has float64, or an error that says what is
    wrong."""
    for side, factor in (("left", left), ("right", right)):
        if not factor.is_floating_point() or factor.ndim < 2 or factor.numel() == 0 or factor.is_meta:
            raise RankriseError(
                f"{_where(name)}the {side} factor is {_shape(factor)} of {factor.dtype}: pass a "
                "floating-point tensor [..., d, r] that holds numbers."
            )
    batches = {left.shape[:-2], right.shape[:-2]} - {torch.Size()}
    if left.shape[-1] != right.shape[-1] or left.device != right.device or len(batches) > 1:
        raise RankriseError(
            f"{_where(name)}the factors are {_shape(left)} and {_shape(right)}: pass [..., m, r] and "
            "[..., n, r] with the same leading sizes and the same r, on one device."
        )
    batch = batches.pop() if batches else ()
    left, right = (factor.detach().expand(*batch, *factor.shape[-2:]) for factor in (left, right))
    if left.device.type == "mps":  # it has no float64
        left, right = left.cpu(), right.cpu()
    return left, right


def refuse_non_finite(bad: Tensor, name: str) -> None:
    """Raise if any entry of `bad` [...] is set: the error names the layer and the first such head."""
    if bad.any():
        head = [int(index) for index in bad.nonzero()[0]]
        which = f", head {head[0] if len(head) == 1 else head}," if head else ""
        raise RankriseError(
            f"{name or 'The matrix'}{which} holds nan or inf, which has no singular values: look for where "
            "training diverged, or leave this layer out."
        )


def _where(name: str) -> str:
    return f"{name}: " if name else ""


def _shape(factor: Tensor) -> str:
    return f"{list(factor.shape)} on {factor.device}"
