"""In what of a run stages could be found, and why not in the rest: elsewhere, to find none says nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankrise.watch.types import StagesFound

LOSS = "loss"


@dataclass(frozen=True)
class Searched:
    """What was searched: "loss and ranks", one of them, or nothing (""); `because` says why not both."""

    what: str
    because: str

    @property
    def verb(self) -> str:
        """ "show" or "shows", as `what` takes it."""
        return "shows" if self.what == LOSS else "show"

    @property
    def alone(self) -> str:
        """Why only one was searched; empty if both were."""
        return self.because and f"alone {'was' if self.what == LOSS else 'were'} searched: {self.because}"


def searched(found: StagesFound, losses: Sequence[float], measured: int, heads: int) -> Searched:
    """What a search had to go by: `losses`, and ranks of so many `heads` at so many `measured` steps.

    >>> searched(StagesFound((), (), 400), [], measured=5, heads=12).because
    'no loss was recorded, and 5 measurements are too few, or too far apart, to show one'
    >>> searched(StagesFound((), ("loss",), 400), [2.0] * 400, measured=400, heads=0).alone
    'alone was searched: no heads were tracked'
    """
    what, because = [], []
    usable = int(np.sum(np.isfinite(losses) & (np.asarray(losses) > 0)))
    if LOSS in found.searched:
        what.append(LOSS)
    elif not len(losses):
        because.append("no loss was recorded")
    else:
        because.append(_few(usable, "losses"))
    if {LOSS} < {LOSS, *found.searched}:
        what.append("ranks")
    else:
        because.append(_few(measured, "measurements") if heads else "no heads were tracked")
    return Searched(" and ".join(what), ", and ".join(because))


def _few(count: int, what: str) -> str:
    return f"{count} {what} are too few, or too far apart, to show one"
