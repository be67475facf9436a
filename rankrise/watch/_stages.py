"""Stages of a run: moments at which loss, ranks and singular values step.

A step changes a curve at least twice as much as windows of its length just before and just after. The length
before is taken in time and the length after in log time, the stricter of the two on each side. So no sum of
decaying exponentials (power laws, stretched exponentials and saturating curves are such sums) has a step, nor
has its logarithm: it falls most before. Nor has any power of time, nor an exponential that grows: they change
most after.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from rankrise.foundations.text_tables import text_table
from rankrise.record.run import TrackedRun, load

DRAWS = 100
FEWEST = 8  # points of a curve
CONTRAST = 2.0  # a step changes the curve at least this many times as much as either window beside it
CLEAR = 4.0  # and is at least this many standard errors of the difference of the averages beside it
LONGEST = 1.2  # and is over before this many times the time at which it began
LEAST = 0.02  # the least step: 2 % of the value on a log scale, 2 % of the range on a linear one
# A loss is seen as log(loss + a share of its noise), up to a share of its fall: a logarithm alone magnifies
# what happens near zero.
NOISE_SHARE, FLOOR = 0.3, 0.25
BUMP = 0.5  # how far a loss may have risen before a step, as a share of the step
# What a straight piece may always miss a curve by: without noise, curves need not be made of such pieces.
FINEST = LEAST / 10
BINS = 200
BLOCKS = (1, 2, 4)  # lengths of the blocks over which noise is measured, in points
MEDIAN, UPPER = 0.6745, 1.645  # the median and the 90 % quantile of the size of a standard normal number
NEIGHBOURS = 40  # points around each over which noise is measured: it changes in the course of training
PIECES = 10.0  # expected pieces of a curve, a priori

Direction = Literal["down", "up"]
Scale = Literal["log", "linear"]


@dataclass(frozen=True, eq=False)
class Curve:
    """Values (n,) at training steps (n,) that may step up or down; `alone`, a step of it makes a stage."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    direction: Direction = "up"
    scale: Scale = "log"
    alone: bool = True


@dataclass(frozen=True)
class FoundStep:
    """A fast change between two plateaus: its middle `time`, which `interval` holds with probability 0.9,
    where it begins and ends (`extent`), the probability that there is one, and the levels beside it."""

    time: float
    interval: tuple[float, float]
    extent: tuple[float, float]
    probability: float
    before: float
    after: float

    @property
    def span(self) -> tuple[float, float]:
        """All of `interval` and `extent`."""
        return min(self.interval[0], self.extent[0]), max(self.interval[1], self.extent[1])


@dataclass(frozen=True)
class FoundStage:
    """A moment at which curves step, each with a step of its own by its name.

    `step` and `interval`, which holds the moment with probability 0.9, are those of the curve with the
    clearest moment. `probability` is that of the surest curve: curves share their noise, so several are not
    surer than one.
    """

    step: int
    interval: tuple[int, int]
    probability: float
    curves: dict[str, FoundStep]


