"""Weights now and at the beginning -> the numbers of a record: ranks, norm and leading values of the change.

Everything comes from the singular values of the change, right to 1e-5 of the largest (see `_spectra`). An
iteration for the leading few alone would not be cheaper: the change of a head is only 2 d_head wide, and
what takes the time is to make it that small. Other matrices can be wide: they get the iteration.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise.record.run import ENERGY_SHARES
from rankrise.watch._batches import CHUNK_BYTES, in_parallel, without_autocast
from rankrise.watch._change import Factors, divided
from rankrise.watch._leading import leading_values
from rankrise.watch._ranks import effective_rank, energy_rank
from rankrise.watch._rounding import Noise, Stored, as_stored, matrix_noise, product_noise
from rankrise.watch._spectra import change_values_and_grams, difference_values, factor_values
from rankrise.watch._units import Tensors, Unit

# What float64 copies of one batch of heads may take on an accelerator: little beside a model, enough to fill
# it.
ACCELERATOR_BYTES = 2**27
# Matrices up to this size are decomposed whole: the iteration would gain nothing.
SMALL = 256


@dataclass(frozen=True)
class MeasuredChange:
    """Numbers of one product of a layer, on the CPU: `stable_rank` and `norm` [heads], `top` values
    [heads, k].

    The others are None if only the leading values were computed: all `values` [heads, r], `energy_rank`
    [heads, 3] (how many of them hold `ENERGY_SHARES`) and `entropy_rank` [heads]. Only a history has
    `noise_share` [heads], how much of the change's square rounding explains, and `noise_rank` [heads], the
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
class UnitChange:
    """A unit's weights at the beginning and now. For a noise floor also the `variances` of their rounding
    errors by role, at the beginning and now (empty for a matrix)."""

    unit: Unit
    initial: Tensors
    now: Tensors
    variances: tuple[Tensors, Tensors] | None = None


Results = dict[tuple[str, str], MeasuredChange]
"""By the name of the unit and "KQ", "VO" or "matrix"."""


def measure(
    changes: Iterable[UnitChange], top: int, full: bool, accelerator_bytes: int = ACCELERATOR_BYTES
) -> Results:
    """The change of every product of every unit; a head with nan or inf in it comes out as nan."""
    results: Results = {}
    pieces: list[_Piece] = []
    for change in changes:
        if change.unit.is_layer:
            pieces += _pieces(change, accelerator_bytes)
        else:
            results[change.unit.name, "matrix"] = _matrix(change, top, full)
    for place, (values, noise) in _in_batches(pieces, accelerator_bytes).items():
        results[place] = _with_noise(_summary(values, top), noise)
    return results


