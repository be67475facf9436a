"""From a checkpoint and its config to a model without weights, which is filled one layer at a time."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.record.names import CONFIG
from rankrise.record.weight_folders import advice_below
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._config import offline, read_config, transformers_config
from rankrise.watch._lora import AdaptedWeights, read_adapter

MOST_MODULES = 150_000
"""The largest mixtures of experts have about 100,000."""

Loaded = Callable[[nn.Module, str], AbstractContextManager[None]]
"""A context in which the module of that name has its weights."""


@dataclass(frozen=True, eq=False)
class Opened:
    """The model of a checkpoint, on the meta device, and what reads its tensors by the model's own names."""

    model: nn.Module
    read: Callable[[str], dict[str, Tensor]]
    """The tensor of that name, or those below the module of that name, by their whole names."""
    shape: Callable[[str], tuple[int, ...] | None]
    """The shape of the tensor of that name, None if there is none; read only where its layout has changed."""
    stored: Callable[[str], list[str]]
    """The names in the checkpoint of what `read` reads."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model on the meta device, and what opens any of its checkpoints."""

    model: nn.Module
    bind: Callable[[Checkpoint], Opened]


def open_weights(source: str | Path, architecture: Path | None = None) -> Opened:
    """Open a checkpoint by the config.json in the folder `architecture`, or by that beside its weights."""
    checkpoint = Checkpoint.open(source)
    return architecture_of(_config(source, architecture or checkpoint.folder)).bind(checkpoint)


def open_pretrained(
    source: str | Path, adapter: str | Path | None = None
) -> tuple[nn.Module, Loaded, AdaptedWeights | None]:
    """The model of a checkpoint, on the meta device, and a context in which one module has its weights; with
    a PEFT adapter, those that the adapter makes of them, and the adapter by the model's names."""
    checkpoint = Checkpoint.open(source)
    opened = architecture_of(_config(source, checkpoint.folder)).bind(checkpoint)
    quantisation = getattr(getattr(opened.model, "config", None), "quantization_config", None)
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    adapted = None if adapter is None else read_adapter(adapter).on(opened.model)
    quantised = f": its config says that it is quantised ({method}), so dequantise it first" if method else ""
    return opened.model, loading(opened, source, quantised, adapted), adapted


def loading(
    opened: Opened, source: object, advice: str = "", adapted: AdaptedWeights | None = None
) -> Loaded:
    """The context in which a module has its weights; `source` and `advice` are for error messages, `adapted`
    is an adapter on the model."""

    @contextlib.contextmanager
    def loaded(module: nn.Module, name: str) -> Iterator[None]:
        tensors = opened.read(name)
        with contextlib.ExitStack() as emptied:
            for path, parameter in list(module.named_parameters()):
                tensor = tensors.pop(f"{name}.{path}".lstrip("."), None)
                if tensor is None:
                    raise RankriseError(f"{str(source)!r} has no tensor for {name}.{path}{advice}.")
                if tensor.is_floating_point() and tensor.shape != parameter.shape:
                    raise RankriseError(
                        f"{name}.{path} has shape {tuple(tensor.shape)} in {str(source)!r}, and its config "
                        f"makes it {tuple(parameter.shape)}: restore both."
                    )
                if adapted is not None:
                    tensor = adapted.of(f"{name}.{path}", tensor)
                owner, _, leaf = path.rpartition(".")
                parameters = module.get_submodule(owner)._parameters
                emptied.callback(parameters.__setitem__, leaf, parameter)
                parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            yield

    return loaded


def _config(source: str | Path, folder: Path) -> Path:
    config = folder / CONFIG
    if not config.is_file():
        raise RankriseError(
            f"{str(source)!r} has no {CONFIG} beside its weights, so its parts cannot be told apart: "
            f"build the model and pass it instead{advice_below(Path(source))}."
        )
    return config


def architecture_of(config: Path) -> Architecture:
    """The model that a config.json describes, of transformers or timm."""
    described = read_config(config)
    if "model_type" in described:
        return _transformers(config, described)
    if "architecture" in described:
        return _timm(config, described)
    raise RankriseError(
        f"{str(config)!r} names neither a model_type (transformers) nor an architecture (timm): build "
        "the model and pass it instead."
    )


