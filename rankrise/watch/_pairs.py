"""Two moments of one model, attention layer by attention layer: of models, checkpoints, adapters or runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.record.checkpoint import verified_step
from rankrise.record.names import INITIAL, WEIGHTS, latest_checkpoint, tensor_name
from rankrise.record.run_file import has_run, read_run
from rankrise.record.tensors import read_tensors
from rankrise.watch._ceilings import PRODUCTS
from rankrise.watch._change import Change
from rankrise.watch._families import ROLES
from rankrise.watch._heads import Layers, heads, unwrap
from rankrise.watch._lora import is_adapter_folder

Source = nn.Module | str | Path
Device = str | torch.device | None


@dataclass(frozen=True)
class LayerPair:
    """The weights of one layer by role, [heads, d_model, d_head], at two moments."""

    name: str
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    heads: Sequence[int]
    """Indices of the heads in the model: a tracked run may have some of them."""
    ceilings: Mapping[str, int]
    """The highest rank that the change can have, by product, where an adapter made it."""
    notes: tuple[str, ...] = ()

    def change(self, product: str, device: Device = None) -> Change:
        """The change of every head's KQ or VO."""
        roles = PRODUCTS[product]
        sides = [tuple(placed(side[role], device) for role in roles) for side in (self.before, self.after)]
        for role, old, new in zip(roles, *sides, strict=True):
            if old.shape != new.shape:
                raise different(f"{self.name}'s {role} weights are {list(old.shape)}", list(new.shape))
        return Change(*sides)


LayerPairs = dict[str, Callable[[], LayerPair]]
"""Readers of the layers by name, in the model's order."""


def layer_pairs(before: Source, after: Source) -> LayerPairs:
    """The attention layers of both; `after` may be a PEFT adapter of `before`.

    A tracked run stands for its initial weights before, and for its newest checkpoint after.
    """
    if isinstance(before, nn.Module) and isinstance(after, nn.Module):
        old_places, new_places = (
            [parameter.data_ptr() for parameter in unwrap(model).parameters()] for model in (before, after)
        )
        if old_places == new_places:
            raise RankriseError(
                "The model before and the model after share their weights, so nothing can have changed: keep "
                "a copy from before training (copy.deepcopy, or clones of the weights)."
            )
    after = newest(after)
    if is_run(before):
        return dict(_pairs_of_run(Path(str(before)), heads(after)))
    old = heads(before)
    new = heads(before, adapter=str(after)) if is_adapter_folder(after) else heads(after)
    refuse_different("attention layer", old.names, new.names)

    def pair(index: int) -> LayerPair:
        layers = old[index], new[index]
        before, after = ({role: getattr(layer, role) for role in ROLES} for layer in layers)
        every = range(len(layers[0].query))
        return LayerPair(old.names[index], before, after, every, new.ceilings(index), layers[1].notes)

    return {name: partial(pair, index) for index, name in enumerate(old.names)}


def _pairs_of_run(run: Path, later: Layers) -> Iterator[tuple[str, Callable[[], LayerPair]]]:
    """The tracked heads of a run at its beginning, and of the same model after."""
    info = read_run(run, "tracked")
    if not info["layers"] or set(info["settings"]["products"]) != set(PRODUCTS):
        raise RankriseError(
            f"{run} was not tracked for the heads' KQ and VO, so it does not hold their initial weights: "
            "pass a checkpoint of its beginning."
        )
    initial, _ = read_tensors(run / INITIAL, "restore it, or pass a checkpoint of the run's beginning")
    # A model that was tracked as a part of another has a prefix before the names in its checkpoints.
    first = info["layers"][0]["name"]
    ends = [name for name in later.names if first == name or first.endswith(f".{name}")]
    prefix = first.removesuffix(ends[0]) if len(ends) == 1 else ""
    places = {f"{prefix}{name}": index for index, name in enumerate(later.names)}

    def pair(about: dict[str, Any]) -> LayerPair:
        name, tracked, layer = about["name"], about["tracked_heads"], later[places[about["name"]]]
        if max(tracked) >= len(layer.query):
            raise different(f"{name} tracks head {max(tracked)}", f"{len(layer.query)} heads")
        before = {role: initial[tensor_name(name, role)] for role in ROLES}
        groups = list(dict.fromkeys(about["groups"]))
        shared = [groups.index(group) for group in about["groups"]]
        before |= {role: before[role][shared] for role in ("key", "value")}
        after = {role: getattr(layer, role)[torch.tensor(tracked)] for role in ROLES}
        return LayerPair(name, before, after, tracked, {}, layer.notes)

    for about in info["layers"]:
        if about["name"] not in places:
            raise different(f"{run} tracks {about['name']}", f"{', '.join(later.names)} are")
        yield about["name"], partial(pair, about)


def is_run(source: Source) -> bool:
    """Whether this is the folder of a run."""
    return not isinstance(source, nn.Module) and has_run(source)


def newest(source: Source) -> Source:
    """The newest checkpoint of a run, verified; anything else as it is."""
    if isinstance(source, nn.Module) or not has_run(source):
        return source
    found = latest_checkpoint(source)
    if found is None:
        raise RankriseError(
            f"{source} holds ranks and initial weights, and no checkpoints as runs of 'rankrise train' do: "
            "pass a checkpoint that was saved of it."
        )
    verified_step(found, [WEIGHTS])
    return found


def refuse_different(kind: str, old: Sequence[str], new: Sequence[str]) -> None:
    """Refuse two models whose layers or matrices have other names."""
    for index, (one, other) in enumerate(zip_longest(old, new, fillvalue="missing")):
        if one != other:
            raise different(f"{kind} {index + 1} is {one}", other)


def different(before: str, after: object) -> RankriseError:
    """The error for two models of different architectures."""
    return RankriseError(
        f"The two are of different architectures: {before} before and {after} after; compare two moments "
        "of one model."
    )


def described(source: Source) -> str:
    """A model's class, or a path."""
    return type(unwrap(source)).__name__ if isinstance(source, nn.Module) else str(source)


def placed(tensor: Tensor, device: Device) -> Tensor:
    """The tensor on a device, where one is given."""
    return tensor if device is None else tensor.to(device)
