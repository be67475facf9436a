"""In what of a run stages could be found, and why not in the rest: elsewhere, to find none says nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankrise.foundations.counted import counted
from rankrise.watch import StagesFound

LOSS = "loss"
TOO_FEW = "too few, or too far apart, to show one"


@dataclass(frozen=True)
class Searched:
    """`what` is "loss and ranks", one of them, or empty; `because` is why it is not both."""

    what: str
    because: str

    @property
    def verb(self) -> str:
        """Of "show", as `what` takes it."""
        return "shows" if self.what == LOSS else "show"

    @property
    def alone(self) -> str:
        """That nothing else was searched, and why; empty where both were."""
        return f"alone {'was' if self.what == LOSS else 'were'} searched: {self.because}" * bool(self.because)


def searched(found: StagesFound, losses: Sequence[float], measured: int, heads: int) -> Searched:
    """What a search had to go by: `losses`, and ranks of so many `heads` at so many `measured` steps.

    >>> searched(StagesFound((), (), 400), [], measured=5, heads=12).because
    'no loss was recorded, and 5 measurements are too few, or too far apart, to show one'
    >>> searched(StagesFound((), ("loss",), 400), [2.0] * 400, measured=400, heads=0).alone
    'alone was searched: no heads were tracked'
    """
    seen = {"loss": LOSS in found.searched, "ranks": any(name != LOSS for name in found.searched)}
    reasons = []
    if not seen["loss"]:
        usable = int(np.sum([np.isfinite(loss) and loss > 0 for loss in losses]))
        few = f"{counted(usable, 'loss is', 'losses are')} {TOO_FEW}"
        none = "no loss that was recorded is finite and above 0" if len(losses) else "no loss was recorded"
        reasons.append(few if usable else none)
    if not seen["ranks"]:
        few = f"{counted(measured, 'measurement is', 'measurements are')} {TOO_FEW}"
        reasons.append(few if heads else "no heads were tracked")
    return Searched(" and ".join(name for name, is_seen in seen.items() if is_seen), ", and ".join(reasons))
