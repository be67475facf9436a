"""Gradient flow of full weight matrices at any initialisation scale."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._ending import Ending, StepTooSmall, not_finite, out_of_steps, reached
from rankrise.predict._hermite import hermite
from rankrise.predict._matrices.columns import Columns
from rankrise.predict._matrices.follow import MatrixFlowPoint, follow
from rankrise.predict._matrices.loss import (
    MatrixLoss,
    MatrixLossFunction,
    Shape,
    check_until,
    checked_columns,
    checked_matrix_loss,
    split_products,
)

Start = tuple[Array, Array]
"""`(U0, V0)` of one product."""

_LOOSEST_STEP = 1e-2
_RESOLVED = 1e-9


@dataclass(frozen=True, eq=False)
class MatrixFlow:
    """A solved gradient flow of products `A_j = U_j V_j^T`, in rescaled time `t / log(1/alpha)`.

    `times` (n,) are moments of the flow, `losses` (n,) the loss there, `log_inverse_alpha` the unit of time.
    `conserved` (c, c) per product is `U^T U - V^T V` in units of alpha^2, which never changes, and `drift`
    the largest relative change of a column by rounding and the steps' errors before it was restored.
    `ending` says how the solve ended and `message` what to do about it; `steps`, `gradients` and
    `hessian_columns` are what it cost.
    """

    times: Tensor
    losses: Tensor
    log_inverse_alpha: float
    shapes: tuple[Shape, ...]
    conserved: tuple[Tensor, ...]
    drift: float
    ending: Ending
    message: str
    steps: int
    gradients: int
    hessian_columns: int
    _products: Tensor
    _rates: Tensor
    _log_values: tuple[Tensor, ...]

    @property
    def balanced(self) -> tuple[bool, ...]:
        """Per product, whether `U^T U = V^T V`: its signs are then kept for ever, which is not generic."""
        return tuple(bool(constant.abs().max() < 1e-12) for constant in self.conserved)

    def singular_values(self, product: int = 0) -> Tensor:
        """The singular values (n, min(d1, d2)) of a product at every moment, largest first."""
        return self.log_singular_values(product).exp()

    def log_singular_values(self, product: int = 0) -> Tensor:
        """Their logarithms, which tell those below 1e-308 too."""
        if not 0 <= product < len(self.shapes):
            raise RankriseError(
                f"product is {product}: this flow has {len(self.shapes)}, pass 0 to {len(self.shapes) - 1}."
            )
        return self._log_values[product]

    def at(self, time: float) -> list[Tensor]:
        """The products (d1, d2) at a rescaled time, between moments by a cubic through values and rates."""
        last = float(self.times[-1])
        if not 0 <= time <= last * (1 + 1e-12):
            raise RankriseError(
                f"time {time:g} lies outside this flow, which goes from 0 to {last:g}: {self.message}"
            )
        after = int(torch.searchsorted(self.times, torch.tensor(time, dtype=torch.float64)))
        after = min(max(after, 1), len(self.times) - 1)
        step = float(self.times[after] - self.times[after - 1])
        part = min(max((time - float(self.times[after - 1])) / step, 0.0), 1.0)
        ends, rates = ((column[after - 1], column[after]) for column in (self._products, self._rates))
        flat = hermite(part, step, ends, rates)
        return split_products(flat, self.shapes)

    def activation_times(self, threshold: float = 1e-3) -> tuple[Tensor, ...]:
        """Per product the rescaled times (min(d1, d2),) at which its k-th singular value first exceeds
        `threshold`; inf where it never does.
        """
        if not threshold > 0:
            raise RankriseError(
                f"threshold is {threshold}: pass the size above which a singular value counts as active, "
                "1e-3 for example."
            )
        return tuple(
            torch.tensor(
                [min(self.rises(number, k, threshold), default=math.inf) for k in range(min(shape))],
                dtype=torch.float64,
            )
            for number, shape in enumerate(self.shapes)
        )

    def rises(self, product: int, k: int, threshold: float = 1e-3) -> list[float]:
        """The rescaled times at which singular value k (from 0) of a product rises above `threshold`."""
        level, values = math.log(threshold), self.log_singular_values(product)[:, k]
        above = values > level
        later = (above[1:] & ~above[:-1]).nonzero()[:, 0] + 1
        found = [self._crossing(product, k, level, int(after)) for after in later]
        return [0.0, *found] if bool(above[0]) else found

    def _crossing(self, product: int, k: int, level: float, after: int) -> float:
        """When the logarithm of a singular value passes a level: on a cubic, which growth makes a line."""
        values = self._log_values[product][:, k]
        start, step = float(self.times[after - 1]), float(self.times[after] - self.times[after - 1])
        ends = float(values[after - 1]), float(values[after])
        if ends[0] == -math.inf:
            return start + step
        slopes = [self._log_rate(product, k, moment) for moment in (after - 1, after)]
        if any(slope is None for slope in slopes):
            return start + step * (level - ends[0]) / (ends[1] - ends[0])
        left, right = 0.0, 1.0
        for _ in range(60):
            middle = (left + right) / 2
            below = hermite(middle, step, ends, (slopes[0], slopes[1])) <= level
            left, right = (middle, right) if below else (left, middle)
        return start + right * step

    def to_dict(self) -> dict[str, Any]:
        """Every number as JSON has it: moments, losses, singular values, and how the solve ended."""
        return {
            "log_inverse_alpha": self.log_inverse_alpha,
            "ending": self.ending,
            "message": self.message,
            "steps": self.steps,
            "gradients": self.gradients,
            "hessian_columns": self.hessian_columns,
            "drift": self.drift,
            "times": self.times.tolist(),
            "losses": self.losses.tolist(),
            "singular_values": [self.singular_values(number).tolist() for number in range(len(self.shapes))],
            "activation_times": [times.tolist() for times in self.activation_times()],
        }

    def _log_rate(self, product: int, k: int, moment: int) -> float | None:
        """The rate of the logarithm of a singular value, None where the product does not resolve it."""
        flat = self._products[moment], self._rates[moment]
        a, rate = (split_products(one, self.shapes)[product] for one in flat)
        left, values, right = torch.linalg.svd(a, full_matrices=False)
        if not values[k] > _RESOLVED * values[0]:
            return None
        return float(left[:, k] @ rate @ right[k] / values[k])


@typed
def random_start(
    shapes: Sequence[Shape],
    columns: int | Sequence[int] | None = None,
    seed: int = 1,
    device: torch.device | str = "cpu",
) -> list[tuple[Tensor, Tensor]]:
    """Gaussian `(U0, V0)` of d1 x c and d2 x c per product: where a flow starts, before the scale alpha.

    As for `random_initialisation`, the seed should not be the network's.

    >>> [(u.shape[1], v.shape[0]) for u, v in random_start([(3, 4), (2, 2)], columns=2)]
    [(2, 4), (2, 2)]
    """
    source = torch.Generator().manual_seed(seed)

    def draw(height: int, count: int) -> Tensor:
        return torch.randn(height, count, generator=source, dtype=torch.float64).to(device)

    inner = checked_columns(columns, shapes)
    return [(draw(d1, count), draw(d2, count)) for (d1, d2), count in zip(shapes, inner, strict=True)]


@typed
def matrix_flow(
    loss: MatrixLossFunction,
    starts: Sequence[Start],
    log10_alpha: float = -32.0,
    until: float = 1.0,
    tolerance: float = 1e-5,
    max_steps: int = 100_000,
    progress: Callable[[float], None] | None = None,
) -> MatrixFlow:
    """Solve `U' = -G V, V' = -G^T U`, `G = dL/dA` at `A = U V^T`, from `alpha * (U0, V0)` to rescaled time
    `until`.

    `starts` is one (U0, V0) per product, of shapes (d1, c) and (d2, c). The scale is given as its logarithm,
    so 10**-1000 is as good as 0.01. `tolerance` bounds the error a step makes in the logarithm of a weight,
    divided by log(1/alpha). `progress` is called with the rescaled time reached.

    >>> from rankrise import predict
    >>> target = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.matrix_flow(loss, predict.random_start([(2, 2)]), log10_alpha=-1000, until=1.0)
    >>> flow.activation_times()[0], flow.singular_values()[-1].round(decimals=9)
    (tensor([0.4997,    inf], dtype=torch.float64), tensor([2., 0.], dtype=torch.float64))
    """
    weights = _checked_starts(starts)
    log_alpha = _checked_scale(log10_alpha)
    check_until(until, finite=True)
    if not 0 < tolerance < 1:
        raise RankriseError(
            f"tolerance is {tolerance!r}: pass the error allowed in a step, between 0 and 1, 1e-5 say."
        )
    if max_steps < 1:
        raise RankriseError(f"max_steps is {max_steps!r}: pass a whole number of at least 1.")
    device = weights[0][0].device
    checked = checked_matrix_loss(loss, [(len(u), len(v)) for u, v in weights], device)
    columns = [Columns.of_start(u, v, log_alpha) for u, v in weights]
    conserved = tuple(u.T @ u - v.T @ v for u, v in weights)
    moments: list[MatrixFlowPoint] = []
    ending, message = reached(until)
    unit, steps = -log_alpha, -1
    try:
        for moment in follow(checked, columns, until * unit, min(tolerance * unit, _LOOSEST_STEP)):
            moments.append(moment)
            steps += moment.accepted
            if progress is not None and moment.accepted:
                progress(moment.time / unit)
            if steps >= max_steps and moment.time < until * unit:
                ending, message = out_of_steps(max_steps, moment.time / unit)
                break
    except StepTooSmall:
        ending, message = not_finite(moments[-1].time / unit if moments else 0.0)
    if not moments:
        raise RankriseError("loss or its gradient is not finite at the start: it must be finite there.")
    return _flow_of(moments, unit, until, checked, conserved, ending, message, steps)


def _flow_of(
    moments: list[MatrixFlowPoint],
    unit: float,
    until: float,
    loss: MatrixLoss,
    conserved: tuple[Tensor, ...],
    ending: Ending,
    message: str,
    steps: int,
) -> MatrixFlow:
    times = torch.tensor([min(moment.time / unit, until) for moment in moments], dtype=torch.float64)
    return MatrixFlow(
        times=times,
        losses=torch.tensor([moment.loss for moment in moments], dtype=torch.float64),
        log_inverse_alpha=unit,
        shapes=loss.shapes,
        conserved=conserved,
        drift=max(moment.drift for moment in moments),
        ending=ending,
        message=message,
        steps=steps,
        gradients=loss.gradients,
        hessian_columns=loss.hessian_columns,
        _products=torch.stack([moment.products for moment in moments]).cpu(),
        _rates=torch.stack([moment.rates * unit for moment in moments]).cpu(),
        _log_values=tuple(
            torch.stack([moment.log_singular_values[number] for moment in moments]).cpu()
            for number in range(len(loss.shapes))
        ),
    )


def _checked_starts(starts: Sequence[Start]) -> list[tuple[Tensor, Tensor]]:
    try:
        given = [(u, v) for u, v in starts]
    except (TypeError, ValueError) as error:
        raise RankriseError(
            f"starts is {type(starts).__name__}, not a list of pairs: pass one pair (U0, V0) per product."
        ) from error
    if not given:
        raise RankriseError("starts is empty: pass one pair (U0, V0) per product.")
    pairs = []
    for number, pair in enumerate(given):
        names = [f"{name} of product {number}" for name in ("U0", "V0")]
        u, v = (as_tensor(name, weights) for name, weights in zip(names, pair, strict=True))
        for name, weights in zip(names, (u, v), strict=True):
            if weights.ndim != 2 or not weights.numel():
                raise RankriseError(f"{name} is of shape {tuple(weights.shape)}: pass a matrix, (d, c).")
            if not torch.isfinite(weights).all():
                raise RankriseError(f"{name} is not finite: pass finite initial weights.")
        if u.shape[1] != v.shape[1]:
            raise RankriseError(
                f"U0 and V0 of product {number} have {u.shape[1]} and {v.shape[1]} columns: pass as many."
            )
        if not u.any() and not v.any():
            raise RankriseError(
                f"U0 and V0 of product {number} are all zero and would never move: start off zero."
            )
        pairs.append((u.detach().double(), v.detach().double()))
    return pairs


def _checked_scale(log10_alpha: float) -> float:
    number = isinstance(log10_alpha, int | float) and not isinstance(log10_alpha, bool)
    if not number or not -math.inf < log10_alpha < 0:
        raise RankriseError(
            f"log10_alpha is {log10_alpha!r}: pass a finite number below 0, -32 for a scale of 1e-32; "
            "rescaled time needs alpha < 1."
        )
    return log10_alpha * math.log(10)
