"""The folder of an adapter as PEFT reads it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, whole_folder, write_json
from rankrise.record.folder import save
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, TENSORS
from rankrise.watch._matrix import Matrix

if TYPE_CHECKING:
    from rankrise.use._adapter import Adapter

REPORT = "rankrise.json"  # what the adapter holds
OLDEST = "0.19.1"  # PEFT that applies factors of experts as they are written here
FUSED = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def save_adapter(adapter: "Adapter", folder: Path, padded: bool) -> Path:
    """Write weights, config and report; the folder appears when all of them are whole."""
    rest = adapter.rest
    if is_taken(folder):
        raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
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
    modules, wrappers = _in_peft(adapter.ranks, adapter.matrices)
    for matrix in adapter.matrices:
        if matrix.name not in modules:
            continue
        left, right = adapter.factors[matrix.name]
        # Random rows and zero columns, as PEFT initialises: the product stays and can be trained.
        missing = config["r"] - left.shape[-1] if padded else 0
        added = torch.rand(*right.shape[:-2], missing, matrix.into, generator=generator).mul_(2).sub_(1)
        right = torch.cat([right, (added / matrix.into**0.5).to(right)], -2).to(adapter.dtype)
        left = nn.functional.pad(left, (0, missing)).to(adapter.dtype)
        tensors |= matrix.to_peft(left, right, modules[matrix.name])
    for name, tensor in rest.tensors.items():
        module, _, leaf = name.rpartition(".")
        tensors[f"{module}{'.base_layer' * wrappers[module]}.{leaf}".lstrip(".")] = tensor
    stored = {PREFIX + name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with whole_folder(folder) as temporary:
        save(temporary / TENSORS, stored, {"format": "pt"})
        write_json(temporary / ADAPTER_CONFIG, config)
        write_json(temporary / REPORT, adapter.to_dict())
    return folder


def _in_peft(ranks: Mapping[str, int], matrices: Sequence[Matrix]) -> tuple[dict[str, str], Counter[str]]:
    """The module of each matrix in PEFT's tree, and how often each is wrapped: once for each parameter."""
    modules, wrappers = dict[str, str](), Counter[str]()
    for matrix in reversed(matrices):
        if ranks[matrix.name]:
            module = matrix.stored.rpartition(".")[0]
            modules[matrix.name] = module + ".base_layer" * wrappers[module]
            wrappers[module] += 1
    return modules, wrappers


def lora_config(
    ranks: Mapping[str, int],
    matrices: Sequence[Matrix],
    module_names: Sequence[str],
    task: str | None,
    padded: bool = False,
) -> dict[str, Any]:
    """The arguments of a `LoraConfig` for these ranks: every scale is 1, every pattern matches one module."""
    chosen = {matrix: ranks[matrix.name] for matrix in matrices if ranks.get(matrix.name)}
    if not chosen:
        raise RankriseError(
            "No direction of any matrix is kept, and PEFT loads no adapter of rank 0: pass a higher rank, or "
            "check that the tuned model differs from the base by more than rounding."
        )
    largest = max(chosen.values())
    # Where experts are fused, PEFT takes modules of these names for the experts of a model before that.
    fused = any(name.endswith(".experts") for name in module_names)
    fused &= not any(".experts.0" in name for name in module_names)
    taken = tuple(f".{name}" for name in FUSED) if fused else ()
    parameters = [one.stored for one in chosen if one.experts or one.name.endswith(taken)]
    modules = [one.name for one in chosen if one.stored not in parameters]
    smaller = {} if padded else {matrix: rank for matrix, rank in chosen.items() if rank != largest}
    patterns = {
        f"^{re.escape(one.stored if one.stored in parameters else one.name)}": rank
        for one, rank in smaller.items()
    }
    endings = tuple(f".{name}" for name in modules)
    shadowed = any(name.endswith(endings) for name in module_names if name not in modules)
    return {
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": patterns,
        "alpha_pattern": patterns.copy(),
        # In a list, PEFT would take other modules with the same ending too.
        "target_modules": "|".join(map(re.escape, modules)) if shadowed else modules,
        **({"target_parameters": parameters, "peft_version": OLDEST} if parameters else {}),
        "fan_in_fan_out": any(one.transposed for one in chosen if not (one.experts or one.embedding)),
        "task_type": task,
    }