def plain_architecture(model: nn.Module) -> Architecture:
    """A model whose checkpoints have its own names."""

    def bind(checkpoint: Checkpoint) -> Opened:
        def stored(name: str) -> list[str]:
            return [one for one in checkpoint.names if _is_below(one, name)]

        def read(name: str) -> dict[str, Tensor]:
            return {one: checkpoint.read(one) for one in stored(name)}

        def shape(name: str) -> tuple[int, ...] | None:
            return checkpoint.shape(name) if name in checkpoint.names else None

        return Opened(model, read, shape, stored)

    return Architecture(model, bind)


def _timm(config: Path, described: dict[str, Any]) -> Architecture:
    timm = require("timm", extra="timm", purpose="Reading a timm checkpoint")
    arguments = {"num_classes": described.get("num_classes", 1000)} | (described.get("model_args") or {})
    with _building(config, f"timm {timm.__version__}"):
        model = timm.create_model(described["architecture"], pretrained=False, **arguments)
    return plain_architecture(model)


@contextlib.contextmanager
def _building(config: Path, library: str) -> Iterator[None]:
    """A library builds the model of a config, without weights and offline, or it is said why not."""
    try:
        with offline(), torch.device("meta"), _bounded(config):
            yield
    except RankriseError:
        raise
    except Exception as error:
        sentence = " ".join(str(error).split())[:200]
        raise RankriseError(
            f"{library} cannot build the model of {str(config)!r} ({sentence}): build it and pass it instead."
        ) from error


@contextlib.contextmanager
def _bounded(config: Path) -> Iterator[None]:
    """Refuse to build without end, whatever the name by which a config asks for so many modules."""
    built = 0

    def count(*_: object) -> None:
        nonlocal built
        built += 1
        if built > MOST_MODULES:
            raise RankriseError(
                f"{str(config)!r} asks for more than {MOST_MODULES:,} modules, more than any model has: "
                "restore it."
            )

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _is_below(tensor: str, name: str) -> bool:
    return not name or tensor == name or tensor.startswith(f"{name}.")


def _transformers(path: Path, described: dict[str, Any]) -> Architecture:
    """Transformers' class of the config."""
    transformers = require(
        "transformers", extra="transformers", purpose="Reading a checkpoint with its config"
    )
    with _building(path, f"transformers {transformers.__version__}"):
        config = transformers_config(transformers, described)
        wanted = str((config.architectures or ["AutoModel"])[0])
        named: Any = getattr(transformers, wanted, transformers.AutoModel)
        is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
        model = named(config) if is_model else transformers.AutoModel.from_config(config)
    return Architecture(model, _binding(model, config))


def _binding(model: Any, config: Any) -> Callable[[Checkpoint], Opened]:
    """What opens checkpoints by transformers' own table of what became of old names and layouts."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    state = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    converter_of = {pattern: converter for converter in converters for pattern in converter.source_patterns}

    def bind(checkpoint: Checkpoint) -> Opened:
        sources: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
        for stored in sorted(checkpoint.names, key=dot_natural_key):
            target, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, state)
            if target not in state and stored in state:
                target, pattern = stored, None
            sources[target].append((stored, pattern))

        def read(name: str) -> dict[str, Tensor]:
            tensors: dict[str, Tensor] = {}
            for target, parts in sources.items():
                if not _is_below(target, name):
                    continue
                (stored, pattern), *_ = parts
                if pattern is None:
                    tensors[target] = checkpoint.read(stored)
                    continue
                converter: Any = copy.deepcopy(converter_of[pattern])
                for stored, pattern in parts:
                    converter.add_tensor(target, stored, pattern, checkpoint.read(stored))
                for made, value in converter.convert(target, model=model, config=config).items():
                    tensors[made] = value[0] if isinstance(value, list) else value
            return tensors

        def shape(name: str) -> tuple[int, ...] | None:
            stored, pattern = sources[name][0] if name in sources else ("", "converted")
            if pattern is None:
                return checkpoint.shape(stored)
            tensor = read(name).get(name)
            return None if tensor is None else tuple(tensor.shape)

        def stored_below(name: str) -> list[str]:
            return [
                stored for target, parts in sources.items() if _is_below(target, name) for stored, _ in parts
            ]

        return Opened(model, read, shape, stored_below)

    return bind
