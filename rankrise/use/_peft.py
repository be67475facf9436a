"""PEFT's adapter folder, written without PEFT: adapter_config.json and adapter_model.safetensors."""

import re
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


def anchored(name: str) -> str:
    r"""A key of `rank_pattern` that matches this module alone: PEFT looks for `(.*\.)?(KEY)$` in names.

    >>> anchored("layers.1.q")
    '^layers\\.1\\.q'
    """
    return f"^{re.escape(name)}"


def patterns(ranks: dict[str, int], everywhere: int) -> dict[str, int]:
    """The ranks that differ from the one for all, by a key that matches one module."""
    return {anchored(name): rank for name, rank in ranks.items() if rank != everywhere}


def targets(names: list[str], module_names: tuple[str, ...]) -> list[str] | str:
    """The names as a list; as one expression where PEFT would take a further module for one of them, whose
    name ends alike."""
    endings = tuple(f".{name}" for name in names)
    chosen = set(names)
    if any(other.endswith(endings) for other in module_names if other not in chosen):
        return "|".join(re.escape(name) for name in names)
    return names


def lora_config(ranks: dict[str, int], module_names: tuple[str, ...], padded: bool = False) -> dict[str, Any]:
    """The part of a `LoraConfig` that says which matrices, which ranks, and that every scale is 1."""
    chosen = {name: rank for name, rank in ranks.items() if rank}
    largest = max(chosen.values(), default=0)
    if padded:
        chosen = dict.fromkeys(chosen, largest)
    differing = patterns(chosen, largest)
    _check_patterns(chosen, differing, largest)
    return {
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": differing,
        "alpha_pattern": dict(differing),
        "target_modules": targets(list(chosen), module_names),
    }


def refuse_rank_zero(ranks: dict[str, int]) -> None:
    """Refuse ranks of which all are 0, as where nothing changed."""
    if not any(ranks.values()):
        raise RankriseError(
            "No direction of any matrix is kept, and PEFT loads no adapter of rank 0: ask for a higher rank, "
            "or check that the tuned model differs from the base by more than rounding."
        )


def save_adapter(adapter: "Adapter", folder: Path, padded: bool, dtype: torch.dtype) -> Path:
    """The whole folder under a temporary name, then renamed."""
    if is_taken(folder):
        raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
    refuse_rank_zero(adapter.ranks)
    config = _config(adapter, padded)
    tensors = {
        PREFIX + name: tensor for name, tensor in _tensors(adapter, config["r"], padded, dtype).items()
    }
    with whole_folder(folder) as temporary:
        save(temporary / TENSORS, tensors, {"format": "pt"})
        write_json(temporary / ADAPTER_CONFIG, config)
        write_json(temporary / REPORT, adapter.to_dict())
    return folder


def _config(adapter: "Adapter", padded: bool) -> dict[str, Any]:
    transposed = any(matrix.transposed for matrix in adapter.matrices if adapter.ranks[matrix.name])
    return {
        "peft_type": "LORA",
        "task_type": adapter.task,
        "base_model_name_or_path": adapter.base or None,
        "inference_mode": True,
        **lora_config(adapter.ranks, adapter.module_names, padded),
        "modules_to_save": sorted(adapter.rest.modules) or None,
        "bias": "all" if adapter.rest.biases else "none",
        "fan_in_fan_out": transposed,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "revision": None,
    }


def _tensors(adapter: "Adapter", largest: int, padded: bool, dtype: torch.dtype) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, (left, right) in adapter.factors.items():
        if padded:
            missing = largest - left.shape[1]
            left = torch.nn.functional.pad(left, (0, missing))
            right = torch.nn.functional.pad(right, (0, 0, 0, missing))
        found[f"{name}.lora_A.weight"], found[f"{name}.lora_B.weight"] = right.to(dtype), left.to(dtype)
    for name, bias in adapter.rest.biases.items():
        found[f"{name}.base_layer.bias" if adapter.ranks.get(name) else f"{name}.bias"] = bias
    for name, module in adapter.rest.modules.items():
        found |= {f"{name}.{leaf}": tensor for leaf, tensor in module.items()}
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in found.items()}


def _check_patterns(ranks: dict[str, int], differing: dict[str, int], largest: int) -> None:
    """Look every module's rank up as PEFT does: the first key that matches wins."""
    keys = [(re.compile(rf"(.*\.)?({key})$"), rank) for key, rank in differing.items()]
    for name, rank in ranks.items():
        found = next((value for key, value in keys if key.match(name)), largest)
        if found != rank:
            raise RankriseError(
                f"PEFT would read rank {found} for {name}, whose rank is {rank}: report this."
            )
