"""A tracked run as a side of a comparison: its beginning from its record, its end from a checkpoint in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.checkpoint import verified_step
from rankrise.record.names import INITIAL, WEIGHTS, latest_checkpoint, tensor_name
from rankrise.record.run_file import has_checksums, has_run, read_run
from rankrise.record.tensors import read_tensors
from rankrise.watch._factors import FLOATS
from rankrise.watch._families import ROLES
from rankrise.watch._heads import Layer


class NamedLayers(Protocol):
    """Attention layers, each read when it is asked for."""

    @property
    def names(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Layer: ...


def is_run(source: object) -> bool:
    """Whether this is the folder of a run."""
    return isinstance(source, (str, Path)) and has_run(source)


def last_weights(run: str | Path) -> Path:
    """The newest checkpoint of a run, with its weights verified; a record alone has none."""
    found = latest_checkpoint(run)
    if found is None:
        raise RankriseError(
            f"{run} holds ranks and initial weights, and no trained ones, as runs of 'rankrise train' do in "
            "their checkpoints: pass a checkpoint that was saved of it."
        )
    verified_step(found, [WEIGHTS])
    return found


@dataclass(frozen=True, eq=False)
class InitialLayers:
    """The tracked heads of a run as they were when it began."""

    run: str
    names: tuple[str, ...]
    _about: tuple[dict[str, Any], ...]
    _tensors: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Layer:
        name, about = self.names[index], self._about[index]
        weights = {role: self._tensors[tensor_name(name, role)] for role in ROLES}
        groups = list(dict.fromkeys(about["groups"]))
        shared = [groups.index(group) for group in about["groups"]]
        return Layer(
            name=name,
            query=weights["query"],
            key=weights["key"][shared],
            value=weights["value"][shared],
            output=weights["output"],
            group=tuple(about["groups"]),
            scale=float("nan"),  # it is not recorded
        )

    def tracked_of(self, layers: NamedLayers) -> "TrackedPart":
        """The same heads of the same model at another time."""
        around = _around(self.names, layers.names)
        places = {f"{around}{name}": place for place, name in enumerate(layers.names)}
        missing = next((name for name in self.names if name not in places), None)
        if missing is not None:
            raise RankriseError(
                f"{self.run} tracked the attention layer {missing}, which is not in the checkpoint: pass one "
                "that was saved of this run."
            )
        heads = [torch.tensor(about["tracked_heads"]) for about in self._about]
        return TrackedPart(self.run, self.names, layers, [places[name] for name in self.names], heads)


def _around(tracked: Sequence[str], found: Sequence[str]) -> str:
    """What the names of a tracked model have before those in its checkpoint, which transformers may know as a
    part of it.

    >>> _around(["transformer.h.1.attn"], ["h.0.attn", "h.1.attn"]), _around(["h.0.attn"], ["h.0.attn"])
    ('transformer.', '')
    """
    if not tracked or tracked[0] in found:
        return ""
    parts = [name for name in found if tracked[0].endswith(f".{name}")]
    return tracked[0].removesuffix(parts[0]) if len(parts) == 1 else ""


@dataclass(frozen=True, eq=False)
class TrackedPart:
    """Some layers and heads of a model."""

    run: str
    names: tuple[str, ...]
    _layers: NamedLayers
    _places: Sequence[int]
    _heads: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Layer:
        layer, heads = self._layers[self._places[index]], self._heads[index]
        if len(heads) and int(heads.max()) >= len(layer.query):
            raise RankriseError(
                f"{self.run} tracked head {int(heads.max()) + 1} of {layer.name}, and the checkpoint has "
                f"{len(layer.query)}: pass one that was saved of this run."
            )
        return replace(layer, **{role: getattr(layer, role)[heads] for role in ROLES})


def head_numbers(layers: NamedLayers, index: int) -> Sequence[int] | None:
    """The numbers in the model of a layer's heads; None where they are all there."""
    return layers._about[index]["tracked_heads"] if isinstance(layers, InitialLayers) else None


def initial_layers(run: str | Path) -> InitialLayers:
    """The layers of a run at its beginning; one sentence where the record lacks what a comparison takes."""
    info = read_run(run, "tracked")
    products = info["settings"]["products"]
    if not info["layers"] or set(products) != {"KQ", "VO"}:
        kept = f"{' and '.join(products)} alone" if info["layers"] and products else "no attention heads"
        raise RankriseError(
            f"{run} was tracked for {kept}, so that its record lacks initial weights of KQ or VO: pass a "
            "checkpoint of its beginning."
        )
    path = Path(run) / INITIAL
    if not path.is_file():
        raise RankriseError(f"{path} is not there: restore it, or pass a checkpoint of the run's beginning.")
    tensors, _ = read_tensors(path, "restore it", has_checksums(info))
    for about in info["layers"]:
        groups, heads = about.get("groups"), about["tracked_heads"]
        known = isinstance(groups, list) and [type(one) for one in groups] == [int] * len(heads)
        shared = len(set(groups)) if known else None
        for role, count in zip(ROLES, (len(heads), shared, shared, len(heads)), strict=True):
            tensor = tensors.get(tensor_name(about["name"], role))
            if tensor is None or tensor.dtype not in FLOATS or tensor.ndim != 3 or len(tensor) != count:
                raise RankriseError(
                    f"{path} does not fit {run}/run.json ({role} of {about['name']}): restore both."
                )
    names = tuple(about["name"] for about in info["layers"])
    return InitialLayers(str(run), names, tuple(info["layers"]), tensors)
