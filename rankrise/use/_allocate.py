"""Ranks for many matrices out of one budget: the directions that keep most per parameter come first."""

from collections.abc import Mapping
from dataclasses import dataclass

from rankrise.foundations.errors import RankriseError


@dataclass(frozen=True)
class Spectrum:
    """What each further direction of a matrix keeps (squares, largest first), of how much, and at what cost.

    A direction costs `d_in + d_out` parameters.
    """

    squares: tuple[float, ...]
    total: float
    cost: int


def ranks_within(spectra: Mapping[str, Spectrum], parameters: int) -> dict[str, int]:
    """The ranks that keep most within a number of parameters, up to one direction.

    >>> wide, narrow = Spectrum((4.0, 1.0), 5.0, cost=10), Spectrum((9.0, 1.0), 10.0, cost=4)
    >>> ranks_within({"wide": wide, "narrow": narrow}, parameters=15)
    {'wide': 1, 'narrow': 1}
    """
    ranks, left = dict.fromkeys(spectra, 0), parameters
    for name in _order(spectra):
        if spectra[name].cost <= left:
            ranks[name] += 1
            left -= spectra[name].cost
    return ranks


def ranks_keeping(spectra: Mapping[str, Spectrum], share: float) -> dict[str, int]:
    """The fewest parameters that keep a share of the square of all matrices together.

    >>> wide, narrow = Spectrum((4.0, 1.0), 5.0, cost=10), Spectrum((9.0, 1.0), 10.0, cost=4)
    >>> ranks_keeping({"wide": wide, "narrow": narrow}, share=0.9)
    {'wide': 1, 'narrow': 2}
    """
    ranks, wanted = dict.fromkeys(spectra, 0), share * sum(spectrum.total for spectrum in spectra.values())
    kept = 0.0
    for name in _order(spectra):
        if kept >= wanted:
            break
        kept += spectra[name].squares[ranks[name]]
        ranks[name] += 1
    return ranks


def one_rank(spectra: Mapping[str, Spectrum], rank: int) -> dict[str, int]:
    """The same rank for every matrix, or all that a matrix has."""
    return {name: min(rank, len(spectrum.squares)) for name, spectrum in spectra.items()}


def one_rank_keeping(spectra: Mapping[str, Spectrum], share: float) -> dict[str, int]:
    """The least rank that, the same for every matrix, keeps a share of all their square."""
    for rank in range(max((len(spectrum.squares) for spectrum in spectra.values()), default=0)):
        ranks = one_rank(spectra, rank)
        if kept_share(spectra, ranks) >= share:
            return ranks
    return {name: len(spectrum.squares) for name, spectrum in spectra.items()}


def kept_share(spectra: Mapping[str, Spectrum], ranks: Mapping[str, int]) -> float:
    """The share of the square of all matrices that these ranks keep; 1 where there is none to keep."""
    total = sum(spectrum.total for spectrum in spectra.values())
    kept = sum(sum(spectrum.squares[: ranks[name]]) for name, spectrum in spectra.items())
    return kept / total if total > 0 else 1.0


def parameters_of(spectra: Mapping[str, Spectrum], ranks: Mapping[str, int]) -> int:
    return sum(rank * spectra[name].cost for name, rank in ranks.items())


def budget(spectra: Mapping[str, Spectrum], rank: int) -> int:
    """The parameters of one rank for all."""
    if rank < 0:
        raise RankriseError(f"rank is {rank}: pass 0 or more.")
    return rank * sum(spectrum.cost for spectrum in spectra.values())


def _order(spectra: Mapping[str, Spectrum]) -> list[str]:
    """Names of matrices, one for each direction, by kept square per parameter; within a matrix the squares
    fall, so that its directions come in their own order."""
    steps = [
        (-square / spectrum.cost, place, number, name)
        for place, (name, spectrum) in enumerate(spectra.items())
        for number, square in enumerate(spectrum.squares)
    ]
    return [name for _, _, _, name in sorted(steps)]
