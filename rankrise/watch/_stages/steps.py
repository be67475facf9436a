"""The steps of one curve, each with an interval and a probability."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rankrise.foundations.errors import RankriseError
from rankrise.watch._stages.noise import binned, typical_noise
from rankrise.watch._stages.posterior import draw_curves
from rankrise.watch._stages.windows import LONGEST, Windows

DRAWS = 100
# The least step: 2 % of the value on a log scale, 2 % of the range on a linear one.
LEAST = 0.02
# A loss is seen as log(loss + a share of its noise), up to a share of its fall: a logarithm alone magnifies
# what happens near zero.
NOISE_SHARE, FLOOR = 0.3, 0.25
# How far a loss may have risen before a step, as a share of the step.
BUMP = 0.5
# What a straight piece may always miss a curve by: without noise, curves need not be made of such pieces.
FINEST = LEAST / 10
FEWEST = 8

Direction = Literal["down", "up"]
Scale = Literal["log", "linear"]


@dataclass(frozen=True)
class FoundStep:
    """A fast change between two plateaus."""

    time: float
    """The middle of the change."""
    interval: tuple[float, float]
    """Holds the middle with probability 0.9."""
    extent: tuple[float, float]
    """Where the change begins and ends."""
    probability: float
    """That there is a step."""
    before: float
    after: float


def find_steps(
    times: Sequence[float] | np.ndarray,
    curve: Sequence[float] | np.ndarray,
    *,
    direction: Direction = "down",
    scale: Scale = "log",
    probability: float = 0.9,
    seed: int = 0,
) -> list[FoundStep]:
    """Where a curve steps `direction`, in order of time: nothing on smooth decay or growth.

    `times` (n,) are training steps or any clock that starts at 0, in any order and spacing; `curve` (n,) may
    have nan. A step changes the curve at least twice as much as windows of the same length just before and
    just after do (see `Windows`). Its probability is the share of `DRAWS` draws of the noiseless curve that
    have it; steps below `probability` are left out. A step down reaches a new low, and a step up a level that
    is kept: a spike is neither. Take a "linear" `scale` for what grows out of nothing, such as a singular
    value.

    >>> steps = np.arange(1, 3001)
    >>> noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(3000))
    >>> decay = steps**-0.3 * noise
    >>> find_steps(steps, decay)
    []
    >>> [found] = find_steps(steps, decay * np.where(steps > 1000, 0.7, 1.0))
    >>> found.interval[0] <= 1000 <= found.interval[1], round(found.after / found.before, 1)
    (True, 0.7)
    """
    times, values = _cleaned(times, curve, scale)
    if len(times) < FEWEST:
        return []
    unit = 1.0 if scale == "log" else max(float(np.ptp(values)), 1e-6 * float(abs(values).max()), 1e-300)
    noise = typical_noise(values) if (direction, scale) == ("down", "log") else 0.0
    floor = min(NOISE_SHARE * noise, FLOOR * _fall(values))
    times, values, variances = binned(times, np.log(values + floor) if scale == "log" else values / unit)
    if len(times) < FEWEST:
        return []
    variances = variances + FINEST**2
    curves = draw_curves(np.log(times), values, variances, DRAWS, seed)
    windows, sign = Windows(times, variances, LEAST), 1 if direction == "up" else -1
    found = []
    for number, (drawn, heights) in enumerate(zip(curves, _climbing(curves, direction), strict=True)):
        for first, last in windows.steps(heights):
            if direction == "up":
                counts = _stays(times, drawn, first, last)
            else:
                falls = _falls(heights, first, last, floor, noise)
                counts = falls and not _ends_a_bump(times, drawn, heights, first, last)
            if counts:
                found.append((number, *_step(times, heights, first, last)))
    steps = []
    for share, group in _groups(np.array(found).reshape(-1, 7), probability):
        _, begins, ends, starts, stops, before, after = group.T
        levels = (sign * float(np.median(level)) * unit for level in (before, after))
        before, after = (_value(level, scale, floor) for level in levels)
        steps.append(
            FoundStep(
                time=float(np.median(np.sqrt(begins * ends))),
                interval=(float(np.quantile(begins, 0.05)), float(np.quantile(ends, 0.95))),
                extent=(float(np.median(starts)), float(np.median(stops))),
                probability=share,
                before=before,
                after=after,
            )
        )
    return sorted(steps, key=lambda step: step.time)


def has_room(times: np.ndarray, curve: np.ndarray, scale: Scale) -> bool:
    """Whether a curve could show a step at all: it has points enough, and close enough together.

    >>> has_room(np.arange(1, 31), np.ones(30), "log"), has_room(2.0 ** np.arange(30), np.ones(30), "log")
    (True, False)
    """
    times, values = _cleaned(times, curve, scale)
    if len(times) < FEWEST:
        return False
    times, _, variances = binned(times, values)
    return len(times) >= FEWEST and len(Windows(times, variances + FINEST**2, LEAST).first) > 0


def _cleaned(
    times: Sequence[float] | np.ndarray, curve: Sequence[float] | np.ndarray, scale: Scale
) -> tuple[np.ndarray, np.ndarray]:
    """Times above 0, each once and in order, and the values there: above 0 as well, on a log scale."""
    clock, values = np.asarray(times, dtype=np.float64), np.asarray(curve, dtype=np.float64)
    if clock.ndim != 1 or clock.shape != values.shape:
        raise RankriseError(
            f"times are of shape {clock.shape} and the curve of {values.shape}: pass two rows of one length."
        )
    usable = np.isfinite(values) & np.isfinite(clock) & (clock > 0)
    if scale == "log":
        usable &= values > 0
    clock, which = np.unique(clock[usable], return_inverse=True)
    values = values[usable]
    return clock, np.bincount(which, values) / np.bincount(which) if len(clock) else values


def _fall(values: np.ndarray) -> float:
    """From the first values to the lowest, by medians and quantiles: single points are noisy."""
    return max(0.0, float(np.median(values[:FEWEST]) - np.quantile(values, 0.05)))


def _climbing(curves: np.ndarray, direction: Direction) -> np.ndarray:
    """Curves [draws, n] that never fall: how low each has been so far, or how high it stays from now on."""
    if direction == "down":
        return -np.minimum.accumulate(curves, axis=1)
    return np.minimum.accumulate(curves[:, ::-1], axis=1)[:, ::-1]


def _step(times: np.ndarray, heights: np.ndarray, first: int, last: int) -> tuple[float, ...]:
    """The two times between which half of the change is over, the window's ends, the levels beside it."""
    half = (heights[first] + heights[last]) / 2
    middle = first + int(np.searchsorted(heights[first : last + 1], half))
    start, end = times[first], times[last]
    levels = np.interp((2 * start - end, end * end / start), times, heights)
    return times[middle - 1], times[middle], start, end, *levels


