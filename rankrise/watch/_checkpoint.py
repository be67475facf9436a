"""Read a checkpoint tensor by tensor, and build its model without weights, to be filled layer by layer."""

import copy
import importlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import read_json
from rankrise.foundations.optional import require
from rankrise.record.folder import CONFIG, SUFFIXES, WHOLE, advice_below, by_numbers, weights_in
from rankrise.watch._lora import ADAPTER_CONFIG, StoredAdapter

# Code beside the checkpoint, attention kernels that transformers would fetch, timm's download addresses
_DROPPED = re.compile(r"auto_map|pretrained_cfg|_?(attn|experts)_implementation(_internal)?")
# Other models and files, which libraries would load
_REFUSED = ("backbone", "pretrained", "pretrained_cfg_overlay", "checkpoint_path", "transformers_weights")
Target = tuple[str, str | None]
"""A name in the model, and the pattern of the converter that makes its tensor; None if it needs none."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a checkpoint by name. Nothing is held in memory: `read` reads from disk."""

    folder: Path
    stored: Mapping[str, Any]
    """By name, an open safetensors file and the name there, or a tensor that is mapped from disk."""

    @classmethod
    def open(cls, source: str | Path) -> "Checkpoint":
        """Open a file, a folder, or the name of a model on the Hugging Face Hub."""
        path = Path(os.path.expanduser(source))  # unlike Path.expanduser, this leaves an unknown ~user
        if not path.exists():
            is_name = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(source))
            if not is_name or path.suffix in SUFFIXES:
                raise RankriseError(f"There is no file or folder {str(source)!r}: pass the path of one.")
            what, wanted = f"{source}, which is no path here,", ["*.json", "*.safetensors"]
            path = Path(ask_hub(what, "snapshot_download", str(source), allow_patterns=wanted))
        stored: dict[str, Any] = {}
        for file in weight_files(path):
            here = _safetensors(file) if file.suffix == ".safetensors" else _unpickled(file)
            if twice := stored.keys() & here.keys():
                raise RankriseError(
                    f"Several files in {str(path)!r} hold {min(twice)}: give the path of one."
                )
            stored |= here
        for prefix in ("_orig_mod.", "module.", "_orig_mod."):  # of DDP and torch.compile
            if all(name.startswith(prefix) for name in stored):
                stored = {name.removeprefix(prefix): one for name, one in stored.items()}
        return cls(path if path.is_dir() else path.parent, stored)

    def shape(self, name: str) -> tuple[int, ...]:
        one = self.stored[name]
        return tuple(one.shape if isinstance(one, Tensor) else one[0].get_slice(one[1]).get_shape())

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU and in its own dtype."""
        one = self.stored[name]
        return one if isinstance(one, Tensor) else one[0].get_tensor(one[1])


def ask_hub(what: str, method: str, *arguments: Any, **named: Any) -> Any:
    """Ask the Hugging Face Hub. Its library's own error may show signed addresses, so it is not chained."""
    hub = require("huggingface_hub", extra="transformers", purpose=f"Fetching {what} from the Hub")
    try:
        return getattr(hub.HfApi(), method)(*arguments, **named)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        answer = f"{type(error).__name__}, status {status}" if status else type(error).__name__
    raise RankriseError(
        f"{what} could not be fetched from the Hugging Face Hub ({answer}): check its name, log in with "
        "'hf auth login' if it is private or gated, or try again later."
    )


