"""How large an adapter may be, said in one of four ways."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.use._allocate import (
    Spectrum,
    budget,
    kept_share,
    one_rank,
    one_rank_keeping,
    ranks_keeping,
    ranks_within,
)
from rankrise.use._weights import Matrix

ALL_UP_TO = 1024
"""Of a matrix whose smaller side is at most this long, all directions are found; of a longer one, as many
as `SPREAD` times the rank that the budget gives to each."""

SPREAD = 8


def check_share(name: str, share: float) -> None:
    """Refuse what is no share."""
    if not 0 < share <= 1:
        raise RankriseError(f"{name} is {share}: pass a share above 0 and at most 1.")


@dataclass(frozen=True)
class Budget:
    """One of the four is given; with `uniform`, every matrix has the same rank."""

    rank: int | None = None
    parameters: int | None = None
    keep: float | None = None
    gain: float | None = None
    uniform: bool = False

    @classmethod
    def of(
        cls,
        rank: int | None,
        parameters: int | None,
        keep: float | None,
        gain: float | None,
        uniform: bool,
        evaluated: bool,
    ) -> "Budget":
        """Checked: exactly one is given, and it makes sense; a gain needs a loss that is `evaluated`."""
        given = {"rank": rank, "parameters": parameters, "keep": keep, "gain": gain}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            what = f"{' and '.join(named)} are given" if named else "No budget is given"
            raise RankriseError(f"{what}: pass one of rank, parameters, keep and gain.")
        for name, count in (("rank", rank), ("parameters", parameters)):
            if count is not None and count < 1:
                raise RankriseError(f"{name} is {count}: pass 1 or more.")
        for name, share in (("keep", keep), ("gain", gain)):
            if share is not None:
                check_share(name, share)
        if gain is not None and not evaluated:
            raise RankriseError("gain is a share of a measured loss: pass evaluate, a function of the model.")
        return cls(rank, parameters, keep, gain, uniform)

    def directions(self, matrix: Matrix, all_of_them: Sequence[Matrix], largest: int | None) -> int:
        """How many directions of a matrix have to be known."""
        whole = min(matrix.out, matrix.into)
        rank = self.rank
        if self.parameters is not None:
            rank = math.ceil(self.parameters / sum(each.out + each.into for each in all_of_them))
        if rank is None or (not self.uniform and whole <= ALL_UP_TO):
            wanted = whole
        else:
            wanted = rank if self.uniform else max(SPREAD * rank, 64)
        return min(wanted, whole, largest or whole)


def refuse_beyond(asked: Budget, spectra: Mapping[str, Spectrum], largest: int | None) -> None:
    """Refuse a share of the square that cannot be kept with at most `largest` directions of a matrix."""
    if asked.keep is None or largest is None or all(len(each.squares) < largest for each in spectra.values()):
        return
    most = kept_share(spectra, one_rank(spectra, largest))
    if most < asked.keep:
        raise RankriseError(
            f"keep is {asked.keep}, and with at most {counted(largest, 'direction')} of a matrix "
            f"{math.floor(1e4 * most) / 1e4:g} of the square can be kept: pass a share up to that, or a "
            "larger `largest`."
        )


def ranks_for(asked: Budget, spectra: Mapping[str, Spectrum]) -> dict[str, int]:
    """The ranks that a budget of parameters, or of the kept square, buys."""
    if asked.keep is not None:
        return (one_rank_keeping if asked.uniform else ranks_keeping)(spectra, asked.keep)
    parameters = asked.parameters if asked.parameters is not None else budget(spectra, asked.rank or 0)
    if asked.uniform:
        return one_rank(spectra, parameters // max(budget(spectra, 1), 1))
    return ranks_within(spectra, parameters)
