"""Algorithm 1: the stages in which a network learns, in the limit of a vanishing initialisation.

The paper states it for diagonal networks. For full matrices it is a derivation with strong numerical
evidence, not a theorem.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rankrise.foundations.text_tables import text_table
from rankrise.predict._diagonal import DiagonalPlateau
from rankrise.predict._loss import LossFunction, Shape, checked_loss, split_products
from rankrise.predict._matrices.plateau import MatrixPlateau, Mixing

_TIE = 1e-9
_FLAT = 1e-9  # a force below this fraction of the largest at zero is nothing

StagesEnding = Literal[
    "nothing moves", "until", "max stages", "not converged", "flat at zero", "assumption fails"
]


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage: at rescaled time `time` (T_k) a product gains a direction, and the network moves to `point`.

    - In a diagonal network the products are 1 x 1: coordinate `product` becomes active, with `sign`.
    - `rank` is the product's rank afterwards, `point` all products as a flat vector, and `loss` the loss.
    - `left` are the products that lost a direction on the way, one entry per direction.
    - `runner_up` is when another direction would have been next, had this one not moved. `tied` are the
      products with a direction due at the same time: then the theory does not say what happens.
    - Only for matrices, `ranks` are those of all products, and `mixing` is the weakest link between
      directions, as in `check_assumptions`: inf where each product has at most one inactive direction.
    """

    time: float
    product: int
    sign: int
    rank: int
    loss: float
    point: Tensor
    shapes: tuple[Shape, ...]
    left: tuple[int, ...]
    runner_up: float
    tied: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    mixing: float = 0.0

    @property
    def coordinate(self) -> int:
        """The number of the product, which is a coordinate of `a` in a diagonal network."""
        return self.product

    @property
    def points(self) -> tuple[Tensor, ...]:
        """The products (d1, d2) on the plateau."""
        return tuple(split_products(self.point, self.shapes))

    @property
    def support(self) -> tuple[int, ...]:
        """The coordinates active on the plateau of a diagonal network."""
        return tuple(self.point.nonzero()[:, 0].tolist())

    @property
    def gap(self) -> float:
        """How much later the runner-up would come: a clear stage has `gap * log(1/alpha)` far above 1."""
        return self.runner_up - self.time


@dataclass(frozen=True, eq=False, repr=False)
class Stages:
    """The stages in order of time, and why there are no more: `ending`, with a sentence in `message`.

    `initial_loss` is the loss at zero, on the plateau before the first stage; `gradients` is what it cost. Of
    full matrices, `mixing` says whether exponents were added in order ("ordered") or carried along with
    blocks of directions ("tracked").
    """

    stages: tuple[Stage, ...]
    shapes: tuple[Shape, ...]
    initial_loss: float
    ending: StagesEnding
    message: str
    mixing: Mixing | None = None
    gradients: int = 0

    def __getitem__(self, index: int) -> Stage:
        return self.stages[index]

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        count = f"{len(self)} stage{'' if len(self) == 1 else 's'}"
        return text_table(f"{count}, then: {self.message}", self.table())

    @property
    def diagonal(self) -> bool:
        """Whether these are the stages of a diagonal network."""
        return self.mixing is None

    def table(self, label: Callable[[int], str] = str) -> dict[str, list[str]]:
        """One line per stage, as columns of text; `label` names the products."""
        columns = {
            "stage": [str(number) for number in range(1, len(self) + 1)],
            "T_k": [f"{stage.time:.4f}" for stage in self],
            "coordinate" if self.diagonal else "product": [label(stage.product) for stage in self],
            "rank": ["" if self.diagonal else str(stage.rank) for stage in self],
            "sign": ["+-"[stage.sign < 0] if self.diagonal else "" for stage in self],
            "gap": ["" if self.diagonal else f"{stage.gap:.3g}" for stage in self],
            "loss": [f"{stage.loss:.5g}" for stage in self],
            "left": [" ".join(map(label, stage.left)) for stage in self],
        }
        return {name: cells for name, cells in columns.items() if any(cells)}

    def to_dict(self, label: Callable[[int], str] | None = None, points: bool = True) -> dict[str, Any]:
        """Everything that was found, for JSON: with names that `label` gives, and if asked without points."""
        names = ["time", "coordinate", "sign", "rank", "loss", "left", "runner_up", "tied"]
        about = {name: getattr(self, name) for name in ("ending", "message", "initial_loss")}
        if not self.diagonal:
            names += ["product", "gap", "mixing"]
            about |= {name: getattr(self, name) for name in ("mixing", "shapes", "gradients")}
        about["stages"] = rows = [{name: getattr(stage, name) for name in names} for stage in self]
        for row, stage in zip(rows, self, strict=True):
            if label is not None:
                row["label"] = label(stage.product)
            if points:
                name, point = ("point", stage.point) if self.diagonal else ("points", stage.points)
                row[name] = [part.tolist() for part in point]
        return about

    @staticmethod
    def from_dict(record: Mapping[str, Any], points: Tensor) -> "Stages":
        """The stages of a diagonal network from `to_dict`, with their `points` (stages, p)."""
        shapes, stages = ((1, 1),) * points.shape[1], []
        for row, point in zip(record["stages"], points, strict=True):
            time, coordinate, sign, loss = (row[name] for name in ("time", "coordinate", "sign", "loss"))
            left, tied, runner_up = tuple(row["left"]), tuple(row["tied"]), float(row["runner_up"])
            stages.append(Stage(time, coordinate, sign, 1, loss, point, shapes, left, runner_up, tied))
        return Stages(tuple(stages), shapes, record["initial_loss"], record["ending"], record["message"])


