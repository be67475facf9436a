"""What is measured of each checkpoint: the units of one model, and how their weights are read."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.series import Entry
from rankrise.watch._pretrained import Architecture, architecture_of, loading
from rankrise.watch._units import Choice, Tensors, Unit, find_units


@dataclass(frozen=True, eq=False)
class Model:
    """The units of a model without weights, and what finds them in its checkpoints."""

    architecture: Architecture
    units: Sequence[Unit]
    name: str
    choice: Choice
    alike: set[bytes] = field(default_factory=set)
    """The config.json files known to make these units."""

    def wanted(self, checkpoint: Checkpoint) -> list[str]:
        """The names in a checkpoint of all that the units need."""
        stored = self.architecture.bind(checkpoint).stored
        return list(dict.fromkeys(name for unit in self.units for name in stored(unit.path)))

    def read(
        self, checkpoint: Checkpoint, name: str, device: str | torch.device
    ) -> Iterator[tuple[Unit, Tensors]]:
        """Copies of the weights of one unit after another by role."""
        opened = self.architecture.bind(checkpoint.kept_open())
        loaded = loading(opened, name)
        for unit in self.units:
            adapter = next((one for one in opened.stored(unit.path) if "lora_" in one), None)
            if adapter is not None:
                raise RankriseError(f"{adapter} is of an adapter: merge it into the weights.")
            with torch.no_grad(), loaded(unit.module, unit.path):
                weights = unit.fresh(unit.module)
                copied = {role: weight.detach().to(device, copy=True) for role, weight in weights.items()}
            del weights
            for weight in copied.values():  # a sum shows nan and inf in one pass, unless it overflows itself
                if not weight.sum().isfinite() and not weight.isfinite().all():
                    raise RankriseError(f"{unit.name} has values that are not finite.")
            yield unit, copied

    def refuse_other_heads(self, config: Path | None) -> None:
        """Refuse a config.json that cuts weights of perhaps the same shapes into other heads."""
        if config is None or not self.alike or config.read_bytes() in self.alike:
            return
        others = find_units(architecture_of(config).model, self.choice)
        ours, theirs = (
            [(unit.name, unit.all_heads, unit.group, unit.d_head) for unit in units if unit.is_layer]
            for units in (self.units, others)
        )
        if ours != theirs:
            raise RankriseError("its config.json describes other heads than that of the first checkpoint.")
        self.alike.add(config.read_bytes())


def model_of(entry: Entry, choice: Choice, model: nn.Module | None, scratch: Path) -> Model:
    """The model of a series: the user's, or that of a checkpoint's config.json, or bare matrices."""
    if model is not None:
        architecture = Architecture(copy.deepcopy(model).to("meta"))
        return Model(architecture, find_units(architecture.model, choice), type(model).__name__, choice)
    config = entry.source.config(scratch)
    if config is not None:
        architecture = architecture_of(config)
        units, name = find_units(architecture.model, choice), type(architecture.model).__name__
        return Model(architecture, units, name, choice, {config.read_bytes()})
    header = entry.source.header()
    if not choice.matrices:
        raise RankriseError(
            f"{entry.name} has no config.json beside its weights, so its heads cannot be told apart: pass "
            "model=... in Python, or measure plain matrices with --matrices '*'."
        )
    architecture = Architecture(_matrices(header))
    plain = Choice((), None, None, choice.matrices)
    return Model(architecture, find_units(architecture.model, plain), "matrices", plain)


def _matrices(checkpoint: Checkpoint) -> nn.Module:
    """A module that has each matrix of a checkpoint under its name."""
    root = nn.Module()
    for name in checkpoint.names:
        shape = checkpoint.shape(name)
        if len(shape) == 2 and 0 not in shape:
            owner = root
            *path, leaf = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            empty = nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
            owner.register_parameter(leaf, empty)
    return root
