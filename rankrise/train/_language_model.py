"""GPT-2 for text, always from scratch."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._model import attend_without_mask, scale_layers

TOKEN_MAPPER = ("transformer.wte.", "transformer.wpe.")
"""Embeddings, which are never scaled; the output projection is tied to the first of them."""
PADDING = 64
"""The logits' last dimension is a multiple of it, because fast kernels need aligned rows."""


def language_model(settings: TrainSettings, vocabulary: int) -> nn.Module:
    """A `GPT2LMHeadModel` with the library's initialisation, its layers scaled.

    Its logits have meaningless columns beyond the vocabulary: cut them off.
    """
    transformers = require("transformers", extra="train", purpose="training")
    configuration = gpt2_config(settings, vocab_size=vocabulary, n_positions=settings.sequence_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = transformers.GPT2LMHeadModel(configuration)
    scale_layers(model, settings.initialisation_scale, keep=TOKEN_MAPPER)
    attend_without_mask(model.transformer.h)
    model.lm_head.forward = MethodType(_forward_padded, model.lm_head)
    network: nn.Module = model
    return network


def gpt2_config(settings: TrainSettings, **own: Any) -> Any:
    """A `GPT2Config` of the settings' sizes."""
    transformers = require("transformers", extra="train", purpose="training")
    return transformers.GPT2Config(
        n_layer=settings.layers,
        n_head=settings.heads,
        n_embd=settings.hidden_size,
        n_inner=settings.mlp_size,
        resid_pdrop=settings.dropout,
        embd_pdrop=settings.dropout,
        attn_pdrop=settings.dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
        **own,
    )


def _forward_padded(output: Any, hidden_states: Tensor) -> Tensor:
    """The output projection with rows of zeros up to a multiple of `PADDING`. [..., padded vocabulary]"""
    weight = nn.functional.pad(output.weight, (0, 0, 0, -len(output.weight) % PADDING))
    return nn.functional.linear(hidden_states, weight)
