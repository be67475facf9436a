"""What did training change, and did two trainings learn the same directions? A row for every head."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import (
    INITIAL,
    WEIGHTS,
    has_run,
    latest_checkpoint,
    read_run,
    read_tensors,
    tensor_name,
    verified_step,
)
from rankrise.watch._change import Change, change
from rankrise.watch._families import PRODUCTS, ROLES
from rankrise.watch._heads import Layers, heads, naming, unwrap
from rankrise.watch._lora import is_adapter_folder
from rankrise.watch._ranks import effective_rank, energy_rank
from rankrise.watch._spectra import leading_vectors, singular_values

Source = nn.Module | str | Path
NOTHING = 1e-6  # a singular value below this share of the largest has no direction of its own


@dataclass(frozen=True)
class MatrixChange:
    """Change of one matrix of a head: KQ = W_K W_Q^T or VO = W_V W_O^T. Heads count from 0.

    `relative_change` is the Frobenius norm of the change over that of the matrix before, `largest` the
    largest singular value, `energy_rank_90` how many singular values hold 90 % of the energy, and `full_rank`
    the upper bound of the ranks, from the sizes.
    """

    layer: str
    matrix: str
    head: int
    relative_change: float
    largest: float
    stable_rank: float
    effective_rank: float
    energy_rank_90: int
    energy_rank_95: int
    energy_rank_99: int
    full_rank: int


@dataclass(frozen=True)
class HeadOverlap:
    """Overlap of the leading spaces of two changes of a head.

    An overlap is the mean squared cosine of the principal angles: 1 for the same space, `*_by_chance` on
    average for two random ones, None if one of the changes is zero. Left is the side of the keys or values,
    right the side of the queries or outputs. `directions` says how many are compared: fewer than asked for if
    a change has fewer. Heads count from 0.
    """

    layer: str
    matrix: str
    head: int
    directions: int
    left: float | None
    right: float | None
    left_by_chance: float
    right_by_chance: float


@dataclass(frozen=True)
class ModelComparison:
    """A row for every matrix, the layers in the model's order, and notes on how they were read."""

    before: str
    after: str
    rows: tuple[MatrixChange, ...]
    notes: tuple[str, ...] = ()

    def select(self, matrix: str) -> list[MatrixChange]:
        """The rows of one kind: "KQ" or "VO"."""
        return [row for row in self.rows if row.matrix == matrix]


@dataclass(frozen=True)
class ModelOverlap:
    """Every head's overlap, the layers in the model's order."""

    first: str
    second: str
    rows: tuple[HeadOverlap, ...]


def compare(before: Source, after: Source) -> ModelComparison:
    """Ranks and size of the change of every head's KQ and VO.

    Each side is a model, the path of a safetensors file or folder (sharded or not) with its config, a name on
    the Hugging Face Hub, or a tracked run; `after` may be the folder of a PEFT LoRA adapter of `before`.
    Weights are read and decomposed layer by layer.

    >>> from copy import deepcopy
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2)
    >>> trained = deepcopy(model)
    >>> with torch.no_grad():
    ...     _ = trained.self_attn.in_proj_weight[0].add_(1.0)  # one direction of head 0's W_Q
    >>> for row in compare(model, trained).select("KQ"):
    ...     print(row.layer, row.head, row.energy_rank_99)
    self_attn 0 1
    self_attn 1 0
    """
    rows: list[MatrixChange] = []
    notes: dict[str, None] = {}
    for layer, product, tracked, learned, said in _changes(before, after):
        spectra = singular_values(learned, name=f"{layer} ({product})").cpu()
        left, right = (factor.double() for factor in learned.before)
        squares = ((left.mT @ left) * (right.mT @ right)).sum((-2, -1))  # |left @ right^T|_F^2
        norms = squares.clamp_min(0).sqrt().tolist()
        for head, values, norm in zip(tracked, spectra, norms, strict=True):
            size, largest = float(torch.linalg.vector_norm(values)), float(values[0])
            row = MatrixChange(
                *(layer, product, head),
                relative_change=size / norm if norm else math.inf if size else 0.0,
                largest=largest,
                stable_rank=float((values / largest).square().sum()) if largest else 0.0,
                effective_rank=float(effective_rank(values)),
                energy_rank_90=int(energy_rank(values, 0.90)),
                energy_rank_95=int(energy_rank(values, 0.95)),
                energy_rank_99=int(energy_rank(values, 0.99)),
                full_rank=len(values),
            )
            rows.append(row)
        notes |= dict.fromkeys(f"{layer}: {note}" for note in said)
    return ModelComparison(_described(before), _described(after), tuple(rows), tuple(notes))