def greedy(
    loss: LossFunction,
    size: int | None = None,
    *,
    shapes: Sequence[Shape] | None = None,
    columns: int | None = None,
    until: float = math.inf,
    max_stages: int = 10_000,
    progress: Callable[[int], None] | None = None,
) -> Stages:
    """Predict the stages of a loss, float64 and twice differentiable, as the initialisation vanishes.

    With `size`, it is `loss(a)` of a diagonal network with `a = u * v` (size,); with `shapes`, it is
    `loss(*products)` of matrices `U V^T` (d1, d2), one pair per product. The built-in networks have a `size`
    or `shapes` of their own. `columns`, by default min(d1, d2), is the inner dimension of U and V.

    It stops after rescaled time `until` or `max_stages`, or earlier: `Stages.ending` says why. `progress` is
    called with the number of stages.

    >>> target = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    >>> greedy(lambda a: ((a - target) ** 2).sum() / 2, 3)
    2 stages, then: Every direction is active or at rest: nothing can move any more.
      stage     T_k  coordinate  sign  loss
          1  0.5000           1     -   0.5
          2  1.0000           0     +     0
    >>> matrix = torch.diag(torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64))
    >>> stages = greedy(lambda a: ((a - matrix) ** 2).sum() / 2, shapes=[(3, 3)])
    >>> [(round(s.time, 9), s.rank, round(s.loss, 9)) for s in stages], stages.mixing
    ([(0.5, 1, 0.625), (1.0, 2, 0.125), (2.0, 3, 0.0)], 'tracked')
    """
    checked = checked_loss(loss, size, shapes)
    plateau = DiagonalPlateau(checked) if checked.diagonal else MatrixPlateau(checked, columns)
    initial_loss, found = plateau.value, list[Stage]()

    def end(ending: StagesEnding, message: str) -> Stages:
        cost = checked.counts["gradients"]
        return Stages(
            tuple(found), checked.shapes, initial_loss, ending, message, plateau.mixing, gradients=cost
        )

    if plateau.flat:
        return end(
            "flat at zero",
            "The gradient at zero vanishes: no stages on the logarithmic clock from zero; the escape is at a "
            "time of order alpha^-2 (or later).",
        )
    time, least = 0.0, _FLAT * float(plateau.forces.abs().max())
    while True:
        forces = torch.where(plateau.forces.abs() > least, plateau.forces, 0.0)
        waits = torch.where(forces == 0, math.inf, (forces.sign() - plateau.exponents) / forces)
        if not waits.isfinite().any():
            return end("nothing moves", "Every direction is active or at rest: nothing can move any more.")
        order = torch.argsort(waits, stable=True)
        winner, wait = int(order[0]), float(waits[order[0]])
        if time + wait > until:
            return end("until", f"The next stage begins after rescaled time {until:g}.")
        if len(found) >= max_stages:
            return end("max stages", f"Stopped after {max_stages} stages: raise max_stages for more.")

        product = plateau.owners[winner]
        close = (waits <= wait * (1 + _TIE)).nonzero()[:, 0].tolist()
        tied = tuple(plateau.owners[other] for other in close if other != winner)
        runner_up = time + float(waits[order[1]]) if len(order) > 1 else math.inf
        time += wait
        plateau.exponents += forces * wait
        moved = plateau.move_on(winner)
        where = f"Stage {len(found) + 1}, product {product} at rescaled time {time:.6g},"
        if moved is None:
            return end(
                "not converged",
                f"{where} has no point of rest. The loss may have an exponential tail or a valley: add a "
                "little weight decay to it, or use the stages before.",
            )
        loss_there, point, shapes = plateau.value, plateau.point, checked.shapes
        options = {"runner_up": runner_up, "tied": tied, **moved}
        found.append(Stage(time, product, loss=loss_there, point=point, shapes=shapes, **options))
        if progress is not None:
            progress(len(found))
        if not plateau.clear:
            return end(
                "assumption fails",
                f"{where} drops a direction while others wait, or moves one into another block. The theory "
                "does not say what follows: use the stages so far.",
            )
