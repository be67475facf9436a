"""The highest rank that LoRA adapters can give to the change of a layer, and of a head's products."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rankrise.watch._families import Attention
from rankrise.watch._linear import is_adapter
from rankrise.watch._projection import Projection

PRODUCTS = {"KQ": ("key", "query"), "VO": ("value", "output")}
"""The left and the right factor of each product of a head."""
RankOf = Callable[[Any], int | None]
"""The highest rank of the change of a layer or a bare weight; None if it may be any."""


def product_ceilings(attention: Attention, rank_of: RankOf) -> dict[str, int]:
    """By product, the highest rank of the change of one head.

    A product whose factors change by ranks r and s changes by r + s at most, not by the larger of the two,
    since `K Q^T - K0 Q0^T = (K - K0) Q^T + K0 (Q - Q0)^T`.
    """
    sizes = {"KQ": attention.query.width, "VO": attention.value.width}
    return {
        product: sum(min(_ceiling(getattr(attention, role), rank_of), sizes[product]) for role in roles)
        for product, roles in PRODUCTS.items()
    }


def adapter_ceilings(attention: Attention) -> dict[str, int]:
    """The same for the PEFT LoRA adapters on a module, from now on; {} if it has none, or others."""
    layers = [layer for layer in attention.layers if isinstance(layer, nn.Module)]
    if not any(map(is_adapter, layers)) or any(change_rank(layer) is None for layer in attention.layers):
        return {}
    return product_ceilings(attention, change_rank)


def trains_more(module: nn.Module) -> bool:
    """Whether a matrix of a module is trained itself, not only LoRA's factors beside it."""
    return any(
        weight.requires_grad and weight.ndim > 1 and "lora_" not in name
        for name, weight in module.named_parameters()
    )


def change_rank(layer: Any) -> int | None:
    """The highest rank of a layer's change from now on, if only LoRA's factors are trained.

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


def _ceiling(projection: Projection, rank_of: RankOf) -> int:
    """The highest rank of the change of a projection: those of its layers add up."""
    ranks = [rank_of(layer) for layer in projection.layers]
    whole = min(projection.weight.shape[1], projection.blocks * projection.width)
    return min(whole, sum(whole if rank is None else rank for rank in ranks))
