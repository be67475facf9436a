"""Transformers' models: loaded whole from a checkpoint, and told apart by what they predict."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._config import offline
from rankrise.watch._heads import unwrap
from rankrise.watch._pretrained import open_weights


def load_model(source: str | Path, architecture: str | Path | None = None) -> nn.Module:
    """The model of a transformers checkpoint with its weights, on the GPU if there is one.

    With `architecture`, by the model class and config of that checkpoint: a base without the tuned head gets
    a head whose weights mean nothing.
    """
    transformers = require("transformers", extra="transformers", purpose="Loading the model of a checkpoint")
    empty: Any = open_weights(architecture or source).model
    if not isinstance(empty, transformers.PreTrainedModel):
        raise RankriseError(
            f"{str(source)!r} is not a checkpoint of transformers: load the model and give it."
        )
    folder = Checkpoint.open(source).folder
    with offline():
        loaded: nn.Module = type(empty).from_pretrained(
            folder, config=empty.config, ignore_mismatched_sizes=True, local_files_only=True
        )
    return loaded.to("cuda") if torch.cuda.is_available() else loaded


def is_causal(model: Any) -> bool:
    """Whether a model predicts each next token."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))
