"""Did two trainings learn the same directions? How far the leading spaces of their changes overlap."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.watch._change import Change
from rankrise.watch._compare import PRODUCTS, Source, described, head_change, open_pair
from rankrise.watch._ranks import rank_above
from rankrise.watch._recorded import head_numbers, is_run
from rankrise.watch._subspaces import leading_vectors, principal_angles

NOTHING = 1e-6
"""A singular value below this share of the largest has no direction of its own."""


@dataclass(frozen=True)
class HeadOverlap:
    """Of one head's KQ = W_K W_Q^T or VO = W_V W_O^T: how much of the leading space of one change lies in
    that of the other.

    An overlap is the mean squared cosine of the principal angles: 1 for the same space, `*_by_chance` on
    average for two random ones, None where one of the changes is zero. Left is the side of the keys or
    values, right that of the queries or outputs.
    """

    layer: str
    matrix: str
    """KQ or VO."""
    head: int
    """An index, from 0, as everywhere in Python and JSON."""
    directions: int
    """How many leading directions are compared: fewer than asked for where a change has fewer."""
    left: float | None
    right: float | None
    left_by_chance: float
    right_by_chance: float
    left_angles: tuple[float, ...]
    """Principal angles in degrees, smallest first."""
    right_angles: tuple[float, ...]


@dataclass(frozen=True)
class ModelOverlap:
    """Every head's overlap, the layers in the model's order."""

    first: str
    second: str
    rows: tuple[HeadOverlap, ...]

    def select(self, matrix: str) -> list[HeadOverlap]:
        """The rows of one kind: "KQ" or "VO"."""
        return [row for row in self.rows if row.matrix == matrix]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise compare --json` prints them."""
        return asdict(self)


@typed
def overlap(
    before: Source,
    first: Source,
    second: Source,
    *,
    second_before: Source | None = None,
    directions: int = 4,
    device: str | torch.device | None = None,
    progress: Callable[[float], None] | None = None,
) -> ModelOverlap:
    """How far what `first` learned since `before` lies in the directions that `second` learned, by head.

    Each is a model, a checkpoint, a PEFT adapter of `before`, or a tracked run, as for `compare`: two
    fine-tunings of one base, two moments of one training, or two runs, of which the second may have begun
    elsewhere (`second_before`; of a tracked run, its own beginning is taken).

    >>> from copy import deepcopy
    >>> from torch import nn
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2)
    >>> once, twice = deepcopy(model), deepcopy(model)
    >>> with torch.no_grad():
    ...     _ = once.self_attn.in_proj_weight[0].add_(1.0)  # one direction of head 0's W_Q
    ...     _ = twice.self_attn.in_proj_weight[0].add_(2.0)
    >>> row = overlap(model, once, twice).select("KQ")[0]
    >>> row.directions, round(row.left, 6), row.left_by_chance
    (1, 1.0, 0.125)
    """
    if directions < 1:
        raise RankriseError(f"{directions} directions were asked for: pass 1 or more.")
    if second_before is None:
        second_before = second if is_run(second) else before
    pairs = [open_pair(before, first), open_pair(second_before, second)]
    names = pairs[0][0].names
    if names != pairs[1][0].names:
        raise RankriseError(
            f"The two are of different architectures: one has the attention layers {names[0]} ... "
            f"{names[-1]}, the other {pairs[1][0].names[0]} ... {pairs[1][0].names[-1]}; pass two trainings "
            "of one model."
        )
    rows: list[HeadOverlap] = []
    for index, name in enumerate(names):
        layers = [(old[index], new[index]) for old, new in pairs]
        numbers, others = (
            list(head_numbers(old, index) or range(len(layer.query)))
            for (old, _), (layer, _) in zip(pairs, layers, strict=True)
        )
        if numbers != others:
            raise RankriseError(
                f"{name} has the heads {[head + 1 for head in numbers]} in the first and "
                f"{[head + 1 for head in others]} in the second: pass two trainings of which the same heads "
                "were tracked."
            )
        for matrix in PRODUCTS:
            changes = [head_change(old, new, matrix, device, numbers) for old, new in layers]
            rows += _rows(name, matrix, changes, directions, numbers)
        if progress is not None:
            progress((index + 1) / len(names))
    return ModelOverlap(described(first), described(second), tuple(rows))


def _rows(
    layer: str, matrix: str, changes: list[Change], directions: int, numbers: Sequence[int]
) -> list[HeadOverlap]:
    left, right = changes[0].before
    most = min(left.shape[-2], right.shape[-2], 2 * left.shape[-1], directions)
    found = [leading_vectors(change, count=most) for change in changes]
    sizes = torch.stack([rank_above(vectors.values, NOTHING) for vectors in found]).amin(0)
    rows = []
    for place, count in enumerate(sizes.tolist()):
        angles = {
            side: _angles(*(getattr(vectors, f"{side}_vectors")[place, :, :count] for vectors in found))
            for side in ("left", "right")
        }
        rows.append(
            HeadOverlap(
                layer=layer,
                matrix=matrix,
                head=numbers[place],
                directions=count,
                left=_shared(angles["left"]),
                right=_shared(angles["right"]),
                left_by_chance=count / left.shape[-2],
                right_by_chance=count / right.shape[-2],
                left_angles=tuple(angles["left"].rad2deg().tolist()),
                right_angles=tuple(angles["right"].rad2deg().tolist()),
            )
        )
    return rows


def _angles(first: Tensor, second: Tensor) -> Tensor:
    return principal_angles(first, second).cpu() if first.shape[-1] else torch.zeros(0)


def _shared(angles: Tensor) -> float | None:
    return float(angles.cos().square().mean()) if len(angles) else None
