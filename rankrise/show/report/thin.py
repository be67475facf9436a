"""Curves with only the points that a straight line would miss."""

import math
from collections.abc import Sequence

import numpy as np

TOLERANCE = 3e-4
"""How far a drawn curve may be from the run's, over the plot's height: below a tenth of a pixel."""


def kept_points(times: np.ndarray, values: np.ndarray, tolerance: float) -> np.ndarray:
    """The indices to keep so that lines between them stay within `tolerance` of `values`, (n,) or (n, c).

    Ramer's rule with vertical distances: keep the point farthest from the line, and look again on both sides.

    >>> kept_points(np.arange(6.0), np.array([0, 0, 0, 1, 1, 1.0]), 0.1)
    array([0, 2, 3, 5])
    """
    columns = values.reshape(len(times), -1)
    keep = {0, len(times) - 1}
    pending = [(0, len(times) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        part = ((times[first : last + 1] - times[first]) / (times[last] - times[first]))[:, None]
        line = columns[first] + part * (columns[last] - columns[first])
        distance = np.abs(columns[first : last + 1] - line).max(axis=1)
        farthest = first + int(distance.argmax())
        if distance[farthest - first] > tolerance:
            keep.add(farthest)
            pending += [(first, farthest), (farthest, last)]
    return np.array(sorted(keep))


def thinned(times: np.ndarray, values: np.ndarray, height: float, logarithmic: bool = False) -> list[float]:
    """A curve as [index, value, index, value, …] for a plot of some height, and for a `logarithmic` one.

    >>> thinned(np.arange(6.0), np.array([0, 0, 0, 1, 1, 1.0]), height=1.0)
    [0, 0.0, 2, 0.0, 3, 1.0, 5, 1.0]
    """
    drawn = values / height if height else values
    if logarithmic:
        logs = np.log10(np.maximum(values, 1e-300))
        drawn = np.stack([drawn, logs / max(float(np.ptp(logs)), 1.0)], axis=1)
    flat: list[float] = []
    for index in kept_points(times, drawn, TOLERANCE):
        value = float(values[index])
        flat += [int(index), significant(value) if logarithmic else rounded(value, height)]
    return flat


def rounded(value: float, height: float) -> float:
    """A value with the decimals that a plot of some height can show, and two more."""
    return round(value, 6 - math.floor(math.log10(height))) if height else 0.0


def significant(value: float, digits: int = 7) -> float:
    """A value to some significant digits."""
    return float(f"{value:.{digits}g}")


def significant_list(values: Sequence[float] | np.ndarray) -> list[float]:
    """Each of some values to seven significant digits."""
    return [significant(float(value)) for value in values]
