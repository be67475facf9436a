"""The stages in which full weight matrices learn, in the limit of a vanishing initialisation.

This goes beyond the paper, whose Algorithm 1 is the case of 1 x 1 products. It is a derivation with strong
numerical evidence, not a theorem.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._matrices.loss import (
    MatrixLoss,
    MatrixLossFunction,
    Shape,
    check_until,
    checked_columns,
    checked_matrix_loss,
)
from rankrise.predict._matrices.plateau import Plateau, plateau_at_zero

_FLAT = 1e-9
_COLUMNS = ("time", "product", "rank", "loss", "gap", "runner_up", "tied", "mixing")
_TIE = 1e-9
_WEAK = 1e-3

MatrixEnding = Literal[
    "nothing moves", "until", "max stages", "not converged", "flat at zero", "assumption fails"
]
Mixing = Literal["ordered", "tracked"]


@dataclass(frozen=True, eq=False)
class MatrixStage:
    """One stage: at rescaled time `time` product number `product` gains a direction; all move to `points`.

    - `rank` is the product's rank afterwards, `points` are all products (d1, d2) on the plateau that follows,
      and `loss` is the loss there.
    - `rates` and `exponents` are those of the inactive directions per product at the beginning of that
      plateau: singular values of the reduced gradient, and how far each has come, 1 being active.
    - `runner_up` is the time at which another direction would have been next, `gap` how much later that is:
      the stages of a flow are clear only where `gap * log(1/alpha)` is far above 1. `tied` says that the gap
      is nothing, in which case the rule does not say what happens.
    - `dropped` are the products that lost a direction on the way, one entry per direction.
    - `mixing` is the weakest link between the directions of a product in this transition, as a fraction of
      the gradient: nothing where they fall into blocks, inf where at most one direction of each is left.
    """

    time: float
    product: int
    rank: int
    loss: float
    points: tuple[Tensor, ...]
    rates: tuple[Tensor, ...]
    exponents: tuple[Tensor, ...]
    gap: float
    runner_up: float
    tied: bool
    dropped: tuple[int, ...]
    mixing: float


@dataclass(frozen=True, eq=False)
class MatrixStages(Sequence[MatrixStage]):
    """The stages in order of time, and why there are no more: `ending`, with a sentence in `message`.

    `initial_loss` is the loss at zero. `mixing` is the rule that was followed, and `notes` are sentences on
    what the reader should know of it: ties, or a mixing so weak that it shows at tiny scales alone.
    """

    stages: tuple[MatrixStage, ...]
    initial_loss: float
    ending: MatrixEnding
    message: str
    mixing: Mixing
    notes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    columns: tuple[int, ...]
    gradients: int
    hessian_columns: int

    @overload
    def __getitem__(self, index: int) -> MatrixStage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MatrixStage, ...]: ...
    def __getitem__(self, index: int | slice) -> MatrixStage | tuple[MatrixStage, ...]:
        return self.stages[index]

    def __len__(self) -> int:
        return len(self.stages)

    def to_dict(self, label: Callable[[int], str] | None = None, points: bool = True) -> dict[str, Any]:
        """Everything that was found, as JSON has it; `label` adds the names of products."""
        rows = []
        for stage in self.stages:
            row: dict[str, Any] = {name: getattr(stage, name) for name in _COLUMNS}
            row |= {"dropped": list(stage.dropped)}
            row |= {name: [part.tolist() for part in getattr(stage, name)] for name in ("rates", "exponents")}
            row |= {} if label is None else {"label": label(stage.product)}
            rows.append(row | ({"points": [point.tolist() for point in stage.points]} if points else {}))
        names = ("ending", "message", "initial_loss", "mixing", "gradients", "hessian_columns")
        summary: dict[str, Any] = {name: getattr(self, name) for name in names}
        summary |= {"notes": list(self.notes), "columns": list(self.columns)}
        return summary | {"shapes": [list(shape) for shape in self.shapes], "stages": rows}

    @property
    def ties(self) -> tuple[int, ...]:
        """The numbers of the stages that were tied with another."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.tied)

    def times(self, product: int) -> list[float]:
        """The times at which a product gains a direction."""
        return [stage.time for stage in self.stages if stage.product == product]


