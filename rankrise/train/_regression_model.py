"""The network for regression: transformers' GPT-2 between a linear map of its tokens and one of its output.

Garg et al., "What can transformers learn in-context?" (NeurIPS 2022), have it so.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._language_model import gpt2_configuration
from rankrise.train._model import scale_layers

TOKEN_MAPPER = ("read_in.", "read_out.", "transformer.wpe.")
"""What turns tokens into vectors and a vector into the answer, never scaled: in GPT-2 both are one matrix."""
OFFSET = 2.0
"""Size of the read-in's bias, beside tokens of size 1. Layer norms divide by the size of their input, and
would take that of x and y away; beside an offset that all tokens share, they leave it nearly as it is.
"""


class InContextRegressor(nn.Module):
    """GPT-2 that reads tokens (x, y) and tells the y of the last of them."""

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
    """An `InContextRegressor` whose layers begin as transformers' GPT-2 does, scaled."""
    transformers = require("transformers", extra="train", purpose="training")
    configuration = gpt2_configuration(
        settings,
        vocab_size=1,  # its tokens come as vectors
        n_positions=settings.pairs + 1,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one operation
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = InContextRegressor(transformers.GPT2Model(configuration), len(settings.variances))
    del model.transformer.wte
    scale_layers(model, settings.initialisation_scale, keep=TOKEN_MAPPER)
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
