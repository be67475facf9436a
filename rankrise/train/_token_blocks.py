"""Where batches of text come from: blocks of a tokenised text, on the device or in the file."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.tokens import Tokens
from rankrise.train._order import INDEX, epoch_plan
from rankrise.train._sources import Batch, sent


class TokenBlocks:
    """Blocks of `sequence_length` tokens that follow each other, in the order of the epoch's plan.

    A block's targets are its tokens moved by one, so that it shares its last target with the next block. The
    text lies on the device and a batch is the numbers of its blocks; with `stream`, it stays in its
    memory-mapped file and a batch is the blocks themselves.
    """

    def __init__(
        self, settings: TrainSettings, train: Tokens, validation_sets: Sequence[Tokens], device: torch.device
    ) -> None:
        length = settings.sequence_length
        self.examples, self.vocabulary = (len(train.tokens) - 1) // length, train.vocabulary
        if self.examples < 1 or any(len(one.tokens) < 2 for one in validation_sets):
            raise RankriseError(
                f"{train.name} has {len(train.tokens)} tokens, and validation sets need 2: pass a longer "
                f"text, or a shorter sequence_length than {length}."
            )
        self.validation_sets = validation_sets
        self._seed, self._stream = settings.seed, settings.stream
        self._length, self._device = length, device
        self._tokens = train.tokens if settings.stream else train.tokens.to(torch.int32).to(device)
        self._places = torch.arange(length + 1, device=device)
        self._validation, self._rows = _laid_out(validation_sets, length, device)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Numbers of blocks, ([share],), or the blocks, (int32 [share, length + 1],)."""
        plan = epoch_plan(self.examples, self._seed, epoch)[:, INDEX]
        plan = plan if self._stream else sent(plan, self._device)
        for start in range(first * batch_size, self.examples - batch_size + 1, batch_size):
            numbers = plan[start : start + batch_size][share]
            yield (self._read(numbers) if self._stream else numbers,)

    def blocks(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a training batch. int64 [share, length], [share, length]"""
        (given,) = batch
        if not self._stream:
            given = self._tokens[given[:, None] * self._length + self._places]
        return given[:, :-1].long(), given[:, 1:].long()

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of start, number of targets and validation set; rows of 0 fill up. ([share, 3],)"""
        filling = self._rows.new_zeros(-len(self._rows) % batch_size, 3)
        for rows in torch.cat([self._rows, filling]).split(batch_size):
            yield (rows[share],)

    def validation_blocks(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and validation set of each row; a target of -1 does not count."""
        (rows,) = batch
        start, count, sets = rows.unbind(1)
        tokens = self._validation[start[:, None] + self._places]
        targets = torch.where(self._places[1:] <= count[:, None], tokens[:, 1:].long(), -1)
        return tokens[:, :-1].long(), targets, sets  # laid out as in training, else they need other code

    def _read(self, numbers: Tensor) -> Tensor:
        blocks = [
            self._tokens[number * self._length : (number + 1) * self._length + 1].to(torch.int32)
            for number in numbers.tolist()
        ]
        return sent(torch.stack(blocks), self._device)


def _laid_out(sets: Sequence[Tokens], length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All validation sets one after the other, int32, and the rows that cut them into blocks, int64 [n, 3].

    Every token but a set's first is a target once; its last block may be short.
    """
    rows, begin = [], 0
    for place, one in enumerate(sets):
        last = len(one.tokens) - 1
        rows += [(begin + start, min(length, last - start), place) for start in range(0, last, length)]
        begin += len(one.tokens)
    tokens = torch.cat(
        [*(one.tokens.to(torch.int32) for one in sets), torch.zeros(length, dtype=torch.int32)]
    )
    return tokens.to(device), torch.tensor(rows, device=device)