def _falls(heights: np.ndarray, first: int, last: int, floor: float, noise: float) -> bool:
    """Whether a loss that is down to the size of its noise drops by enough of its fall so far to count."""
    start, before, after = np.exp(-heights[[0, first, last]])
    return bool(before - floor > noise or before - after >= LEAST * (start - after))


def _ends_a_bump(times: np.ndarray, curve: np.ndarray, heights: np.ndarray, first: int, last: int) -> bool:
    """Whether the loss had risen before its drop, in a time as long: then it did not drop from a plateau."""
    before = slice(np.searchsorted(times, 2 * times[first] - times[last]), first + 1)
    return bool((curve + heights)[before].max() > BUMP * (heights[last] - heights[first]))


def _stays(times: np.ndarray, curve: np.ndarray, first: int, last: int) -> bool:
    """Whether a rise is more than the end of a dip, in the half of the time so far before it."""
    before = curve[np.searchsorted(times, times[first] / 2) : first + 1]
    return bool(before.max() <= (curve[first] + curve[last]) / 2)


def _groups(found: np.ndarray, probability: float) -> list[tuple[float, np.ndarray]]:
    """The same step in many draws, with the share of the draws that have it.

    A group begins where most windows overlap and takes in the steps beside it, as long as they are mostly of
    draws that have none in the group yet: where draws have both, these are two steps.
    """
    found, groups = found[np.argsort(found[:, 1])], []
    while len(found):
        middles = np.sqrt(found[:, 1] * found[:, 2])
        inside = (found[:, 3] <= middles[:, None]) & (middles[:, None] <= found[:, 4])
        member = inside[inside.sum(1).argmax()].copy()
        centre = np.median(middles[member])
        for beside in (np.unique(middles[middles < centre])[::-1], np.unique(middles[middles > centre])):
            for middle in beside[np.abs(np.log(beside / centre)) < np.log(LONGEST)]:
                same = (middles == middle) & ~member
                if np.isin(found[same, 0], found[member, 0]).sum() > 0.2 * same.sum():
                    break
                member |= same
        share = len(np.unique(found[member, 0])) / DRAWS
        if share >= probability:
            groups.append((share, found[member]))
        found = found[~member]
    return groups


def _value(height: float, scale: Scale, floor: float) -> float:
    return max(float(np.exp(height)) - floor, 0.0) if scale == "log" else height
