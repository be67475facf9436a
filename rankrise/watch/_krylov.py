"""The leading singular values of the change of a large matrix, without decomposing it: block Krylov iteration
(Musco and Musco, 2015) with full reorthogonalisation."""

import torch
from torch import Tensor

from rankrise.watch._factors import divided
from rankrise.watch._spectra import difference_values, row_parts

# Columns that are iterated beside those asked for; blocks of columns before the whole matrix is decomposed.
SPARE = 4
BLOCKS = 16
# Estimated relative error of a squared value at which it is good.
TOLERANCE = 1e-5
# Squared values below this fraction of the largest are lost in rounding, and waited for in vain.
NOISE = 1e-13


def leading_values(before: Tensor, after: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest singular values of `after - before` [m, n] and its Frobenius norm, in float64.

    With D the difference, the space spanned by X, (D^T D) X, (D^T D)^2 X, ... for a few random columns X
    holds the leading vectors long before it is whole. A Ritz value of D^T D in it is too small by at most
    residual^2 / gap, which is watched; where that does not become small, all values are computed.

    >>> before = torch.zeros(600, 300)
    >>> after = torch.diag(torch.arange(300.0, 0.0, -1.0))
    >>> values, norm = leading_values(before[:300], after, 3)
    >>> values.round(decimals=3), norm.square().round()
    (tensor([300., 299., 298.], dtype=torch.float64), tensor(9045050., dtype=torch.float64))
    """
    if before.shape[0] < before.shape[1]:
        before, after = before.mT, after.mT
    count = min(count, before.shape[1])
    scale, norm = _sizes(before, after)
    if not bool(scale.isfinite()) or scale == 0:
        return (scale * 0).expand(count), norm

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(before.shape[1], count + SPARE, generator=generator, dtype=torch.float64)
    block = torch.linalg.qr(start.to(before.device)).Q
    basis = images = block[:, :0]
    while basis.shape[1] + block.shape[1] <= min(before.shape[1], BLOCKS * (count + SPARE)):
        image = _applied(before, after, block, scale)
        basis, images = torch.cat((basis, block), 1), torch.cat((images, image), 1)
        squares, turn = torch.linalg.eigh(basis.mT @ images)
        squares, turn = squares.flip(0), turn.flip(1)
        for _ in range(2):  # the second time for what rounding left of the first
            image = image - basis @ (basis.mT @ image)
        block, rest = torch.linalg.qr(image)
        residuals = torch.linalg.vector_norm(rest @ turn[-block.shape[1] :], dim=0)
        if basis.shape[1] > block.shape[1] and _good(squares, residuals, count):
            return squares[:count].clamp_min(0).sqrt() * scale, norm
    return difference_values(before, after)[:count], norm


def _good(squares: Tensor, residuals: Tensor, count: int) -> bool:
    """Whether every leading Ritz value is within `TOLERANCE`; gaps are to the first that is not asked for."""
    gap = (squares[:count] - squares[count]).clamp_min(0) + residuals[:count]
    error = divided(residuals[:count].square(), gap)
    return bool((error <= TOLERANCE * squares[:count] + NOISE * squares[0]).all())


def _sizes(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry of the difference, and its Frobenius norm."""
    largest, norms = [], []
    for old, new in row_parts(before, after):
        difference = new.double() - old.double()
        largest.append(difference.abs().amax())
        norms.append(torch.linalg.vector_norm(difference))
    return torch.stack(largest).amax(), torch.linalg.vector_norm(torch.stack(norms))


def _applied(before: Tensor, after: Tensor, block: Tensor, scale: Tensor) -> Tensor:
    """`D^T D block` for the difference D over its largest entry."""
    image = torch.zeros_like(block)
    for old, new in row_parts(before, after):
        difference = (new.double() - old.double()) / scale
        image.addmm_(difference.mT, difference @ block)
    return image
