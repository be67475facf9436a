"""PEFT's adapter folder, written without PEFT: adapter_config.json and adapter_model.safetensors."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, whole_folder, write_json
from rankrise.record.tensors import save
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, TENSORS

if TYPE_CHECKING:
    from rankrise.use._adapter import Adapter

REPORT = "rankrise.json"


def lora_config(
    ranks: Mapping[str, int], module_names: Sequence[str], padded: bool = False
) -> dict[str, Any]:
    """The arguments of a `LoraConfig` that name matrices and ranks, with every scale 1.

    The key of a pattern is a whole, escaped module name, so PEFT matches it to one module.
    """
    chosen = {name: rank for name, rank in ranks.items() if rank}
    if not chosen:
        raise RankriseError(
            "No direction of any matrix is kept, and PEFT loads no adapter of rank 0: pass a higher rank, or "
            "check that the tuned model differs from the base by more than rounding."
        )
    largest = max(chosen.values())
    differing = {
        f"^{re.escape(name)}": rank for name, rank in chosen.items() if rank != largest and not padded
    }
    endings = tuple(f".{name}" for name in chosen)
    shadowed = any(name.endswith(endings) for name in module_names if name not in chosen)
    return {
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": differing,
        "alpha_pattern": dict(differing),
        # In a list, PEFT would take other modules with the same ending too.
        "target_modules": "|".join(map(re.escape, chosen)) if shadowed else list(chosen),
    }


def save_adapter(adapter: "Adapter", folder: Path, padded: bool) -> Path:
    """Write the whole folder under a temporary name, then rename it."""
    if is_taken(folder):
        raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
    if adapter.rest.loose:
        raise RankriseError(
            f"{', '.join(adapter.rest.loose)} changed and cannot be part of an adapter, since PEFT keeps "
            'whole modules only: pass rest="leave" (--leave_rest), and save them yourself.'
        )
    ranks = lora_config(adapter.ranks, adapter.module_names, padded)
    config = {
        "peft_type": "LORA",
        "task_type": adapter.task,
        "base_model_name_or_path": adapter.base or None,
        "inference_mode": True,
        **ranks,
        "modules_to_save": sorted(adapter.rest.modules) or None,
        "bias": "all" if adapter.rest.biases else "none",
        "fan_in_fan_out": any(each.transposed for each in adapter.matrices if adapter.ranks[each.name]),
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "revision": None,
    }
    with whole_folder(folder) as temporary:
        save(temporary / TENSORS, _tensors(adapter, ranks["r"] if padded else 0), {"format": "pt"})
        write_json(temporary / ADAPTER_CONFIG, config)
        write_json(temporary / REPORT, adapter.to_dict())
    return folder


def _tensors(adapter: "Adapter", least_rank: int) -> dict[str, Tensor]:
    """All tensors by their names in the file, filled up to `least_rank`.

    The added rows of A are random, as PEFT initialises them, and the added columns of B are zero, so the
    product stays and the padding can be trained.
    """
    found: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, (left, right) in adapter.factors.items():
        missing = max(least_rank - left.shape[1], 0)
        added = torch.rand(missing, right.shape[1], generator=generator).mul_(2).sub_(1)
        added = (added / right.shape[1] ** 0.5).to(right)
        found[f"{name}.lora_A.weight"] = torch.cat([right, added]).to(adapter.dtype)
        found[f"{name}.lora_B.weight"] = torch.nn.functional.pad(left, (0, missing)).to(adapter.dtype)
    for name, bias in adapter.rest.biases.items():
        found[f"{name}.base_layer.bias" if adapter.ranks.get(name) else f"{name}.bias"] = bias
    for name, module in adapter.rest.modules.items():
        found |= {f"{name}.{leaf}": tensor for leaf, tensor in module.items()}
    return {PREFIX + name: tensor.detach().cpu().contiguous().clone() for name, tensor in found.items()}
