"""LoRA adapters of PEFT and kohya, read from disk without PEFT and applied to their base."""

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
from rankrise.watch._matrix import Matrix

ADAPTER_CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
KOHYA = "lora_(unet|transformer)_"  # before a module's name
# Initialisations after which the base is no longer the one on disk ("lora" is LoRA-GA)
_MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora")
# Settings that make a change other than the product of two factors
_NOT_A_PRODUCT = (
    *("use_dora", "use_qalora", "use_bdlora", "layer_replication"),
    *("alora_invocation_tokens", "lora_bias", "trainable_token_indices"),
)


@dataclass(frozen=True, eq=False)
class StoredAdapter:
    """A LoRA adapter on disk, by its own names or, after `on`, by those of a base."""

    folder: Path
    config: dict[str, Any]
    matrices: dict[str, Matrix]  # by name
    factors: dict[str, tuple[Tensor, Tensor]]  # (B, A) by matrix; the change is B @ A, the scale is in B
    others: dict[str, Tensor]  # by name, weights that the adapter replaces
    dtype: torch.dtype  # of the stored factors

    def on(self, model: nn.Module) -> "StoredAdapter":
        """Match the adapter's names to those of its base, which may lack or have a head around the model."""
        modules = dict(model.named_modules())
        prefix = f"{getattr(model, 'base_model_prefix', '')}."

        flat = {kohya_name(name): name for name in modules}

        def own(name: str) -> str:
            name = flat.get(re.sub(f"^{KOHYA}", "", name), name)
            others = (name, name.removeprefix(prefix), prefix + name)
            return next((one for one in others if one.rpartition(".")[0] in modules), name)

        def found(matrix: Matrix) -> Matrix:
            name = own(matrix.name)
            owner, _, leaf = name.rpartition(".")
            module = modules.get(owner if matrix.experts else name)
            if module is None or not hasattr(module, leaf if matrix.experts else "weight"):
                raise self._of_another_base(f"it changes {name}, which the base does not have")
            swapped = matrix.embedding or is_conv1d(module) or bool(getattr(module, "is_transposed", False))
            return replace(matrix, name=name, transposed=swapped)

        matrices = [found(matrix) for matrix in self.matrices.values()]
        return replace(
            self,
            matrices={matrix.name: matrix for matrix in matrices},
            factors={own(name): both for name, both in self.factors.items()},
            others={own(name): tensor for name, tensor in self.others.items()},
        )

    def of(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the base with the adapter applied; in float32 at least where factors change it."""
        matrix = self.matrices.get(name) or self.matrices.get(name.removesuffix(".weight"))
        new = before = weight
        if name in self.others:
            adapted = self.others[name]
        elif matrix is not None and matrix.stored == name:
            refuse_quantised(weight, f"{name} in the base")
            left, right = self.factors[matrix.name]
            wide = torch.promote_types(weight.dtype, torch.float32)
            new = weight.to(wide, memory_format=torch.contiguous_format, copy=True)
            before, adapted = matrix.view(new), left @ right
        else:
            return weight
        if adapted.shape != before.shape:
            sizes = f"{list(before.shape)} in the base and {list(adapted.shape)} in the adapter"
            raise self._of_another_base(f"{name} is {sizes}")
        if name in self.others:
            return adapted
        before.add_(adapted)
        return new

    def _of_another_base(self, found: str) -> RankriseError:
        return RankriseError(f"{str(self.folder)!r}: {found}: pass the base that it was trained on.")


def is_adapter_folder(source: object) -> bool:
    """Whether this is the path of a PEFT adapter without a model beside it."""
    return isinstance(source, str | Path) and (
        (Path(source) / ADAPTER_CONFIG).is_file() and not (Path(source) / CONFIG).is_file()
    )


def read_adapter(folder: str | Path) -> StoredAdapter:
    """Read the factors of a LoRA adapter from PEFT's folder or kohya's file."""
    folder = Path(folder)
    files = [folder] if folder.is_file() else list(folder.glob("*.safetensors"))
    if len(files) == 1 and not (folder / ADAPTER_CONFIG).exists():
        return _read_kohya(files[0])
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
    matrices: dict[str, Matrix] = {}
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    dtype = torch.float32

    def by_pattern(what: str, name: str, otherwise: float) -> float:
        patterns = (config.get(f"{what}_pattern") or {}).items()
        fitting = (value for pattern, value in patterns if re.match(rf"(.*\.)?({pattern})$", name))
        return float(next(fitting, otherwise))

    for key in [key for key in tensors if re.search(r"\.lora_(embedding_)?A(\.weight)?$", key)]:
        right, left = tensors.pop(key), tensors.pop(re.sub(r"(\.lora_(embedding_)?)A", r"\1B", key))
        wrapped, dtype = key.removeprefix(PREFIX).partition(".lora_")[0], right.dtype
        name = wrapped.replace(".base_layer", "")
        facts: dict[str, Any] = {"transposed": bool(config.get("fan_in_fan_out"))}
        if ".lora_embedding_" in key:
            facts = {"transposed": True, "embedding": True}
        leaves = _parameters(name, config)  # PEFT wraps a module once for each, the first innermost
        whole = f"{name}.{leaves[-1 - wrapped.count('.base_layer')]}" if leaves else name
        rank = int(by_pattern("rank", whole, config.get("r", 8))) if leaves else len(right)
        experts = len(right) // max(rank, 1)
        facts |= {"name": whole, "experts": experts} if experts > 1 else {"name": name}
        matrix, left, right = Matrix.from_peft(left, right, **facts)
        alpha = by_pattern("alpha", whole, config.get("lora_alpha", 8))
        scale = alpha / max(rank, 1) ** (0.5 if config.get("use_rslora") else 1)
        matrices[matrix.name], factors[matrix.name] = matrix, (left.float() * scale, right.float())
        if left.shape[-1] != right.shape[-2]:
            raise RankriseError(
                f"{str(folder)!r} has factors of a grouped convolution ({name}): leave it out."
            )

    left_over = [key for key in tensors if ".lora_" in key]
    if left_over or not factors:
        what = left_over[0] if left_over else "no LoRA factors"
        raise RankriseError(f"{str(folder)!r} holds {what}: pass a plain LoRA adapter.")
    others = {key.removeprefix(PREFIX).replace(".base_layer", ""): one for key, one in tensors.items()}
    return StoredAdapter(folder, config, matrices, factors, others, dtype)


def _parameters(module: str, config: dict[str, Any]) -> list[str]:
    """The parameters of a module that PEFT changes by `target_parameters`, in the order of the module's own.

    PEFT writes them in any order, and transformers has `down_proj` last.
    """
    targets = [target.rpartition(".") for target in config.get("target_parameters") or ()]
    found = [leaf for owner, _, leaf in targets if f".{module}".endswith(f".{owner or 'experts'}")]
    return sorted(dict.fromkeys(found), key=lambda leaf: leaf.startswith("down"))


def kohya_name(module: str) -> str:
    """A module of diffusers in kohya's files; SDXL's first embedding has the name of the original."""
    module = re.sub(r"add_embedding\.linear_([12])", lambda it: f"label_emb.0.{2 * int(it[1]) - 2}", module)
    return module.replace(".", "_")


def _read_kohya(file: Path) -> StoredAdapter:
    tensors, _ = read_tensors(file, "restore it")
    matrices, factors, dtype = dict[str, Matrix](), dict[str, tuple[Tensor, Tensor]](), torch.float32
    for key in [key for key in tensors if key.endswith(".lora_down.weight")]:
        name = key.removesuffix(".lora_down.weight")
        right, left = tensors.pop(key), tensors.pop(f"{name}.lora_up.weight")
        scale, dtype = float(tensors.pop(f"{name}.alpha", len(right))) / max(len(right), 1), right.dtype
        matrices[name], left, right = Matrix.from_peft(left, right, name=name)
        factors[name] = left.float() * scale, right.float()
    if tensors or not factors:
        what = min(tensors, default="nothing")
        raise RankriseError(f"{str(file)!r} holds {what}: pass PEFT's folder, or kohya's file of plain LoRA.")
    return StoredAdapter(file, {}, matrices, factors, tensors, dtype)