def initial_values(unit: Unit, initial: Tensors) -> Tensors:
    """Singular values [heads, r] of the initial products themselves, [r] of an initial matrix."""
    if not unit.is_layer:
        matrix = initial["matrix"]
        zero = torch.zeros((), dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        return {"matrix": difference_values(zero, matrix).cpu()}
    return {
        product: torch.cat(
            [
                factor_values(*_factors(unit, initial, roles, chosen)).cpu()
                for chosen in _portions(unit, initial, roles, ACCELERATOR_BYTES)
            ]
        )
        for product, roles in unit.products
    }


@dataclass(frozen=True)
class _Piece:
    """Some heads of one product, few enough to be measured together."""

    place: tuple[str, str]
    heads: int
    size: int
    shape: tuple[object, ...]
    device: torch.device
    read: Callable[[], list[Tensor]]
    """Both factors before, both now; then the variances of their rounding errors if noise is asked for."""


def _pieces(change: UnitChange, accelerator_bytes: int) -> list[_Piece]:
    unit, pieces = change.unit, []
    sides = [change.initial, change.now, *(change.variances or ())]
    for product, roles in unit.products:
        left, right = (change.initial[role] for role in roles)
        for chosen in _portions(unit, change.initial, roles, accelerator_bytes):

            def read(roles: tuple[str, str] = roles, chosen: range = chosen) -> list[Tensor]:
                return [factor for side in sides for factor in _factors(unit, side, roles, chosen)]

            now = change.now[roles[0]].dtype
            shape = (left.shape[1:], right.shape[1:], left.dtype, now, left.device, len(sides))
            size = _size(change.initial, roles) * len(chosen)
            pieces.append(_Piece((unit.name, product), len(chosen), size, shape, left.device, read))
    return pieces


def _portions(unit: Unit, tensors: Tensors, roles: tuple[str, str], accelerator_bytes: int) -> list[range]:
    """The tracked heads, as many at a time as there is room for."""
    most = max(1, _room(tensors[roles[0]].device, accelerator_bytes) // _size(tensors, roles))
    count = len(unit.heads)
    return [range(start, min(start + most, count)) for start in range(0, count, most)]


def _size(tensors: Tensors, roles: tuple[str, str]) -> int:
    """Bytes of a head's factors in float64, before and after."""
    return sum(16 * tensors[role][0].numel() for role in roles)


def _room(device: torch.device, accelerator_bytes: int) -> int:
    return CHUNK_BYTES if device.type == "cpu" else accelerator_bytes


def _factors(unit: Unit, tensors: Tensors, roles: tuple[str, str], chosen: range) -> Factors:
    """Both factors of the chosen heads (counted among the tracked ones): what heads share is repeated."""
    left, right = (_rows(unit, tensors[role], role, chosen) for role in roles)
    return left, right


def _rows(unit: Unit, tensor: Tensor, role: str, chosen: range) -> Tensor:
    if role in ("key", "value") and len(unit.groups) < len(unit.heads):
        return torch.stack([tensor[unit.groups.index(unit.group[head])] for head in chosen])
    return tensor[chosen.start : chosen.stop]


_Found = tuple[Tensor, Noise | None]
"""Singular values [heads, r] on the CPU, and the noise if it was asked for."""


def _in_batches(pieces: list[_Piece], accelerator_bytes: int) -> dict[tuple[str, str], _Found]:
    """Measure all pieces; those of the same shape share a batch while it is small."""
    batches: list[list[_Piece]] = []
    open_batch: dict[tuple[object, ...], list[_Piece]] = {}
    for piece in pieces:
        batch = open_batch.get(piece.shape, [])
        room = _room(piece.device, accelerator_bytes)
        if not batch or sum(other.size for other in batch) + piece.size > room:
            batches.append(batch := [])
            open_batch[piece.shape] = batch
        batch.append(piece)
    on_cpu = all(piece.device.type == "cpu" for piece in pieces)
    found = in_parallel(_batch_found, batches) if on_cpu else [_batch_found(batch) for batch in batches]
    parts: dict[tuple[str, str], list[_Found]] = {}
    for batch, (values, noise) in zip(batches, found, strict=True):
        start = 0
        for piece in batch:
            here = slice(start, start := start + piece.heads)
            part = None if noise is None else Noise(noise.largest[here], noise.square[here])
            parts.setdefault(piece.place, []).append((values[here], part))
    return {place: _joined(several) for place, several in parts.items()}


def _joined(several: list[_Found]) -> _Found:
    noises = [noise for _, noise in several if noise is not None]
    noise = Noise(*map(torch.cat, zip(*noises, strict=True))) if noises else None
    return torch.cat([values for values, _ in several]), noise


def _batch_found(batch: list[_Piece]) -> _Found:
    read = [piece.read() for piece in batch]
    tensors = [torch.cat(parts) if len(batch) > 1 else parts[0] for parts in zip(*read, strict=True)]
    factors, variances = tensors[:4], tensors[4:]
    with without_autocast(factors[0].device.type):
        values, grams = change_values_and_grams(*factors)
        if not variances:
            return values.cpu(), None
        grams = grams or tuple(factor.double().mT @ factor.double() for factor in factors)
        k0, q0, kt, qt = (
            Stored(gram, variance, factor.shape[-2])
            for gram, variance, factor in zip(grams, variances, factors, strict=True)
        )
        noise = product_noise((k0, q0), (kt, qt))
        return values.cpu(), Noise(*(number.cpu() for number in noise))


def _matrix(change: UnitChange, top: int, full: bool) -> MeasuredChange:
    before, after = change.initial["matrix"], change.now["matrix"]
    if full or min(before.shape) <= SMALL:
        found = _summary(difference_values(before, after).cpu()[None], top)
    else:
        values, norm = leading_values(before, after, top)
        values, norm = values.cpu()[None], norm.cpu()[None]
        found = MeasuredChange((norm / _or_one(values[:, 0])).square(), norm, values)
    if change.variances is None:
        return found
    noise = matrix_noise(as_stored(before), as_stored(after))
    return _with_noise(found, Noise(*(number.cpu()[None] for number in noise)))


def _summary(values: Tensor, top: int) -> MeasuredChange:
    norm = torch.linalg.vector_norm(values, dim=-1)
    energy = torch.stack([energy_rank(values, share).double() for share in ENERGY_SHARES], -1)
    return MeasuredChange(
        stable_rank=(norm / _or_one(values[:, 0])).square(),
        norm=norm,
        top=values[:, :top],
        values=values,
        energy_rank=torch.where(norm.isfinite()[:, None], energy, torch.nan),
        entropy_rank=torch.where(norm.isfinite(), effective_rank(values), torch.nan),
    )


def _with_noise(measured: MeasuredChange, noise: Noise | None) -> MeasuredChange:
    if noise is None:
        return measured
    largest, square = (number.double() for number in noise)
    share = torch.where(measured.norm > 0, square / measured.norm.square(), torch.inf * square)
    share = torch.where(square > 0, share.clamp_max(1.0), 0.0)
    share = torch.where(measured.norm.isfinite(), share, torch.nan)
    return replace(measured, noise_share=share, noise_rank=divided(square, largest.square()))


def _or_one(number: Tensor) -> Tensor:
    return torch.where(number == 0, 1.0, number)


CURVES = ("stable_rank", "norm", "top", "energy_rank", "entropy_rank", "noise_share", "noise_rank")
DIGITS = 6


def row_of(units: Sequence[Unit], results: Results) -> dict[str, Any]:
    """{"KQ": {"stable_rank": [[per head] per layer], "norm": ..., "top": ...}, "VO": ..., "matrices": ...}.

    A layer that could not be read has nan. Ranks that take all singular values are left out where only the
    leading ones were computed.
    """
    row: dict[str, Any] = {}
    layers = [unit for unit in units if unit.is_layer]
    for product, _ in layers[0].products if layers else []:
        found = [results.get((unit.name, product), _unknown(len(unit.heads))) for unit in layers]
        row[product] = {
            name: [_rounded(getattr(one, name)) for one in found]
            for name in CURVES
            if all(getattr(one, name) is not None for one in found)
        }
    matrices: dict[str, Any] = {}
    for unit in units:
        if not unit.is_layer:
            one = results.get((unit.name, "matrix"), _unknown(1))
            matrices[unit.name] = {
                name: _rounded(getattr(one, name))[0] for name in CURVES if getattr(one, name) is not None
            }
    return row | ({"matrices": matrices} if matrices else {})


def spectra_of(units: Sequence[Unit], results: Results) -> Tensors:
    """All singular values by their names in a file of spectra."""
    return {
        unit.key(product): (one.values if unit.is_layer else one.values[0]).float()
        for unit in units
        for product in unit.measured
        if (one := results.get((unit.name, product))) is not None and one.values is not None
    }


def initial_spectra(units: Sequence[Unit], initial: dict[str, Tensors]) -> Tensors:
    """Singular values of the initial products, by the same names."""
    on_cpu = all(tensor.device.type == "cpu" for one in initial.values() for tensor in one.values())

    def values_of(unit: Unit) -> Tensors:
        return initial_values(unit, initial[unit.name])

    found = in_parallel(values_of, units) if on_cpu else map(values_of, units)
    return {
        unit.key(product): values.float()
        for unit, of_unit in zip(units, found, strict=True)
        for product, values in of_unit.items()
    }


def summary_of(units: Sequence[Unit], results: Results) -> dict[str, float]:
    """Means over the heads of each layer, and over all layers: a few series, not one for each head."""
    means: dict[str, float] = {}
    over_all: dict[str, list[Tensor]] = {}
    for unit in units:
        for product in unit.measured:
            for name in ("stable_rank", "norm") if (unit.name, product) in results else ():
                numbers = getattr(results[unit.name, product], name)
                means[f"{product}/{name}/{unit.name}"] = numbers.mean().item()
                if unit.is_layer:
                    over_all.setdefault(f"{product}/{name}/mean", []).append(numbers)
    return means | {name: torch.cat(parts).mean().item() for name, parts in over_all.items()}


def _unknown(heads: int) -> MeasuredChange:
    nan = torch.full((heads,), torch.nan)
    return MeasuredChange(nan, nan, nan[:, None], energy_rank=nan[:, None], entropy_rank=nan)


def _rounded(numbers: Tensor) -> list[Any]:
    """With six significant digits, counts as whole numbers, nested as the tensor is."""
    written = [float(f"{number:.{DIGITS}g}") for number in numbers.flatten().tolist()]
    whole = [int(number) if number.is_integer() else number for number in written]
    return numpy.array(whole, dtype=object).reshape(numbers.shape).tolist()
