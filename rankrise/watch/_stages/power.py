"""What the detector of stages misses: to have found none says little where noise would hide them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankrise.watch._stages.bins import typical_noise

KNOWN = 40
"""Stages of toy losses whose place is known, in `benchmarks/stages.py`."""

MISSED = {0.0: 2, 0.02: 14, 0.1: 27}
"""How many of them are missed, by the noise that was added, as a fraction of the loss."""


@dataclass(frozen=True)
class Missed:
    """At so much noise, relative to the loss, from `least` to `most` of the `known` stages are missed."""

    noise: float
    least: int
    most: int
    known: int = KNOWN

    def __str__(self) -> str:
        """In words.

        >>> str(Missed(0.0043, 2, 14))
        'in a test at the noise of this loss (0.43 %), the search missed 2 to 14 of 40 known stages'
        """
        missed = f"the search missed {self.least} to {self.most} of {self.known} known stages"
        return f"in a test at the noise of this loss ({100 * self.noise:.2g} %), {missed}"


def missed_in(loss: np.ndarray) -> Missed | None:
    """What is missed at the noise of a loss; None where too little of it was recorded to tell.

    >>> smooth = np.exp(-np.linspace(0, 1, 4000))
    >>> noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(4000))
    >>> missed_in(smooth).most, missed_in(smooth * noise).least, missed_in(smooth * noise).most
    (14, 14, 27)
    """
    known = loss[np.isfinite(loss) & (loss > 0)]
    if len(known) < 3:
        return None
    noise = typical_noise(np.log(known))
    levels = [*MISSED.items(), (float("inf"), KNOWN)]
    return next(
        Missed(noise, least, most) for (_, least), (above, most) in pairwise(levels) if noise <= above
    )
