"""What is measured of each checkpoint of a series: units of one model, and how their weights are read."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.reading import read_bytes
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.series import CheckpointSource
from rankrise.watch._pretrained import Architecture, architecture_of, loading
from rankrise.watch._track.weights import Choice, Tensors, Unit, find_units

LARGEST_CONFIG = 10_000_000
"""Bytes of a config.json."""
ADAPTER = "lora_"
"""What the names of an adapter's tensors have in them."""
# What a config.json decides of a layer's heads, though the shapes of the weights may stay the same.
HEADS = {"name": "name", "all_heads": "number of heads", "group": "sharing of keys", "d_head": "head size"}


@dataclass(frozen=True, eq=False)
class Model:
    """The units of a model without weights, and what finds them in any of its checkpoints."""

    architecture: Architecture
    units: Sequence[Unit]
    name: str
    choice: Choice | None = None
    """What a config.json was asked for; None where there was none."""
    alike: set[bytes] = field(default_factory=set)
    """The config.json files that were found to make these units."""

    def wanted(self, checkpoint: Checkpoint) -> list[str]:
        """The names in a checkpoint of all that the units need."""
        stored = self.architecture.bind(checkpoint).stored
        return list(dict.fromkeys(name for unit in self.units for name in stored(unit.path)))

    def read(
        self, checkpoint: Checkpoint, name: str, device: str | torch.device
    ) -> Iterator[tuple[Unit, Tensors]]:
        """The weights of one unit after another by role, copied."""
        opened = self.architecture.bind(checkpoint.kept_open())
        loaded = loading(opened, name)
        for unit in self.units:
            stored = opened.stored(unit.path)
            adapter = next((one for one in stored if ADAPTER in one), None)
            if adapter is not None:
                raise RankriseError(f"{adapter} is of an adapter, which has to be merged into the weights.")
            with torch.no_grad(), loaded(unit.module, unit.path):
                tensors = unit.fresh(unit.module)
                copied = {role: tensor.detach().to(device, copy=True) for role, tensor in tensors.items()}
            del tensors
            if not all(map(_is_finite, copied.values())):
                wrong = next((one for one in stored if not _is_finite(checkpoint.read(one))), unit.name)
                raise RankriseError(f"{wrong} has values that are not finite.")
            yield unit, copied

    def refuse_other_heads(self, config: Path | None) -> None:
        """Refuse the config.json of a checkpoint, where it has one, if by it heads lie elsewhere in weights
        whose shapes may be the same."""
        if config is None or self.choice is None:
            return
        text = read_bytes(config, LARGEST_CONFIG)
        if text in self.alike:
            return
        others = find_units(architecture_of(config).model, self.choice)
        for one, other in zip_longest(
            *([unit for unit in units if unit.is_layer] for units in (self.units, others))
        ):
            for attribute, what in HEADS.items():
                old, new = (getattr(unit, attribute, "absent") for unit in (one, other))
                if old != new:
                    raise RankriseError(
                        f"the {what} of {(one or other).name} is {new} by its config.json, and {old} by that "
                        "of the first."
                    )
        self.alike.add(text)


def model_of(source: CheckpointSource, choice: Choice, model: nn.Module | None, scratch: Path) -> Model:
    """The model of a series: the user's, that of a checkpoint's config.json, or where there is none, the
    plain matrices that a checkpoint holds."""
    if model is not None:
        architecture = Architecture(copy.deepcopy(model).to("meta"))
        return Model(architecture, find_units(architecture.model, choice), type(model).__name__)
    config = source.config(scratch)
    if config is not None:
        architecture = architecture_of(config)
        units, name = find_units(architecture.model, choice), type(architecture.model).__name__
        return Model(architecture, units, name, choice, {read_bytes(config, LARGEST_CONFIG)})
    if not choice.matrices:
        raise RankriseError(
            f"{source.name} has no config.json beside its weights, so its heads cannot be told apart: pass "
            "the model (model=... in Python), or measure plain matrices with --matrices '*'."
        )
    architecture = Architecture(_matrices(source.header()))
    plain = Choice((), None, None, choice.matrices)
    return Model(architecture, find_units(architecture.model, plain), "matrices")


def _is_finite(tensor: Tensor) -> bool:
    """Whether no entry is nan or infinite: a sum shows it in one pass, unless it overflows itself."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _matrices(checkpoint: Checkpoint) -> nn.Module:
    """A module without a forward pass that has each matrix of a checkpoint under its name; one without
    entries is none."""
    root = nn.Module()
    for name in checkpoint.names:
        shape = checkpoint.shape(name)
        if len(shape) != 2 or 0 in shape:
            continue
        *path, leaf = name.split(".")
        owner = root
        try:
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            empty = nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
            owner.register_parameter(leaf, empty)
        except (KeyError, AttributeError) as error:
            raise RankriseError(f"{name!r} cannot be the name of a weight: rename it.") from error
    return root
