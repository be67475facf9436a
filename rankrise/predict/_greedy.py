"""Algorithm 1: the stages in which a network learns, in the limit of a vanishing initialisation.

The paper states it for diagonal networks. For full matrices it is a derivation with strong numerical
evidence, not a theorem.
"""

import math
from collections.abc import Callable, Sequence

import torch

from rankrise.predict._diagonal import DiagonalPlateau
from rankrise.predict._loss import LossFunction, Shape, checked_loss
from rankrise.predict._matrices.plateau import MatrixPlateau
from rankrise.predict._stages import Stage, Stages, StagesEnding

_TIE = 1e-9
_FLAT = 1e-9  # a force below this fraction of the largest at zero is nothing


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
    `loss(*products)` of matrices `U V^T` (d1, d2), one pair per product. A loss that has a `size` or
    `shapes`, as the built-in networks do, needs neither. `columns` is the inner dimension of the factors U
    and V, which bounds the rank, min(d1, d2) by default.

    It stops after rescaled time `until` or `max_stages`, when nothing can move any more, when a stage has no
    point of rest, as under a loss with an exponential tail, or when the theory does not say what follows.
    What was found is kept. `progress` is called with the number of stages.

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
    ending, message = _follow(plateau, checked.shapes, until, max_stages, found, progress)
    return Stages(
        stages=tuple(found),
        shapes=checked.shapes,
        initial_loss=initial_loss,
        ending=ending,
        message=message,
        mixing=plateau.mixing,
        gradients=checked.counts["gradients"],
    )


def _follow(
    plateau: DiagonalPlateau | MatrixPlateau,
    shapes: tuple[Shape, ...],
    until: float,
    max_stages: int,
    found: list[Stage],
    progress: Callable[[int], None] | None,
) -> tuple[StagesEnding, str]:
    """Move the plateau from stage to stage, append each to `found`, and say why there are no more."""
    if plateau.flat:
        return "flat at zero", (
            "The gradient at zero vanishes: no stages on the logarithmic clock from zero; the escape is at a "
            "time of order alpha^-2 (or later)."
        )
    time, least = 0.0, _FLAT * float(plateau.forces.abs().max())
    while True:
        forces = torch.where(plateau.forces.abs() > least, plateau.forces, 0.0)
        waits = torch.where(forces == 0, math.inf, (forces.sign() - plateau.exponents) / forces)
        if not waits.isfinite().any():
            return "nothing moves", "Every direction is active or at rest: nothing can move any more."
        order = torch.argsort(waits, stable=True)
        winner, wait = int(order[0]), float(waits[order[0]])
        if time + wait > until:
            return "until", f"The next stage begins after rescaled time {until:g}."
        if len(found) >= max_stages:
            return "max stages", f"Stopped after {max_stages} stages: raise max_stages for more."

        product = plateau.owners[winner]
        close = (waits <= wait * (1 + _TIE)).nonzero()[:, 0].tolist()
        tied = tuple(plateau.owners[other] for other in close if other != winner)
        runner_up = time + float(waits[order[1]]) if len(order) > 1 else math.inf
        time += wait
        plateau.exponents += forces * wait
        moved = plateau.move_on(winner)
        where = f"Stage {len(found) + 1}, product {product} at rescaled time {time:.6g},"
        if moved is None:
            return "not converged", (
                f"{where} has no point of rest. The loss may have an exponential tail or a valley: add a "
                "little weight decay to it, or use the stages before."
            )
        value, point = plateau.value, plateau.point
        found.append(
            Stage(
                time, product, loss=value, point=point, shapes=shapes, runner_up=runner_up, tied=tied, **moved
            )
        )
        if progress is not None:
            progress(len(found))
        if not plateau.clear:
            return "assumption fails", (
                f"{where} drops a direction while others wait, or moves one into another block. The theory "
                "does not say what follows: use the stages so far."
            )
