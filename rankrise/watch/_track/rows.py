"""Measured numbers as they are written: a row of ranks.jsonl, a file of spectra, a few means for streams."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise.watch._batches import in_parallel
from rankrise.watch._track.measure import MeasuredChange, Results, initial_values
from rankrise.watch._track.weights import Tensors, Unit

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
