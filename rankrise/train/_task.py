"""What is trained: batches, loss and score. The loop knows nothing else about its data."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._image_classification import image_classification
from rankrise.train._next_token import next_token_prediction
from rankrise.train._order import Batch
from rankrise.train._regression import in_context_regression


class Task(Protocol):
    """What the loop asks of a task. All of its training batches have the same shapes."""

    name: str
    units_per_example: int
    """Images, tokens or problems."""
    examples: int
    """Training examples in one epoch."""

    def model(self) -> nn.Module:
        """The network with its initial weights, on the CPU."""

    def compiled(self, compile: Any) -> Self:
        """The same task with compiled functions; training and validation share the network's."""

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """This process's share of each batch of an epoch, from number `first` on."""

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The mean loss over a batch, to be differentiated. []"""

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """A training batch as keyword arguments of transformers' models."""

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """The validation set, the last batch padded with examples that do not count."""

    def score(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Sums over a validation batch, detached, which the loop adds up. [k]"""

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """The recorded metrics, from the summed scores."""


def task_of(settings: TrainSettings, device: torch.device, meter: Meter = unseen) -> Task:
    """The task of the settings, on data that is read and checked; `meter` shows decoding or tokenising."""
    make: dict[str, Callable[[TrainSettings, torch.device, Meter], Task]] = {
        "images": image_classification,
        "text": next_token_prediction,
        "regression": in_context_regression,
    }
    return make[settings.subject](settings, device, meter)