def overlap(before: Source, first: Source, second: Source, *, directions: int = 4) -> ModelOverlap:
    """By head, the overlap of the directions that `first` and `second` learned since `before`.

    Each is a model, a checkpoint, a PEFT adapter of `before`, or a tracked run, as for `compare`: two
    fine-tunings of one base, two moments of one training, or two runs. A tracked run as `second` begins with
    its own initial weights.
    """
    rows: list[HeadOverlap] = []
    both = _changes(before, first), _changes(second if _is_run(second) else before, second)
    for (layer, product, tracked, one, _), (name, _, others, other, _) in zip(*both, strict=True):
        if (layer, tracked) != (name, others):
            raise _different(f"{layer} has the heads {tracked}", f"{name} has {others}")
        most, name = min(one.highest_rank, directions), f"{layer} ({product})"
        found = [leading_vectors(learned, count=most, name=name) for learned in (one, other)]
        counts = [(vectors.values > NOTHING * vectors.values[..., :1]).sum(-1) for vectors in found]
        for place, head in enumerate(tracked):
            count = min(int(several[place]) for several in counts)
            sides: dict[str, Any] = {}
            for side, size in zip(("left", "right"), one.shape, strict=True):
                bases = [getattr(vectors, f"{side}_vectors")[place, :, :count] for vectors in found]
                sides[side] = float((bases[0].mT @ bases[1]).square().sum()) / count if count else None
                sides[f"{side}_by_chance"] = count / size
            rows.append(HeadOverlap(layer, product, head, count, **sides))
    return ModelOverlap(_described(first), _described(second), tuple(rows))


def _changes(before: Source, after: Source) -> Iterator[tuple[str, str, list[int], Change, tuple[str, ...]]]:
    """Layer by layer, for KQ and VO: the layer, the product, its heads (those that are tracked if `before` is
    a run), what they learned, and notes; `after` may be a PEFT adapter of `before`."""
    if isinstance(before, nn.Module) and isinstance(after, nn.Module):
        old, new = ([weight.data_ptr() for weight in unwrap(one).parameters()] for one in (before, after))
        if old == new:
            raise RankriseError("The two models share their weights: copy.deepcopy one before training.")
    if _is_run(after):
        found = latest_checkpoint(after)
        if found is None:
            raise RankriseError(f"{after} holds no checkpoints: pass one that was saved of it.")
        verified_step(found, [WEIGHTS])
        after = found
    later = heads(before, adapter=str(after)) if is_adapter_folder(after) else heads(after)
    began = _tracked(Path(before), later) if _is_run(before) else _whole(heads(before), later)
    for index, name, count, tracked, was in began:
        layer = later[index]
        if count != len(layer.query):
            raise _different(f"{name} has {count} heads", f"it has {len(layer.query)}")
        part = slice(None) if len(tracked) == count else torch.tensor(tracked)
        for product, (left, right) in PRODUCTS.items():
            now = getattr(layer, left)[part], getattr(layer, right)[part]
            with naming(name):
                learned = change((was[left], was[right]), now)
            yield name, product, tracked, learned, layer.notes


Beginning = tuple[int, str, int, list[int], Mapping[str, Tensor]]
"""A layer's place in the model after, its name, how many heads it has, which of them are tracked, and their
weights by role, [heads, d_model, d_head]."""


def _whole(old: Layers, new: Layers) -> Iterator[Beginning]:
    """All heads of a model."""
    if old.names != new.names:
        one, other = set(old.names) - set(new.names), set(new.names) - set(old.names)
        raise _different(f"layers that the other lacks are {sorted(one)}", sorted(other))
    for index, layer in enumerate(old):
        count = len(layer.query)
        yield index, layer.name, count, list(range(count)), vars(layer)


def _tracked(run: Path, later: Layers) -> Iterator[Beginning]:
    """The tracked heads of a run at its beginning."""
    names, info = later.names, read_run(run, "tracked")
    if not info["layers"] or set(info["settings"]["products"]) != set(PRODUCTS):
        raise RankriseError(
            f"{run} does not hold the initial weights of KQ and VO: pass a checkpoint of its beginning."
        )
    initial, _ = read_tensors(run / INITIAL, "restore it, or pass a checkpoint of the run's beginning")
    # A model that was tracked as a part of another has a prefix before the names in its checkpoints.
    first = info["layers"][0]["name"]
    ends = [name for name in names if first == name or first.endswith(f".{name}")]
    prefix = first.removesuffix(ends[0]) if len(ends) == 1 else ""
    for about in info["layers"]:
        name = about["name"]
        if name.removeprefix(prefix) not in names:
            raise _different(f"{run} tracks {name}", f"{', '.join(names)} are")
        weights = {role: initial[tensor_name(name, role)] for role in ROLES}
        groups = list(dict.fromkeys(about["groups"]))
        shared = [groups.index(group) for group in about["groups"]]
        weights |= {role: weights[role][shared] for role in ("key", "value")}
        index = names.index(name.removeprefix(prefix))
        yield index, name, about["heads"], about["tracked_heads"], weights


def _is_run(source: Source) -> TypeGuard[str | Path]:
    return not isinstance(source, nn.Module) and has_run(source)


def _different(before: str, after: object) -> RankriseError:
    """The error for two models of different architectures."""
    return RankriseError(f"{before} before, and {after} after: compare two moments of one model.")


def _described(source: Source) -> str:
    """A model's class, or a path."""
    return type(unwrap(source)).__name__ if isinstance(source, nn.Module) else str(source)
