"""PEFT LoRA adapters, read from disk without PEFT and applied to their base."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.record.folder import CONFIG, read_tensors
from rankrise.watch._change import refuse_quantised
from rankrise.watch._linear import is_conv1d

ADAPTER_CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# Initialisations after which the base is no longer the one on disk ("lora" is LoRA-GA)
_MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora")
# Settings that make a change other than the product of two factors
_NOT_A_PRODUCT = (
    *("use_dora", "use_qalora", "use_bdlora", "layer_replication"),
    *("alora_invocation_tokens", "lora_bias", "target_parameters"),
)


@dataclass(frozen=True, eq=False)
class StoredAdapter:
    """A PEFT LoRA adapter on disk, by its own names or, after `on`, by those of a base."""

    folder: Path
    config: dict[str, Any]
    factors: dict[str, tuple[Tensor, Tensor]]  # (B, A) by module; the change is B @ A, the scale is in B
    others: dict[str, Tensor]  # by name, weights that the adapter replaces
    dtype: torch.dtype  # of the stored factors
    transposed: frozenset[str] = frozenset()  # modules of the base that keep their weight as (in, out)

    def on(self, model: nn.Module) -> "StoredAdapter":
        """Match the adapter's names to those of its base, which may lack or have a head around the model."""
        modules = dict(model.named_modules())
        prefix = f"{getattr(model, 'base_model_prefix', '')}."

        def own(name: str) -> str:
            name = name.removeprefix(PREFIX).replace(".base_layer.", ".")
            others = (name, name.removeprefix(prefix), prefix + name)
            return next((one for one in others if one.rpartition(".")[0] in modules), name)

        factors = {own(name): both for name, both in self.factors.items()}
        missing = next((name for name in factors if name not in modules), None)
        if missing is not None:
            raise self._of_another_base(f"it changes {missing}, which the base does not have")
        others = {own(name): tensor for name, tensor in self.others.items()}
        transposed = frozenset(name for name in factors if is_conv1d(modules[name]))
        return replace(self, factors=factors, others=others, transposed=transposed)

    def of(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the base with the adapter applied; in float32 at least where factors change it."""
        module, _, leaf = name.rpartition(".")
        if name in self.others:
            adapted = self.others[name]
        elif module in self.factors and leaf == "weight":
            refuse_quantised(weight, f"{name} in the base")
            left, right = self.factors[module]
            adapted = (left @ right).mT if module in self.transposed else left @ right
        else:
            return weight
        if adapted.shape != weight.shape:
            sizes = f"{list(weight.shape)} in the base and {list(adapted.shape)} in the adapter"
            raise self._of_another_base(f"{name} is {sizes}")
        wide = torch.promote_types(weight.dtype, torch.float32)
        return adapted if name in self.others else weight.to(wide) + adapted

    def _of_another_base(self, found: str) -> RankriseError:
        return RankriseError(f"{str(self.folder)!r}: {found}: pass the base that it was trained on.")


def is_adapter_folder(source: object) -> bool:
    """Whether this is the path of a PEFT adapter without a model beside it."""
    return isinstance(source, str | Path) and (
        (Path(source) / ADAPTER_CONFIG).is_file() and not (Path(source) / CONFIG).is_file()
    )


def read_adapter(folder: str | Path) -> StoredAdapter:
    """Read the factors of a PEFT LoRA adapter from its folder."""
    folder = Path(folder)
    for file in (ADAPTER_CONFIG, TENSORS):
        if not (folder / file).is_file():
            raise RankriseError(f"{str(folder)!r} has no {file}: pass the folder of a PEFT adapter.")
    config = read_json(folder / ADAPTER_CONFIG)
    start = str(config.get("init_lora_weights", True)).split("_")[0].lower()
    special = [name for name in _NOT_A_PRODUCT if config.get(name)]
    special += [f"a base that {start} moved"] if start in _MOVES_THE_BASE else []
    if config.get("peft_type") != "LORA" or special:
        what = " and ".join([f"of type {config.get('peft_type')}", *special])
        raise RankriseError(
            f"{str(folder)!r} holds an adapter {what}: pass plain LoRA, a product of two factors, as PEFT "
            "saves it with path_initial_model_for_weight_conversion."
        )
    tensors, _ = read_tensors(folder / TENSORS, "restore it")
    dtype = next((tensor.dtype for name, tensor in tensors.items() if ".lora_A." in name), torch.float32)
    patterns = (config.get("alpha_pattern") or {}).items()
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
        name = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        right, left = tensors.pop(key), tensors.pop(key.replace(".lora_A.", ".lora_B."))
        fitting = (alpha for pattern, alpha in patterns if re.match(rf"(.*\.)?({pattern})$", name))
        alpha = float(next(fitting, config.get("lora_alpha", 8)))
        scale = alpha / max(right.shape[0], 1) ** (0.5 if config.get("use_rslora") else 1)
        factors[name] = (left.float() * scale, right.float())

    left_over = [key for key in tensors if ".lora_" in key]
    if left_over or not factors:
        what = left_over[0] if left_over else "no LoRA factors"
        raise RankriseError(f"{str(folder)!r} holds {what}: pass a LoRA adapter of linear layers alone.")
    return StoredAdapter(folder, config, factors, tensors, dtype)
