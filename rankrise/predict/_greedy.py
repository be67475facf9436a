"""Algorithm 1: the stages in which a diagonal network learns, in the limit of a vanishing initialisation."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._landing import land
from rankrise.predict._loss import Loss, LossFunction, checked_loss
from rankrise.predict._stages import Stage, Stages, StagesEnding

_SEED_SIZE = 1e-4
_FLAT = 1e-9
_TIE = 1e-9


@typed
def greedy(
    loss: LossFunction,
    size: int | None = None,
    until: float = math.inf,
    max_stages: int = 10_000,
    scales: Array | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Stages:
    """Run Algorithm 1 on a loss of `a = u * v`: `loss(a: Tensor[size]) -> scalar`, float64, twice
    differentiable. A loss that says its `size`, as the built-in networks do, needs none.

    It stops after rescaled time `until` or `max_stages`, when nothing can move any more, or when a stage has
    no point of rest, as for a loss with an exponential tail; what was found before is kept. `scales` (size,)
    is for initialisations that are not of a single scale: `log(alpha_i) / log(alpha)` of each coordinate,
    rescaled time belonging to `alpha`.

    >>> target = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    >>> stages = greedy(lambda a: ((a - target) ** 2).sum() / 2, 3)
    >>> [(s.time, s.coordinate, s.sign, s.loss) for s in stages], stages.ending
    ([(0.5, 1, -1, 0.5), (1.0, 0, 1, 0.0)], 'nothing moves')
    >>> from rankrise import predict
    >>> network = predict.diagonal_head(dimension=4, samples=50)
    >>> [network.label(stage.coordinate) for stage in predict.greedy(network, max_stages=3)]
    ['VO 3', 'VO 0', 'KQ 0']
    """
    if not until > 0:
        raise RankriseError(f"until is {until!r}: pass the rescaled time to stop at, a number above 0.")
    checked = checked_loss(loss, size, device)
    half = _checked_scales(scales, checked.size, device)
    start = torch.zeros(checked.size, dtype=torch.float64, device=device)
    value, gradient = checked.value_and_gradient(start)
    found = list[Stage]()
    ending, message = _follow(checked, start, gradient, half, until, max_stages, found, progress)
    return Stages(tuple(found), float(value), ending, message)


def _checked_scales(scales: Array | None, size: int, device: torch.device | str) -> Tensor:
    """`log(alpha_i) / log(alpha)` of each coordinate (size,): halfway between its two active exponents."""
    given = as_tensor("scales", [1.0] * size if scales is None else scales, device).double()
    if given.shape != (size,) or not ((given > 0) & torch.isfinite(given)).all():
        raise RankriseError(
            f"scales is {scales!r}: pass {size} positive numbers, log(alpha_i)/log(alpha) of each coordinate."
        )
    return given


def _follow(
    loss: Loss,
    point: Tensor,
    gradient: Tensor,
    half: Tensor,
    until: float,
    max_stages: int,
    found: list[Stage],
    progress: Callable[[int], None] | None,
) -> tuple[StagesEnding, str]:
    """Go from `point` from stage to stage, each of which is put into `found`; says why there are no more."""
    flat = _FLAT * float(gradient.abs().max())
    # b of Eq. 8, the exponent of alpha in u + v: a coordinate is active at 0 (positive) or 2 (negative), and
    # starts at 1.
    time, b = 0.0, half.clone()
    while True:
        inactive = point == 0
        force = torch.where(inactive & (gradient.abs() > flat), -gradient, 0.0)
        waiting = torch.where(force == 0, math.inf, (b - half + half * force.sign()) / force)
        order = torch.argsort(waiting, stable=True)
        winner, wait = int(order[0]), float(waiting[order[0]])
        if wait == math.inf:
            return "nothing moves", "Every coordinate is active or at rest: nothing can move any more."
        if time + wait > until:
            return "until", f"The next stage begins after rescaled time {until:g}."
        if len(found) >= max_stages:
            return (
                "max stages",
                f"Stopped after {counted(max_stages, 'stage')}: raise max_stages for more.",
            )

        close = (waiting <= wait * (1 + _TIE)).nonzero()[:, 0].tolist()
        runner_up = time + float(waiting[order[1]]) if len(order) > 1 else math.inf
        time, b = time + wait, torch.where(inactive, b - force * wait, b)
        sign = int(force[winner].sign())
        b[winner] = half[winner] * (1 - sign)
        limit = _settle(loss, point, winner, sign)
        if limit is None:
            return "not converged", (
                f"Stage {len(found) + 1}, coordinate {winner} at rescaled time {time:.6g}, has no "
                "point of rest: the loss may have an exponential tail or a flat valley there; add a little "
                "weight decay to it, or use the stages before."
            )
        left = tuple(((point != 0) & (limit == 0)).nonzero()[:, 0].tolist())
        point = limit
        value, gradient = loss.value_and_gradient(point)
        tied = tuple(other for other in close if other != winner)
        found.append(Stage(time, winner, sign, float(value), point, left, runner_up, tied))
        if progress is not None:
            progress(len(found))


def _settle(loss: Loss, point: Tensor, winner: int, sign: int) -> Tensor | None:
    """Stage B: the limit of the flow of the active coordinates and the winner, the winner starting at next
    to nothing.
    """
    start = point.clone()
    start[winner] = sign * _SEED_SIZE
    support = start.nonzero()[:, 0]
    limit = land(loss.restricted(support), start[support])
    return None if limit is None else torch.zeros_like(point).index_put((support,), limit)
