"""The task of in-context regression: the value of a function, from points of it that came before."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy
import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._language_model import regression_model
from rankrise.train._order import INDEX, Batch, epoch_plan, sent, shares

VALIDATION = 1024
"""Problems in the validation set."""


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems, each a row of tokens (x, y), of which the last asks for its y."""

    tokens: Tensor
    """float32 [n, pairs + 1, features + 1]; the last token's y is 0."""
    answers: Tensor
    """The y that is asked for, divided by its standard deviation. float32 [n]"""


class InContextRegression:
    """Answers of regression problems by GPT-2 and the squared error, as a share of the answers' variance."""

    name = "in-context regression"
    units_per_example = 1

    def __init__(
        self, settings: TrainSettings, train: Problems, validation: Problems, device: torch.device
    ) -> None:
        self.examples = len(train.answers)
        self._settings, self._device, self._errors = settings, device, squared_errors
        self._train, self._validation = (
            Problems(part.tokens.to(device), part.answers.to(device)) for part in (train, validation)
        )

    def compiled(self, compile: Any) -> Self:
        """The same task with a compiled function."""
        task = copy(self)
        task._errors = compile(self._errors)
        return task

    def model(self) -> nn.Module:
        """The network of the settings."""
        return regression_model(self._settings)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems, in the order of the epoch's plan. ([share],)"""
        plan = sent(epoch_plan(self.examples, self._settings.seed, epoch)[:, INDEX], self._device)
        for numbers in shares(plan, first, batch_size, share):
            yield (numbers,)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The mean squared error."""
        (numbers,) = batch
        return self._errors(model, self._train.tokens[numbers], self._train.answers[numbers]).mean()

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """The tokens of a training batch."""
        (numbers,) = batch
        return {"tokens": self._train.tokens[numbers]}

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems; those beyond the last are padding. ([share],)"""
        for start in range(0, len(self._validation.answers), batch_size):
            yield (torch.arange(start, start + batch_size, device=self._device)[share],)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """The number of problems, and the sum of their squared errors. [2]"""
        (numbers,) = batch
        counts = numbers < len(self._validation.answers)
        numbers = torch.where(counts, numbers, 0)
        errors = self._errors(model, self._validation.tokens[numbers], self._validation.answers[numbers])
        return torch.stack([counts.sum().double(), (errors.detach() * counts).sum().double()])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """The mean squared error of the validation set."""
        return {"validation_loss": sums[1] / sums[0]}


def squared_errors(model: Any, tokens: Tensor, answers: Tensor) -> Tensor:
    """One per problem. [share]"""
    errors: Tensor = (model(tokens=tokens).float() - answers) ** 2
    return errors


def in_context_regression(settings: TrainSettings, device: torch.device, meter: Meter) -> InContextRegression:
    """The task on problems that are made as the settings say."""
    made = made_regression(settings.examples, settings.pairs, settings.variances)
    return InContextRegression(settings, *made, device)


def made_regression(problems: int, pairs: int, variances: Sequence[float]) -> tuple[Problems, Problems]:
    """A training and a validation set, the same for every seed of a run.

    In each problem y = w·x + b, with w and b standard normal, and x normal with one of `variances` per
    feature.

    >>> train, validation = made_regression(problems=4000, pairs=16, variances=(1, 0.5))
    >>> tuple(train.tokens.shape), tuple(validation.answers.shape)
    ((4000, 17, 3), (1024,))
    """
    return _made(problems, pairs, variances, seed=1), _made(VALIDATION, pairs, variances, seed=2)


def _made(problems: int, pairs: int, variances: Sequence[float], seed: int) -> Problems:
    draw = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])).standard_normal
    slopes, intercepts = draw((problems, len(variances), 1)), draw((problems, 1, 1))
    features = draw((problems, pairs + 1, len(variances))) * numpy.sqrt(variances)
    targets = features @ slopes + intercepts
    answers = targets[:, -1, 0] / numpy.sqrt(1 + sum(variances))
    targets[:, -1] = 0
    tokens = numpy.concatenate([features, targets], axis=2)
    return Problems(torch.from_numpy(tokens).float(), torch.from_numpy(answers).float())
