"""What did training change? Two checkpoints or models, to the size and the ranks of the change of every
head."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.watch._ceilings import PRODUCTS
from rankrise.watch._change import Change, change
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._factors import refuse_non_finite
from rankrise.watch._gram import frobenius_norm
from rankrise.watch._heads import Layer, Layers, heads, unwrap
from rankrise.watch._lora import is_adapter_folder, read_adapter
from rankrise.watch._pretrained import open_weights
from rankrise.watch._ranks import effective_rank, energy_rank, normalised_spectrum, rank_above
from rankrise.watch._recorded import NamedLayers, head_numbers, initial_layers, is_run, last_weights
from rankrise.watch._spectra import singular_values

Source = nn.Module | str | Path
Reader = Callable[[], Tensor]
Matrices = dict[str, tuple[tuple[int, ...], Reader, int | None]]
"""Shapes and readers of weight matrices by name, and the highest rank of their change where it is known."""


@dataclass(frozen=True)
class MatrixChange:
    """One matrix and what became of it: a head's KQ = W_K W_Q^T or VO = W_V W_O^T, or a weight as it is
    stored."""

    layer: str
    matrix: str
    """KQ, VO or weight."""
    head: int | None
    """An index, from 0, as everywhere in Python and JSON; None for a whole weight."""
    relative_change: float
    """Frobenius norm of the change over that of the matrix before."""
    largest: float
    """Largest singular value of the change."""
    stable_rank: float
    effective_rank: float
    energy_rank_90: int
    """How many singular values hold 90 % of the change's energy; then 95 and 99 %."""
    energy_rank_95: int
    energy_rank_99: int
    rank_above: int
    """How many singular values exceed the comparison's threshold times the largest."""
    full_rank: int
    """The most that any of these ranks could be: by the sizes, and by an adapter's ranks where that made the
    change."""


