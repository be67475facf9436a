"""A PEFT LoRA adapter on disk: its factors, read without PEFT, and what they make of a base's weights."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.record.names import CONFIG
from rankrise.watch._factors import refuse_quantised
from rankrise.watch._linear import is_conv1d

ADAPTER_CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora")
"""Initialisations (LoRA-GA the last) after which the base is not the one on disk."""
UNPLAIN = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "alora_invocation_tokens",
    "lora_bias",
    "target_parameters",
)
"""Settings by which the change of a linear layer is not the product of its two factors, or not of a layer."""

LONGEST_NAME = 300
"""Characters in the name of a module."""
_MOST_SIGNS = {r"[*+{]": 2, r"\?": 2, r"\(": 1}
"""How many repetitions, options and groups a pattern has at most: each multiplies the ways to match it."""

Scales = tuple[tuple[re.Pattern[str], float], ...]
"""Patterns of modules, and the alpha of each."""


@dataclass(frozen=True, eq=False)
class StoredAdapter:
    """A PEFT LoRA adapter on disk."""

    folder: Path
    config: dict[str, Any]
    factors: dict[str, tuple[Tensor, Tensor]]
    """(B, A) by module name, the scale in B: `B @ A` is the change, [out, in]."""
    others: dict[str, Tensor]
    """All other tensors by the name in the file."""
    dtype: torch.dtype
    """In which the factors are stored."""

    def on(self, model: nn.Module) -> "AdaptedWeights":
        """What it makes of this base, of which only names and types are looked at.

        An adapter of a model with a head names its modules below the base's prefix and that of a bare model
        does not; either is found in the other. A module that the base does not have is an error.
        """
        modules = dict(model.named_modules())
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        for before, after in (("", ""), (prefix, ""), ("", prefix)):
            factors = {after + name.removeprefix(before): both for name, both in self.factors.items()}
            if factors.keys() <= modules.keys():
                plain = {
                    after
                    + name.removeprefix(PREFIX).replace(".base_layer.", ".").removeprefix(before): tensor
                    for name, tensor in self.others.items()
                }
                transposed = {name for name in factors if is_conv1d(modules[name])}
                return AdaptedWeights(str(self.folder), factors, plain, frozenset(transposed))
        missing = next(name for name in self.factors if name not in modules)
        raise RankriseError(
            f"The adapter in {str(self.folder)!r} changes {missing}, which the base does not have: pass the "
            "base that it was trained on."
        )


@dataclass(frozen=True, eq=False)
class AdaptedWeights:
    """An adapter by the names of one base: (B, A) by module, and other weights that it replaces, by name."""

    folder: str
    factors: dict[str, tuple[Tensor, Tensor]]
    replaced: dict[str, Tensor]
    transposed: frozenset[str]
    """Modules that keep their weight as (in, out)."""

    def rank_of(self, module: str) -> int | None:
        """The highest rank that the change of a module's weight can have; None where it is replaced."""
        if f"{module}.weight" in self.replaced:
            return None
        return self.factors[module][1].shape[0] if module in self.factors else 0

    def of(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the base as the adapter makes it: in float32 at least where factors change it."""
        if name in self.replaced:
            self._refuse_other_shape(name, "replaces it by", self.replaced[name], weight)
            return self.replaced[name]
        module, _, leaf = name.rpartition(".")
        if module not in self.factors or leaf != "weight":
            return weight
        refuse_quantised(weight, f"{name} in the base")
        left, right = self.factors[module]
        change = (left @ right).mT if module in self.transposed else left @ right
        self._refuse_other_shape(name, "changes it by", change, weight)
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) + change

    def _refuse_other_shape(self, name: str, does: str, its: Tensor, weight: Tensor) -> None:
        if its.shape != weight.shape:
            raise RankriseError(
                f"{name} is {list(weight.shape)} in the base, and the adapter in {self.folder!r} {does} "
                f"{list(its.shape)}: pass the base that it was trained on."
            )


def is_adapter_folder(source: object) -> bool:
    """Whether this is the path of a PEFT adapter without a model beside it."""
    return isinstance(source, (str, Path)) and (
        (Path(source) / ADAPTER_CONFIG).is_file() and not (Path(source) / CONFIG).is_file()
    )


def read_adapter(folder: str | Path) -> StoredAdapter:
    """The factors of a PEFT LoRA adapter, read from its folder; nothing in it is run."""
    folder = Path(folder)
    if not (folder / ADAPTER_CONFIG).is_file():
        raise RankriseError(f"{str(folder)!r} has no {ADAPTER_CONFIG}: pass the folder of a PEFT adapter.")
    config = read_json(folder / ADAPTER_CONFIG)
    scales = _scales(folder / ADAPTER_CONFIG, config)
    _refuse_what_is_not_plain(folder, config)
    tensors = _tensors(folder)
    dtype = next((tensor.dtype for name, tensor in tensors.items() if ".lora_A." in name), torch.float32)
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
        name = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        right, left = tensors.pop(key), tensors.pop(key.replace(".lora_A.", ".lora_B."), None)
        left = _checked_factors(folder, name, left, right)
        factors[name] = (left.float() * _scale(config, scales, name, right.shape[0]), right.float())
    embedded = [key for key in tensors if ".lora_" in key]
    if embedded or not factors:
        raise RankriseError(
            f"{str(folder)!r} holds {embedded[0] if embedded else 'no LoRA factors'}: pass a LoRA adapter "
            "of linear layers alone."
        )
    return StoredAdapter(folder, config, factors, tensors, dtype)


def _refuse_what_is_not_plain(folder: Path, config: dict[str, Any]) -> None:
    """Refuse an adapter whose change is not a product of two factors, or not one of the base on disk."""
    start = str(config.get("init_lora_weights", True)).split("_")[0].lower()
    if start in MOVES_THE_BASE:
        raise RankriseError(
            f"{str(folder)!r} is a LoRA adapter that began by moving the base's weights ({start}): save it "
            "as plain LoRA with PEFT's path_initial_model_for_weight_conversion."
        )
    kind, unplain = config.get("peft_type"), next((name for name in UNPLAIN if config.get(name)), None)
    if kind != "LORA" or unplain:
        what = f"{kind} with {unplain}" if unplain else kind
        raise RankriseError(
            f"{str(folder)!r} holds an adapter of type {what}: pass plain LoRA, a product of two factors."
        )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of an adapter by the name in the file."""
    if not (folder / TENSORS).is_file():
        raise RankriseError(
            f"{str(folder)!r} has no {TENSORS}: save the adapter as safetensors; nothing is unpickled."
        )
    try:
        with safe_open(folder / TENSORS, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RankriseError(f"{str(folder / TENSORS)!r} cannot be read ({error}): restore it.") from error


def _checked_factors(folder: Path, name: str, left: Tensor | None, right: Tensor) -> Tensor:
    """The left factor, if the two of a module are there, fit together and are finite."""
    if len(name) > LONGEST_NAME:
        raise RankriseError(
            f"{str(folder)!r} holds factors for a module of {len(name)} characters: restore it."
        )
    if left is None or left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise RankriseError(
            f"{str(folder)!r} holds no two factors for {name}: pass an adapter of linear layers."
        )
    for factor in (left, right):
        refuse_quantised(factor, f"a factor for {name} in {str(folder)!r}")
    if not all(bool(factor.float().isfinite().all()) for factor in (left, right)):
        raise RankriseError(f"{str(folder)!r} holds factors for {name} that are not finite: restore it.")
    return left


def _scale(config: dict[str, Any], scales: Scales, name: str, rank: int) -> float:
    """`alpha / r`, or `alpha / sqrt(r)`, with the first pattern that matches, as PEFT reads them."""
    alpha = next((alpha for pattern, alpha in scales if pattern.match(name)), config.get("lora_alpha", 8))
    return float(alpha) / (max(rank, 1) ** 0.5 if config.get("use_rslora") else max(rank, 1))


def _scales(path: Path, config: dict[str, Any]) -> Scales:
    """The patterns of modules whose scale is their own. Refused are scales that are not numbers, and patterns
    that are broken, or could be searched for hours in names that fit them badly."""
    patterns = config.get("alpha_pattern") or {}
    for alpha in (config.get("lora_alpha", 8), *(patterns.values() if isinstance(patterns, dict) else ([],))):
        if type(alpha) not in (int, float) or not abs(alpha) < 1e30:
            raise RankriseError(f"{path} is damaged (a scale is {alpha!r:.30}): restore it.")
    scales = []
    for pattern, alpha in patterns.items():
        plain = re.sub(r"\\.", "", pattern)
        many = any(len(re.findall(these, plain)) > most for these, most in _MOST_SIGNS.items())
        try:
            if many or re.search(r"\)[*+?{]", plain):
                raise re.error("there are many ways to match it")
            scales.append((re.compile(rf"(.*\.)?({pattern})$"), float(alpha)))
        except (re.error, RecursionError, OverflowError) as error:
            raise RankriseError(
                f"{path} has the alpha_pattern {pattern!r:.60}, which does not tell modules by their names: "
                "write the names themselves."
            ) from error
    return tuple(scales)
