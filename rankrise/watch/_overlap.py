"""Did two trainings learn the same directions? The overlap of the leading spaces of their changes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.watch._ceilings import PRODUCTS
from rankrise.watch._pairs import Device, Source, described, is_run, layer_pairs
from rankrise.watch._ranks import rank_above
from rankrise.watch._spectra import leading_vectors

NOTHING = 1e-6
"""A singular value below this share of the largest has no direction of its own."""


@dataclass(frozen=True)
class HeadOverlap:
    """Overlap of the leading spaces of two changes of a head.

    An overlap is the mean squared cosine of the principal angles: 1 for the same space, `*_by_chance` on
    average for two random ones, None if one of the changes is zero. Left is the side of the keys or values,
    right the side of the queries or outputs.
    """

    layer: str
    matrix: str
    """KQ or VO."""
    head: int
    """An index from 0."""
    directions: int
    """How many leading directions are compared: fewer than asked for if a change has fewer."""
    left: float | None
    right: float | None
    left_by_chance: float
    right_by_chance: float
    left_angles: tuple[float, ...]
    """Principal angles in degrees, smallest first."""
    right_angles: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class ModelOverlap:
    """Every head's overlap, the layers in the model's order."""

    first: str
    second: str
    rows: tuple[HeadOverlap, ...]

    def select(self, matrix: str) -> list[HeadOverlap]:
        """The rows of one kind: "KQ" or "VO"."""
        return [row for row in self.rows if row.matrix == matrix]

    def __repr__(self) -> str:
        columns = {
            "layer": [row.layer for row in self.rows],
            "matrix": [row.matrix for row in self.rows],
            "head": [f"{row.head}" for row in self.rows],
            "directions": [f"{row.directions}" for row in self.rows],
            "left": ["" if row.left is None else f"{row.left:.2f}" for row in self.rows],
            "right": ["" if row.right is None else f"{row.right:.2f}" for row in self.rows],
        }
        return text_table(f"Overlap of what {self.first} and {self.second} learned:", columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise compare --json` prints them."""
        return asdict(self)


def overlap(
    before: Source,
    first: Source,
    second: Source,
    *,
    second_before: Source | None = None,
    directions: int = 4,
    device: Device = None,
    progress: Callable[[float], None] = lambda share: None,
) -> ModelOverlap:
    """By head, the overlap of the directions that `first` and `second` learned since `before`.

    Each is a model, a checkpoint, a PEFT adapter of `before`, or a tracked run, as for `compare`: two
    fine-tunings of one base, two moments of one training, or two runs. If the second began elsewhere, pass
    `second_before`; a tracked run begins with its own initial weights.

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
        raise RankriseError(f"directions is {directions}: pass 1 or more.")
    if second_before is None:
        second_before = second if is_run(second) else before
    one, other = layer_pairs(before, first), layer_pairs(second_before, second)
    if list(one) != list(other):
        raise RankriseError(
            f"The first training has the attention layers {', '.join(one)}, the second {', '.join(other)}: "
            "pass two trainings of one model."
        )
    rows: list[HeadOverlap] = []
    for done, name in enumerate(one, start=1):
        layers = one[name](), other[name]()
        if list(layers[0].heads) != list(layers[1].heads):
            raise RankriseError(
                f"{name} has the heads {list(layers[0].heads)} in the first and {list(layers[1].heads)} in "
                "the second: pass two trainings of which the same heads were tracked."
            )
        for product in PRODUCTS:
            changes = [layer.change(product, device) for layer in layers]
            most = min(changes[0].highest_rank, directions)
            found = [leading_vectors(learned, count=most, name=f"{name} ({product})") for learned in changes]
            counts = torch.stack([rank_above(vectors.values, NOTHING) for vectors in found]).amin(0)
            for place, (head, count) in enumerate(zip(layers[0].heads, counts.tolist(), strict=True)):
                left, right = (
                    principal_angles(*(getattr(vectors, side)[place, :, :count] for vectors in found)).cpu()
                    for side in ("left_vectors", "right_vectors")
                )
                row = HeadOverlap(
                    layer=name,
                    matrix=product,
                    head=head,
                    directions=count,
                    left=float(left.cos().square().mean()) if count else None,
                    right=float(right.cos().square().mean()) if count else None,
                    left_by_chance=count / changes[0].shape[0],
                    right_by_chance=count / changes[0].shape[1],
                    left_angles=tuple(left.rad2deg().tolist()),
                    right_angles=tuple(right.rad2deg().tolist()),
                )
                rows.append(row)
        progress(done / len(one))
    return ModelOverlap(described(first), described(second), tuple(rows))


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles in radians between two spaces, smallest first [k], from orthonormal bases [d, k] in float64.

    They are exact for small angles too, where cosines alone lose half the digits (Björck and Golub 1973).
    """
    overlap = first.mT @ second
    sines = torch.linalg.svdvals(second - first @ overlap).flip(-1)
    return torch.atan2(sines, torch.linalg.svdvals(overlap))
