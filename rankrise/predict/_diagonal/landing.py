"""Stage B of Algorithm 1: where the flow of the active coordinates comes to rest (Eq. 11).

It is the limit of a flow, not any stationary point. The flow is followed, roughly, until it almost stops;
Newton's method takes the last small way, and its result counts only if the flow around it ends there too.
"""

import torch
from torch import Tensor

from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._diagonal.integrate import integrate
from rankrise.predict._loss import Loss
from rankrise.predict._moments import StepTooSmall

_ROUGH = 0.1
"""The path needs no more accuracy than it takes to stay in its basin."""
_ALMOST_STILL = 0.1
_ENDLESS = 1e-12
_STILL = 1e-7
_VANISHING = 1e-4
_CLOSE = 0.3
_MOST_STEPS = 400
_MOST_NEWTON_STEPS = 20


def land(loss: Loss, start: Tensor) -> Tensor | None:
    """The limit (m,) of the flow of `a' = 2|a| g(a)` from `start` (m,), or None if it finds none.

    This is gradient flow on u and v with `|u| = |v|`, as on every stationary point of a vanishing
    initialisation. A coordinate that decays to nothing is exactly zero in the result.

    >>> from rankrise.predict._loss import checked_loss
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = checked_loss(lambda a: ((a - target) ** 2).sum(), 2)
    >>> land(loss, torch.tensor([1e-6, 0.5], dtype=torch.float64))
    tensor([1., 0.], dtype=torch.float64)
    """
    size = start.abs().sqrt()
    coordinates, z = Coordinates.of_weights(size, size * start.sign())
    pace = 0.0
    try:
        for count, moment in enumerate(integrate(loss, coordinates, z, until=1e300, tolerance=_ROUGH)):
            point = coordinates.product(moment.z)
            small = point.abs() < _VANISHING * max(1.0, float(point.abs().max()))
            decaying = small & (moment.rate * start < 0)
            moving = float(torch.where(decaying, 0.0, moment.rate).abs().max())
            pace = max(pace, moving)
            if moving <= _ALMOST_STILL * pace:
                limit = _polish(loss, torch.where(decaying, 0.0, point))
                if limit is not None:
                    return limit
            if count >= _MOST_STEPS or moving <= _ENDLESS * pace:
                return None
    except StepTooSmall:
        return None
    return None


def _polish(loss: Loss, point: Tensor) -> Tensor | None:
    """The stationary point next to `point` with the same support, if the flow from `point` ends there.

    It does if the Hessian on the support is positive definite, and the point is close.
    """
    support = point.nonzero()[:, 0]
    factor, began, last = None, point, float("inf")
    for _ in range(_MOST_NEWTON_STEPS):
        if factor is None:
            factor, failed = torch.linalg.cholesky_ex(loss.curvature(point, support)[support])
            if failed or not len(support):
                return None
        _, gradient = loss.value_and_gradient(point)
        move = torch.cholesky_solve(-gradient[support, None], factor)[:, 0]
        point = point.index_add(0, support, move)
        if ((point - began)[support].abs() > _CLOSE * began[support].abs()).any():
            return None
        size = float(move.abs().max())
        if size <= _STILL * float(point.abs().max()):
            return point
        if not size < 0.3 * last:
            factor = None
        last = size
    return None
