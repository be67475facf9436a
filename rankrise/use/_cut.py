"""The change of one matrix as directions, best for the loss first: a weighted SVD."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.use._allocate import Spectrum
from rankrise.use._leading import Directions, leading_directions
from rankrise.use._moment import Root
from rankrise.use._noise import Noise, rounding

NO_NOISE = Noise(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Cut:
    """The leading directions of a change: `left[:, :k] @ right[:k]` is the change cut to rank k.

    Cut so, `|L^T (change - cut) R|` is least for every k (Eckart and Young), where `L L^T = G` and
    `R R^T = C`: to second order, the square is twice what the cut adds to the loss when C is the second
    moment of the inputs and G that of the loss gradients at the outputs.
    """

    left: Tensor
    """B. [out, k]"""
    right: Tensor
    """A. [k, in]"""
    values: Tensor
    """Weighted singular values, largest first, without those within the noise. float64 [k], on the CPU"""
    total: float
    """The square of the whole weighted change, less that of the noise."""
    noise: float
    """The largest singular value that rounding alone would give, of the weights or in float32."""

    @property
    def spectrum(self) -> Spectrum:
        out, into = self.left.shape[0], self.right.shape[1]
        return Spectrum(tuple(self.values.square().tolist()), self.total, out + into)

    def on_cpu(self) -> "Cut":
        return replace(self, left=self.left.cpu(), right=self.right.cpu())

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """B [out, rank] and A [rank, in], whose product is the change cut to that rank."""
        return self.left[:, :rank], self.right[:rank]


def cut(
    change: Tensor,
    count: int,
    inputs: Root | None = None,
    outputs: Root | None = None,
    noise: Noise = NO_NOISE,
) -> Cut:
    """Up to `count` directions of a change [out, in], weighted by the roots of C (inputs) and G (outputs).

    >>> made = cut(torch.diag(torch.tensor([3.0, 2.0, 1.0])), count=2)
    >>> made.values.tolist(), round(made.total, 5)
    ([3.0, 2.0], 14.0)
    """
    weighted = change.float()
    if inputs is not None:
        weighted = inputs.apply(weighted.mT).mT
    if outputs is not None:
        weighted = outputs.apply(weighted)
    square = float(torch.linalg.vector_norm(weighted, dtype=torch.float64)) ** 2
    directions = leading_directions(weighted, count)
    computed = torch.finfo(torch.float32).eps * sum(side**0.5 for side in change.shape)
    floor = max(noise.largest, computed * float(directions.values[:1].sum()))
    return _unweighted(directions, square, inputs, outputs, noise._replace(largest=floor))


def cut_change(
    before: Tensor, after: Tensor, count: int, inputs: Root | None = None, outputs: Root | None = None
) -> Cut:
    """Up to `count` directions of the change of a weight [out, in], beyond the rounding of its storage."""
    noise = rounding(before, after, inputs, outputs)
    return cut(after.float() - before.float(), count, inputs, outputs, noise)


def cut_product(left: Tensor, right: Tensor, inputs: Root | None = None, outputs: Root | None = None) -> Cut:
    """All directions of `left @ right`, [out, k] and [k, in], from these factors alone: a QR of each, then
    the SVD of a k x k matrix.

    >>> made = cut_product(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> made.values.tolist()
    [3.0, 1.0]
    """
    left, right = left.double(), right.mT.double()
    if outputs is not None:
        left = outputs.apply(left)
    if inputs is not None:
        right = inputs.apply(right)
    (left_basis, left_part), (right_basis, right_part) = torch.linalg.qr(left), torch.linalg.qr(right)
    turn, values, other_turn = torch.linalg.svd((left_part @ right_part.mT).cpu())
    left = left_basis @ (turn * values).to(left)
    directions = Directions(values, left, right_basis @ other_turn.mT.to(left))
    floor = Noise(1e-12 * float(values[:1].sum()), 0.0)
    return _unweighted(directions, float(values.square().sum()), inputs, outputs, floor)


def _unweighted(
    directions: Directions, square: float, inputs: Root | None, outputs: Root | None, noise: Noise
) -> Cut:
    """The directions that stand out from the noise, mapped back.

    The two factors of a direction have the same length, as training them with one rate wants it (and numbers
    of 16 bits): mapped back alone, they differ by as much as inputs and gradients do in size.
    """
    values, left, right = directions
    counted = int((values > noise.largest).sum())
    values, left, right = values[:counted], left[:, :counted], right[:, :counted]
    if outputs is not None:
        left = outputs.undo(left)
    if inputs is not None:
        right = inputs.undo(right)
    ratio = (torch.linalg.vector_norm(right, dim=0) / torch.linalg.vector_norm(left, dim=0)).sqrt()
    left, right = left * ratio, right / ratio
    kept = values.double().cpu()
    return Cut(
        left=left.contiguous(),
        right=right.mT.contiguous(),
        values=kept,
        total=max(square - noise.square, float(kept.square().sum())),
        noise=noise.largest,
    )
