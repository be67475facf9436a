"""The next token of a text, by GPT-2."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Batch, Task
from rankrise.train._networks import language_model
from rankrise.train._text_files import Tokens, made_text, read_text_folder, read_tokenizer, tokenised


def next_token_prediction(settings: TrainSettings, device: torch.device) -> "NextTokenPrediction":
    """The task on the text of the settings, tokenised."""
    folder = Path(settings.data_folder)
    wanted = [*settings.also_validate]
    wanted += [settings.data_name] if settings.data == "text" else []
    wanted += [settings.tokenizer] if settings.tokenizer != "bytes" else []
    missing = [name for name in wanted if not (folder / name).is_dir()]
    if missing:  # all at once, so that they are fetched at once
        raise RankriseError(
            f"{folder} has no folder {', '.join(missing)}: 'rankrise recipes RECIPE' says what to put there; "
            "or pass --data_folder."
        )
    tokenizer = read_tokenizer(settings.tokenizer, folder)
    if settings.data == "made-text":
        texts = made_text()
    else:
        texts = [read_text_folder(folder / settings.data_name, part) for part in ("train", "valid")]
    texts += [read_text_folder(folder / name, "valid") for name in settings.also_validate]
    train, *validation = (tokenised(text, tokenizer) for text in texts)
    return NextTokenPrediction(settings, train, validation, device)


class NextTokenPrediction(Task):
    """Cross-entropy of next tokens.

    An example is a block of `sequence_length` tokens, and its targets are the same tokens moved by one. The
    text lies on the device, and a batch is the numbers of its blocks.
    """

    name = "next-token prediction"

    def __init__(
        self, settings: TrainSettings, train: Tokens, validation_sets: Sequence[Tokens], device: torch.device
    ) -> None:
        length = settings.sequence_length
        self.examples, self.units_per_example = (len(train.tokens) - 1) // length, length
        if self.examples < 1 or any(len(one.tokens) < 2 for one in validation_sets):
            raise RankriseError(
                f"{train.name} has {len(train.tokens)} tokens, and validation sets need 2: pass a longer "
                f"text, or a shorter sequence_length than {length}."
            )
        self.settings, self.device = settings, device
        self._vocabulary, self._validation_sets = train.vocabulary, validation_sets
        self._tokens = train.tokens.to(torch.int32).to(device)
        self._places = torch.arange(length + 1, device=device)

        # Every token of a validation set but its first is a target once; the last block may be short.
        rows, begin = [], 0
        for number, one in enumerate(validation_sets):
            last = len(one.tokens) - 1
            rows += [(begin + start, min(length, last - start), number) for start in range(0, last, length)]
            begin += len(one.tokens)
        parts = [one.tokens.to(torch.int32) for one in validation_sets]
        self._validation = torch.cat([*parts, torch.zeros(length, dtype=torch.int32)]).to(device)
        self._rows = torch.tensor(rows, device=device)

    def model(self) -> nn.Module:
        return language_model(self.settings, self._vocabulary)

    def blocks(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a training batch. Both int64 [share, length]"""
        given = self._tokens[numbers[:, None] * self.settings.sequence_length + self._places]
        return given[:, :-1].long(), given[:, 1:].long()

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        mean: Tensor = self.judged(model, *self.blocks(*batch)).mean()
        return mean

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        return {"input_ids": self.blocks(*batch)[0]}

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of start, number of targets and validation set, padded with zeros. ([share, 3],)"""
        padding = self._rows.new_zeros(-len(self._rows) % batch_size, 3)
        for rows in torch.cat([self._rows, padding]).split(batch_size):
            yield (rows[share],)

    def validation_blocks(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets (-1 for none) and validation set of each row."""
        start, count, sets = rows.unbind(1)
        tokens = self._validation[start[:, None] + self._places]
        targets = torch.where(self._places[1:] <= count[:, None], tokens[:, 1:].long(), -1)
        return tokens[:, :-1].long(), targets, sets  # same layout as in training, or it is compiled again

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """For each validation set, the number of targets and the sum of their losses. [2 sets]"""
        inputs, targets, sets = self.validation_blocks(*batch)
        losses = self.judged(model, inputs, targets).detach()
        sums = torch.stack([(targets >= 0).sum(1).double(), losses.sum(1).double()], 1)
        nothing = sums.new_zeros(len(self._validation_sets), 2)
        return nothing.index_add(0, sets, sums).flatten()

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Perplexity and mean loss of the validation set; perplexities of other sets, by name.

        A text in WikiText's form also has a perplexity per word, however its words were cut into tokens.
        """
        numbers: dict[str, Tensor] = {}
        sets = zip(self._validation_sets, sums.view(-1, 2), strict=True)
        for number, (tokens, (count, losses)) in enumerate(sets):
            name = f"/{tokens.name}" if number else ""
            numbers[f"perplexity{name}"] = (losses / count).exp()
            if tokens.words:
                numbers[f"word_perplexity{name}"] = (losses / tokens.words).exp()
            if number == 0:
                numbers["validation_loss"] = losses / count
        return numbers

    def judged(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each target, 0 for -1; compiled, no logits are in float32. [share, length]"""
        logits = model(input_ids=inputs).logits[..., : self._vocabulary].float().flatten(0, 1)
        losses = nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="none")
        return losses.view_as(targets)
