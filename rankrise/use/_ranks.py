"""Ranks for many matrices out of one budget: the directions that keep most per parameter come first."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rankrise.recipes.use_settings import Budget

ALL_UP_TO = 1024  # find all directions of matrices whose smaller sides have at most this length together
SPREAD = 8  # and of a larger one this multiple of the budget's rank, so that ranks can differ


class Spectrum(NamedTuple):
    """What each further direction of a matrix keeps, largest first, of how much, and at what cost."""

    squares: tuple[float, ...]
    total: float
    cost: int  # parameters per direction: d_in + d_out


Spectra = Mapping[str, Spectrum]


def directions_to_find(budget: Budget, shape: tuple[int, ...], one: int, uniform: bool) -> int:
    """The directions of a matrix that a budget may need; `one` is the cost of rank 1 in every matrix."""
    smaller_side = min(shape[-2:])
    rank = budget.rank if budget.parameters is None else math.ceil(budget.parameters / one)
    if rank is None or (not uniform and smaller_side * math.prod(shape[:-2]) <= ALL_UP_TO):
        return smaller_side
    return min(rank if uniform else max(SPREAD * rank, 64), smaller_side)


def ranks_for(budget: Budget, spectra: Spectra, uniform: bool) -> dict[str, int]:
    """The ranks that a budget buys, unless it is a gain, which has to be searched."""
    if budget.keep is not None:
        return ranks_keeping(spectra, budget.keep, uniform)
    one = cost_of_one(spectra)
    parameters = budget.parameters if budget.parameters is not None else (budget.rank or 0) * one
    return one_rank(spectra, parameters // one) if uniform else ranks_within(spectra, parameters)


def ranks_within(spectra: Spectra, parameters: int) -> dict[str, int]:
    """The ranks that keep most within a number of parameters, up to one direction."""
    ranks = dict.fromkeys(spectra, 0)
    for name in _order(spectra):
        if spectra[name].cost <= parameters:
            ranks[name] += 1
            parameters -= spectra[name].cost
    return ranks


def ranks_keeping(spectra: Spectra, share: float, uniform: bool) -> dict[str, int]:
    """The fewest parameters that keep a share of the square of all matrices; one rank for all if uniform."""
    if uniform:
        every = [one_rank(spectra, rank) for rank in range(highest(spectra) + 1)]
        return next((ranks for ranks in every if kept_share(spectra, ranks) >= share), every[-1])
    ranks, kept = dict.fromkeys(spectra, 0), 0.0
    wanted = share * sum(spectrum.total for spectrum in spectra.values())
    for name in _order(spectra):
        if kept >= wanted:
            break
        kept += spectra[name].squares[ranks[name]]
        ranks[name] += 1
    return ranks


def _order(spectra: Spectra) -> list[str]:
    """Names of matrices, once per direction, by kept square per parameter."""
    steps = [
        (square / spectrum.cost, name) for name, spectrum in spectra.items() for square in spectrum.squares
    ]
    return [name for _, name in sorted(steps, key=lambda step: -step[0])]


def one_rank(spectra: Spectra, rank: int) -> dict[str, int]:
    """The same rank for every matrix, or all that a matrix has."""
    return {name: min(rank, len(spectrum.squares)) for name, spectrum in spectra.items()}


def highest(spectra: Spectra) -> int:
    """The most directions that a matrix has."""
    return max((len(spectrum.squares) for spectrum in spectra.values()), default=0)


def kept_share(spectra: Spectra, ranks: Mapping[str, int]) -> float:
    """The share of the square of all matrices that these ranks keep; 1 if there is nothing to keep."""
    total = sum(spectrum.total for spectrum in spectra.values())
    kept = sum(sum(spectrum.squares[: ranks[name]]) for name, spectrum in spectra.items())
    return kept / total if total > 0 else 1.0


def parameters_of(spectra: Spectra, ranks: Mapping[str, int]) -> int:
    return sum(rank * spectra[name].cost for name, rank in ranks.items())


def cost_of_one(spectra: Spectra) -> int:
    """Parameters of rank 1 in every matrix."""
    return sum(spectrum.cost for spectrum in spectra.values())


def least(enough: Callable[[int], bool], most: int, first: int = 1, slack: float = 0.0) -> int | None:
    """The least number from 1 to `most` that is enough, up to a share `slack`; None if there is none.

    `first` is doubled until it is enough, then the last doubling is bisected geometrically. Beyond that
    doubling nothing is assumed: a loss may rise with the rank.
    """
    low, high = 0, min(first, most)
    while high and not enough(high):
        low, high = high, min(2 * high, most) if high < most else 0
    while high - low > max(1, slack * high):
        middle = min(max(round((max(low, 1) * high) ** 0.5), low + 1), high - 1)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high or None
