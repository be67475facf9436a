"""Networks with diagonal weights, each the loss on its own data as a function of `a = u * v`."""

from rankrise.predict._networks.attention_entry import AttentionEntry
from rankrise.predict._networks.head import DiagonalHead, diagonal_head
from rankrise.predict._networks.linear import DiagonalLinear, diagonal_linear
from rankrise.predict._networks.objectives import Objective
from rankrise.predict._networks.randomness import random_initialisation
from rankrise.predict._networks.transformer import Activation, DiagonalTransformer, diagonal_transformer

__all__ = [
    "Activation",
    "AttentionEntry",
    "DiagonalHead",
    "DiagonalLinear",
    "DiagonalTransformer",
    "Objective",
    "diagonal_head",
    "diagonal_linear",
    "diagonal_transformer",
    "random_initialisation",
]
