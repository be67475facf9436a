"""The definition of a step: a change far larger than those over windows of its length before and after it."""

import numpy as np

# A step changes the curve at least this many times as much as either window beside it.
CONTRAST = 2.0
# A step is at least this many standard errors of the difference of the averages beside it.
CLEAR = 4.0
# A step is over before this many times the time at which it began.
LONGEST = 1.2


class Windows:
    """Every short window between two of the given times (n,) with room for windows of its length beside it.

    `variances` (n,) are of the noise under which the curve was seen, and `least` is the least step.

    The length before a window is taken in time and the length after it in log time, the stricter of the two
    on each side. So no sum of decaying exponentials (power laws, stretched exponentials and saturating curves
    are such sums) has a step, nor has its logarithm: it falls most before. Nor has any power of time, nor an
    exponential that grows: they change most after.
    """

    def __init__(self, times: np.ndarray, variances: np.ndarray, least: float) -> None:
        first, last = np.triu_indices(len(times), 1)
        before, after = 2 * times[first] - times[last], times[last] ** 2 / times[first]
        kept = (before >= times[0]) & (after <= times[-1]) & (times[last] <= LONGEST * times[first])
        narrow_first = np.flatnonzero(kept)[np.argsort((times[last] / times[first])[kept], kind="stable")]
        self.times, self.first, self.last = times, first[narrow_first], last[narrow_first]
        self._before, self._after = before[narrow_first], after[narrow_first]
        precision = np.concatenate([[0], np.cumsum(1 / variances)])
        left = precision[self.first + 1] - precision[np.searchsorted(times, self._before)]
        right = precision[np.searchsorted(times, self._after, side="right")] - precision[self.last]
        self._least = np.maximum(least, CLEAR * np.sqrt(1 / left + 1 / right))

    def steps(self, heights: np.ndarray) -> list[tuple[int, int]]:
        """The windows (first, last) that are steps of a noiseless curve (n,) that never falls.

        None overlap; the narrowest are taken first.

        >>> times = np.arange(1.0, 101.0)
        >>> windows = Windows(times, variances=np.full(100, 1e-4), least=0.1)
        >>> windows.steps(np.where(times < 40, 0.0, 1.0))
        [(38, 39)]
        >>> windows.steps(np.log(times))
        []
        """
        change = heights[self.last] - heights[self.first]
        (large,) = np.nonzero(change >= self._least)
        first, last = self.first[large], self.last[large]
        left = heights[first] - np.interp(self._before[large], self.times, heights)
        right = np.interp(self._after[large], self.times, heights) - heights[last]
        stands_out = CONTRAST * np.maximum(left, right) <= change[large]
        taken: list[tuple[int, int]] = []
        for start, end in zip(first[stands_out].tolist(), last[stands_out].tolist(), strict=True):
            if all(end <= other or start >= another for other, another in taken):
                taken.append((start, end))
        return self._joined(sorted(taken))

    def _joined(self, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Join neighbours whose plateau in between is shorter than the shorter of them."""
        joined: list[tuple[int, int]] = []
        for first, last in taken:
            if joined:
                start, end = (self.times[place] for place in joined[-1])
                shorter = min(end - start, self.times[last] - self.times[first])
                if self.times[first] - end < shorter and self.times[last] <= LONGEST * start:
                    joined[-1] = (joined[-1][0], last)
                    continue
            joined.append((first, last))
        return joined
