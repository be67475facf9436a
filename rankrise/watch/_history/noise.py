"""The noise floor of measurements: what rounding alone would give, of every head and matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rankrise.watch._gram import divided
from rankrise.watch._rounding import Noise, Stored, as_stored, matrix_noise, product_noise, stored
from rankrise.watch._track.measure import Measured, Results
from rankrise.watch._track.weights import Tensors, Unit

Rounded = dict[str, dict[str, Stored]]
"""By unit and role, what the noise of products needs of a checkpoint."""


def rounded(units: Sequence[Unit], weights: Mapping[str, Tensors]) -> Rounded:
    """What the noise of products needs of a checkpoint's weights."""
    return {
        unit.name: {role: stored(tensor) for role, tensor in weights[unit.name].items()}
        for unit in units
        if unit.is_layer
    }


def with_noise(
    units: Sequence[Unit],
    results: Results,
    before: tuple[Mapping[str, Tensors], Rounded],
    after: tuple[Mapping[str, Tensors], Rounded],
) -> Results:
    """The results with the noise floor of each."""
    found: Results = {}
    for unit in units:
        for product, roles in unit.products if unit.is_layer else ():
            pairs = [
                tuple(_of_heads(unit, role, side[1][unit.name][role]) for role in roles)
                for side in (before, after)
            ]
            noise = product_noise(*((left, right) for left, right in pairs))
            found[unit.name, product] = _noisy(results[unit.name, product], noise)
        if not unit.is_layer:
            was, now = (as_stored(side[0][unit.name]["matrix"]) for side in (before, after))
            noise = matrix_noise(was, now)
            found[unit.name, "matrix"] = _noisy(
                results[unit.name, "matrix"], Noise(*(n[None] for n in noise))
            )
    return found


def _noisy(measured: Measured, noise: Noise) -> Measured:
    largest, square = (number.double().cpu() for number in noise)
    share = torch.where(measured.norm > 0, square / measured.norm.square(), torch.inf * square)
    share = torch.where(square > 0, share.clamp_max(1.0), 0.0)
    share = torch.where(measured.norm.isfinite(), share, torch.nan)
    return replace(measured, noise_share=share, noise_rank=divided(square, largest.square()))


def _of_heads(unit: Unit, role: str, side: Stored) -> Stored:
    """Of each head, where several share a key or value."""
    if role not in ("key", "value") or len(unit.groups) == len(unit.heads):
        return side
    places = torch.tensor([unit.groups.index(group) for group in unit.group], device=side.gram.device)

    def each(tensor: Tensor) -> Tensor:
        return tensor[places]

    return Stored(each(side.gram), each(side.variance), side.size)
