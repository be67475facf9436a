"""The noise that storing weights in few bits puts into their change, as moments of activations weigh it."""

from typing import NamedTuple

from torch import Tensor

from rankrise.use._moment import Root
from rankrise.watch._rounding import as_stored, matrix_noise


class Noise(NamedTuple):
    """Of a matrix of independent rounding errors: their largest singular value to expect, and square."""

    largest: float
    square: float


def rounding(before: Tensor, after: Tensor, inputs: Root | None, outputs: Root | None) -> Noise:
    """The noise of `after - before`, [out, in], where both were rounded to the dtype they are stored in.

    Where float32 holds numbers of fewer bits, these count. Under the roots R, L of moments, the largest value
    of a plain matrix of errors is multiplied by `(|R|_F |L| + |R| |L|_F) / (sqrt(m) + sqrt(n))` (Chevet's
    inequality).
    """
    largest, square = map(float, matrix_noise(as_stored(before), as_stored(after)))
    out, into = before.shape
    left_square, left_norm = (outputs.square, outputs.norm) if outputs else (float(out), 1.0)
    right_square, right_norm = (inputs.square, inputs.norm) if inputs else (float(into), 1.0)
    if inputs or outputs:
        plain = out**0.5 + into**0.5
        largest *= (left_square**0.5 * right_norm + left_norm * right_square**0.5) / plain
        square *= left_square * right_square / (out * into)
    return Noise(largest, square)
