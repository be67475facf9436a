"""What did training change? Size and ranks of the change of every head between two checkpoints or models."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.watch._ceilings import PRODUCTS
from rankrise.watch._change import change
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import is_adapter_folder, read_adapter
from rankrise.watch._pairs import (
    Device,
    Source,
    described,
    different,
    is_run,
    layer_pairs,
    newest,
    placed,
    refuse_different,
)
from rankrise.watch._pretrained import open_weights
from rankrise.watch._ranks import effective_rank, energy_rank, rank_above
from rankrise.watch._spectra import singular_values


@dataclass(frozen=True)
class MatrixChange:
    """The change of one matrix: a head's KQ = W_K W_Q^T or VO = W_V W_O^T, or a weight as it is stored."""

    layer: str
    matrix: str
    """KQ, VO or weight."""
    head: int | None
    """An index from 0; None for a whole weight."""
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
    """Upper bound of these ranks, from the sizes and the ranks of an adapter."""


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """A row for every matrix, the layers in the model's order, and notes on how they were read."""

    before: str
    after: str
    threshold: float
    rows: tuple[MatrixChange, ...]
    notes: tuple[str, ...] = ()

    def select(self, matrix: str) -> list[MatrixChange]:
        """The rows of one kind: "KQ", "VO" or "weight"."""
        return [row for row in self.rows if row.matrix == matrix]

    def __repr__(self) -> str:
        columns = {
            "layer": [row.layer for row in self.rows],
            "matrix": [row.matrix for row in self.rows],
            "head": ["" if row.head is None else f"{row.head}" for row in self.rows],
            "change": [f"{row.relative_change:.1e}" for row in self.rows],
            "stable rank": [f"{row.stable_rank:.2f}" for row in self.rows],
            "90 % of the energy": [f"{row.energy_rank_90}" for row in self.rows],
        }
        return text_table(f"Change from {self.before} to {self.after}:", columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise compare --json` prints them."""
        return asdict(self)


def compare(
    before: Source,
    after: Source,
    *,
    all_matrices: bool = False,
    threshold: float = 1e-3,
    device: Device = None,
    progress: Callable[[float], None] = lambda share: None,
) -> ModelComparison:
    """Ranks and size of the change of every head, and with `all_matrices` of every weight as it is stored.

    Each side is a model, the path of a safetensors file or folder (sharded or not) with its config, a name on
    the Hugging Face Hub, or a tracked run; `after` may be the folder of a PEFT LoRA adapter of `before`.
    Weights are read and decomposed layer by layer, on `device` if given. `progress` is called with the share
    that is done.

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
    pairs = layer_pairs(before, after)
    matrices = _matrices(before, newest(after)) if all_matrices else {}
    count = len(pairs) + len(matrices)
    rows: list[MatrixChange] = []
    notes: dict[str, None] = {}
    for done, name in enumerate(pairs, start=1):
        layer = pairs[name]()
        for product in PRODUCTS:
            learned = layer.change(product, device)
            values = singular_values(learned, name=f"{name} ({product})").cpu()
            left, right = (factor.double() for factor in learned.before)
            squares = ((left.mT @ left) * (right.mT @ right)).sum((-2, -1))  # |left @ right^T|_F^2
            norms, ceiling = squares.clamp_min(0).sqrt().tolist(), layer.ceilings.get(product)
            for head, found, norm in zip(layer.heads, values, norms, strict=True):
                rows.append(_row((name, product, head), found, norm, threshold, ceiling))
        notes |= dict.fromkeys(f"{name}: {note}" for note in layer.notes)
        progress(done / count)
    for done, name in enumerate(matrices, start=len(pairs) + 1):
        old, new, ceiling = matrices[name]()
        if old.shape != new.shape:
            raise different(f"{name} is {list(old.shape)}", list(new.shape))
        was, now = (placed(weight, device).flatten(1) for weight in (old, new))
        values = singular_values(change(was, now), name=name).cpu()
        # A few rows at a time: the embedding of a vocabulary is large.
        norm = float(torch.stack([part.double().norm() for part in was.split(4096)]).norm())
        rows.append(_row((name, "weight", None), values, norm, threshold, ceiling))
        progress(done / count)
    return ModelComparison(described(before), described(after), threshold, tuple(rows), tuple(notes))


def _row(
    place: tuple[str, str, int | None], values: Tensor, norm: float, threshold: float, ceiling: int | None
) -> MatrixChange:
    size, largest = float(torch.linalg.vector_norm(values)), float(values[0])
    return MatrixChange(
        *place,
        relative_change=size / norm if norm else math.inf if size else 0.0,
        largest=largest,
        stable_rank=float((values / largest).square().sum()) if largest else 0.0,
        effective_rank=float(effective_rank(values)),
        energy_rank_90=int(energy_rank(values, 0.90)),
        energy_rank_95=int(energy_rank(values, 0.95)),
        energy_rank_99=int(energy_rank(values, 0.99)),
        rank_above=int(rank_above(values, threshold)),
        full_rank=len(values) if ceiling is None else min(ceiling, len(values)),
    )


def _matrices(before: Source, after: Source) -> dict[str, Callable[[], tuple[Tensor, Tensor, int | None]]]:
    """By the name it is stored under, a reader of every weight with two or more axes: before, after, and the
    highest rank of the change if it is known."""
    old = _stored(before)
    if not is_adapter_folder(after):
        new = _stored(after)
        refuse_different("weight matrix", tuple(old), tuple(new))
        return {name: partial(lambda name: (old[name](), new[name](), None), name) for name in old}
    adapted = read_adapter(str(after)).on(open_weights(str(before)).model)
    unknown = next((module for module in adapted.factors if f"{module}.weight" not in old), None)
    if unknown is not None:
        raise RankriseError(
            f"{str(before)!r} stores {unknown}.weight under another name, so matrices as they are stored "
            "cannot be compared with an adapter's: leave out all_matrices."
        )

    def read(name: str) -> tuple[Tensor, Tensor, int | None]:
        weight, (module, _, leaf) = old[name](), name.rpartition(".")
        ceiling = None if name in adapted.others else adapted.rank_of(module) if leaf == "weight" else 0
        return weight, adapted.of(name, weight), ceiling

    return {name: partial(read, name) for name in old}


def _stored(source: Source) -> dict[str, Callable[[], Tensor]]:
    if is_run(source):
        raise RankriseError(
            f"{source} has the initial weights of tracked heads alone: to compare every matrix, pass a "
            "checkpoint of its beginning."
        )
    if isinstance(source, nn.Module):
        named = unwrap(source).named_parameters()
        return {name: weight.detach for name, weight in named if weight.ndim >= 2}
    stored = Checkpoint.open(source)
    return {name: partial(stored.read, name) for name in stored.names if len(stored.shape(name)) >= 2}
