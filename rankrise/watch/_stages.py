"""Stages of a run: moments at which loss, ranks and singular values step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankrise.foundations.optional import require
from rankrise.foundations.text_tables import text_table
from rankrise.record.run import TrackedRun, load
from rankrise.watch._steps import Direction, FoundStep, Scale, find_steps


@dataclass(frozen=True, eq=False)
class Curve:
    """Values (n,) at training steps (n,) that may step up or down."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    direction: Direction = "up"
    scale: Scale = "log"
    alone: bool = True
    """Whether a step of this curve makes a stage without another's."""


@dataclass(frozen=True)
class FoundStage:
    """A moment at which curves step.

    `step` and `interval` are those of the curve with the clearest moment. `probability` is that of the surest
    curve: curves share their noise, so several are not surer than one.
    """

    step: int
    interval: tuple[int, int]
    """Holds the moment with probability 0.9."""
    probability: float
    """That there is a stage."""
    curves: dict[str, FoundStep]
    """Each curve's own step, by its name."""


@dataclass(frozen=True, repr=False)
class StagesFound:
    """The stages of a run in order."""

    stages: tuple[FoundStage, ...]
    searched: tuple[str, ...]
    """The curves with enough points, close enough together, to show a step."""
    until: int
    """The last step seen."""

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

    def numbers(self, steps: Any) -> np.ndarray:
        """How many stages are over at each of `steps`: a column that marks the stages in a run's tables.

        >>> stages = FoundStage(30, (28, 33), 1.0, {}), FoundStage(70, (69, 71), 0.95, {})
        >>> found = StagesFound(stages, ("loss",), 100)
        >>> found.numbers([1, 30, 50, 70, 100]).tolist()
        [0, 1, 1, 2, 2]
        """
        return np.searchsorted([stage.step for stage in self.stages], steps, side="right")

    def table(self) -> Any:
        """A pandas table with a row for each stage and curve that steps in it."""
        pandas = require("pandas", extra="tables", purpose="A table of stages")
        rows = [
            {
                "stage": number,
                "step": stage.step,
                "low": stage.interval[0],
                "high": stage.interval[1],
                "probability": stage.probability,
                "curve": name,
                "before": step.before,
                "after": step.after,
            }
            for number, stage in enumerate(self.stages, 1)
            for name, step in stage.curves.items()
        ]
        return pandas.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise watch --json` prints them."""
        return asdict(self)


def find_stages(run: TrackedRun | str | Path | Iterable[Curve], *, probability: float = 0.9) -> StagesFound:
    """The stages of a tracked run, of its folder, or of curves, each at least as likely as `probability`.

    A stage of a tracked run is a step of the loss, or a step that two or more other curves take at once: a
    run has dozens of curves, and each alone finds a step in noise now and then.

    >>> import numpy as np
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
        curve.name: find_steps(
            curve.steps,
            curve.values,
            direction=curve.direction,
            scale=curve.scale,
            probability=probability,
        )
        for curve in curves
    }
    named_steps = [(name, step) for name, steps in found.items() for step in steps or ()]

    # Steps of different curves that happen at once make a group, which begins with its clearest step.
    groups: list[tuple[FoundStep, dict[str, FoundStep]]] = []
    for name, step in sorted(named_steps, key=lambda named: _ratio(_span(named[1]))):
        near = [
            (abs(math.log(step.time / first.time)), place)
            for place, (first, group) in enumerate(groups)
            if name not in group and (_holds(step, first.time) or _holds(first, step.time))
        ]
        if near:
            groups[min(near)[1]][1][name] = step
        else:
            groups.append((step, {name: step}))

    alone = {curve.name for curve in curves if curve.alone}
    stages = []
    for _, group in groups:
        if len(group) > 1 or alone & group.keys():
            clearest = min(group.values(), key=lambda step: _ratio(step.interval))
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
    recorded = run.steps()
    if "loss" in recorded:
        yield Curve("loss", recorded["step"], recorded["loss"], direction="down")
    for product in run.products:
        ranks, noisy = run.stable_rank(product), run.below_noise(product)
        values = np.nansum(run.top(product), axis=(2, 3))
        for place, layer in enumerate(run.layers):
            name, heads = f"{layer['name']} {product}", ranks[:, place]
            clear = _usable(heads, noisy[:, place])
            heads = heads[:, ~np.isnan(heads).all(0)]
            median = np.median(heads, axis=1) if heads.size else np.zeros(len(heads))
            steps, total = run.measured[clear], values[clear, place]
            yield Curve(f"{name} stable rank", steps, median[clear], alone=False)
            yield Curve(f"{name} singular values", steps, total, scale="linear", alone=False)
        if len(run.layers) > 1:  # of one layer, it would only repeat that layer's curve
            clear = _usable(ranks, noisy)
            total = np.nansum(ranks, axis=(1, 2))[clear]
            yield Curve(f"all {product} stable rank", run.measured[clear], total, alone=False)


def _usable(ranks: np.ndarray, noisy: np.ndarray) -> np.ndarray:
    """The steps at which no head that was ever measured is nan, and at most half of them are noise."""
    known = np.isfinite(ranks)
    count, heads = known.sum(tuple(range(1, ranks.ndim))), known.any(0).sum()
    usable: np.ndarray = (count == heads) & (2 * noisy.sum(tuple(range(1, noisy.ndim))) <= count)
    return usable


def _holds(step: FoundStep, time: float) -> bool:
    low, high = _span(step)
    return low <= time <= high


def _span(step: FoundStep) -> tuple[float, float]:
    return min(step.interval[0], step.extent[0]), max(step.interval[1], step.extent[1])


def _ratio(interval: tuple[float, float]) -> float:
    return interval[1] / interval[0]
