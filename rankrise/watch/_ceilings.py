"""LoRA adapters on a tracked model: what they are, and the highest rank that they can give to a change."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rankrise.watch._families import Attention
from rankrise.watch._linear import is_adapter

PRODUCTS = {"KQ": ("key", "query"), "VO": ("value", "output")}
"""The left and the right factor of each product of a head."""


def adapter_ceilings(attention: Attention) -> dict[str, int]:
    """By product, the highest rank that the PEFT LoRA adapters on a module can give to the change of one head
    from now on; {} without any, or with others.

    A product whose factors change by ranks r and s changes by r + s at most, not by the larger of the two,
    since `K Q^T - K0 Q0^T = (K - K0) Q^T + K0 (Q - Q0)^T`.
    """
    if not any(isinstance(layer, nn.Module) and is_adapter(layer) for layer in attention.layers):
        return {}
    found: dict[str, int] = {}
    for product, roles in PRODUCTS.items():
        ceiling = 0
        for role in roles:
            projection = getattr(attention, role)
            ranks = [change_rank(layer) for layer in projection.layers]  # those of several layers add up
            if None in ranks:
                return {}
            whole = min(projection.weight.shape[1], projection.blocks * projection.width)
            size = attention.query.width if product == "KQ" else attention.value.width
            ceiling += min(whole, size, sum(rank or 0 for rank in ranks))
        found[product] = ceiling
    return found


def adapter_of(model: nn.Module, modules: Sequence[nn.Module]) -> dict[str, Any]:
    """`base` and `adapter_rank` of a model that PEFT wraps, as far as they are known; {} for other models.

    The change of a matrix in `modules`, the tracked ones, has at most that rank, or `change_rank` if the
    adapter was trained before. The rank is left out if more than LoRA's factors is trained in them.
    """
    adapted: Any = next((module for module in model.modules() if hasattr(module, "peft_config")), None)
    if adapted is None:
        return {}
    active = adapted.active_adapters  # a list of PEFT's, a method of transformers'
    configs = [adapted.peft_config[name] for name in (active() if callable(active) else active)]
    base = next((config.base_model_name_or_path for config in configs), None)
    base = base or getattr(getattr(adapted, "config", None), "_name_or_path", "")
    found: dict[str, Any] = {"base": str(base)} if base else {}
    parts = [part for module in modules for part in module.modules() if is_adapter(part)]
    ranks = [change_rank(part) for part in parts]
    plain = all(hasattr(one, "lora_alpha") for one in configs) and None not in ranks
    if plain and not any(map(_trains_more, modules)):
        rank = sum(max(one.r, *(one.rank_pattern or {"": 0}).values()) for one in configs)
        most = max((rank or 0 for rank in ranks), default=0)
        found |= {"adapter_rank": rank} | ({"change_rank": most} if most > rank else {})
    return found


def change_rank(layer: Any) -> int | None:
    """The highest rank of a layer's change from now on; None if more than LoRA's factors is trained.

    Factors that are not zero now are a part of what the change is measured from: B A - B0 A0 has twice the
    rank.
    """
    if isinstance(layer, Tensor):
        return None if layer.requires_grad else 0
    if _trains_more(layer):
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


def _trains_more(module: nn.Module) -> bool:
    """Whether a matrix of a module is trained itself, not only LoRA's factors beside it."""
    return any(
        weight.requires_grad and weight.ndim > 1 and "lora_" not in name
        for name, weight in module.named_parameters()
    )
