"""In-context regression: the value of a function, from points of it that came before, by GPT-2's layers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Batch, Task
from rankrise.train._networks import regression_model

VALIDATION = 1024
"""Problems in the validation set."""


class Problems(NamedTuple):
    """Problems, each a row of tokens (x, y), of which the last asks for its y."""

    tokens: Tensor
    """float32 [n, pairs + 1, features + 1]; the last token's y is 0."""
    answers: Tensor
    """The y that is asked for, divided by its standard deviation. float32 [n]"""


class InContextRegression(Task):
    """The squared error of answers, as a share of the answers' variance."""

    name = "in-context regression"

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device, self.examples = settings, device, settings.examples
        made = made_regression(settings.examples, settings.pairs, settings.variances)
        self._train, self._validation = (Problems(*(one.to(device) for one in part)) for part in made)

    def model(self) -> nn.Module:
        return regression_model(self.settings)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        (numbers,) = batch
        mean: Tensor = self.judged(model, self._train.tokens[numbers], self._train.answers[numbers]).mean()
        return mean

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        return {"tokens": self._train.tokens[batch[0]]}

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems; those beyond the last are padding. ([share],)"""
        for start in range(0, len(self._validation.answers), batch_size):
            yield (torch.arange(start, start + batch_size, device=self.device)[share],)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """The number of problems, and the sum of their squared errors. [2]"""
        (numbers,) = batch
        counts = numbers < len(self._validation.answers)
        numbers = torch.where(counts, numbers, 0)
        errors = self.judged(model, self._validation.tokens[numbers], self._validation.answers[numbers])
        return torch.stack([counts.sum().double(), (errors.detach() * counts).sum().double()])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"validation_loss": sums[1] / sums[0]}

    @staticmethod
    def judged(model: Any, tokens: Tensor, answers: Tensor) -> Tensor:
        """Squared errors. [share]"""
        errors: Tensor = (model(tokens=tokens).float() - answers) ** 2
        return errors


def made_regression(problems: int, pairs: int, variances: Sequence[float]) -> tuple[Problems, Problems]:
    """A training and a validation set, the same for every seed of a run.

    In each problem y = w·x + b, with w and b standard normal, and x normal with one of `variances` per
    feature.

    >>> train, validation = made_regression(problems=4000, pairs=16, variances=(1, 0.5))
    >>> tuple(train.tokens.shape), tuple(validation.answers.shape)
    ((4000, 17, 3), (1024,))
    """

    def made(count: int, seed: int) -> Problems:
        draw = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])).standard_normal
        slopes, intercepts = draw((count, len(variances), 1)), draw((count, 1, 1))
        features = draw((count, pairs + 1, len(variances))) * numpy.sqrt(variances)
        targets = features @ slopes + intercepts
        answers = targets[:, -1, 0] / numpy.sqrt(1 + sum(variances))
        targets[:, -1] = 0
        tokens = numpy.concatenate([features, targets], axis=2)
        return Problems(torch.from_numpy(tokens).float(), torch.from_numpy(answers).float())

    return made(problems, seed=1), made(VALIDATION, seed=2)
