"""Stages of a run: moments at which loss, ranks and singular values step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.passed import typed
from rankrise.record.names import STAGES
from rankrise.record.shapes import COUNT, NUMBER, check_shape
from rankrise.watch._stages.curves import Curve, curves_of
from rankrise.watch._stages.power import Missed, missed_in
from rankrise.watch._stages.steps import FoundStep, find_steps, has_room
from rankrise.watch._track.load import TrackedRun, load

FORMAT = "rankrise-stages/4"
"""Of stages.json; counted up when the same record gives other stages, so that what was kept is found anew."""
_STEP = {
    **dict.fromkeys(("time", "probability", "before", "after"), NUMBER),
    **dict.fromkeys(("interval", "extent"), (NUMBER, NUMBER)),
}
_STAGE = {"step": COUNT, "interval": (COUNT, COUNT), "probability": NUMBER, "curves": {"*": _STEP}}
_SHAPE = {"until": COUNT, "searched": [str], "stages": [_STAGE]}


@dataclass(frozen=True)
class FoundStage:
    """A moment at which curves step: at training step `step`, with probability 0.9 within `interval`.

    These are of the curve that tells the moment best. `probability`, that of there being a stage, is of the
    curve that is surest: curves share their noise, so that several are not taken to be surer than one.
    `curves` has each curve's own step.
    """

    step: int
    interval: tuple[int, int]
    probability: float
    curves: dict[str, FoundStep]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "step": self.step,
            "interval": list(self.interval),
            "probability": self.probability,
            "curves": {name: step.to_dict() for name, step in self.curves.items()},
        }

    @classmethod
    def from_dict(cls, stage: dict[str, Any]) -> "FoundStage":
        """From what JSON has."""
        curves = {name: FoundStep.from_dict(step) for name, step in stage["curves"].items()}
        low, high = stage["interval"]
        return cls(stage["step"], (low, high), float(stage["probability"]), curves)


@dataclass(frozen=True)
class StagesFound:
    """The stages of a run in order, the names of the curves that were searched, and the last step seen.

    A curve whose points are too few, or too far apart, to show a step does not count as searched.
    """

    stages: tuple[FoundStage, ...]
    searched: tuple[str, ...]
    until: int

    def __iter__(self) -> Iterator[FoundStage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def missed(self, loss: Any) -> Missed | None:
        """How many stages the search would miss at the noise of a loss: "none found" is told with it."""
        return missed_in(np.asarray(loss, float))

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
        """As JSON has it: what RUN/stages.json holds."""
        return {
            "format": FORMAT,
            "until": self.until,
            "searched": list(self.searched),
            "stages": [stage.to_dict() for stage in self.stages],
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "StagesFound":
        """From what stages.json holds; refused where it is of another format, or damaged."""
        if found.get("format") != FORMAT:
            raise RankriseError(
                f"stages are of format {found.get('format')!r}, not {FORMAT!r}: find them again."
            )
        whole = check_shape(Path(STAGES), found, _SHAPE, "find them again")
        stages = tuple(map(FoundStage.from_dict, whole["stages"]))
        return cls(stages, tuple(whole["searched"]), whole["until"])


@typed
def find_stages(run: TrackedRun | str | Path | Iterable[Curve], *, probability: float = 0.9) -> StagesFound:
    """The stages of a tracked run, of its folder, or of curves, each at least as likely as `probability`.

    A stage of a tracked run is a step of the loss, or a step that two or more of its curves take at once (see
    `curves_of`): a run has dozens of curves, and each alone finds a step in noise now and then.

    >>> import numpy as np
    >>> steps = np.arange(1, 2001)
    >>> loss = np.where(steps < 800, 2.3, 1.1) * np.exp(0.02 * np.random.default_rng(0).standard_normal(2000))
    >>> found = find_stages([Curve("loss", steps, loss, direction="down")])
    >>> [(stage.interval[0] <= 800 <= stage.interval[1], list(stage.curves)) for stage in found]
    [(True, ['loss'])]
    """
    if isinstance(run, str | Path):
        run = load(run)
    curves = curves_of(run) if isinstance(run, TrackedRun) else list(run)
    steps = [
        (curve.name, step)
        for curve in curves
        for step in find_steps(
            curve.steps,
            curve.values,
            direction=curve.direction,
            scale=curve.scale,
            probability=probability,
        )
    ]
    alone = {curve.name for curve in curves if curve.alone}
    merged = [members for members in _simultaneous(steps) if len(members) > 1 or alone & members.keys()]
    return StagesFound(
        stages=tuple(sorted(map(_stage, merged), key=lambda stage: stage.step)),
        searched=tuple(curve.name for curve in curves if has_room(curve.steps, curve.values, curve.scale)),
        until=int(max((curve.steps.max() for curve in curves if len(curve.steps)), default=0)),
    )


def _simultaneous(steps: list[tuple[str, FoundStep]]) -> list[dict[str, FoundStep]]:
    """Steps of different curves that happen at once, the ones with the clearest moment first."""
    groups: list[dict[str, FoundStep]] = []
    for name, step in sorted(steps, key=lambda item: _ratio(_span(item[1]))):
        at_once = [group for group in groups if name not in group and _meet(step, _first(group))]
        if at_once:
            min(at_once, key=lambda group: abs(math.log(step.time / _first(group).time)))[name] = step
        else:
            groups.append({name: step})
    return groups


def _stage(members: dict[str, FoundStep]) -> FoundStage:
    clearest = min(members.values(), key=lambda step: _ratio(step.interval))
    return FoundStage(
        step=round(clearest.time),
        interval=(math.floor(clearest.interval[0]), math.ceil(clearest.interval[1])),
        probability=max(step.probability for step in members.values()),
        curves=members,
    )


def _first(group: dict[str, FoundStep]) -> FoundStep:
    return next(iter(group.values()))


def _meet(one: FoundStep, other: FoundStep) -> bool:
    """Whether the middle of one lies within the other."""
    return any(
        low <= middle <= high for (low, high), middle in ((_span(one), other.time), (_span(other), one.time))
    )


def _span(step: FoundStep) -> tuple[float, float]:
    return min(step.interval[0], step.extent[0]), max(step.interval[1], step.extent[1])


def _ratio(interval: tuple[float, float]) -> float:
    return interval[1] / interval[0]
