"""The change of one matrix as directions, the most useful first: a weighted SVD of its leading part."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._moments import ExpertRoots, Roots
from rankrise.use._ranks import Spectrum
from rankrise.watch._rounding import as_stored, spacing

WHOLE_UP_TO = 384  # up to this smaller side, decomposing the whole matrix is fastest
GROWTH = 1e5  # how much a polynomial may enlarge the first direction over the rest in float32
DEGREES, PASSES = 8, 24  # of a pass's polynomials together, and the most passes
TOLERANCE = 3e-4  # stop when a pass adds a smaller share to the kept square

Directions = tuple[Tensor, Tensor, Tensor]  # singular values [k], left vectors times these, right vectors


@dataclass(frozen=True, eq=False)
class Cut:
    """The leading directions of a change: `left[:, :k] @ right[:k]` is the change cut to rank k.

    For every k it minimises `|L^T (change - cut) R|`, where `L L^T = G` and `R R^T = C` (Eckart and Young).
    If C is the second moment of the inputs and G that of the loss gradients at the outputs, half the square
    is what the cut adds to the loss, to second order. The experts in one parameter are cut side by side: the
    k-th direction of the parameter is that of each of them.
    """

    left: Tensor  # B, [out, k] or [experts, out, k]
    right: Tensor  # A, [k, in] or [experts, k, in]
    values: Tensor  # the weighted singular values above the noise, largest first: float64 [k], on the CPU
    total: float  # the square of the whole weighted change, less that of the noise
    noise: float  # the largest singular value that rounding alone would give

    @property
    def spectrum(self) -> Spectrum:
        cost = math.prod(self.left.shape[:-2]) * (self.left.shape[-2] + self.right.shape[-1])
        return Spectrum(tuple(self.values.square().tolist()), self.total, cost)

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """B [out, rank] and A [rank, in]; their product is the change cut to that rank."""
        return self.left[..., :rank], self.right[..., :rank, :]


def cut_change(before: Tensor, after: Tensor, count: int, roots: Roots | ExpertRoots | None = None) -> Cut:
    """Find up to `count` directions of `after - before`, [out, in], that rounding cannot have made."""
    if before.ndim == 3:
        return _side_by_side(lambda old, new, of: cut_change(old, new, count, of), before, after, roots)
    assert not isinstance(roots, list)
    largest, noise_square = rounding(before, after, roots)
    weighted = after.float() - before.float()
    if roots is not None:
        weighted = roots[1].apply(roots[0].apply(weighted.mT).mT)
    square = float(torch.linalg.vector_norm(weighted, dtype=torch.float64)) ** 2
    directions = leading_directions(weighted, count)
    computed = torch.finfo(torch.float32).eps * sum(side**0.5 for side in after.shape)
    floor = max(largest, computed * float(directions[0][:1].sum()))
    return _unweighted(directions, square - noise_square, roots, floor)


def cut_product(left: Tensor, right: Tensor, roots: Roots | ExpertRoots | None = None) -> Cut:
    """Find all directions of `left @ right`, [out, k] and [k, in], without forming the product."""
    if left.ndim == 3:
        return _side_by_side(cut_product, left, right, roots)
    assert not isinstance(roots, list)
    left, right = left.double(), right.mT.double()
    if roots is not None:
        right, left = roots[0].apply(right), roots[1].apply(left)
    (left_basis, left_part), (right_basis, right_part) = torch.linalg.qr(left), torch.linalg.qr(right)
    u, values, vh = torch.linalg.svd((left_part @ right_part.mT).cpu(), full_matrices=False)
    left = left_basis @ (u * values).to(left)
    directions = values, left, right_basis @ vh.mT.to(left)
    return _unweighted(directions, float(values.square().sum()), roots, 1e-12 * float(values[:1].sum()))


def _side_by_side(cut: Callable[..., Cut], left: Tensor, right: Tensor, roots: Any) -> Cut:
    """The cuts of all experts as one."""
    cuts = list(map(cut, left, right, roots or repeat(None)))
    most = max(len(one.values) for one in cuts)

    def stacked(tensors: Iterable[Tensor]) -> Tensor:
        return torch.stack([nn.functional.pad(one, (0, most - one.shape[-1])) for one in tensors])

    return Cut(
        stacked(one.left for one in cuts),
        stacked(one.right.mT for one in cuts).mT,
        stacked(one.values for one in cuts).square().sum(0).sqrt(),
        sum(one.total for one in cuts),
        max(one.noise for one in cuts),
    )


def rounding(before: Tensor, after: Tensor, roots: Roots | None) -> tuple[float, float]:
    """Bound the noise that storing both weights put into their difference: its largest value, and its square.

    If float32 holds numbers of a narrower dtype, that dtype counts. The largest singular value is at most
    about `sqrt(largest row sum) + sqrt(largest column sum)` of the errors' variances. Under the roots R and L
    of moments, the bound is multiplied by `(|R|_F |L| + |R| |L|_F) / (sqrt(m) + sqrt(n))` (Chevet).
    """
    variances = spacing(as_stored(before)).square_().add_(spacing(as_stored(after)).square_()).div_(12)
    rows, columns = variances.sum(1), variances.sum(0)
    largest, square = float(rows.max().sqrt() + columns.max().sqrt()), float(rows.double().sum())
    if roots is not None:
        right, left = roots
        out, into = before.shape
        chevet = left.square**0.5 * right.norm + left.norm * right.square**0.5
        largest *= chevet / (out**0.5 + into**0.5)
        square *= left.square * right.square / (out * into)
    return largest, square


def _unweighted(directions: Directions, total: float, roots: Roots | None, noise: float) -> Cut:
    """Map the directions above the noise back; equally long factors suit one learning rate and 16 bits."""
    counted = int((directions[0] > noise).sum())
    values, left, right = (each[..., :counted] for each in directions)
    if roots is not None:
        right, left = roots[0].undo(right), roots[1].undo(left)
    ratio = (torch.linalg.vector_norm(right, dim=0) / torch.linalg.vector_norm(left, dim=0)).sqrt()
    left, right, values = (left * ratio).contiguous(), (right / ratio).mT.contiguous(), values.double().cpu()
    return Cut(left, right, values, max(total, float(values.square().sum())), noise)


def leading_directions(matrix: Tensor, count: int) -> Directions:
    """The `count` leading singular directions of a matrix [m, n]; none if all its entries are zero."""
    if matrix.shape[0] < matrix.shape[1]:
        values, left, right = leading_directions(matrix.mT, count)
        return values, right * values, left / torch.where(values > 0, values, 1)
    size = matrix.abs().amax()
    if not torch.isfinite(size):
        raise RankriseError("A change holds infinite or undefined numbers: check both checkpoints.")
    if size == 0:
        return matrix[0, :0], matrix[:, :0], matrix.mT[:, :0]
    matrix, count = matrix / size, min(count, matrix.shape[1])
    width = count + max(16, count // 4)
    if matrix.shape[1] <= WHOLE_UP_TO or 2 * width >= matrix.shape[1]:
        _, vectors = torch.linalg.eigh(_gram(matrix))
        right = vectors.flip(1)[:, :count].to(matrix.dtype)
    else:
        right = _refined(matrix, count, width)
    left = matrix @ right
    lengths = torch.linalg.vector_norm(left, dim=0)
    order = lengths.argsort(descending=True)
    return size * lengths[order], size * left[:, order], right[:, order]


def _refined(matrix: Tensor, count: int, width: int) -> Tensor:
    """Leading right vectors: a random block refined by products of matrices alone, which suits a GPU.

    Each pass applies `T(M^T M)`, T the Chebyshev polynomial that is small on what the block leaves out and
    grows fastest beyond it (Zhou and Saad 2007). It divides what is missing of the kept square by about 10.
    """
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(matrix.shape[1], width, generator=generator).to(matrix)
    block = _orthonormal(matrix.mT @ (matrix @ _orthonormal(block)))
    kept = 0.0
    for _ in range(PASSES):
        squares, turn = torch.linalg.eigh(_gram(matrix @ block).cpu())
        block = (block @ turn.flip(1).to(block)).contiguous()
        squares = squares.flip(0)
        before, kept = kept, float(squares[:count].sum())
        if kept - before <= TOLERANCE * kept:
            break
        largest, edge = float(squares[0]), max(float(squares[-1]), 1e-7 * float(squares[0]))
        growth = math.acosh(max(2 * largest / edge - 1, 1 + 1e-6))
        degree = min(max(int(math.acosh(GROWTH) / growth), 1), DEGREES)
        for _ in range(DEGREES // degree):
            block = _orthonormal(_filtered(matrix, block, edge, degree))
    return block[:, :count]


def _filtered(matrix: Tensor, block: Tensor, edge: float, degree: int) -> Tensor:
    """`T_d(2 M^T M / edge - 1) @ block` by the three-term recursion, with columns of length 1."""

    def shifted(columns: Tensor, factor: float) -> Tensor:
        return torch.add(matrix.mT @ (matrix @ columns).mul_(2 * factor / edge), columns, alpha=-factor)

    before, now = block, shifted(block, 1.0)
    for _ in range(degree - 1):
        before, now = now, shifted(now, 2.0).sub_(before)
    return now / torch.linalg.vector_norm(now, dim=0).clamp_min(torch.finfo(now.dtype).tiny)


def _orthonormal(block: Tensor) -> Tensor:
    """Orthonormal columns by Cholesky twice, which is fast, or by Householder if columns are dependent."""
    made = block
    for _ in range(2):
        root, failed = torch.linalg.cholesky_ex(_gram(made))
        if failed:
            return torch.linalg.qr(block).Q
        made = torch.linalg.solve_triangular(root.to(made.dtype), made.mT, upper=False).mT
    return made


def _gram(columns: Tensor) -> Tensor:
    """`X^T X` in float64, so that squaring loses nothing."""
    double = columns.double()
    return double.mT @ double
