"""Weights now and at the beginning -> the numbers of a record: ranks, norm and leading values of the change.

Everything comes from the singular values of the change, right to 1e-5 of the largest (see `spectra`). An
iteration for the leading few alone would not be cheaper: the change of a head is only 2 d_head wide, and
what takes the time is to make it that small. Other matrices can be wide: they get the iteration.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.watch._batches import CHUNK_BYTES, without_autocast
from rankrise.watch._factors import Factors
from rankrise.watch._ranks import effective_rank, energy_rank
from rankrise.watch._spectra import change_values, difference_values, factor_values
from rankrise.watch._track.leading import leading_values
from rankrise.watch._track.weights import Tensors, Unit

# What float64 copies of one batch of heads may take on an accelerator: little beside a model, enough to fill
# it.
ACCELERATOR_BYTES = 2**27
# Matrices up to this size are decomposed whole: the iteration would gain nothing.
SMALL = 256
ENERGY_SHARES = (0.9, 0.95, 0.99)
"""Shares of the energy, the sum of squared singular values, whose directions are counted."""


@dataclass(frozen=True)
class Measured:
    """Of one product of a layer: `stable_rank` and `norm` [heads], `top` values [heads, k], all on the CPU.

    The others are None if only the leading values were computed: all `values` [heads, r], how many of them
    hold `ENERGY_SHARES`, `energy_rank` [heads, 3], and `entropy_rank` [heads]. So are those that a history
    adds: `noise_share` [heads] of the change's square that rounding explains, and `noise_rank` [heads], the
    stable rank that rounding alone would give.
    """

    stable_rank: Tensor
    norm: Tensor
    top: Tensor
    values: Tensor | None = None
    energy_rank: Tensor | None = None
    entropy_rank: Tensor | None = None
    noise_share: Tensor | None = None
    noise_rank: Tensor | None = None


@dataclass(frozen=True)
class Change:
    """A unit's weights at the beginning and now."""

    unit: Unit
    initial: Tensors
    now: Tensors


Results = dict[tuple[str, str], Measured]
"""By the name of the unit and "KQ", "VO" or "matrix"."""


def measure(changes: Iterable[Change], top: int, full: bool) -> Results:
    """The change of every product of every unit; a head with nan or inf in it comes out as nan."""
    results: Results = {}
    pieces: list[_Piece] = []
    for change in changes:
        if change.unit.is_layer:
            pieces += _pieces(change)
        else:
            results[change.unit.name, "matrix"] = _matrix(change, top, full)
    return results | {place: _summary(values, top) for place, values in _in_batches(pieces).items()}


def initial_values(unit: Unit, initial: Tensors) -> Tensors:
    """Singular values [heads, r] of the initial products themselves, [r] of an initial matrix."""
    if not unit.is_layer:
        zero = torch.zeros((), dtype=initial["matrix"].dtype, device=initial["matrix"].device)
        return {"matrix": difference_values(zero.expand_as(initial["matrix"]), initial["matrix"]).cpu()}
    found: dict[str, list[Tensor]] = {product: [] for product, _ in unit.products}
    for product, roles in unit.products:
        for chosen in _portions(unit, initial, roles):
            found[product].append(factor_values(*_factors(unit, initial, roles, chosen)).cpu())
    return {product: torch.cat(parts) for product, parts in found.items()}


@dataclass(frozen=True)
class _Piece:
    """Some heads of one product: small enough to be measured together, perhaps with pieces of its shape."""

    place: tuple[str, str]
    heads: int
    size: int
    shape: tuple[object, ...]
    device: torch.device
    read: Callable[[], tuple[Tensor, ...]]


