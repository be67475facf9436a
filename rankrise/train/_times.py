"""At which steps a run logs, validates, measures and saves: epochs turned into steps."""

import math
from collections.abc import Sequence

import numpy

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.watch import Schedule


class Times:
    """The steps of a run; step s is the state after s updates.

    `evaluations` are the steps with a validation, `saves` those with a checkpoint, and `kept` those whose
    weights belong to the series that is kept.

    >>> times = Times(TrainSettings(epochs=2, batch_size=10, evaluate_every=1), examples=105)
    >>> times.epoch_steps, times.total, times.evaluations
    (10, 20, {10, 20})
    """

    def __init__(self, settings: TrainSettings, examples: int) -> None:
        self.epoch_steps = examples // settings.batch_size  # the other examples wait for the next epoch
        if self.epoch_steps < 1:
            raise RankriseError(
                f"batch_size is {settings.batch_size}, more than the {examples} training examples: pass a "
                "smaller one."
            )
        self._epochs, self._log_every = settings.epochs, settings.log_every
        self.total = self.step(settings.epochs)
        self.warm_up = round(settings.warm_up_epochs * self.epoch_steps)
        self.evaluations = {self.epoch_steps, *self._every(settings.evaluate_every)}
        self.saves = self._every(settings.checkpoint_every)
        half = settings.measurements // 2
        self._often = sorted({round(time) for time in _early_and_even(half, half + 1, self.total)})
        self._seldom = sorted({self.step(epoch) for epoch in settings.spectra_epochs} | {self.total})
        self.kept = nearest_of(sorted({*self._often, *self._seldom}), settings.keep_series)

    def step(self, epoch: float) -> int:
        """The step after that many epochs, at least 1 and at most the last."""
        return max(1, round(min(epoch, self._epochs) * self.epoch_steps))

    def epoch(self, step: int) -> float:
        """How many epochs are over at a step."""
        return step / self.epoch_steps

    def logs(self, step: int) -> bool:
        """Whether the mean loss is recorded at this step, as it is at each validation."""
        return step % self._log_every == 0 or step == self.total or step in self.evaluations

    def schedule(self) -> Schedule:
        """Stable ranks dense early, then evenly spread; full spectra at the epochs of the settings."""
        return Schedule(often=self._often, seldom=self._seldom)

    def _every(self, epochs: float) -> set[int]:
        if epochs * self.epoch_steps < 1:
            return set(range(1, self.total + 1))
        times = math.ceil(self.total / self.epoch_steps / epochs)
        return {self.step(number * epochs) for number in range(1, times + 1)}


def nearest_of(measured: Sequence[int], count: int) -> set[int]:
    """Pick `count` of the measured steps, dense early and then evenly spread, the first and last included.

    >>> sorted(nearest_of(range(101), 8)), sorted(nearest_of([0, 3, 100], 8)), nearest_of([0, 3, 100], 0)
    ([0, 1, 5, 22, 25, 50, 75, 100], [0, 3, 100], set())
    """
    left = list(measured)
    chosen: set[int] = set()
    for time in _early_and_even(count // 2, count - count // 2 + 1, measured[-1])[:count]:
        if left:
            nearest = min(left, key=lambda step: abs(step - time))
            left.remove(nearest)
            chosen.add(nearest)
    return chosen


def _early_and_even(early: int, even: int, total: int) -> list[float]:
    """0 and `total`, then `early` times on a logarithmic clock and `even` ones evenly spread."""
    times = [0.0, float(total), *numpy.geomspace(1, total, early), *numpy.linspace(0, total, even)]
    return list(dict.fromkeys(map(float, times)))
