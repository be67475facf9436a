"""The task of language models: the next token of a text."""

from copy import copy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.made_text import made_text
from rankrise.train._data.text import read_hugging_face_text, read_text_folder
from rankrise.train._data.tokenizer import read_tokenizer
from rankrise.train._data.tokens import Text, Tokens, tokenised
from rankrise.train._language_model import language_model
from rankrise.train._token_blocks import TokenBlocks


class NextTokenPrediction:
    """The next token of a text by GPT-2 and cross-entropy."""

    name = "next-token prediction"

    def __init__(self, settings: TrainSettings, source: TokenBlocks) -> None:
        self.examples, self.units_per_example = source.examples, settings.sequence_length
        self.batches, self.validation_batches = source.batches, source.validation_batches
        self._settings, self._source = settings, source
        self._losses = self._losses_of

    def compiled(self, compile: Any) -> Self:
        """The same task by a compiled function, one for training and validation."""
        task = copy(self)
        task._losses = compile(self._losses)
        return task

    def model(self) -> nn.Module:
        """The GPT-2 of the settings, from scratch."""
        return language_model(self._settings, self._source.vocabulary)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """Cross-entropy, mean over tokens."""
        inputs, targets = self._source.blocks(*batch)
        return self._losses(model, inputs, targets).mean()

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """The tokens of a training batch."""
        inputs, _ = self._source.blocks(*batch)
        return {"input_ids": inputs}

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """For each validation set, how many tokens are predicted and the sum of their losses. [2 sets]"""
        inputs, targets, sets = self._source.validation_blocks(*batch)
        losses = self._losses(model, inputs, targets).detach()
        sums = torch.stack([(targets >= 0).sum(1).double(), losses.sum(1).double()], 1)
        nothing = sums.new_zeros(len(self._source.validation_sets), 2)
        return nothing.index_add(0, sets, sums).flatten()

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Perplexity of the validation set and its mean loss; other sets' perplexities by their names.

        Of a text in WikiText's form also the perplexity by its own words, however they were cut into tokens.
        """
        numbers: dict[str, Tensor] = {}
        for place, (tokens, (count, losses)) in enumerate(
            zip(self._source.validation_sets, sums.view(-1, 2), strict=True)
        ):
            name = f"/{tokens.name}" if place else ""
            numbers[f"perplexity{name}"] = (losses / count).exp()
            if tokens.words:
                numbers[f"word_perplexity{name}"] = (losses / tokens.words).exp()
            if not place:
                numbers["validation_loss"] = losses / count
        return numbers

    def _losses_of(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each target, 0 for -1; compiled, no logits are in float32. [share, length]"""
        logits = model(input_ids=inputs).logits[..., : self._source.vocabulary].float().flatten(0, 1)
        losses = nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="none")
        return losses.view_as(targets)


def next_token_prediction(
    settings: TrainSettings, device: torch.device, meter: Meter = unseen
) -> NextTokenPrediction:
    """The task on the text that the settings name, read and tokenised."""
    _refuse_missing_folders(settings)
    tokenizer = read_tokenizer(settings.tokenizer, settings.data_folder)

    def read(part: Text | Tokens) -> Tokens:
        return part if isinstance(part, Tokens) else tokenised(part, tokenizer, meter)

    folder = Path(settings.data_folder)
    train: Text | Tokens
    validation: Text | Tokens
    if settings.data == "made-text":
        train, validation = made_text()
    elif settings.data == "text":
        train, validation = read_text_folder(folder / settings.data_name, ("train", "valid"), tokenizer)
    else:
        train, validation = read_hugging_face_text(settings.data_name)
    others = [read_text_folder(folder / name, ("valid",), tokenizer)[0] for name in settings.also_validate]
    sets = [read(validation), *(read(other) for other in others)]
    return NextTokenPrediction(settings, TokenBlocks(settings, read(train), sets, device))


def _refuse_missing_folders(settings: TrainSettings) -> None:
    """All of them at once, so that they are fetched at once."""
    wanted = {settings.data_name: "the text's files"} if settings.data == "text" else {}
    if settings.tokenizer != "bytes":
        wanted[settings.tokenizer] = "vocab.json and merges.txt of GPT-2's tokenizer"
    wanted |= dict.fromkeys(settings.also_validate, "a text to validate on")
    folder = Path(settings.data_folder)
    missing = [f"{name} ({what})" for name, what in wanted.items() if not (folder / name).is_dir()]
    if missing:
        raise RankriseError(
            f"{folder} lacks {', '.join(missing)}: put there what the recipe says, or pass --data_folder."
        )
