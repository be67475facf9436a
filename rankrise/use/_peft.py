"""The files of an adapter, as PEFT and other programs read them."""

import json
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
from rankrise.use import _readers as readers
from rankrise.use._readers import READERS, WHOLE, Reader
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, TENSORS, kohya_name
from rankrise.watch._matrix import Matrix

if TYPE_CHECKING:
    from rankrise.use._adapter import Adapter

REPORT = "rankrise.json"  # what the adapter holds, and who reads it
DIFFUSERS = "pytorch_lora_weights.safetensors"
OLDEST = "0.19.1"  # PEFT that applies factors of experts as they are written here
FUSED = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def save_adapter(adapter: "Adapter", folder: Path, for_: str) -> Path:
    """Write what a reader loads, and a report; the folder appears when all files are whole."""
    reader, rest, names = READERS[for_], adapter.rest, adapter.module_names
    if is_taken(folder):
        raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
    if reader.files[0] != "kohya" and names[0].startswith("lora_"):
        raise RankriseError("Kohya's files do not name modules: pass base, or for_='kohya' (--for kohya).")
    parts = _parts(adapter)
    refuse_parts(reader, parts)
    ranks = _one_rank(adapter.ranks) if reader.one_rank else adapter.ranks
    config = lora_config(ranks, adapter.matrices, names, adapter.task)
    allocated = next((rank for rank in reader.ranks if rank >= config["r"]), None)
    if allocated is None:
        raise RankriseError(f"Rank {config['r']} is too large for vLLM: cut to {reader.ranks[-1]} at most.")
    if reader.divides_by == "own":
        config["alpha_pattern"] = {}
    modules, wrappers = _in_peft(ranks, adapter.matrices)
    tensors, generator = dict[str, Tensor](), torch.Generator().manual_seed(0)
    for matrix in (matrix for matrix in adapter.matrices if matrix.name in modules):
        left, right = adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
        rank = ranks[matrix.name]
        if reader.divides_by == "own":
            left = left * (rank / config["r"])
        # Random rows and zero columns, as PEFT initialises: the product stays and can be trained.
        missing = rank - left.shape[-1]
        added = torch.rand(*right.shape[:-2], missing, matrix.into, generator=generator).mul_(2).sub_(1)
        right = torch.cat([right, (added / matrix.into**0.5).to(right)], -2).to(adapter.dtype)
        left = nn.functional.pad(left, (0, missing)).to(adapter.dtype)
        tensors |= matrix.to_peft(left, right, modules[matrix.name])
    report = {
        **adapter.to_dict(),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "for": for_,
        "readers": readers.verdicts(reader, [*filter(None, ranks.values())], parts, names, adapter.task),
        "load": reader.load.format(folder=str(folder), rank=allocated),
    }
    with whole_folder(folder) as temporary:
        if reader.files[0] == "kohya":
            _write(temporary / f"{folder.name}.safetensors", _kohya(tensors, names, config["r"]))
        elif reader.files[0] == "diffusers":
            prefix = "unet." if "down_blocks" in names else "transformer."
            scales = json.dumps({prefix + key: value for key, value in config.items()})
            named = {prefix + name: tensor for name, tensor in tensors.items()}
            _write(temporary / DIFFUSERS, named, lora_adapter_metadata=scales)
        else:
            for name, tensor in rest.tensors.items():
                module, _, leaf = name.rpartition(".")
                tensors[f"{module}{'.base_layer' * wrappers[module]}.{leaf}".lstrip(".")] = tensor
            _write(temporary / TENSORS, {PREFIX + name: tensor for name, tensor in tensors.items()})
            starts = tuple(f"{one}." for one in rest.modules)
            about = {
                "base_model_name_or_path": adapter.base or None,
                "inference_mode": True,
                "modules_to_save": sorted(rest.modules) or None,
                "bias": "none" if all(name.startswith(starts) for name in rest.tensors) else "all",
            }
            write_json(temporary / ADAPTER_CONFIG, {"peft_type": "LORA", **config, **about})
        write_json(temporary / REPORT, report)
    return folder


def refuse_parts(reader: Reader, parts: Mapping[str, str]) -> None:
    """Refuse parts that a reader cannot load; each has the name of one tensor."""
    if refused := next((part for part in parts if part not in reader.takes), None):
        way = 'rest="leave" (--leave_rest)' if refused == WHOLE else "only=... (--only) for others"
        raise RankriseError(
            f"{refused[0].upper()}{refused[1:]}, such as {parts[refused]}, are not for {reader.name}: pass "
            f'{way}, or for_="peft" (--for peft).'
        )


def _parts(adapter: "Adapter") -> dict[str, str]:
    """The parts of an adapter that some readers refuse, each with the name of one tensor."""
    found = {WHOLE: min(adapter.rest.tensors)} if adapter.rest.tensors else {}
    for one in adapter.matrices:
        kinds = {readers.CONVOLUTIONS: one.kernel, readers.EMBEDDINGS: one.embedding}
        kinds |= {readers.EXPERTS: one.experts, readers.TRANSPOSED: one.transposed}
        kind = next((kind for kind, given in kinds.items() if given), None)
        if kind and adapter.ranks[one.name]:
            found.setdefault(kind, one.name)
    return found


def _one_rank(ranks: Mapping[str, int]) -> dict[str, int]:
    """The largest rank for all that changed, and for their neighbours: SGLang wants q, k and v together."""
    largest, places = max(ranks.values()), {name.rpartition(".")[0] for name in ranks if ranks[name]}
    return {name: largest * (name.rpartition(".")[0] in places) for name in ranks}


def _kohya(tensors: Mapping[str, Tensor], modules: Sequence[str], alpha: int) -> dict[str, Tensor]:
    """PEFT's tensors by kohya's names, with one alpha: of several, diffusers loses those of attention."""
    start, named = "lora_transformer_" if "context_embedder" in modules else "lora_unet_", dict[str, Tensor]()
    for name, tensor in tensors.items():
        module, _, which = name.partition(".lora_")
        key = module if module.startswith("lora_") else start + kohya_name(module)
        named[f"{key}.lora_{'down' if which == 'A.weight' else 'up'}.weight"] = tensor
        named[f"{key}.alpha"] = torch.tensor(float(alpha))
    return named


def _write(path: Path, tensors: Mapping[str, Tensor], **header: str) -> None:
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save(path, stored, {"format": "pt", **header})


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
    smaller = {matrix: rank for matrix, rank in chosen.items() if rank != largest}
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
