"""The steps at which a run logs, validates, measures and saves; and its learning rate at each."""

import math
from collections.abc import Sequence

import numpy
from torch import Tensor
from torch.optim import Optimizer

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.watch import Schedule


class Times:
    """The steps that are validated, saved, measured and kept; step s is the state after s updates."""

    def __init__(self, settings: TrainSettings, examples: int) -> None:
        self.epoch_steps = examples // settings.batch_size  # the other examples wait for the next epoch
        if self.epoch_steps < 1:
            raise RankriseError(f"batch_size is {settings.batch_size}, above the {examples} examples.")
        self._settings = settings
        self.total = self._step(settings.epochs)
        self.warm_up = round(settings.warm_up_epochs * self.epoch_steps)
        if self.warm_up > self.total:
            raise RankriseError(
                f"warm_up_epochs is {settings.warm_up_epochs:g}, above epochs {settings.epochs:g}: lower it."
            )
        self.evaluations = {self.epoch_steps, *self._every(settings.evaluate_every)}
        self.saves = self._every(settings.checkpoint_every)
        half = settings.measurements // 2
        often = sorted({round(time) for time in _early_and_even(half, half + 1, self.total)})
        seldom = sorted({self._step(epoch) for epoch in settings.spectra_epochs} | {self.total})
        self.schedule = Schedule(often=often, seldom=seldom)
        self.kept = nearest_of(sorted({*often, *seldom}), settings.keep_series)

    def logs(self, step: int) -> bool:
        """Whether the mean loss is recorded at this step, as it is at each validation."""
        return step % self._settings.log_every == 0 or step == self.total or step in self.evaluations

    def rate(self, step: int) -> float:
        """The learning rate of the update that leads to `step`: a linear warm-up, then a cosine."""
        largest = self._settings.learning_rate
        if step <= self.warm_up:
            return largest * (step / self.warm_up)
        final = self._settings.final_learning_rate / largest
        angle = math.pi * (step - 1 - self.warm_up) / max(1, self.total - self.warm_up)
        return largest * (final + (1 - final) * (0.5 * (1 + math.cos(angle))))

    def decay(self) -> float:
        """The factor by which decoupled weight decay shrinks a weight over the whole run; 1 for sgd."""
        decay = 0.0 if self._settings.optimiser == "sgd" else self._settings.weight_decay
        return math.prod(max(0.0, 1 - decay * self.rate(step)) for step in range(1, self.total + 1))

    def _step(self, epoch: float) -> int:
        """The step after that many epochs, at least 1 and at most the last."""
        return max(1, round(min(epoch, self._settings.epochs) * self.epoch_steps))

    def _every(self, epochs: float) -> set[int]:
        epochs = max(epochs, 1 / self.epoch_steps)
        count = math.ceil(self.total / self.epoch_steps / epochs)
        return {self._step(number * epochs) for number in range(1, count + 1)}


def nearest_of(measured: Sequence[int], count: int) -> set[int]:
    """Pick `count` of the measured steps, dense early and then evenly spread, the first and last included.

    >>> sorted(nearest_of(range(101), 8)), sorted(nearest_of([0, 3, 100], 8)), nearest_of([0, 3, 100], 0)
    ([0, 1, 5, 22, 25, 50, 75, 100], [0, 3, 100], set())
    """
    left = list(measured)
    for time in _early_and_even(count // 2, count - count // 2 + 1, measured[-1])[:count]:
        if left:
            left.remove(min(left, key=lambda step: abs(step - time)))
    return set(measured) - set(left)


def _early_and_even(early: int, even: int, total: int) -> list[float]:
    """0 and `total`, then `early` times on a logarithmic clock and `even` ones evenly spread."""
    times = [0.0, float(total), *numpy.geomspace(1, total, early), *numpy.linspace(0, total, even)]
    return list(dict.fromkeys(map(float, times)))


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of the next update, in place if a CUDA graph reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
