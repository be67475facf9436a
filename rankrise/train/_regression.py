"""The task of in-context regression: the value of a function, from points of it that came before."""

from collections.abc import Iterator
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.made_regression import Problems, made_regression
from rankrise.train._order import INDEX, epoch_plan
from rankrise.train._regression_model import regression_model
from rankrise.train._sources import Batch, sent


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
        """The same task by a compiled function, one for training and validation."""
        task = copy(self)
        task._errors = compile(self._errors)
        return task

    def model(self) -> nn.Module:
        """The network of the settings."""
        return regression_model(self._settings)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems, in the order of the epoch's plan. ([share],)"""
        plan = sent(epoch_plan(self.examples, self._settings.seed, epoch)[:, INDEX], self._device)
        for start in range(first * batch_size, self.examples - batch_size + 1, batch_size):
            yield (plan[start : start + batch_size][share],)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The mean squared error."""
        (numbers,) = batch
        return self._errors(model, self._train.tokens[numbers], self._train.answers[numbers]).mean()

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """The tokens of a training batch."""
        (numbers,) = batch
        return {"tokens": self._train.tokens[numbers]}

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems; those beyond the last fill up. ([share],)"""
        count = len(self._validation.answers)
        for start in range(0, count, batch_size):
            yield (torch.arange(start, start + batch_size, device=self._device)[share],)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """How many problems there are, and the sum of their squared errors. [2]"""
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


def in_context_regression(
    settings: TrainSettings, device: torch.device, meter: Meter = unseen
) -> InContextRegression:
    """The task on problems that are made as the settings say."""
    made = made_regression(settings.examples, settings.pairs, settings.variances)
    return InContextRegression(settings, *made, device)
