"""Stages of a run: moments at which loss, ranks and singular values step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankrise.foundations.text_tables import text_table
from rankrise.record.run import TrackedRun, load
from rankrise.watch._steps import Direction, FoundStep, Scale, find_steps


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
    for name, step in sorted(named_steps, key=lambda named: _ratio(named[1].span)):
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


def _ratio(interval: tuple[float, float]) -> float:
    return interval[1] / interval[0]
