"""GPT-2 for text, and for regression between two linear maps; always from scratch."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._model import attend_without_mask, scale_layers

TEXT_TOKEN_MAPPER = ("transformer.wte.", "transformer.wpe.")
"""Embeddings, which are never scaled; the output projection is tied to the first of them."""
REGRESSION_TOKEN_MAPPER = ("read_in.", "read_out.", "transformer.wpe.")
"""The maps around the layers, which are never scaled either."""

PADDING = 64
"""The logits' last dimension is a multiple of it, because fast kernels need aligned rows."""
OFFSET = 2.0
"""Size of the read-in's bias, next to tokens of size 1. Layer norms divide by the size of their input, which
would hide the size of x and y; next to a shared offset they leave it nearly as it is.
"""


def language_model(settings: TrainSettings, vocabulary: int) -> nn.Module:
    """A `GPT2LMHeadModel` with the library's initialisation, its layers scaled.

    Its logits have meaningless columns beyond the vocabulary: cut them off.
    """
    transformers = require("transformers", extra="train", purpose="training")
    configuration = _configuration(settings, vocab_size=vocabulary, n_positions=settings.sequence_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = transformers.GPT2LMHeadModel(configuration)
    scale_layers(model, settings.initialisation_scale, keep=TEXT_TOKEN_MAPPER)
    attend_without_mask(model.transformer.h)
    model.lm_head.forward = MethodType(_forward_padded, model.lm_head)
    network: nn.Module = model
    return network


def _configuration(settings: TrainSettings, **own: Any) -> Any:
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


class InContextRegressor(nn.Module):
    """GPT-2 that reads tokens (x, y) and predicts the y of the last one (Garg et al., NeurIPS 2022)."""

    def __init__(self, transformer: Any, features: int) -> None:
        super().__init__()
        size = transformer.config.hidden_size
        self.config = transformer.config
        self.read_in = nn.Linear(features + 1, size)
        self.transformer = transformer
        self.read_out = nn.Linear(size, 1)
        nn.init.orthogonal_(self.read_in.weight, gain=(size / (features + 1)) ** 0.5)
        nn.init.normal_(self.read_in.bias, std=OFFSET)
        nn.init.normal_(self.read_out.weight, std=size**-0.5)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, pairs + 1, features + 1] -> [batch]"""
        hidden = self.transformer.drop(self.read_in(tokens) + self.transformer.wpe.weight)
        for layer in self.transformer.h:
            hidden = layer(hidden)
        answers: Tensor = self.read_out(self.transformer.ln_f(hidden[:, -1])).squeeze(1)
        return answers


def regression_model(settings: TrainSettings) -> nn.Module:
    """An `InContextRegressor` with GPT-2's initialisation, its layers scaled."""
    transformers = require("transformers", extra="train", purpose="training")
    configuration = _configuration(
        settings,
        vocab_size=1,  # tokens come as vectors
        n_positions=settings.pairs + 1,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one operation
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = InContextRegressor(transformers.GPT2Model(configuration), len(settings.variances))
    del model.transformer.wte
    scale_layers(model, settings.initialisation_scale, keep=REGRESSION_TOKEN_MAPPER)
    if settings.dropout == 0:
        last = model.transformer.h[-1]
        last.forward = MethodType(_forward_last_token, last)
    return model


def _forward_last_token(layer: Any, hidden_states: Tensor) -> Tensor:
    """`GPT2Block.forward` for the last token, the only one that is read. [batch, n, d] -> [batch, 1, d]

    Outputs and gradients are the library's, for a third of the work of the recipe's one layer.
    """
    attention, last = layer.attn, hidden_states[:, -1:]
    query, key, value = (
        part.unflatten(-1, (-1, attention.head_dim))
        for part in attention.c_attn(layer.ln_1(hidden_states)).chunk(3, dim=-1)
    )
    weights = ((query[:, -1:] * key).sum(-1, keepdim=True) * attention.head_dim**-0.5).softmax(1)
    last = last + attention.c_proj((weights * value).sum(1, keepdim=True).flatten(2))
    return last + layer.mlp(layer.ln_2(last))
