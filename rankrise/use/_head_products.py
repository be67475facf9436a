"""Cut the products of a ViT's or GPT-2's heads, computed with widened heads.

The initial product `W_K W_Q^T` (or `W_V W_O^T`) and k directions of its change have the factors `[W_K(0), U]`
and `[W_Q(0), V]`, so a head that is k wider computes them. The biases stay those of the trained model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._cut import Cut, cut_product
from rankrise.watch._heads import Layer, heads

CAUSAL = {"vit": False, "gpt2": True}  # the model types with plain dot-product attention


def has_head_products(model: Any) -> bool:
    return getattr(getattr(model, "config", None), "model_type", None) in CAUSAL


class HeadProducts:
    """The directions in which the products of all heads changed."""

    def __init__(self, base: Any, tuned: Any) -> None:
        if not has_head_products(tuned):
            raise RankriseError(f"{type(tuned).__name__} is no ViT or GPT-2: leave out KQ and VO.")
        self.layers = list(zip(heads(base), heads(tuned), strict=True))
        self.causal = CAUSAL[tuned.config.model_type]
        self.cuts = {  # by layer and head
            "KQ": [_changes(old.key, old.query, new.key, new.query) for old, new in self.layers],
            "VO": [_changes(old.value, old.output, new.value, new.output) for old, new in self.layers],
        }

    @contextmanager
    def cut_to(self, model: nn.Module, rank: int, names: Sequence[str]) -> Iterator[None]:
        """Cut every head's products to a rank inside the model; other products stay trained."""
        modules: list[Any] = [model.get_submodule(after.name) for _, after in self.layers]
        for place, (module, (before, after)) in enumerate(zip(modules, self.layers, strict=True)):
            kept = {name: [cut.factors(rank) for cut in self.cuts[name][place]] for name in names}
            module.forward = _forward(before, after, kept, self.causal)
        try:
            yield
        finally:
            for module in modules:
                del module.forward


def _changes(old_left: Tensor, old_right: Tensor, left: Tensor, right: Tensor) -> list[Cut]:
    """Cut `left right^T - old_left old_right^T` of each head. [heads, d, d_head] each"""
    left = torch.cat([left, old_left.to(left)], -1).detach()
    right = torch.cat([right, -old_right.to(right)], -1).detach()
    return [cut_product(one, other.mT) for one, other in zip(left, right, strict=True)]


def _forward(
    before: Layer, after: Layer, kept: dict[str, list[tuple[Tensor, Tensor]]], causal: bool
) -> Callable[..., tuple[Tensor, None]]:
    """An attention module's forward with cut products: [batch, tokens, d] to the same."""
    query, key, value, output = after.query, after.key, after.value, after.output
    if "KQ" in kept:
        key = _widened(before.key, [left for left, _ in kept["KQ"]])
        query = _widened(before.query, [right.mT for _, right in kept["KQ"]])
    if "VO" in kept:
        value = _widened(before.value, [left for left, _ in kept["VO"]])
        output = _widened(before.output, [right.mT for _, right in kept["VO"]])
    # With biases, the logits also have `b_Q W_K^T y`: a further column. Terms without y are the same for all
    # keys, and the softmax drops them.
    bias = after.query_bias
    column = torch.zeros_like(key[..., :1]) if bias is None else after.key @ bias.unsqueeze(-1)
    key = torch.cat([key, column], -1)
    constant = output.new_zeros(output.shape[1]) if after.output_bias is None else after.output_bias
    if after.value_bias is not None:  # attention weights sum to 1
        constant = constant + (after.output @ after.value_bias.unsqueeze(-1)).sum(0).squeeze(-1)
    count = len(key)
    width = -(-max(key.shape[-1], value.shape[-1]) // 8) * 8  # fast kernels need a multiple of 8
    query_constant = query.new_zeros(width)
    query_constant[key.shape[-1] - 1] = 1
    query, key, value, output = (
        nn.functional.pad(weights, (0, width - weights.shape[-1])).transpose(0, 1).flatten(1)
        for weights in (query, key, value, output)
    )

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        def by_head(weights: Tensor) -> Tensor:
            return (hidden_states @ weights.to(hidden_states)).unflatten(-1, (count, width)).transpose(1, 2)

        with_constant = by_head(query) + query_constant.to(hidden_states)
        mixed = nn.functional.scaled_dot_product_attention(
            with_constant, by_head(key), by_head(value), scale=after.scale, is_causal=causal
        )
        return mixed.transpose(1, 2).flatten(2) @ output.mT.to(mixed) + constant.to(mixed), None

    return forward


def _widened(weights: Tensor, directions: list[Tensor]) -> Tensor:
    """Weights [heads, d, d_head] with the directions of each head as further columns."""
    rank = max(each.shape[1] for each in directions)
    added = torch.stack([nn.functional.pad(each, (0, rank - each.shape[1])) for each in directions])
    return torch.cat([weights.to(added.device), added.to(weights.dtype)], -1)
