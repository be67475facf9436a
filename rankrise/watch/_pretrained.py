"""Build the model of a checkpoint without weights from its config.json, and fill it one layer at a time."""

import copy
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import write_json
from rankrise.foundations.optional import require
from rankrise.record.names import CONFIG
from rankrise.record.weight_folders import advice_below, by_numbers
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._config import offline, read_config
from rankrise.watch._lora import StoredAdapter

Loaded = Callable[[nn.Module, str], AbstractContextManager[None]]
"""A context in which the module of that name has its weights."""
Target = tuple[str, str | None]
"""A name in the model, and the pattern of the converter that makes its tensor; None if it needs none."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model on the meta device, and the names that its checkpoints' tensors have in it."""

    model: nn.Module
    target_of: Callable[[str], Target] = lambda name: (name, None)
    converters: Mapping[str, Any] = field(default_factory=dict)
    """By pattern, transformers' converters from stored tensors to the model's."""

    def bind(self, checkpoint: Checkpoint) -> "Opened":
        sources: dict[str, list[Target]] = defaultdict(list)
        for name in sorted(checkpoint.names, key=by_numbers):  # converters stack experts in this order
            target, pattern = self.target_of(name)
            sources[target].append((name, pattern))
        return Opened(self.model, checkpoint, sources, self.converters)


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint by its model's names. The model is on the meta device."""

    model: nn.Module
    checkpoint: Checkpoint
    _sources: Mapping[str, list[Target]]
    """For each of the model's tensors, the stored names that make it, each with its converter's pattern."""
    _converters: Mapping[str, Any]

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensor of that name, or all below the module of that name, by their whole names."""
        tensors: dict[str, Tensor] = {}
        for target in self._below(name):
            stored, pattern = self._sources[target][0]
            if pattern is None:
                tensors[target] = self.checkpoint.read(stored)
                continue
            converter = copy.deepcopy(self._converters[pattern])
            for stored, pattern in self._sources[target]:
                converter.add_tensor(target, stored, pattern, self.checkpoint.read(stored))
            made = converter.convert(target, model=self.model, config=getattr(self.model, "config", None))
            tensors |= {one: value[0] if isinstance(value, list) else value for one, value in made.items()}
        return tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, None if there is none."""
        if name in self._sources:
            stored, pattern = self._sources[name][0]
            if pattern is None:
                return self.checkpoint.shape(stored)
        tensor = self.read(name).get(name)
        return None if tensor is None else tuple(tensor.shape)

    def stored(self, name: str) -> list[str]:
        """The names in the checkpoint of what `read` reads."""
        return [stored for target in self._below(name) for stored, _ in self._sources[target]]

    def _below(self, name: str) -> list[str]:
        return [one for one in self._sources if not name or one == name or one.startswith(f"{name}.")]


def open_weights(source: str | Path, architecture: Path | None = None) -> Opened:
    """Open a checkpoint by the config.json in the folder `architecture`, or by that beside its weights."""
    checkpoint = Checkpoint.open(source)
    config = (architecture or checkpoint.folder) / CONFIG
    if not config.is_file():
        raise RankriseError(
            f"{str(source)!r} has no {CONFIG} beside its weights, so its parts cannot be told apart: "
            f"build the model and pass it instead{advice_below(Path(source))}."
        )
    return architecture_of(config).bind(checkpoint)


def loading(opened: Opened, source: object, adapted: StoredAdapter | None = None) -> Loaded:
    """What gives a module its weights, with an adapter applied; `source` is named in errors."""
    method = getattr(getattr(opened.model, "config", None), "quantization_config", None)
    advice = f": its config says that it is quantised ({method}), so dequantise it first" if method else ""

    @contextmanager
    def loaded(module: nn.Module, name: str) -> Iterator[None]:
        tensors = opened.read(name)
        empty = dict(module.named_parameters())
        try:
            for path, parameter in empty.items():
                whole = f"{name}.{path}".lstrip(".")
                tensor = tensors.pop(whole, None)
                if tensor is None:
                    raise RankriseError(f"{str(source)!r} has no tensor for {whole}{advice}.")
                if tensor.is_floating_point() and tensor.shape != parameter.shape:
                    raise RankriseError(
                        f"{whole} has shape {tuple(tensor.shape)} in {str(source)!r}, and its config makes "
                        f"it {tuple(parameter.shape)}: restore both."
                    )
                tensor = tensor if adapted is None else adapted.of(whole, tensor)
                _replace(module, path, nn.Parameter(tensor, requires_grad=False))
            yield
        finally:
            for path, parameter in empty.items():
                _replace(module, path, parameter)

    return loaded


def _replace(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = path.rpartition(".")
    module.get_submodule(owner)._parameters[leaf] = parameter


def architecture_of(config: Path) -> Architecture:
    """The model that a config.json describes, of transformers or timm."""
    described = read_config(config)
    if "model_type" not in described and "architecture" not in described:
        raise RankriseError(
            f"{str(config)!r} names neither a model_type (transformers) nor an architecture (timm): build "
            "the model and pass it instead."
        )
    library = "transformers" if "model_type" in described else "timm"
    module = require(library, extra=library, purpose=f"Reading a checkpoint of {library}")
    try:
        with offline(), torch.device("meta"):
            if library == "transformers":
                return _transformers(module, described)
            arguments = {"num_classes": described.get("num_classes", 1000)} | (
                described.get("model_args") or {}
            )
            return Architecture(module.create_model(described["architecture"], pretrained=False, **arguments))
    except Exception as error:
        raise RankriseError(
            f"{library} {module.__version__} cannot build the model of {str(config)!r}, so build it and pass "
            f"it instead ({first_line(error)})."
        ) from error


def _transformers(transformers: Any, described: dict[str, Any]) -> Architecture:
    with tempfile.TemporaryDirectory() as folder:  # only the checked config is in it
        write_json(Path(folder) / CONFIG, described)
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    named: Any = getattr(transformers, str((config.architectures or ["AutoModel"])[0]), None)
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    model = named(config) if is_model else transformers.AutoModel.from_config(config)
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:
        return Architecture(model, _names_of_version_4(model))

    state = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def target_of(stored: str) -> Target:
        target, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, state)
        return (stored, None) if target not in state and stored in state else (target, pattern)

    return Architecture(
        model, target_of, {pattern: one for one in converters for pattern in one.source_patterns}
    )


def _names_of_version_4(model: Any) -> Callable[[str], Target]:
    """Names as transformers 4 changes them: a model's own patterns, and the prefix of the model in a head."""
    patterns: dict[str, str] = getattr(model, "_checkpoint_conversion_mapping", {})
    state, prefix = model.state_dict(), f"{model.base_model_prefix}."

    def target_of(stored: str) -> Target:
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        for pattern, replacement in patterns.items():
            name, count = re.subn(pattern, replacement, name)
            if count:
                break
        return next(
            (one for one in (name, prefix + name, name.removeprefix(prefix)) if one in state), name
        ), None

    return target_of
