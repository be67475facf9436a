"""How high the rank of a change can be that LoRA adapters make: of a layer, and of a head's products."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rankrise.watch._families import Attention
from rankrise.watch._linear import is_adapter
from rankrise.watch._projection import Projection

PRODUCTS = {"KQ": ("key", "query"), "VO": ("value", "output")}
"""The left and the right factor of each product of a head."""
RankOf = Callable[[Any], int | None]
"""Of a layer, or a bare weight: the highest rank that its change can have; None if it may be any."""


def product_ceilings(attention: Attention, rank_of: RankOf) -> dict[str, int]:
    """By product, the highest rank that the change of one head can have.

    A product whose factors change by ranks r and s changes by r + s at most, not by the larger of the two,
    since `K Q^T - K0 Q0^T = (K - K0) Q^T + K0 (Q - Q0)^T`.
    """
    size = {
        "key": attention.key.width,
        "query": attention.query.width,
        "value": attention.value.width,
        "output": attention.value.width,
    }
    return {
        product: sum(min(_most(getattr(attention, role), rank_of), size[role]) for role in both)
        for product, both in PRODUCTS.items()
    }


def _most(projection: Projection, rank_of: RankOf) -> int:
    """The same of a projection: layers in a row, or beside one another, add up."""
    ranks = [rank_of(layer) for layer in projection.layers]
    whole = min(projection.weight.shape[1], projection.blocks * projection.width)
    return min(whole, sum(whole if rank is None else rank for rank in ranks))


def adapter_ceilings(attention: Attention) -> dict[str, int]:
    """The same for the PEFT LoRA adapters on a module, from now on; {} if there are none, or others."""
    layers = attention.layers
    adapters = [layer for layer in layers if isinstance(layer, nn.Module) and is_adapter(layer)]
    if not adapters or any(change_rank(layer) is None for layer in layers):
        return {}
    return product_ceilings(attention, change_rank)


def trains_more(module: nn.Module) -> bool:
    """Whether a matrix of a module is trained itself, and not by LoRA's factors beside it."""
    return any(
        weight.requires_grad and weight.ndim > 1 and "lora_" not in name
        for name, weight in module.named_parameters()
    )


def change_rank(layer: Any) -> int | None:
    """How high the rank of a layer's change can be from now on, if nothing but LoRA's factors is trained.

    Factors that are not zero now are a part of what the change is measured from: B A - B0 A0 has twice the
    rank.
    """
    if isinstance(layer, Tensor):
        return None if layer.requires_grad else 0
    if trains_more(layer):
        return None
    if not is_adapter(layer):
        return 0
    if not hasattr(layer, "lora_A") or any(getattr(layer, "use_dora", {}).values()):
        return None
    most = 0
    for name in layer.active_adapters:
        if name in layer.lora_A:
            right, left = layer.lora_A[name].weight, layer.lora_B[name].weight
            began = bool(right.detach().any()) and bool(left.detach().any())
            most += right.shape[0] * (2 if began else 1)
    return most