def weight_files(path: Path) -> list[Path]:
    """The files that together hold a checkpoint's tensors, chosen as transformers chooses them."""
    if path.is_file():
        return [path]
    for whole in WHOLE:
        if (path / whole).exists():
            return [path / whole]
        index = path / f"{whole}.index.json"
        if index.exists():
            shards = sorted({path / shard for shard in read_json(index)["weight_map"].values()})
            missing = next((shard.name for shard in shards if not shard.is_file()), None)
            if missing:
                raise RankriseError(f"{str(index)!r} names {missing!r}, which is not beside it: restore it.")
            return shards

    found = [file for file in weights_in(path) if not file.name.startswith("adapter_")]
    safe = [file for file in found if file.suffix == ".safetensors"]
    if safe or len(found) == 1:
        return safe or found
    advice = advice_below(path)
    if found:
        advice = f", and has {', '.join(file.name for file in found)}: give the path of one"
    elif (path / ADAPTER_CONFIG).exists():
        advice = ", and holds a PEFT adapter alone: pass it beside its base, as in heads(base, adapter=...)"
    raise RankriseError(f"{str(path)!r} lacks *.safetensors or pytorch_model.bin{advice}.")


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        opened: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{str(file)!r} cannot be read as safetensors ({error}): restore it.") from error
    return {name: (opened, name) for name in opened.keys()}  # noqa: SIM118


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickled checkpoint, memory-mapped where torch can. No code in the file runs."""
    try:  # files of torch before 1.6 are no archives, and cannot be mapped
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except Exception as error:
        raise RankriseError(
            f"{str(file)!r} cannot be read as plain weights ({type(error).__name__}), and code in it is not "
            "run: save its state dict as safetensors."
        ) from error
    found = loaded if isinstance(loaded, dict) else {}
    for key in ("state_dict", "model_state_dict", "model", "module"):
        found = found[key] if isinstance(found.get(key), dict) else found
    tensors = {name: one for name, one in found.items() if isinstance(one, Tensor)}
    if not tensors:
        raise RankriseError(f"{str(file)!r} holds no state dict: expected names and tensors.")
    return tensors


@dataclass(frozen=True, eq=False)
class Opened:
    """A model on the meta device, and the tensors of a checkpoint by the model's names."""

    model: nn.Module
    target_of: Callable[[str], Target] = lambda name: (name, None)
    converters: Mapping[str, Any] = field(default_factory=dict)  # of transformers, by pattern
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(Path(), {}))
    name: str = ""  # of the checkpoint, in errors
    adapter: StoredAdapter | None = None  # applied to what `loaded` loads

    @cached_property
    def _sources(self) -> Mapping[str, list[Target]]:
        """By name in the model, the stored names that make the tensor, each with its converter's pattern."""
        sources: dict[str, list[Target]] = defaultdict(list)
        for name in sorted(self.checkpoint.stored, key=by_numbers):  # converters stack experts in this order
            target, pattern = self.target_of(name)
            sources[target].append((name, pattern))
        return sources

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensor of that name, or all below the module of that name, by their whole names."""
        tensors: dict[str, Tensor] = {}
        for target in self._sources:
            if name and target != name and not target.startswith(f"{name}."):
                continue
            stored, pattern = self._sources[target][0]
            if pattern is None:
                tensors[target] = self.checkpoint.read(stored)
                continue
            converter = copy.deepcopy(self.converters[pattern])
            for stored, pattern in self._sources[target]:
                converter.add_tensor(target, stored, pattern, self.checkpoint.read(stored))
            made = converter.convert(target, model=self.model, config=getattr(self.model, "config", None))
            tensors |= {one: value[0] if isinstance(value, list) else value for one, value in made.items()}
        return tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, None if there is none."""
        stored, pattern = self._sources.get(name, [("", "")])[0]
        if pattern is None:
            return self.checkpoint.shape(stored)
        tensor = self.read(name).get(name)
        return None if tensor is None else tuple(tensor.shape)

    @contextmanager
    def loaded(self, module: nn.Module, name: str) -> Iterator[None]:
        """Give the module of that name its weights while the context lasts."""
        tensors, empty = self.read(name), dict(module.named_parameters())
        filled: dict[str, nn.Parameter] = {}
        for path, parameter in empty.items():
            whole = f"{name}.{path}".lstrip(".")
            tensor = tensors.pop(whole, None)
            if tensor is None:
                raise RankriseError(f"{self.name!r} has no tensor for {whole}: restore or dequantise it.")
            if tensor.is_floating_point() and tensor.shape != parameter.shape:
                raise RankriseError(
                    f"{whole} has shape {tuple(tensor.shape)} in {self.name!r}, and its config makes it "
                    f"{tuple(parameter.shape)}: restore both."
                )
            tensor = tensor if self.adapter is None else self.adapter.of(whole, tensor)
            filled[path] = nn.Parameter(tensor, requires_grad=False)
        try:
            _place(module, filled)
            yield
        finally:
            _place(module, empty)


