"""A training task, and its data in an order of the seed and epoch alone: a run resumes on any processes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings

Batch = tuple[Tensor, ...]

INDEX, DOWN, RIGHT, MIRRORED = range(4)  # the columns of a plan


class Task(ABC):
    """Data, network and loss, as the training loop uses them. Every training batch has the same shapes."""

    takes: ClassVar[tuple[str, ...]]
    """The names of what `read` returns, as transformers' models take it."""
    settings: TrainSettings
    device: torch.device
    examples: int
    """Training examples in one epoch."""
    held_out: int
    """Examples of the validation set, whose numbers follow those of the training examples."""
    units_per_example = 1
    """Images, tokens or problems."""
    margin, mirror = 0, False
    """How far the images of a plan are moved at most, and whether they are mirrored."""

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """This process's share of each batch of an epoch, from number `first` on: rows of its plan."""
        plan = epoch_plan(self.examples, self.settings.seed, epoch, self.margin, self.mirror)
        yield from ((rows,) for rows in shares(sent(plan, self.device), first, batch_size, share))

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows for the validation set's examples, unmoved; their index is -1 where none is left."""
        for start in range(0, self.held_out, batch_size):
            numbers = torch.arange(start, start + batch_size, device=self.device)
            numbers = torch.where(numbers < self.held_out, self.examples + numbers, -1)[share]
            yield (nn.functional.pad(numbers[:, None], (0, 3)),)

    @abstractmethod
    def model(self) -> nn.Module:
        """The network with its initial weights, on the CPU."""

    @abstractmethod
    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The network's inputs and the answers wanted."""

    @abstractmethod
    def judged(self, model: Any, inputs: Tensor, answers: Tensor) -> tuple[Tensor, ...]:
        """The loss of each answer, and what else `score` needs."""

    @abstractmethod
    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """Sums over a validation batch, detached, which the loop adds up. [k]"""

    @abstractmethod
    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """The recorded metrics, from the summed scores."""

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The mean loss over a batch, to be differentiated. []"""
        losses, *_ = self.judged(model, *self.read(*batch))
        return losses.mean()


def epoch_plan(examples: int, seed: int, epoch: int, margin: int = 0, mirror: bool = False) -> Tensor:
    """A row per example, in the order of training: its index, moves and mirroring. int64 [examples, 4]"""
    generator = numpy.random.Generator(numpy.random.Philox(key=[seed, epoch]))
    plan = numpy.zeros((examples, 4), dtype=numpy.int64)
    plan[:, INDEX] = generator.permutation(examples)
    if margin:
        plan[:, DOWN : RIGHT + 1] = generator.integers(-margin, margin, size=(examples, 2), endpoint=True)
    if mirror:
        plan[:, MIRRORED] = generator.integers(0, 2, size=examples)
    return torch.from_numpy(plan)


def shares(rows: Tensor, first: int, batch_size: int, share: slice) -> Iterator[Tensor]:
    """Each whole batch of rows from batch number `first` on, cut down to this process's share."""
    for start in range(first * batch_size, len(rows) - batch_size + 1, batch_size):
        yield rows[start : start + batch_size][share]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device without waiting for the device's earlier work."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
