"""What a model tells of the adapter that is trained on it: its base, its rank, how far a change can go."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from rankrise.watch._ceilings import change_rank, trains_more
from rankrise.watch._linear import is_adapter
from rankrise.watch._track.weights import Unit


def adapter_of(model: nn.Module, units: Sequence[Unit]) -> dict[str, Any]:
    """`base` and `adapter_rank` of a model that PEFT wraps, as far as they are known; of others, nothing.

    The rank is the most that the change of a tracked matrix can have, unless `change_rank` says more: the
    adapter has been trained before. Nothing is said where more than LoRA's factors are trained in a tracked
    module, or where factors are not all that the adapter has.
    """
    adapted: Any = next((module for module in model.modules() if hasattr(module, "peft_config")), None)
    if adapted is None:
        return {}
    active = adapted.active_adapters  # a list of PEFT's, a method of transformers'
    configs = [adapted.peft_config[name] for name in (active() if callable(active) else active)]
    found: dict[str, Any] = {}
    named = getattr(getattr(adapted, "config", None), "_name_or_path", "")
    base = next((config.base_model_name_or_path for config in configs), None) or named
    if base:
        found["base"] = str(base)
    if configs and all(map(_is_plain_lora, configs)) and not any(trains_more(one.module) for one in units):
        rank = sum(max(one.r, *(one.rank_pattern or {"": 0}).values()) for one in configs)
        adapters = [part for unit in units for part in unit.module.modules() if is_adapter(part)]
        most = max((change_rank(part) or 0 for part in adapters), default=0)
        found |= {"adapter_rank": rank} | ({"change_rank": most} if most > rank else {})
    return found


def of_products(info: dict[str, Any], most: int) -> dict[str, int]:
    """By product, the highest rank that the change of a head can have in any layer of a run whose matrices
    change by rank `most` at most: as recorded, or else twice that, as both factors may change."""
    layers, products = info["layers"], info["settings"]["products"]
    by_size = [{one: min(2 * most, 2 * layer["d_head"]) for one in products} for layer in layers]
    told = [plain | layer.get("ceilings", {}) for plain, layer in zip(by_size, layers, strict=True)]
    return {one: max(layer[one] for layer in told) for one in products if told}


def _is_plain_lora(config: Any) -> bool:
    kind = getattr(config.peft_type, "value", config.peft_type)
    return kind == "LORA" and not getattr(config, "use_dora", False)
