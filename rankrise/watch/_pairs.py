"""Two moments of one model, attention layer by attention layer: of models, checkpoints, adapters or runs."""

from collections.abc import Callable, Mapping, Sequence
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
        sides = [
            tuple(placed(weights[role], device) for role in PRODUCTS[product])
            for weights in (self.before, self.after)
        ]
        for role, old, new in zip(PRODUCTS[product], *sides, strict=True):
            if old.shape != new.shape:
                raise different(f"{self.name}'s {role} weights are {list(old.shape)}", list(new.shape))
        return Change(*sides)


LayerPairs = dict[str, Callable[[], LayerPair]]
"""Readers of the layers by name, in the model's order."""


def layer_pairs(before: Source, after: Source) -> LayerPairs:
    """The attention layers of both; `after` may be a PEFT adapter of `before`.

    A tracked run stands for its initial weights before, and for its newest checkpoint after.
    """
    if isinstance(before, nn.Module) and isinstance(after, nn.Module) and _share_weights(before, after):
        raise RankriseError(
            "The model before and the model after share their weights, so nothing can have changed: keep a "
            "copy from before training (copy.deepcopy, or clones of the weights)."
        )
    after = newest(after)
    if is_run(before):
        return _pairs_of_run(Path(str(before)), after)
    old = heads(before)
    new = heads(before, adapter=str(after)) if is_adapter_folder(after) else heads(after)
    refuse_different("attention layer", old.names, new.names)
    return {name: partial(_pair, old, new, index) for index, name in enumerate(old.names)}


def _pair(old: Layers, new: Layers, index: int) -> LayerPair:
    layers = old[index], new[index]
    before, after = ({role: getattr(layer, role) for role in ROLES} for layer in layers)
    heads = range(len(before["query"]))
    return LayerPair(old.names[index], before, after, heads, new.ceilings(index), layers[1].notes)


# ----------------------------------------------------------------------------------------------------------
# Tracked runs.


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


def _pairs_of_run(run: Path, after: Source) -> LayerPairs:
    """The tracked heads of a run at its beginning, and of the same model after."""
    if is_adapter_folder(after):
        raise RankriseError(
            f"{after} is an adapter, and the record of {run} does not hold the base that it changes: pass "
            "that base."
        )
    info = read_run(run, "tracked")
    if not info["layers"] or set(info["settings"]["products"]) != set(PRODUCTS):
        raise RankriseError(
            f"{run} was not tracked for the heads' KQ and VO, so it does not hold their initial weights: "
            "pass a checkpoint of its beginning."
        )
    initial, _ = read_tensors(run / INITIAL, "restore it, or pass a checkpoint of the run's beginning")
    later = heads(after)
    prefix = _prefix([about["name"] for about in info["layers"]], later.names)
    places = {f"{prefix}{name}": index for index, name in enumerate(later.names)}
    pairs: LayerPairs = {}
    for about in info["layers"]:
        name = about["name"]
        if name not in places:
            raise RankriseError(
                f"{run} tracked the attention layer {name}, which is not in the checkpoint: pass one that "
                "was saved of this run."
            )
        pairs[name] = partial(_pair_of_run, about, initial, later, places[name])
    return pairs


def _pair_of_run(
    about: dict[str, Any], initial: Mapping[str, Tensor], later: Layers, index: int
) -> LayerPair:
    tracked, layer = about["tracked_heads"], later[index]
    if max(tracked) >= len(layer.query):
        raise RankriseError(
            f"Head {max(tracked) + 1} of {about['name']} was tracked, and the checkpoint has "
            f"{len(layer.query)}: pass one that was saved of this run."
        )
    before = {role: initial[tensor_name(about["name"], role)] for role in ROLES}
    groups = list(dict.fromkeys(about["groups"]))
    shared = [groups.index(group) for group in about["groups"]]
    before |= {role: before[role][shared] for role in ("key", "value")}
    after = {role: getattr(layer, role)[torch.tensor(tracked)] for role in ROLES}
    return LayerPair(about["name"], before, after, tracked, {}, layer.notes)


def _prefix(tracked: Sequence[str], found: Sequence[str]) -> str:
    """Prefix that tracked names have and checkpoint names lack.

    >>> _prefix(["transformer.h.1.attn"], ["h.0.attn", "h.1.attn"]), _prefix(["h.0.attn"], ["h.0.attn"])
    ('transformer.', '')
    """
    if tracked[0] in found:
        return ""
    parts = [name for name in found if tracked[0].endswith(f".{name}")]
    return tracked[0].removesuffix(parts[0]) if len(parts) == 1 else ""


# ----------------------------------------------------------------------------------------------------------


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


def _share_weights(before: nn.Module, after: nn.Module) -> bool:
    old, new = list(unwrap(before).parameters()), list(unwrap(after).parameters())
    return len(old) == len(new) and all(a.data_ptr() == b.data_ptr() for a, b in zip(old, new, strict=True))
