"""The noise that storing weights in few bits puts into their change, as moments of activations weigh it."""

from typing import NamedTuple

from torch import Tensor

from rankrise.use._moment import Root
from rankrise.watch._rounding import as_stored, spacing


class Noise(NamedTuple):
    """Of a matrix of independent rounding errors: their largest singular value to expect, and square."""

    largest: float
    square: float


def rounding(before: Tensor, after: Tensor, inputs: Root | None, outputs: Root | None) -> Noise:
    """The noise of `after - before`, [out, in], where both were rounded to the dtype they are stored in.

    Where float32 holds numbers of fewer bits, these count. The largest value is bounded by `sqrt(largest row
    sum) + sqrt(largest column sum)` of the errors' variances, as for equal ones by sigma (sqrt(m) + sqrt(n)).
    Nothing is drawn, which for a model of billions would take longer than the cuts. Under the roots R, L of
    moments, the bound of a plain matrix of errors is multiplied by
    `(|R|_F |L| + |R| |L|_F) / (sqrt(m) + sqrt(n))` (Chevet's inequality).
    """
    variances = spacing(as_stored(before)).square_().add_(spacing(as_stored(after)).square_()).div_(12)
    rows, columns = variances.sum(1), variances.sum(0)
    largest, square = float(rows.max().sqrt() + columns.max().sqrt()), float(rows.double().sum())
    out, into = before.shape
    left_square, left_norm = (outputs.square, outputs.norm) if outputs else (float(out), 1.0)
    right_square, right_norm = (inputs.square, inputs.norm) if inputs else (float(into), 1.0)
    if inputs or outputs:
        plain = out**0.5 + into**0.5
        largest *= (left_square**0.5 * right_norm + left_norm * right_square**0.5) / plain
        square *= left_square * right_square / (out * into)
    return Noise(largest, square)
