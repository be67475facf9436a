"""What a model tells of the adapter that is trained on it: the name of its base, and the adapter's rank."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from rankrise.watch._track.weights import Unit


def adapter_of(model: nn.Module, units: Sequence[Unit]) -> dict[str, Any]:
    """`base` and `adapter_rank` of a model that PEFT wraps, as far as they are known; of others, nothing.

    The rank is the most that the change of a tracked matrix can have: nothing is said where more than LoRA's
    factors are trained in a tracked module, or where factors are not all that the adapter has.
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
    if configs and all(map(_is_plain_lora, configs)) and not any(map(_trains_more, units)):
        found["adapter_rank"] = sum(max(one.r, *(one.rank_pattern or {"": 0}).values()) for one in configs)
    return found


def _is_plain_lora(config: Any) -> bool:
    kind = getattr(config.peft_type, "value", config.peft_type)
    return kind == "LORA" and not getattr(config, "use_dora", False)


def _trains_more(unit: Unit) -> bool:
    """Whether a weight of a tracked module is trained itself, and not by factors beside it."""
    return any(
        parameter.requires_grad and parameter.ndim > 1 and "lora_" not in name
        for name, parameter in unit.module.named_parameters()
    )
