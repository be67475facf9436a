"""A little training after a cut, in part 1 of `benchmarks/adapters.py`: how much smaller may the cut be then?

Plain SVD at one rank and the Fisher weighted cut are trained alike: the same steps, order of examples and
ranks. On the first seed the rate is tuned for each of them at each rank, in steps of 3; other seeds take the
rates that were best there, so that nothing is chosen by what they are judged on.
"""

from collections.abc import Callable
from typing import Any

import torch
from adapter_cuts import FISHER, PLAIN, Cutting, row
from adapter_training import fit, scores
from rankrise.use._allocate import one_rank, ranks_within

from rankrise.use._measure import least
from rankrise.use.types import Adapter, Advice

FURTHER = {
    PLAIN: "plain SVD, one rank, then trained a little",
    FISHER: "Fisher weighted, then trained a little",
}
"""What a way to cut is called with the training."""

RANKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Budgets, as ranks for all matrices."""

STEP, LOWEST, HIGHEST = 3.0, -3, 4
"""Rates are that of full fine-tuning times a power of 3, from 1/27 to 81."""

Tried = Callable[[int, float], dict[str, float]]
"""The scores after training at a rank and a rate."""


def trained_at(cutting: Cutting, method: str, rank: int, rate: float) -> dict[str, float]:
    """The scores of a cut to the parameters of one rank for all, after a little training."""
    if method == PLAIN:
        adapter = cutting.plain.at(one_rank(cutting.plain.spectra, rank))
    else:
        adapter = cutting.fisher.at(ranks_within(cutting.fisher.spectra, rank * cutting.one))
    return scores(_trained(cutting, adapter, rate), cutting.task.held_out)


def needed_after(
    cutting: Cutting, method: str, needed: int, rate: float, tried: Tried, first_seed: dict[str, Any] | None
) -> dict[str, Any]:
    """The fewest parameters that keep the gain after a little training; `needed`, those of the cut alone,
    where no smaller budget does. `rate` is that of full fine-tuning; `first_seed` is what this function gave
    for the first seed, None there."""
    ranks = [rank for rank in RANKS if rank * cutting.one < needed]
    curve: dict[str, dict[str, float]] = {}
    power = 1

    def enough(place: int) -> bool:
        nonlocal power
        rank = ranks[place - 1]

        def at(power: int) -> dict[str, float]:
            return tried(rank, rate * STEP**power)

        if first_seed is None:
            power = best_power(lambda each: at(each)["loss"], power)
        else:
            power = power_at(first_seed["curve"], rank)
        curve[str(rank)] = at(power) | {"power": power}
        return curve[str(rank)]["loss"] <= cutting.wanted

    if first_seed is None:
        place = least(enough, len(ranks), first=RANKS.index(6) + 1)
    else:
        there = sum(rank * cutting.one < first_seed["needed"] for rank in ranks) + 1
        place = beside(enough, min(there, len(ranks)), len(ranks)) if ranks and first_seed["curve"] else None
    parameters = needed if place is None else ranks[place - 1] * cutting.one
    return row(FURTHER[method], parameters, cutting, curve)


def best_power(loss: Callable[[int], float], start: int) -> int:
    """Downhill from `start`, first to higher rates.

    >>> [best_power(lambda power: abs(power - best), start=1) for best in (-1, 1, 3)]
    [-1, 1, 3]
    """
    best = start
    for step in (1, -1):
        while LOWEST <= best + step <= HIGHEST and loss(best + step) < loss(best):
            best += step
    return best


def power_at(curve: dict[str, dict[str, float]], rank: int) -> int:
    """The best rate of the first seed at the nearest rank that it tried."""
    nearest = min(curve, key=lambda each: max(int(each) / rank, rank / int(each)))
    return int(curve[nearest]["power"])


def beside(enough: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least number that is enough, looked for from `start` on; None if none up to `most` is.

    >>> [beside(lambda number: number >= 5, start, most=9) for start in (3, 5, 8)]
    [5, 5, 5]
    """
    place = start
    if not enough(place):
        return next((each for each in range(start + 1, most + 1) if enough(each)), None)
    while place > 1 and enough(place - 1):
        place -= 1
    return place


def _trained(cutting: Cutting, adapter: Adapter, rate: float) -> Any:
    """The tuned model with its layers' matrices at the cut ones, whose factors are then trained."""
    import peft

    task = cutting.task
    made = task.base(cutting.seed)
    made.load_state_dict(cutting.model.state_dict())
    weights, before = made.state_dict(), cutting.base.state_dict()
    with torch.no_grad():
        for matrix in adapter.matrices:
            weights[f"{matrix.name}.weight"].copy_(before[f"{matrix.name}.weight"])
    wrapped = peft.get_peft_model(made, Advice(adapter, max(adapter.ranks.values()), "").lora_config())
    with torch.no_grad():
        for name, (left, right) in adapter.factors.items():
            layer = wrapped.base_model.model.get_submodule(name)
            layer.lora_A["default"].weight.copy_(right)
            layer.lora_B["default"].weight.copy_(left)
    fit(wrapped, task.train, task.further_steps, task.batch, rate, cutting.seed + 1000)
    return wrapped