def _place(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    for path, parameter in parameters.items():
        owner, _, leaf = path.rpartition(".")
        module.get_submodule(owner)._parameters[leaf] = parameter


def open_weights(source: str | Path, architecture: Path | None = None) -> Opened:
    """Open a checkpoint by the config.json in the folder `architecture`, or by that beside its weights."""
    checkpoint = Checkpoint.open(source)
    config = (architecture or checkpoint.folder) / CONFIG
    if not config.is_file():
        raise RankriseError(f"{str(source)!r} has no {CONFIG}: build the model{advice_below(Path(source))}.")
    return replace(architecture_of(config), checkpoint=checkpoint, name=str(source))


def architecture_of(path: Path) -> Opened:
    """The model that a config.json describes, of transformers, diffusers or timm, without a checkpoint."""
    config = _without_other_places(read_json(path), path)
    marks = {"transformers": "model_type", "diffusers": "_class_name"}
    library = next((library for library, mark in marks.items() if mark in config), "timm")
    module = require(library, extra=library, purpose=f"Reading a checkpoint of {library}")
    try:
        with offline(), torch.device("meta"):
            if library == "transformers":
                return _transformers(module, config)
            if library == "diffusers":
                return Opened(getattr(module, config["_class_name"]).from_config(config))
            arguments = {"num_classes": config.get("num_classes", 1000)} | (config.get("model_args") or {})
            return Opened(module.create_model(config["architecture"], pretrained=False, **arguments))
    except Exception as error:
        raise RankriseError(
            f"{library} {module.__version__} cannot build the model of {str(path)!r}, so build it and pass "
            f"it instead ({first_line(error)})."
        ) from error


def _without_other_places(value: Any, path: Path) -> Any:
    """A part of a config.json without code and kernels; other models and files in it are refused."""
    if isinstance(value, list):
        return [_without_other_places(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    for name, item in value.items():
        elsewhere = name == "architecture" and re.search(r"[^\w.-]", str(item))  # timm's "local-dir:..."
        if elsewhere or (name in _REFUSED and item not in (None, False)):
            raise RankriseError(
                f"{str(path)!r} has {name} {item!r}, which reaches beyond the checkpoint: remove it, or "
                "build the model and pass it instead."
            )
    kept = {name: item for name, item in value.items() if not _DROPPED.fullmatch(name)}
    return {name: _without_other_places(item, path) for name, item in kept.items()}


@contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from asking the Hugging Face Hub."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _transformers(transformers: Any, described: dict[str, Any]) -> Opened:
    config = transformers.CONFIG_MAPPING[described["model_type"]].from_dict(described)
    named: Any = getattr(transformers, str((config.architectures or ["AutoModel"])[0]), None)
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    model: Any = named(config) if is_model else transformers.AutoModel.from_config(config)
    state = model.state_dict()
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:
        return Opened(model, lambda stored: (_name_in_version_4(stored, model, state), None))

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def target_of(stored: str) -> Target:
        target, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, state)
        return (stored, None) if target not in state and stored in state else (target, pattern)

    return Opened(model, target_of, {pattern: one for one in converters for pattern in one.source_patterns})


def _name_in_version_4(stored: str, model: Any, state: Mapping[str, Tensor]) -> str:
    """A name as transformers 4 changes it: a model's own patterns, and the prefix of the model in a head."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    for pattern, replacement in getattr(model, "_checkpoint_conversion_mapping", {}).items():
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    prefix = f"{model.base_model_prefix}."
    return next((one for one in (name, prefix + name, name.removeprefix(prefix)) if one in state), name)
