"""In-context regression: the value of a function, from points of it that came before, by GPT-2's layers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Batch, Task
from rankrise.train._networks import regression_model

VALIDATION_PROBLEMS = 1024


class InContextRegression(Task):
    """The squared error of answers, as a share of the answers' variance.

    A problem is a row of tokens (x, y), of which the last asks for its y. Every seed of a run has the same.
    """

    name = "in-context regression"

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device, self.examples = settings, device, settings.examples
        train = made_regression(settings.examples, settings.pairs, settings.variances, seed=1)
        validation = made_regression(VALIDATION_PROBLEMS, settings.pairs, settings.variances, seed=2)
        self._tokens, self._answers = (one.to(device) for one in train)
        self._validation = tuple(one.to(device) for one in validation)

    def model(self) -> nn.Module:
        return regression_model(self.settings)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        (numbers,) = batch
        mean: Tensor = self.judged(model, self._tokens[numbers], self._answers[numbers]).mean()
        return mean

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        return {"tokens": self._tokens[batch[0]]}

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of problems; those beyond the last are padding. ([share],)"""
        for start in range(0, VALIDATION_PROBLEMS, batch_size):
            yield (torch.arange(start, start + batch_size, device=self.device)[share],)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """The number of problems, and the sum of their squared errors. [2]"""
        counts = batch[0] < VALIDATION_PROBLEMS
        numbers = torch.where(counts, batch[0], 0)
        errors = self.judged(model, *(one[numbers] for one in self._validation))
        return torch.stack([counts.sum().double(), (errors.detach() * counts).sum().double()])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"validation_loss": sums[1] / sums[0]}

    @staticmethod
    def judged(model: Any, tokens: Tensor, answers: Tensor) -> Tensor:
        """Squared errors. [share]"""
        errors: Tensor = (model(tokens=tokens).float() - answers) ** 2
        return errors


def made_regression(
    problems: int, pairs: int, variances: Sequence[float], seed: int
) -> tuple[Tensor, Tensor]:
    """Problems y = w·x + b, with w and b standard normal, and x normal with one of `variances` per feature.

    Tokens, float32 [n, pairs + 1, features + 1], the last y of each 0; and that y over its standard
    deviation, float32 [n].
    """
    draw = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])).standard_normal
    slopes, intercepts = draw((problems, len(variances), 1)), draw((problems, 1, 1))
    features = draw((problems, pairs + 1, len(variances))) * numpy.sqrt(variances)
    targets = features @ slopes + intercepts
    answers = targets[:, -1, 0] / numpy.sqrt(1 + sum(variances))
    targets[:, -1] = 0
    tokens = numpy.concatenate([features, targets], axis=2)
    return torch.from_numpy(tokens).float(), torch.from_numpy(answers).float()