@dataclass(frozen=True, repr=False)
class StagesFound:
    """The stages of a run in order, the names of the curves that have enough points to show one, and the last
    step seen."""

    stages: tuple[FoundStage, ...]
    searched: tuple[str, ...]
    until: int

    def __iter__(self) -> Iterator[FoundStage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        columns = {
            "step": [f"{stage.step}" for stage in self],
            "interval": ["{} to {}".format(*stage.interval) for stage in self],
            "probability": [f"{stage.probability:.2f}" for stage in self],
            "curves that step": [f"{len(stage.curves)}" for stage in self],
        }
        count = f"{len(self)} stage{'' if len(self) == 1 else 's'}"
        searched = f"searched for in {len(self.searched)} curves"
        return text_table(f"{count} by step {self.until}, {searched}", columns)


def find_stages(run: TrackedRun | str | Path | Iterable[Curve], *, probability: float = 0.9) -> StagesFound:
    """The stages of a tracked run, of its folder, or of curves, each at least as likely as `probability`.

    A stage of a tracked run is a step of the loss, or a step that two or more other curves take at once: a
    run has dozens of curves, and each alone finds a step in noise now and then.

    >>> steps = np.arange(1, 2001)
    >>> loss = np.where(steps < 800, 2.3, 1.1) * np.exp(0.02 * np.random.default_rng(0).standard_normal(2000))
    >>> found = find_stages([Curve("loss", steps, loss, direction="down")])
    >>> [(stage.interval[0] <= 800 <= stage.interval[1], list(stage.curves)) for stage in found]
    [(True, ['loss'])]
    """
    if isinstance(run, str | Path):
        run = load(run)
    curves = list(curves_of(run) if isinstance(run, TrackedRun) else run)
    found = {
        one.name: find_steps(one.steps, one.values, one.direction, one.scale, probability) for one in curves
    }
    named_steps = [(name, step) for name, steps in found.items() for step in steps or ()]

    # Steps of different curves that happen at once make a group, which begins with its clearest step.
    groups: list[tuple[FoundStep, dict[str, FoundStep]]] = []
    for name, step in sorted(named_steps, key=lambda named: named[1].span[1] / named[1].span[0]):
        near = [
            (abs(math.log(step.time / first.time)), place)
            for place, (first, group) in enumerate(groups)
            if name not in group
            and (step.span[0] <= first.time <= step.span[1] or first.span[0] <= step.time <= first.span[1])
        ]
        if near:
            groups[min(near)[1]][1][name] = step
        else:
            groups.append((step, {name: step}))

    alone = {curve.name for curve in curves if curve.alone}
    stages = []
    for _, group in groups:
        if len(group) > 1 or alone & group.keys():
            clearest = min(group.values(), key=lambda step: step.interval[1] / step.interval[0])
            low, high = clearest.interval
            surest = max(step.probability for step in group.values())
            stages.append(FoundStage(round(clearest.time), (math.floor(low), math.ceil(high)), surest, group))
    return StagesFound(
        stages=tuple(sorted(stages, key=lambda stage: stage.step)),
        searched=tuple(name for name, steps in found.items() if steps is not None),
        until=int(max((curve.steps.max() for curve in curves if len(curve.steps)), default=0)),
    )


def curves_of(run: TrackedRun) -> Iterator[Curve]:
    """The loss; for every layer and product the median stable rank of its heads and the total of their
    leading singular values; for every product the stable rank of all heads together, where there are several
    layers. Steps at which a head is nan, or the change of most heads is rounding noise, are left out.
    """

    def usable(ranks: np.ndarray, noisy: np.ndarray) -> np.ndarray:
        shape = len(ranks), math.prod(ranks.shape[1:])  # not -1: there may be no rows yet
        known = np.isfinite(ranks).reshape(shape)
        count, noise = known.sum(1), noisy.reshape(shape).sum(1)
        clear: np.ndarray = (count == known.any(0).sum()) & (2 * noise <= count)
        return clear

    recorded = run.steps()
    if "loss" in recorded:
        yield Curve("loss", recorded["step"], recorded["loss"], direction="down")
    for product in run.products:
        ranks, noisy = run.stable_rank(product), run.below_noise(product)
        values = np.nansum(run.top(product), axis=(2, 3))
        for place, layer in enumerate(run.layers):
            name, heads = f"{layer['name']} {product}", ranks[:, place]
            clear = usable(heads, noisy[:, place])
            heads = heads[:, ~np.isnan(heads).all(0)]
            median = np.median(heads, axis=1) if heads.size else np.zeros(len(heads))
            steps, total = run.measured[clear], values[clear, place]
            yield Curve(f"{name} stable rank", steps, median[clear], alone=False)
            yield Curve(f"{name} singular values", steps, total, scale="linear", alone=False)
        if len(run.layers) > 1:  # of one layer, it would only repeat that layer's curve
            clear = usable(ranks, noisy)
            total = np.nansum(ranks, axis=(1, 2))[clear]
            yield Curve(f"all {product} stable rank", run.measured[clear], total, alone=False)


def find_steps(
    times: Sequence[float] | np.ndarray,
    curve: Sequence[float] | np.ndarray,
    direction: Direction = "down",
    scale: Scale = "log",
    probability: float = 0.9,
) -> list[FoundStep] | None:
    """Find the steps of a curve, in order of time; None if its points are too few or too far apart.

    `times` are training steps or any clock that starts at 0, in any order; `curve` may have nan. A step's
    probability is the share of draws of the noiseless curve that have it. A step down reaches a new low, and
    a step up a level that is kept: a spike is neither. What grows out of nothing takes a "linear" `scale`.
    """
    clock, values = np.asarray(times, dtype=np.float64), np.asarray(curve, dtype=np.float64)
    usable = np.isfinite(values) & np.isfinite(clock) & (clock > 0)
    if scale == "log":
        usable &= values > 0
    clock, which = np.unique(clock[usable], return_inverse=True)
    if len(clock) < FEWEST:
        return None
    values = np.bincount(which, values[usable]) / np.bincount(which)
    noise = floor = 0.0
    if scale == "linear":
        unit = max(float(np.ptp(values)), 1e-6 * float(abs(values).max()), 1e-300)
    elif direction == "down":
        noise = float(np.quantile(_misses(np.arange(len(values), dtype=float), values), 0.9) / UPPER)
        fall = max(0.0, float(np.median(values[:FEWEST]) - np.quantile(values, 0.05)))
        floor = min(NOISE_SHARE * noise, FLOOR * fall)
    clock, values, variances = binned(clock, np.log(values + floor) if scale == "log" else values / unit)
    variances = variances + FINEST**2
    windows = Windows(clock, variances)
    if len(clock) < FEWEST or not len(windows.first):
        return None

    found = []
    for number, drawn in enumerate(draw_curves(np.log(clock), values, variances, DRAWS)):
        # A curve that never falls: how high it stays from now on, or how low it has been so far.
        if direction == "up":
            heights = np.minimum.accumulate(drawn[::-1])[::-1]
        else:
            heights = -np.minimum.accumulate(drawn)
        for first, last in windows.steps(heights):
            start, end = clock[first], clock[last]
            size = heights[last] - heights[first]
            if direction == "up":  # more than the end of a dip, in the half of the time so far before it
                before = drawn[np.searchsorted(clock, start / 2) : first + 1]
                counts = before.max() <= (drawn[first] + drawn[last]) / 2
            else:  # a drop from a plateau, not from a bump in a time as long before
                before = slice(np.searchsorted(clock, 2 * start - end), first + 1)
                counts = (drawn + heights)[before].max() <= BUMP * size
                # Down at the size of its noise, by enough of its fall so far.
                highest, above, below = np.exp(-heights[[0, first, last]])
                if above - floor <= noise and above - below < LEAST * (highest - below):
                    counts = False
            if counts:
                half = (heights[first] + heights[last]) / 2
                middle = first + int(np.searchsorted(heights[first : last + 1], half))
                levels = np.interp((2 * start - end, end * end / start), clock, heights)
                found.append((number, clock[middle - 1], clock[middle], start, end, *levels))

    def level(heights: np.ndarray) -> float:
        height = float(np.median(heights)) * (1 if direction == "up" else -1)
        return height * unit if scale == "linear" else max(float(np.exp(height)) - floor, 0.0)

    steps = []
    for share, group in _groups(np.array(found).reshape(-1, 7), probability):
        _, begins, ends, starts, stops, low, high = group.T
        time = float(np.median(np.sqrt(begins * ends)))
        interval = float(np.quantile(begins, 0.05)), float(np.quantile(ends, 0.95))
        extent = float(np.median(starts)), float(np.median(stops))
        steps.append(FoundStep(time, interval, extent, share, level(low), level(high)))
    return sorted(steps, key=lambda step: step.time)


class Windows:
    """Every short window between two of the given times (n,) with room for windows of its length beside it;
    `variances` (n,) are those of the noise."""

    def __init__(self, times: np.ndarray, variances: np.ndarray) -> None:
        first, last = np.triu_indices(len(times), 1)
        before, after = 2 * times[first] - times[last], times[last] ** 2 / times[first]
        kept = (before >= times[0]) & (after <= times[-1]) & (times[last] <= LONGEST * times[first])
        narrow_first = np.flatnonzero(kept)[np.argsort((times[last] / times[first])[kept], kind="stable")]
        self.times, self.first, self.last = times, first[narrow_first], last[narrow_first]
        self._before, self._after = before[narrow_first], after[narrow_first]
        precision = np.concatenate([[0], np.cumsum(1 / variances)])
        left = precision[self.first + 1] - precision[np.searchsorted(times, self._before)]
        right = precision[np.searchsorted(times, self._after, side="right")] - precision[self.last]
        self._least = np.maximum(LEAST, CLEAR * np.sqrt(1 / left + 1 / right))

    def steps(self, heights: np.ndarray) -> list[tuple[int, int]]:
        """The windows (first, last) that are steps of a noiseless curve (n,) that never falls. None overlap.
        Neighbours are joined if the plateau between them is shorter than the shorter of them."""
        change = heights[self.last] - heights[self.first]
        (large,) = np.nonzero(change >= self._least)
        first, last = self.first[large], self.last[large]
        left = heights[first] - np.interp(self._before[large], self.times, heights)
        right = np.interp(self._after[large], self.times, heights) - heights[last]
        stands_out = CONTRAST * np.maximum(left, right) <= change[large]
        taken: list[tuple[int, int]] = []  # the narrowest first
        for start, end in zip(first[stands_out].tolist(), last[stands_out].tolist(), strict=True):
            if all(end <= other or start >= another for other, another in taken):
                taken.append((start, end))
        joined: list[tuple[int, int]] = []
        for start, end in sorted(taken):
            if joined:
                (began, over), (begins, ends) = self.times[list(joined[-1])], self.times[[start, end]]
                if begins - over < min(over - began, ends - begins) and ends <= LONGEST * began:
                    joined[-1] = (joined[-1][0], end)
                    continue
            joined.append((start, end))
        return joined


def _groups(found: np.ndarray, probability: float) -> list[tuple[float, np.ndarray]]:
    """The same step in many draws, with the share of the draws that have it. A group begins where most
    windows overlap and takes in steps beside it, unless most are of draws that have one in the group already.
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


def binned(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, averages and variances (m,) of at most 2 `BINS` bins of a curve at increasing times (n,), evenly
    spaced in log time, in which stages come, and in time, so that late ones are resolved as well."""
    ends = times[0], times[-1]
    edges = np.union1d(np.geomspace(*ends, BINS), np.linspace(*ends, BINS))
    _, which = np.unique(np.searchsorted(edges, times, side="right"), return_inverse=True)
    counts = np.bincount(which)
    places = np.exp(np.bincount(which, np.log(times)) / counts)
    averages = np.bincount(which, values) / counts
    noise = np.maximum(
        _noise(places, places, averages, counts),
        _noise(places, times, values, np.ones(len(times)), local=True),
    )
    return places, averages, noise / counts


def _noise(
    places: np.ndarray, times: np.ndarray, values: np.ndarray, counts: np.ndarray, local: bool = False
) -> np.ndarray:
    """Variance of the noise of one point at `places` (m,): the largest that averages over blocks show.
    Correlated noise shows less in neighbours and more in averages than independent noise would."""
    found = np.zeros(len(places))
    for length in BLOCKS:
        blocks = len(times) // length
        if blocks < 12:
            break
        weights = counts[: blocks * length].reshape(blocks, length)
        total = weights.sum(1)
        place, average = (
            (column[: blocks * length].reshape(blocks, length) * weights).sum(1) / total
            for column in (np.log(times), values)
        )
        sizes = _misses(place, average, 1 / total)
        spread = np.full(len(sizes), np.median(sizes) / MEDIAN)
        if local:  # around each point, by the median or the upper quantile, which sees heavy tails
            width = min(len(sizes), max(NEIGHBOURS, len(sizes) // 8))
            starts = np.unique(np.linspace(0, len(sizes) - width, BINS).astype(int))
            windows = np.lib.stride_tricks.sliding_window_view(sizes, width)[starts]
            around = (np.quantile(windows, (0.5, 0.9), axis=1) / [[MEDIAN], [UPPER]]).max(0)
            spread = np.maximum(spread, np.interp(np.arange(len(sizes)), starts + (width - 1) / 2, around))
        found = np.maximum(found, np.interp(np.log(places), place[1:-1], spread**2))
    return found


def _misses(places: np.ndarray, values: np.ndarray, variances: np.ndarray | float = 1.0) -> np.ndarray:
    """By how much points (n,) miss the straight line between their neighbours (n - 2,), in units of what
    `variances` would give. Steps touch few points, and a smooth curve is nearly straight."""
    variances = np.broadcast_to(variances, places.shape)
    part = (places[2:] - places[1:-1]) / (places[2:] - places[:-2])
    misses = values[1:-1] - part * values[:-2] - (1 - part) * values[2:]
    expected = variances[1:-1] + part**2 * variances[:-2] + (1 - part) ** 2 * variances[2:]
    return np.abs(misses) / np.sqrt(expected)


def draw_curves(places: np.ndarray, values: np.ndarray, variances: np.ndarray, draws: int) -> np.ndarray:
    """Draws [draws, n] of the curve behind `values` at increasing `places`, seen under noise of `variances`.

    The curve is made of independent straight pieces. The filter over the beginnings of the last piece is
    exact, and so are draws from the posterior: no Markov chain, nothing to tune (P. Fearnhead, "Exact and
    efficient Bayesian inference for multiple changepoint problems", Statistics and Computing 16, 2006).
    """
    count, source = len(places), np.random.default_rng(0)
    middle, spread = np.median(values), max(float(np.ptp(values)), 1e-300) ** 2
    stop = min(0.5, PIECES / count)

    # The weighted regression of every piece [start, end) at once, at [start, end - 1]: weight, centre, width,
    # level, tilt (the change over a width) and misfit. Level and tilt are normal with variance `spread`.
    x, y = places - places.mean(), values - middle
    sums = np.cumsum(1 / variances * np.stack([np.ones(count), x, x**2, y, x * y, y**2]), axis=1)
    sums = np.concatenate([np.zeros((6, 1)), sums], axis=1)
    weight, sum_x, sum_xx, sum_y, sum_xy, sum_yy = sums[:, None, 1:] - sums[:, :-1, None]
    weight = np.where(np.tri(count, k=-1, dtype=bool), 1.0, weight)
    centre, level = sum_x / weight, sum_y / weight
    width = np.sqrt(np.maximum(sum_xx / weight - centre**2, 0))
    flat = width <= 1e-6 * (1 + abs(centre))  # one point, up to rounding
    tilt = np.where(flat, 0.0, (sum_xy / weight - centre * level) / np.where(flat, 1.0, width))
    misfit = np.maximum(sum_yy - weight * (level**2 + tilt**2), 0)
    total, shrink = 1 / weight + spread, np.log1p(weight * spread)
    evidence = -0.5 * (misfit + level**2 / total + shrink + np.where(flat, 0.0, tilt**2 / total + shrink))

    # after[i]: log of the probability of all values from i on, if a piece begins at i.
    after = np.zeros(count + 1)
    choices: list[np.ndarray] = [np.zeros(0)] * count
    for start in range(count - 1, -1, -1):
        likely = evidence[start, start:] + np.arange(count - start) * np.log1p(-stop)
        likely[:-1] += np.log(stop) + after[start + 1 : count]
        top = likely.max()
        weights = np.exp(likely - top)
        after[start] = top + np.log(weights.sum())
        choices[start] = np.cumsum(weights) / weights.sum()

    share = spread / total
    error = np.sqrt(share / weight)
    curves = np.empty((draws, count))
    for curve in curves:
        start = 0
        while start < count:
            end = min(start + 1 + int(np.searchsorted(choices[start], source.random())), count)
            piece = start, end - 1
            curve[start:end] = level[piece] * share[piece] + error[piece] * source.standard_normal()
            if not flat[piece]:
                slope = (tilt[piece] * share[piece] + error[piece] * source.standard_normal()) / width[piece]
                curve[start:end] += slope * (x[start:end] - centre[piece])
            start = end
    return curves + middle