def _pieces(change: Change) -> list[_Piece]:
    pieces = []
    for product, roles in change.unit.products:
        left, right = (change.initial[role] for role in roles)
        for chosen in _portions(change.unit, change.initial, roles):

            def read(roles: tuple[str, str] = roles, chosen: range = chosen) -> tuple[Tensor, ...]:
                before = _factors(change.unit, change.initial, roles, chosen)
                return *before, *_factors(change.unit, change.now, roles, chosen)

            now = change.now[roles[0]]
            shape = (left.shape[1:], right.shape[1:], left.dtype, now.dtype, left.device)
            size = _size(change.initial, roles) * len(chosen)
            place = change.unit.name, product
            pieces.append(_Piece(place, len(chosen), size, shape, left.device, read))
    return pieces


def _portions(unit: Unit, tensors: Tensors, roles: tuple[str, str]) -> list[range]:
    """The tracked heads, as many at a time as there is room for."""
    most = max(1, _room(tensors[roles[0]].device) // _size(tensors, roles))
    count = len(unit.heads)
    return [range(start, min(start + most, count)) for start in range(0, count, most)]


def _size(tensors: Tensors, roles: tuple[str, str]) -> int:
    """Bytes of a head's factors in float64, before and after."""
    return sum(16 * tensors[role][0].numel() for role in roles)


def _in_batches(pieces: list[_Piece]) -> dict[tuple[str, str], Tensor]:
    """The singular values [heads, r] of each place; pieces of the same shape share a batch while it is
    small."""
    waiting: dict[tuple[object, ...], list[_Piece]] = {}
    found: dict[tuple[str, str], list[Tensor]] = {piece.place: [] for piece in pieces}

    def measure_batch(batch: list[_Piece]) -> None:
        factors = [torch.cat(parts) for parts in zip(*(piece.read() for piece in batch), strict=True)]
        with without_autocast(factors[0].device.type):
            values = change_values(*factors).cpu()
        for piece, part in zip(batch, values.split([piece.heads for piece in batch]), strict=True):
            found[piece.place].append(part)

    for piece in pieces:
        batch = waiting.setdefault(piece.shape, [])
        if batch and sum(other.size for other in batch) + piece.size > _room(piece.device):
            measure_batch(waiting.pop(piece.shape))
            batch = waiting.setdefault(piece.shape, [])
        batch.append(piece)
    for batch in waiting.values():
        measure_batch(batch)
    return {place: torch.cat(parts) for place, parts in found.items()}


def _room(device: torch.device) -> int:
    return CHUNK_BYTES if device.type == "cpu" else ACCELERATOR_BYTES


def _factors(unit: Unit, tensors: Tensors, roles: tuple[str, str], chosen: range) -> Factors:
    """Both factors of the chosen heads (counted among the tracked ones): what heads share is repeated."""
    left, right = (_rows(unit, tensors[role], role, chosen) for role in roles)
    return left, right


def _rows(unit: Unit, tensor: Tensor, role: str, chosen: range) -> Tensor:
    if role in ("key", "value") and len(unit.groups) < len(unit.heads):
        return torch.stack([tensor[unit.groups.index(unit.group[head])] for head in chosen])
    return tensor[chosen.start : chosen.stop]


def _matrix(change: Change, top: int, full: bool) -> Measured:
    before, after = change.initial["matrix"], change.now["matrix"]
    if full or min(before.shape) <= SMALL:
        return _summary(difference_values(before, after).cpu()[None], top)
    values, norm = leading_values(before, after, top)
    values, norm = values.cpu()[None], norm.cpu()[None]
    return Measured((norm / _or_one(values[:, 0])).square(), norm, values)


def _summary(values: Tensor, top: int) -> Measured:
    norm = torch.linalg.vector_norm(values, dim=-1)
    energy = torch.stack([energy_rank(values, share).double() for share in ENERGY_SHARES], -1)
    return Measured(
        stable_rank=(norm / _or_one(values[:, 0])).square(),
        norm=norm,
        top=values[:, :top],
        values=values,
        energy_rank=torch.where(norm.isfinite()[:, None], energy, torch.nan),
        entropy_rank=torch.where(norm.isfinite(), effective_rank(values), torch.nan),
    )


def _or_one(number: Tensor) -> Tensor:
    return torch.where(number == 0, 1.0, number)
