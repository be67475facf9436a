"""What is trained for: batches, loss and score. The loop knows nothing else about its data."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._image_classification import image_classification
from rankrise.train._next_token import next_token_prediction
from rankrise.train._regression import in_context_regression
from rankrise.train._sources import Batch


class Task(Protocol):
    """What the loop asks of a task. All of its training batches have the same shapes."""

    name: str
    units_per_example: int
    """Images, tokens or problems, in which its rate is counted."""
    examples: int
    """Training examples: one epoch."""

    def model(self) -> nn.Module:
        """The network with its initial weights, on the CPU."""

    def compiled(self, compile: Any) -> Self:
        """The same task by functions that `compile` compiled; training and validation share the network's."""

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """The batches of an epoch from number `first` on, of each this process's `share`."""

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The mean loss over a batch, to be differentiated. []"""

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """A training batch as transformers' models take it, with labels where the inputs are none."""

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """The validation set, the last batch filled up with examples that do not count."""

    def score(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Sums over a validation batch, detached, which are added up over all of them. [k]"""

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """What is recorded, out of the summed scores."""


def task_of(settings: TrainSettings, device: torch.device, meter: Meter = unseen) -> Task:
    """The task that the settings name, its data read and checked; `meter` shows how far decoding or
    tokenising them is.
    """
    make: dict[str, Callable[[TrainSettings, torch.device, Meter], Task]] = {
        "images": image_classification,
        "text": next_token_prediction,
        "regression": in_context_regression,
    }
    return make[settings.subject](settings, device, meter)