@typed
def greedy_matrices(
    loss: MatrixLossFunction,
    shapes: Sequence[Shape] | None = None,
    columns: int | Sequence[int] | None = None,
    until: float = math.inf,
    max_stages: int = 10_000,
    mixing: Mixing | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> MatrixStages:
    """Predict the stages of `loss(*products)`, products being `U V^T` of full matrices from a tiny start.

    `shapes` are (d1, d2) per product, not needed for a loss that says its own, as the built-in networks do;
    `columns` is the inner dimension of the factors, one number or one per
    product, min(d1, d2) by default: it bounds the rank. The loss is computed in float64 and is twice
    differentiable. Stops after rescaled time `until` or `max_stages`, when nothing can move any more, where a
    stage finds no point of rest, or where the rule does not say what follows; what was found is kept.

    `mixing="ordered"` takes every transition to mix all directions of a product, as a generic loss does;
    `"tracked"` carries exponents along with the blocks of directions that a transition couples, down to
    single directions, as commuting or block-wise losses need. By default the measured coupling decides, and
    `.mixing` says how.

    >>> from rankrise import predict
    >>> target = torch.diag(torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64))
    >>> stages = predict.greedy_matrices(lambda a: ((a - target) ** 2).sum() / 2, [(3, 3)])
    >>> [(round(s.time, 9), s.rank, round(s.loss, 9)) for s in stages], stages.mixing
    ([(0.5, 1, 0.625), (1.0, 2, 0.125), (2.0, 3, 0.0)], 'tracked')
    """
    check_until(until)
    if mixing not in (None, "ordered", "tracked"):
        raise RankriseError(f"mixing is {mixing!r}: pass 'ordered', 'tracked', or None to have it measured.")
    checked = checked_matrix_loss(loss, shapes, device)
    inner = checked_columns(columns, checked.shapes)
    plateau = plateau_at_zero(checked, one_block=mixing == "ordered")
    initial_loss, found = plateau.rest.value, list[MatrixStage]()
    ending, message = _follow(plateau, checked, inner, until, max_stages, found, progress)
    measured: Mixing = "tracked" if plateau.separate else "ordered"
    return MatrixStages(
        stages=tuple(found),
        initial_loss=initial_loss,
        ending=ending,
        message=message,
        mixing=mixing or measured,
        notes=_notes(found, mixing, measured),
        shapes=checked.shapes,
        columns=inner,
        gradients=checked.gradients,
        hessian_columns=checked.hessian_columns,
    )


def _follow(
    plateau: Plateau,
    loss: MatrixLoss,
    columns: Sequence[int],
    until: float,
    max_stages: int,
    found: list[MatrixStage],
    progress: Callable[[int], None] | None,
) -> tuple[MatrixEnding, str]:
    """Move the plateau from stage to stage, each of which is put into `found`; says why there are no more."""
    largest = max(float(modes.rates[0]) for modes in plateau.modes)
    if largest <= _FLAT * max(1.0, abs(plateau.rest.value)):
        return "flat at zero", (
            "The gradient at zero vanishes: the network leaves at a time of order 1/alpha^2 that depends on "
            "the start, and has no stages; add a term of first order to the loss, a constant part of the "
            "attention for example."
        )
    time = 0.0
    while True:
        due = _due(plateau, columns, flat=_FLAT * largest)
        if due is None:
            return "nothing moves", "Every direction is active or at rest: nothing can move any more."
        if time + due.wait > until:
            return "until", f"The next stage begins after rescaled time {until:g}."
        if len(found) >= max_stages:
            return (
                "max stages",
                f"Stopped after {counted(max_stages, 'stage')}: raise max_stages for more.",
            )
        runner_up = time + due.runner_up
        time += due.wait
        where = f"Stage {len(found) + 1}, product {due.product} at rescaled time {time:.6g},"
        plateau.modes = [modes.wait(due.wait) for modes in plateau.modes]
        moved = plateau.move_on(due.product, due.mode)
        if moved is None:
            return "not converged", (
                f"{where} has no point of rest: the loss may have an exponential tail or a flat valley "
                "there; add a little weight decay to it, or use the stages before."
            )
        clear, weakest = moved
        found.append(_reached(plateau, loss, due, time, runner_up, weakest))
        if progress is not None:
            progress(len(found))
        if not clear:
            return "assumption fails", (
                f"{where} drops a direction although others wait, so that its point of rest is not a strict "
                "minimum on the matrices of its rank, or moves one into another block: the rule does not say "
                "what follows; pass mixing='tracked' if the loss falls into blocks, or use the stages so far."
            )


class _Due(NamedTuple):
    """The direction that becomes active next, after `wait`, and how long the one after it would wait."""

    wait: float
    product: int
    mode: int
    runner_up: float


def _due(plateau: Plateau, columns: Sequence[int], flat: float) -> _Due | None:
    """The next direction of a product with columns left, of those whose rate is above `flat`."""
    queue = sorted(
        (float(wait), product, mode)
        for product, (modes, most) in enumerate(zip(plateau.modes, columns, strict=True))
        if modes.rank < most
        for mode, wait in enumerate(modes.waiting(flat))
    )
    if not queue or queue[0][0] == math.inf:
        return None
    return _Due(*queue[0], runner_up=queue[1][0] if len(queue) > 1 else math.inf)


def _reached(
    plateau: Plateau, loss: MatrixLoss, due: _Due, time: float, runner_up: float, mixing: float
) -> MatrixStage:
    """The stage that led to this plateau."""
    return MatrixStage(
        time=time,
        product=due.product,
        rank=plateau.modes[due.product].rank,
        loss=plateau.rest.value,
        points=tuple(loss.split(plateau.rest.products)),
        rates=tuple(modes.rates for modes in plateau.modes),
        exponents=tuple(modes.exponents for modes in plateau.modes),
        gap=runner_up - time,
        runner_up=runner_up,
        tied=runner_up - time <= _TIE * due.wait,
        dropped=plateau.rest.dropped,
        mixing=mixing,
    )


def _notes(found: list[MatrixStage], asked: Mixing | None, measured: Mixing) -> tuple[str, ...]:
    notes = [
        f"Stage {number} is tied with another: the rule does not cover it."
        for number, stage in enumerate(found, start=1)
        if stage.tied
    ]
    if asked == "ordered" and measured == "tracked":
        notes.append(
            "Transitions do not couple all directions, so exponents may ride on directions instead of being "
            "ordered: compare with mixing='tracked'."
        )
    weakest = min((stage.mixing for stage in found if stage.mixing > 0), default=math.inf)
    if measured == "ordered" and weakest < _WEAK:
        notes.append(
            f"The weakest link between directions is {weakest:.1g} of the gradient: ordered exponents show "
            "only at initialisation scales far below it."
        )
    return tuple(notes)
