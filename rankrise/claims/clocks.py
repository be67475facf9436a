"""At which moments of training a trend is measured: a clock gives the values there, in their order."""

from collections.abc import Callable

import numpy as np

MOMENTS = 40
"""How many, at most."""

Clock = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of ascending steps above 0 and the values at each, [steps, ...], to the values at the clock's moments."""


def logarithmic(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The first measurement at or after each of 40 moments evenly spaced in log(step), none of them twice.

    Training has its stages on such a clock; on a linear one a long end, where the rate has fallen and next to
    nothing moves, decides. A sparse record leaves fewer than 40, most of them where it is dense.
    """
    return _recorded(steps, values, np.geomspace(steps[0], steps[-1], MOMENTS))


def linear(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The same with moments evenly spaced in the step."""
    return _recorded(steps, values, np.linspace(steps[0], steps[-1], MOMENTS))


def interpolated(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """At 40 moments evenly spaced in log(step), however sparse the record, linearly in log(step) between its
    measurements.

    >>> interpolated(np.array([1, 100]), np.array([0.0, 39.0]))[[0, 1, 39]].round(9).tolist()
    [0.0, 1.0, 39.0]
    """
    logs = np.log(steps)
    moments = np.linspace(logs[0], logs[-1], MOMENTS)
    return np.apply_along_axis(lambda column: np.interp(moments, logs, column), 0, values)


def _recorded(steps: np.ndarray, values: np.ndarray, moments: np.ndarray) -> np.ndarray:
    places = np.searchsorted(steps, moments).clip(max=len(steps) - 1)
    return values[np.unique(places)]
