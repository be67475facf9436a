"""Weights now and at the beginning -> the numbers of a record: ranks, norm and leading values of the change.

Everything comes from the singular values of the change, right to 1e-5 of the largest (see `_spectra`). An
iteration for the leading few alone would not be cheaper: the change of a head is only 2 d_head wide, and
what takes the time is to make it that small. Other matrices can be wide: they get the iteration.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy
import torch
from torch import Tensor

from rankrise.foundations.device import in_parallel
from rankrise.record.run import ENERGY_SHARES, Kind
from rankrise.watch._change import CHUNK_BYTES, Change, divided
from rankrise.watch._families import PRODUCTS
from rankrise.watch._ranks import effective_rank, energy_rank
from rankrise.watch._rounding import Noise, Stored, as_stored, matrix_noise, product_noise
from rankrise.watch._spectra import (
    change_values_and_grams,
    difference_values,
    factor_values,
    leading_values,
)
from rankrise.watch._units import Tensors, Unit

# Bytes of float64 copies of one batch of heads on an accelerator: little beside a model, enough to fill it.
ACCELERATOR_BYTES = 2**27
# Matrices up to this size are decomposed whole: the iteration would gain nothing.
SMALL = 256
DIGITS = 6

Results = dict[str, Tensors]
"""By its name in files: the numbers of a product by `Kind`, [heads] or [heads, k] on the CPU, and all its
singular "values" unless only the leading ones were computed; the same of a matrix, which has no heads."""


@dataclass(frozen=True)
class UnitChange:
    """A unit's weights at the beginning and now. For a noise floor also the `variances` of their rounding
    errors by role, at the beginning and now (empty for a matrix)."""

    unit: Unit
    initial: Tensors
    now: Tensors
    variances: tuple[Tensors, Tensors] | None = None


class _Portion(NamedTuple):
    """Some tracked heads of one product of a layer."""

    change: UnitChange
    product: str
    heads: range

    def read(self) -> list[Tensor]:
        """Both factors before, both now; then the variances of their rounding errors, if given."""
        sides = (self.change.initial, self.change.now, *(self.change.variances or ()))
        return [one for side in sides for one in self.change.unit.factors(side, self.product, self.heads)]


def measure(
    changes: Iterable[UnitChange], top: int, full: bool, accelerator_bytes: int = ACCELERATOR_BYTES
) -> Results:
    """The change of every product of every unit; a head with nan or inf in it comes out as nan."""
    results: Results = {}
    batches: list[list[_Portion]] = []
    unfilled: dict[tuple[Any, ...], list[_Portion]] = {}  # the last batch of each shape
    for change in changes:
        if not change.unit.is_layer:
            results[change.unit.name] = _measure_matrix(change, top, full)
        for product in change.unit.products:
            left, right = (change.initial[role] for role in PRODUCTS[product])
            now = change.now[PRODUCTS[product][0]].dtype
            shape = left.shape[1:], right.shape[1:], left.dtype, now, left.device, change.variances is None
            room = CHUNK_BYTES if left.device.type == "cpu" else accelerator_bytes
            most = max(1, room // (16 * (left[0].numel() + right[0].numel())))  # float64, before and after
            count = len(change.unit.heads)
            for first in range(0, count, most):
                portion = _Portion(change, product, range(first, min(first + most, count)))
                batch = unfilled.get(shape, [])
                if not batch or sum(len(other.heads) for other in batch) + len(portion.heads) > most:
                    batches.append(batch := [])
                    unfilled[shape] = batch
                batch.append(portion)

    def measured(batch: list[_Portion]) -> Tensors:
        read = [portion.read() for portion in batch]
        tensors = [torch.cat(parts) if len(batch) > 1 else parts[0] for parts in zip(*read, strict=True)]
        factors, variances = tensors[:4], tensors[4:]
        values, grams = change_values_and_grams(*factors)
        if not variances:
            return _numbers(values.cpu(), top)
        grams = grams or tuple(factor.double().mT @ factor.double() for factor in factors)
        k0, q0, kt, qt = (
            Stored(gram, variance, factor.shape[-2])
            for gram, variance, factor in zip(grams, variances, factors, strict=True)
        )
        return _numbers(values.cpu(), top, noise=product_noise((k0, q0), (kt, qt)))

    accelerator = next((device.type for *_, device, _ in unfilled if device.type != "cpu"), "cpu")
    parts: dict[str, list[Tensors]] = {}
    for batch, numbers in zip(batches, in_parallel(measured, batches, accelerator), strict=True):
        start = 0
        for portion in batch:
            here = slice(start, start := start + len(portion.heads))
            part = {kind: number[here] for kind, number in numbers.items()}
            parts.setdefault(portion.change.unit.key(portion.product), []).append(part)
    for key, pieces in parts.items():
        results[key] = {kind: torch.cat([piece[kind] for piece in pieces]) for kind in pieces[0]}
    return results


def _measure_matrix(change: UnitChange, top: int, full: bool) -> Tensors:
    before, after = change.initial["matrix"], change.now["matrix"]
    noise = None if change.variances is None else matrix_noise(as_stored(before), as_stored(after))
    if full or min(before.shape) <= SMALL:
        numbers = _numbers(difference_values(before, after).cpu()[None], top, noise=noise)
    else:
        values, norm = leading_values(before, after, top)
        numbers = _numbers(values.cpu()[None], top, norm.cpu()[None], noise)
    return {kind: number[0] for kind, number in numbers.items()}


def initial_spectra(units: Sequence[Unit], initial: dict[str, Tensors]) -> Tensors:
    """Singular values of the initial products and matrices, by their names in a file of spectra."""
    spectra: Tensors = {}
    for unit in units:
        weights = initial[unit.name]
        if not unit.is_layer:
            zero = torch.zeros_like(weights["matrix"][:1, :1]).expand_as(weights["matrix"])
            spectra[unit.name] = difference_values(zero, weights["matrix"]).cpu().float()
        for product in unit.products:
            factors = tuple(unit.factors(weights, product, range(len(unit.heads))))
            values = Change((), factors).in_chunks(lambda part: factor_values(*part.after))
            spectra[unit.key(product)] = values.cpu().float()
    return spectra


def _numbers(values: Tensor, top: int, norm: Tensor | None = None, noise: Noise | None = None) -> Tensors:
    """The numbers of heads from their singular values [heads, r], or from the leading ones and the `norm`."""
    found: Tensors = {}
    if norm is None:
        norm = torch.linalg.vector_norm(values, dim=-1)
        known = norm.isfinite()
        energy = torch.stack([energy_rank(values, share).double() for share in ENERGY_SHARES], -1)
        found["energy_rank"] = torch.where(known[:, None], energy, torch.nan)
        found["entropy_rank"] = torch.where(known, effective_rank(values), torch.nan)
        found["values"] = values
    if noise is not None:
        largest, square = (number.cpu().double().reshape(-1) for number in noise)
        share = torch.where(norm > 0, square / norm.square(), torch.inf * square)
        share = torch.where(square > 0, share.clamp_max(1.0), 0.0)
        found["noise_share"] = torch.where(norm.isfinite(), share, torch.nan)
        found["noise_rank"] = divided(square, largest.square())
    largest_value = torch.where(values[:, 0] == 0, 1.0, values[:, 0])
    return found | {"stable_rank": (norm / largest_value).square(), "norm": norm, "top": values[:, :top]}


def row_of(units: Sequence[Unit], results: Results) -> dict[str, Any]:
    """{"KQ": {"stable_rank": [[per head] per layer], "norm": ..., "top": ...}, "VO": ..., "matrices": ...}.

    A layer that could not be read has nan. Ranks that take all singular values are left out where only the
    leading ones were computed.
    """

    def found(unit: Unit, key: str) -> Tensors:
        nan = torch.full([len(unit.heads)] if unit.is_layer else [], torch.nan)
        unknown = dict.fromkeys(("stable_rank", "norm", "entropy_rank"), nan)
        return results.get(key, unknown | dict.fromkeys(("top", "energy_rank"), nan[..., None]))

    row: dict[str, Any] = {}
    layers = [unit for unit in units if unit.is_layer]
    for product in layers[0].products if layers else ():
        numbers = [found(unit, unit.key(product)) for unit in layers]
        shared = [kind for kind in get_args(Kind) if all(kind in one for one in numbers)]
        row[product] = {kind: [_rounded(one[kind]) for one in numbers] for kind in shared}
    for unit in units:
        if not unit.is_layer:
            one = found(unit, unit.name)
            in_row = {kind: _rounded(one[kind]) for kind in get_args(Kind) if kind in one}
            row.setdefault("matrices", {})[unit.name] = in_row
    return row


def spectra_of(results: Results) -> Tensors:
    """All singular values by their names in a file of spectra."""
    return {key: numbers["values"].float() for key, numbers in results.items() if "values" in numbers}


def summary_of(units: Sequence[Unit], results: Results) -> dict[str, float]:
    """Means over the heads of each layer, and over all layers: a few series, not one for each head."""
    means: dict[str, float] = {}
    for kind in ("stable_rank", "norm"):
        heads: dict[str, list[Tensor]] = {}
        for unit in units:
            for product in unit.products or ["matrix"]:
                if (numbers := results.get(unit.key(product))) is not None:
                    means[f"{product}/{kind}/{unit.name}"] = numbers[kind].mean().item()
                    heads.setdefault(product, []).append(numbers[kind])
        for product, parts in heads.items():
            if product in PRODUCTS:
                means[f"{product}/{kind}/mean"] = torch.cat(parts).mean().item()
    return means


def _rounded(numbers: Tensor) -> list[Any]:
    """With six significant digits, counts as whole numbers, nested as the tensor is."""
    written = [float(f"{number:.{DIGITS}g}") for number in numbers.flatten().tolist()]
    whole = [int(number) if number.is_integer() else number for number in written]
    return numpy.array(whole, dtype=object).reshape(numbers.shape).tolist()