@dataclass(frozen=True)
class ModelComparison:
    """Every row, the layers in the model's order, and what has to be said about how they were read."""

    before: str
    after: str
    threshold: float
    rows: tuple[MatrixChange, ...]
    notes: tuple[str, ...] = ()

    def select(self, matrix: str) -> list[MatrixChange]:
        """The rows of one kind: "KQ", "VO" or "weight"."""
        return [row for row in self.rows if row.matrix == matrix]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise compare --json` prints them."""
        return asdict(self)


@typed
def compare(
    before: Source,
    after: Source,
    *,
    all_matrices: bool = False,
    threshold: float = 1e-3,
    device: str | torch.device | None = None,
    progress: Callable[[float], None] | None = None,
) -> ModelComparison:
    """Ranks and size of the change of every head, and with `all_matrices` of every weight as it is stored.

    Each is a model, the path of a safetensors file or folder (sharded or not) with its config, or a name on
    the Hugging Face Hub; `after` may be the folder of a PEFT LoRA adapter of `before`. Weights are read and
    decomposed layer by layer, on `device` where one is given. `progress` is called with the share that is
    done.

    >>> from copy import deepcopy
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2)
    >>> trained = deepcopy(model)
    >>> with torch.no_grad():
    ...     _ = trained.self_attn.in_proj_weight[0].add_(1.0)  # one direction of head 0's W_Q
    >>> for row in compare(model, trained).select("KQ"):
    ...     print(row.layer, row.head, row.rank_above)
    self_attn 0 1
    self_attn 1 0
    """
    first, second = open_pair(before, after)
    weights = _common_matrices(before, _end(after)) if all_matrices else []
    total = len(first) + len(weights)
    rows: list[MatrixChange] = []
    notes: dict[str, None] = {}
    for index, name in enumerate(first.names):
        old, new = first[index], second[index]
        numbers = head_numbers(first, index)
        ceilings = second.ceilings(index) if isinstance(second, Layers) else {}
        for matrix in PRODUCTS:
            rows += _head_rows(old, new, matrix, threshold, device, numbers, ceilings.get(matrix))
        notes |= dict.fromkeys(f"{name}: {note}" for note in new.notes)
        if progress is not None:
            progress((index + 1) / total)
    for index, (name, read_old, read_new, ceiling) in enumerate(weights):
        both = _placed(read_old(), device), _placed(read_new(), device)
        rows.append(_weight_row(name, *both, threshold, ceiling))
        if progress is not None:
            progress((len(first) + index + 1) / total)
    return ModelComparison(described(before), described(after), threshold, tuple(rows), tuple(notes))


def open_pair(before: Source, after: Source) -> tuple[NamedLayers, NamedLayers]:
    """The attention layers of both, which are the same ones; `after` may be a PEFT adapter of `before`. The
    folder of a tracked run stands for its initial weights before, and for its newest checkpoint after."""
    if isinstance(before, nn.Module) and isinstance(after, nn.Module) and _same_storage(before, after):
        raise RankriseError(
            "The model before and the model after share their weights, so nothing can have changed: keep a "
            "copy from before training (copy.deepcopy, or clones of the weights)."
        )
    after = _end(after)
    if is_run(before):
        assert not isinstance(before, nn.Module)
        if is_adapter_folder(after):
            raise RankriseError(
                f"{after} is an adapter, and the record of {before} does not hold the base that it changes: "
                "pass that base."
            )
        begun = initial_layers(before)
        return begun, begun.tracked_of(heads(after))
    first = heads(before)
    if is_adapter_folder(after):
        assert not isinstance(after, nn.Module)
        second = heads(before, adapter=after)
    else:
        second = heads(after)
    _same("attention layer", first.names, second.names)
    return first, second


def head_change(
    old: Layer,
    new: Layer,
    matrix: str,
    device: str | torch.device | None,
    numbers: Sequence[int] | None = None,
) -> Change:
    """The change of one of the products of a layer's heads, which have these numbers in the model."""
    sides = PRODUCTS[matrix]
    before, after = ([_placed(getattr(layer, side), device) for side in sides] for layer in (old, new))
    for side, was, now in zip(sides, before, after, strict=True):
        _same_shape(f"{old.name}'s {side} weights [heads, d_model, d_head]", was, now)
    bad = torch.stack([~weight.isfinite().all(-1).all(-1) for weight in (*before, *after)]).any(0)
    refuse_non_finite(bad, f"{old.name} ({matrix})", numbers)
    return change((before[0], before[1]), (after[0], after[1]))


def _head_rows(
    old: Layer,
    new: Layer,
    matrix: str,
    threshold: float,
    device: str | torch.device | None,
    numbers: Sequence[int] | None,
    ceiling: int | None,
) -> list[MatrixChange]:
    """One row per head, for one of the products; `ceiling` is the highest rank that its change can have."""
    learned = head_change(old, new, matrix, device, numbers)
    values = singular_values(learned).cpu()
    norms = frobenius_norm(*learned.before).cpu()
    return [
        _row(old.name, matrix, head, values[place], float(norms[place]), threshold, ceiling)
        for place, head in enumerate(numbers or range(values.shape[0]))
    ]


def _weight_row(name: str, old: Tensor, new: Tensor, threshold: float, ceiling: int | None) -> MatrixChange:
    old, new = old.flatten(1), new.flatten(1)
    values = singular_values(change(old, new), name=name).cpu()
    norm = torch.linalg.vector_norm(torch.stack([part.double().norm() for part in old.split(4096)]))
    return _row(name, "weight", None, values, float(norm), threshold, ceiling)


def _row(
    layer: str,
    matrix: str,
    head: int | None,
    values: Tensor,
    norm: float,
    threshold: float,
    ceiling: int | None,
) -> MatrixChange:
    size = float(torch.linalg.vector_norm(values))
    return MatrixChange(
        layer=layer,
        matrix=matrix,
        head=head,
        relative_change=size / norm if norm else math.inf if size else 0.0,
        largest=float(values[0]),
        stable_rank=float(normalised_spectrum(values).square().sum()),
        effective_rank=float(effective_rank(values)),
        energy_rank_90=int(energy_rank(values, 0.90)),
        energy_rank_95=int(energy_rank(values, 0.95)),
        energy_rank_99=int(energy_rank(values, 0.99)),
        rank_above=int(rank_above(values, threshold)),
        full_rank=len(values) if ceiling is None else min(ceiling, len(values)),
    )


def _common_matrices(before: Source, after: Source) -> list[tuple[str, Reader, Reader, int | None]]:
    """Every weight matrix by name, with functions that read it and its ceiling; both sides must have the
    same."""
    old = _matrices(before)
    new = _adapted(before, after, old) if is_adapter_folder(after) else _matrices(after)
    _same("weight matrix", tuple(old), tuple(new))
    for name, (shape, _, _) in old.items():
        if shape != new[name][0]:
            raise _different(f"{name} is {list(shape)}", list(new[name][0]))
    return [(name, old[name][1], *new[name][1:]) for name in old]


def _matrices(source: Source) -> Matrices:
    """Shapes and readers of all weights with two or more axes (further ones are joined with the second)."""
    if is_run(source):
        raise RankriseError(
            f"{source} has the initial weights of tracked heads alone: to compare every matrix, pass a "
            "checkpoint of its beginning."
        )
    if isinstance(source, nn.Module):
        parameters = dict(unwrap(source).named_parameters())
        return {
            name: (tuple(weight.shape), partial(Tensor.detach, weight), None)
            for name, weight in parameters.items()
            if weight.ndim >= 2
        }
    checkpoint = Checkpoint.open(source)
    return {
        name: (checkpoint.shape(name), partial(checkpoint.read, name), None)
        for name in checkpoint.names
        if len(checkpoint.shape(name)) >= 2
    }


def _adapted(base: Source, adapter: Source, old: Matrices) -> Matrices:
    """The base's matrices as an adapter makes them."""
    assert not isinstance(base, nn.Module)
    assert not isinstance(adapter, nn.Module)
    adapted = read_adapter(adapter).on(open_weights(base).model)
    missing = [module for module in adapted.factors if f"{module}.weight" not in old]
    if missing:
        raise RankriseError(
            f"{str(base)!r} stores {missing[0]}.weight under another name, so that matrices as they are "
            "stored cannot be compared with an adapter's: leave them out."
        )

    def reader(name: str, read: Reader) -> Reader:
        return lambda: adapted.of(name, read())

    def ceiling(name: str) -> int | None:
        module, _, leaf = name.rpartition(".")
        return None if name in adapted.replaced else adapted.rank_of(module) if leaf == "weight" else 0

    return {name: (shape, reader(name, read), ceiling(name)) for name, (shape, read, _) in old.items()}


def _same(kind: str, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    for index, (one, other) in enumerate(zip_longest(old, new, fillvalue="missing")):
        if one != other:
            raise _different(f"{kind} {index + 1} is {one}", other)


def _same_shape(what: str, old: Tensor, new: Tensor) -> None:
    if old.shape != new.shape:
        raise _different(f"{what} are {list(old.shape)}", list(new.shape))


def _different(before: str, after: object) -> RankriseError:
    return RankriseError(
        f"The two are of different architectures: {before} before and {after} after; compare two moments "
        "of one model."
    )


def _same_storage(before: nn.Module, after: nn.Module) -> bool:
    old, new = list(unwrap(before).parameters()), list(unwrap(after).parameters())
    return len(old) == len(new) and all(a.data_ptr() == b.data_ptr() for a, b in zip(old, new, strict=True))


def _placed(tensor: Tensor, device: str | torch.device | None) -> Tensor:
    return tensor if device is None else tensor.to(device)


def _end(source: Source) -> Source:
    """Of a tracked run its newest checkpoint; anything else as it is."""
    return last_weights(source) if is_run(source) and not isinstance(source, nn.Module) else source


def described(source: Source) -> str:
    return type(unwrap(source)).__name__ if isinstance(source, nn.Module) else str(source)
