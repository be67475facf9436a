"""The folder of an adapter as PEFT reads it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, whole_folder, write_json
from rankrise.record.folder import save
from rankrise.use._weights import Matrix
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, TENSORS

if TYPE_CHECKING:
    from rankrise.use._adapter import Adapter

REPORT = "rankrise.json"  # what the adapter holds


def save_adapter(adapter: "Adapter", folder: Path, padded: bool) -> Path:
    """Write weights, config and report; the folder appears when all of them are whole."""
    rest = adapter.rest
    if is_taken(folder):
        raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
    if rest.loose:
        raise RankriseError(
            f"{', '.join(rest.loose)} changed and cannot be part of an adapter, since PEFT keeps whole "
            'modules only: pass rest="leave" (--leave_rest), and save them yourself.'
        )
    in_modules = all(name.startswith(tuple(f"{one}." for one in rest.modules)) for name in rest.tensors)
    config = {
        "peft_type": "LORA",
        **lora_config(adapter.ranks, adapter.matrices, adapter.module_names, adapter.task, padded),
        "base_model_name_or_path": adapter.base or None,
        "inference_mode": True,
        "modules_to_save": sorted(rest.modules) or None,
        "bias": "none" if in_modules else "all",
    }
    tensors, generator = dict[str, Tensor](), torch.Generator().manual_seed(0)
    for name, (left, right) in adapter.factors.items():
        # Random rows and zero columns, as PEFT initialises: the product stays and can be trained.
        missing = config["r"] - left.shape[1] if padded else 0
        added = torch.rand(missing, right.shape[1], generator=generator).mul_(2).sub_(1)
        added = (added / right.shape[1] ** 0.5).to(right)
        tensors[f"{name}.lora_A.weight"] = torch.cat([right, added]).to(adapter.dtype)
        tensors[f"{name}.lora_B.weight"] = nn.functional.pad(left, (0, missing)).to(adapter.dtype)
    for name, tensor in rest.tensors.items():
        module, _, leaf = name.rpartition(".")
        tensors[f"{module}.base_layer.{leaf}" if adapter.ranks.get(module) else name] = tensor
    stored = {PREFIX + name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with whole_folder(folder) as temporary:
        save(temporary / TENSORS, stored, {"format": "pt"})
        write_json(temporary / ADAPTER_CONFIG, config)
        write_json(temporary / REPORT, adapter.to_dict())
    return folder


def lora_config(
    ranks: Mapping[str, int],
    matrices: Sequence[Matrix],
    module_names: Sequence[str],
    task: str | None,
    padded: bool = False,
) -> dict[str, Any]:
    """The arguments of a `LoraConfig` for these ranks: every scale is 1, every pattern matches one module."""
    chosen = {name: rank for name, rank in ranks.items() if rank}
    if not chosen:
        raise RankriseError(
            "No direction of any matrix is kept, and PEFT loads no adapter of rank 0: pass a higher rank, or "
            "check that the tuned model differs from the base by more than rounding."
        )
    largest = max(chosen.values())
    smaller = {} if padded else {name: rank for name, rank in chosen.items() if rank != largest}
    patterns = {f"^{re.escape(name)}": rank for name, rank in smaller.items()}
    endings = tuple(f".{name}" for name in chosen)
    shadowed = any(name.endswith(endings) for name in module_names if name not in chosen)
    return {
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": patterns,
        "alpha_pattern": patterns.copy(),
        # In a list, PEFT would take other modules with the same ending too.
        "target_modules": "|".join(map(re.escape, chosen)) if shadowed else list(chosen),
        "fan_in_fan_out": any(matrix.transposed for matrix in matrices if matrix.name in chosen),
        "task_type": task,
    }
