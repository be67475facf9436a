"""Transformers' models: loaded whole from a checkpoint, and told apart by what they predict."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require
from rankrise.record.names import CONFIG
from rankrise.use._weights import refuse_adapter
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._config import offline
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import ADAPTER_CONFIG
from rankrise.watch._pretrained import open_weights


def load_model(source: str | Path) -> nn.Module:
    """The model of a transformers checkpoint with its weights, on the GPU if there is one."""
    transformers = require("transformers", extra="transformers", purpose="Loading the model of a checkpoint")
    refuse_adapter(source)
    empty: Any = open_weights(source).model
    if not isinstance(empty, transformers.PreTrainedModel):
        raise RankriseError(
            f"{str(source)!r} is not a checkpoint of transformers: load the model and give it."
        )
    checkpoint = Checkpoint.open(source)
    folder, wanted = checkpoint.folder, sum(weight.numel() for weight in empty.parameters())
    held = sum(map(checkpoint.size, checkpoint.names))
    if wanted > 2 * held:  # more than with 4 bits each: transformers would make up all others at once
        raise RankriseError(
            f"{str(source)!r} is by its {CONFIG} a model of {wanted:,} weights, and holds {held:,} bytes of "
            "them: restore it."
        )
    if (folder / ADAPTER_CONFIG).exists():  # which transformers would follow to another base
        raise RankriseError(
            f"{str(source)!r} holds {ADAPTER_CONFIG} beside a model, so that it is not clear which is meant: "
            "remove that file, or pass the folder of the adapter alone."
        )
    empty.config.return_dict = True  # outputs are read by their names
    with offline(), _no_bars(transformers.utils.logging):
        try:
            loaded, about = type(empty).from_pretrained(
                folder, config=empty.config, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # a damaged configuration may break anything
            raise RankriseError(
                f"{str(source)!r} cannot be loaded by transformers ({first_line(error):.200}): restore it."
            ) from error
    missing = sorted(about["missing_keys"])
    if missing:  # transformers draws them at random, and says so in a log alone
        raise RankriseError(f"{str(source)!r} has no tensor for {missing[0]}: restore it.")
    model: nn.Module = loaded.to("cuda") if torch.cuda.is_available() else loaded
    return model


@contextmanager
def _no_bars(logging: Any) -> Iterator[None]:
    """Transformers' progress bars switched off for a while: they would stand between our own lines."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def is_causal(model: Any) -> bool:
    """Whether a model predicts each next token."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def is_classifier(model: Any) -> bool:
    """Whether a model predicts one class of a whole text, image, video or sound."""
    kind = type(unwrap(model)).__name__
    return re.search("For(Sequence|Image|Video|Audio)Classification", kind) is not None
