"""When what happens: epochs turned into steps."""

import math
from collections.abc import Sequence

import numpy

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.watch import Schedule


class Times:
    """The steps of a run; step s is the state after s updates.

    >>> times = Times(TrainSettings(epochs=2, batch_size=10, evaluate_every=1), examples=105)
    >>> times.epoch_steps, times.total, [step for step in range(1, 21) if times.evaluates(step)]
    (10, 20, [10, 20])
    """

    def __init__(self, settings: TrainSettings, examples: int) -> None:
        self.epoch_steps = examples // settings.batch_size
        """The examples that fill no batch wait for the next epoch's order."""
        if self.epoch_steps < 1:
            raise RankriseError(
                f"batch_size is {settings.batch_size}, more than the {examples} training examples: pass a "
                "smaller one."
            )
        self._settings = settings
        self.total = self.step(settings.epochs)
        self.warm_up = round(settings.warm_up_epochs * self.epoch_steps)
        self._evaluations = {self.epoch_steps, *self._every(settings.evaluate_every)}
        self._saves = self._every(settings.checkpoint_every)
        half = settings.measurements // 2
        self._often = sorted({round(aim) for aim in _aims(half, half + 1, self.total)})
        self._seldom = sorted({self.step(epoch) for epoch in settings.spectra_epochs} | {self.total})
        self._kept = nearest_of(sorted({*self._often, *self._seldom}), settings.keep_series)

    def step(self, epoch: float) -> int:
        """The step at which that many epochs are over, at least 1; the last one where they never are."""
        return max(1, round(min(epoch, self._settings.epochs) * self.epoch_steps))

    def epoch(self, step: int) -> float:
        """How many epochs are over at a step."""
        return step / self.epoch_steps

    def logs(self, step: int) -> bool:
        """Whether the mean loss is recorded here; validation belongs to a recorded step."""
        return step % self._settings.log_every == 0 or step == self.total or self.evaluates(step)

    def evaluates(self, step: int) -> bool:
        """Whether the validation set is looked at here."""
        return step in self._evaluations

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due here."""
        return step in self._saves

    def keeps(self, step: int) -> bool:
        """Whether the weights here belong to the series that is kept."""
        return step in self._kept

    def schedule(self) -> Schedule:
        """Stable ranks at steps that are dense early (half of them on a logarithmic clock) and then evenly
        spread; full spectra at the epochs that were asked for, and at the end.
        """
        return Schedule(often=self._often, seldom=self._seldom)

    def _every(self, epochs: float) -> set[int]:
        if epochs * self.epoch_steps < 1:
            return set(range(1, self.total + 1))
        times = math.ceil(self.total / self.epoch_steps / epochs)
        return {self.step(number * epochs) for number in range(1, times + 1)}


def nearest_of(measured: Sequence[int], count: int) -> set[int]:
    """`count` of the measured steps, dense early and then evenly spread, with the first and the last.

    >>> sorted(nearest_of(range(101), 8)), sorted(nearest_of([0, 3, 100], 8)), nearest_of([0, 3, 100], 0)
    ([0, 1, 5, 22, 25, 50, 75, 100], [0, 3, 100], set())
    """
    left = list(measured)
    chosen: set[int] = set()
    for aim in _aims(count // 2, count - count // 2 + 1, measured[-1])[:count]:
        if left:
            nearest = min(left, key=lambda step: abs(step - aim))
            left.remove(nearest)
            chosen.add(nearest)
    return chosen


def _aims(early: int, even: int, total: int) -> list[float]:
    """The beginning and the end, then `early` times on a logarithmic clock, dense at first, and `even` ones
    that are evenly spread."""
    times = [0.0, float(total), *numpy.geomspace(1, total, early), *numpy.linspace(0, total, even)]
    return list(dict.fromkeys(map(float, times)))
