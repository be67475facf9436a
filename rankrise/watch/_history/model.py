"""What is measured of each checkpoint of a series: units of one model, and how their weights are read."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.series import Source
from rankrise.watch._pretrained import Architecture, architecture_of, loading, plain_architecture
from rankrise.watch._track.weights import Choice, Tensors, Unit, find_units


@dataclass(frozen=True, eq=False)
class Model:
    """The units of a model without weights, and what finds them in any of its checkpoints."""

    architecture: Architecture
    units: Sequence[Unit]
    name: str

    def wanted(self, checkpoint: Checkpoint) -> list[str]:
        """The names in a checkpoint of all that the units need."""
        stored = self.architecture.bind(checkpoint).stored
        return list(dict.fromkeys(name for unit in self.units for name in stored(unit.path)))

    def read(
        self, checkpoint: Checkpoint, name: str, device: str | torch.device
    ) -> Iterator[tuple[Unit, Tensors]]:
        """The weights of one unit after another by role, copied."""
        loaded = loading(self.architecture.bind(checkpoint.kept_open()), name)
        for unit in self.units:
            with torch.no_grad(), loaded(unit.module, unit.path):
                tensors = unit.fresh(unit.module)
                copied = {role: tensor.detach().to(device, copy=True) for role, tensor in tensors.items()}
            del tensors
            yield unit, copied


def model_of(source: Source, choice: Choice, model: nn.Module | None, scratch: Path) -> Model:
    """The model of a series: the user's, that of a checkpoint's config.json, or where there is none, the
    plain matrices that a checkpoint holds."""
    if model is not None:
        architecture = plain_architecture(copy.deepcopy(model).to("meta"))
        return Model(architecture, find_units(architecture.model, choice), type(model).__name__)
    config = source.config(scratch)
    if config is not None:
        architecture = architecture_of(config)
        return Model(architecture, find_units(architecture.model, choice), type(architecture.model).__name__)
    if not choice.matrices:
        raise RankriseError(
            f"{source.name} has no config.json beside its weights, so its heads cannot be told apart: pass "
            "the model (model=... in Python), or measure plain matrices with --matrices '*'."
        )
    architecture = plain_architecture(_matrices(source.header()))
    plain = Choice((), None, None, choice.matrices)
    return Model(architecture, find_units(architecture.model, plain), "matrices")


def _matrices(checkpoint: Checkpoint) -> nn.Module:
    """A module without a forward pass that has each matrix of a checkpoint under its name."""
    root = nn.Module()
    for name in checkpoint.names:
        shape = checkpoint.shape(name)
        if len(shape) != 2:
            continue
        *path, leaf = name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False))
    return root
