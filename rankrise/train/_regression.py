"""In-context regression: the value of a function, from points of it that came before, by GPT-2's layers."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import INDEX, Task
from rankrise.train._networks import regression_model


class InContextRegression(Task):
    """The squared error of answers, as a share of their variance. A problem's last token asks for its y."""

    takes = ("tokens",)
    held_out = 1024

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device, self.examples = settings, device, settings.examples
        train = made_regression(settings.examples, settings.pairs, settings.variances, seed=1)
        validation = made_regression(self.held_out, settings.pairs, settings.variances, seed=2)
        both = (torch.cat(parts).to(device) for parts in zip(train, validation, strict=True))
        self._tokens, self._answers = both

    def model(self) -> nn.Module:
        return regression_model(self.settings)

    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        numbers = batch[0][:, INDEX]
        return self._tokens[numbers], self._answers[numbers]

    def judged(self, model: Any, inputs: Tensor, answers: Tensor) -> tuple[Tensor, ...]:
        """Squared errors. ([share],)"""
        return ((model(tokens=inputs).float() - answers) ** 2,)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """The number of problems, and the sum of their squared errors. [2]"""
        counts = batch[0][:, INDEX] >= 0
        (errors,) = self.judged(model, *self.read(*batch))
        return torch.stack([counts.sum().double(), (errors.detach() * counts).sum().double()])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"validation_loss": sums[1] / sums[0]}


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
