"""A head's product cut to its initial value plus few directions, computed with widened heads.

A head's logits depend on its weights through `KQ = W_K W_Q^T` alone, and its output through `VO = W_V W_O^T`.
The initial product and k directions of its change have the factors `[W_K(0), U]` and `[W_Q(0), V]`: a head
that is k wider computes them. The biases stay those of the trained model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._cut import Cut, cut_product
from rankrise.watch._heads import Layer, heads

KINDS = {"vit": False, "gpt2": True}
"""Model types whose attention is plain dot products, and whether a token sees only those before it."""


@dataclass(frozen=True, eq=False)
class HeadProducts:
    """The initial and trained heads of every layer, and the directions of the change of their products."""

    before: tuple[Layer, ...]
    after: tuple[Layer, ...]
    cuts: dict[str, list[list[Cut]]]
    """"KQ" and "VO": for each layer and head."""
    causal: bool

    @property
    def highest(self) -> int:
        """The largest rank that a change of a product can have."""
        return 2 * self.after[0].query.shape[-1]

    def spectra(self, products: Sequence[str]) -> list[Cut]:
        return [cut for product in products for layer in self.cuts[product] for cut in layer]

    @contextmanager
    def cut_to(self, model: nn.Module, rank: int, products: Sequence[str]) -> Iterator[None]:
        """In the model, every head's products cut to that rank; the products not named stay trained."""
        replaced = []
        try:
            for place, after in enumerate(self.after):
                module: Any = model.get_submodule(after.name)
                widened = _widened(self.before[place], after, self._kept(place, rank, products))
                replaced.append(module)
                module.forward = _forward(widened, after.scale, self.causal)
            yield
        finally:
            for module in replaced:
                del module.forward

    def _kept(self, place: int, rank: int, products: Sequence[str]) -> dict[str, list[tuple[Tensor, Tensor]]]:
        return {product: [cut.factors(rank) for cut in self.cuts[product][place]] for product in products}


def kind_of_heads(model: Any) -> str:
    """The type of a model whose heads can be cut; any other is refused."""
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    if kind not in KINDS:
        raise RankriseError(
            f"The heads of {kind} are not cut: leave out the groups of heads, or pass a model of type "
            f"{' or '.join(KINDS)}, whose heads are plain dot products."
        )
    return kind


def head_products(base: Any, tuned: Any) -> HeadProducts:
    """The products of two moments of a ViT or GPT-2."""
    kind = kind_of_heads(tuned)
    before, after = tuple(heads(base)), tuple(heads(tuned))
    cuts: dict[str, list[list[Cut]]] = {"KQ": [], "VO": []}
    for old, new in zip(before, after, strict=True):
        cuts["KQ"].append(_changes((old.key, old.query), (new.key, new.query)))
        cuts["VO"].append(_changes((old.value, old.output), (new.value, new.output)))
    return HeadProducts(before, after, cuts, KINDS[kind])


def _changes(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> list[Cut]:
    """Directions of `new[0] new[1]^T - old[0] old[1]^T`, of each head. [heads, d, d_head] each"""
    left, right = torch.cat([new[0], old[0].to(new[0])], -1), torch.cat([new[1], -old[1].to(new[1])], -1)
    return [cut_product(one, other.mT) for one, other in zip(left.detach(), right.detach(), strict=True)]


@dataclass(frozen=True, eq=False)
class _Widened:
    """A layer's heads with more columns, [heads, d, width] each; a constant is added to the output. [d]"""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    constant: Tensor
    query_constant: Tensor
    """Added to queries. [heads, width]"""


def _widened(before: Layer, after: Layer, kept: dict[str, list[tuple[Tensor, Tensor]]]) -> _Widened:
    query, key, value, output = after.query, after.key, after.value, after.output
    if "KQ" in kept:
        key = _with(before.key, [left for left, _ in kept["KQ"]])
        query = _with(before.query, [right.mT for _, right in kept["KQ"]])
    if "VO" in kept:
        value = _with(before.value, [left for left, _ in kept["VO"]])
        output = _with(before.output, [right.mT for _, right in kept["VO"]])
    # Of the logits' terms with biases, `b_Q W_K^T y` stays: a further column. Those without y are the same
    # for all keys, and the softmax drops them.
    constant = query.new_zeros(len(query), query.shape[-1] + 1)
    constant[:, -1] = 1
    bias = after.query_bias
    column = torch.zeros_like(key[..., :1]) if bias is None else after.key @ bias.unsqueeze(-1)
    key = torch.cat([key, column], -1)
    query = torch.cat([query, torch.zeros_like(query[..., :1])], -1)
    added = output.new_zeros(output.shape[1]) if after.output_bias is None else after.output_bias
    if after.value_bias is not None:  # attention weights sum to 1
        added = added + (after.output @ after.value_bias.unsqueeze(-1)).sum(0).squeeze(-1)
    return _Widened(query, key, value, output, added, constant)


def _with(weights: Tensor, directions: list[Tensor]) -> Tensor:
    rank = max(each.shape[1] for each in directions)
    filled = [nn.functional.pad(each, (0, rank - each.shape[1])) for each in directions]
    added = torch.stack(filled)
    return torch.cat([weights.to(added.device), added.to(weights.dtype)], -1)


def _forward(heads: _Widened, scale: float, causal: bool) -> Any:
    """An attention module's forward: [batch, tokens, d] to the same, and no attention weights."""
    count = len(heads.query)
    width = -(-max(heads.query.shape[-1], heads.value.shape[-1]) // 8) * 8  # fast kernels ask for one such
    query, key, value, output = (
        nn.functional.pad(weights, (0, width - weights.shape[-1])).transpose(0, 1).flatten(1)
        for weights in (heads.query, heads.key, heads.value, heads.output)
    )
    constant = nn.functional.pad(heads.query_constant, (0, width - heads.query_constant.shape[-1])).flatten()

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        given = hidden_states

        def by_head(projected: Tensor) -> Tensor:
            return projected.unflatten(-1, (count, width)).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(
            by_head(given @ query.to(given) + constant.to(given)),
            by_head(given @ key.to(given)),
            by_head(given @ value.to(given)),
            scale=scale,
            is_causal=causal,
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        return mixed @ output.mT.to(mixed) + heads.constant.to(mixed), None

    return forward
