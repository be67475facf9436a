"""Gradient flow at any initialisation scale: of diagonal networks exactly (Eq. 4), and of full matrices."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.predict._diagonal import Coordinates, integrate
from rankrise.predict._greedy import Stage
from rankrise.predict._loss import Loss, LossFunction, Shape, checked_loss, split_products
from rankrise.predict._matrices.columns import Columns, follow_columns
from rankrise.predict._paths import Moment, StepTooSmall

Array = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]

_LONGEST = 1e9  # beyond this rescaled time, float64 has no room for steps
_LOOSEST_MATRIX_STEP = 1e-2
_RESOLVED = 1e-9  # a singular value below this fraction of the largest is rounding in the product


class Crossing(NamedTuple):
    """Singular value number `rank` of a product passed a threshold, upward or downward, at a rescaled time.

    In a diagonal network it is the size of the coordinate `product`, and `rank` is 1.
    """

    time: float
    product: int
    upward: bool
    rank: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Flow:
    """A solved gradient flow, in rescaled time `t / log(1/alpha)`.

    `times` (n,) are its moments, `losses` (n,) the loss there, `log_inverse_alpha` the unit of time. `ending`
    says how the solve ended and `message` what to do about it; `gradients` is what it cost.

    A diagonal network has its exact `coordinates`, in which it is at `places` z (n, p). For matrices, places
    are the flat products, with `log_singular_values` (n, min(d1, d2)) of each. `rates` are those of places.
    """

    times: Tensor
    losses: Tensor
    log_inverse_alpha: float
    places: Tensor
    rates: Tensor
    shapes: tuple[Shape, ...]
    ending: Literal["reached", "not finite"]
    message: str
    gradients: int
    coordinates: Coordinates | None = None
    log_singular_values: tuple[Tensor, ...] = ()

    @property
    def diagonal(self) -> bool:
        """Whether this is the flow of a diagonal network."""
        return self.coordinates is not None

    @cached_property
    def values(self) -> Tensor:
        """`a = u * v` at the moments, (n, p); for matrices, their flat products."""
        return self.products(self.places)

    def products(self, places: Tensor) -> Tensor:
        """`a`, or the flat products, at some places (..., p)."""
        return places if self.coordinates is None else self.coordinates.product(places)

    def at(self, time: float | Array) -> Any:
        """`a` (p,) at a rescaled time, or a list of matrices (d1, d2); several times add a first axis."""
        flat = self.products(self.place_at(time))
        return flat if self.diagonal else split_products(flat, self.shapes)

    def place_at(self, time: float | Array) -> Tensor:
        """The exact coordinate z of a diagonal network, or flat products, at one time or several, (m, p)."""
        asked = torch.as_tensor(time, dtype=torch.float64)
        last = float(self.times[-1])
        if not ((asked >= 0) & (asked <= last * (1 + 1e-12))).all():
            raise RankriseError(f"time is {time}, but this flow goes from 0 to {last:g}: {self.message}")
        flat = asked.reshape(-1)
        after = torch.searchsorted(self.times, flat).clamp(1, len(self.times) - 1)
        step = self.times[after] - self.times[after - 1]
        part = ((flat - self.times[after - 1]) / step).clamp(0, 1)
        ends, rates = ((one[after - 1], one[after]) for one in (self.places, self.rates))
        place: Tensor = _hermite(part[:, None], step[:, None], ends, rates)
        return place.reshape(*asked.shape, -1)

    def weights_at(self, time: float | Array) -> tuple[Tensor, Tensor]:
        """The weights (u, v) of a diagonal network at a time or several, (m, p) each; zero below 1e-308."""
        if self.coordinates is None:
            raise RankriseError(
                "this is a flow of full matrices: only a diagonal one determines its weights."
            )
        return self.coordinates.weights(self.place_at(time))

    def activation_times(self, threshold: float = 1e-3) -> Any:
        """The rescaled time (p,) at which each `|a|` first reaches `threshold`, inf for never. For matrices,
        one tensor (min(d1, d2),) per product, of its singular values.
        """
        first = [torch.full((min(shape),), math.inf, dtype=torch.float64) for shape in self.shapes]
        for crossing in reversed(self.crossings(threshold)):
            if crossing.upward:
                first[crossing.product][crossing.rank - 1] = crossing.time
        return torch.cat(first) if self.diagonal else tuple(first)

    def times_of(self, stages: Iterable[Stage], threshold: float = 1e-3) -> list[float]:
        """When each stage's product rises to its rank, inf for never; of several rises the nearest one."""
        rises: dict[tuple[int, int], list[float]] = {}
        for crossing in self.crossings(threshold):
            if crossing.upward:
                rises.setdefault((crossing.product, crossing.rank), []).append(crossing.time)
        every = ((stage.time, rises.get((stage.product, stage.rank), ())) for stage in stages)
        return [min(risen, key=lambda one: abs(one - time), default=math.inf) for time, risen in every]

    def crossings(self, threshold: float = 1e-3) -> list[Crossing]:
        """Every rise above `threshold` and every fall below it, in order of time."""
        if self.coordinates is not None:
            low, high = self.coordinates.level(threshold)
            rises = _passages(self.times, self.places, high, lambda *at: self.rates[at])
            falls = _passages(self.times, -self.places, -low, lambda *at: -self.rates[at])
            return sorted(Crossing(*one) for one in rises + falls)
        found = []
        for product, logs in enumerate(self.log_singular_values):
            level = torch.full_like(logs[0], math.log(threshold))
            for time, index, upward in _passages(self.times, logs, level, partial(self._log_rates, product)):
                found.append(Crossing(time, product, upward, index + 1))
        return sorted(found)

    def _log_rates(self, product: int, moments: Tensor, indices: Tensor) -> Tensor:
        """The rates of logarithms of singular values; nan where the product does not resolve them."""
        a, rates = (split_products(one[moments], self.shapes)[product] for one in (self.places, self.rates))
        left, values, right = torch.linalg.svd(a, full_matrices=False)
        each = torch.arange(len(moments))
        found = torch.einsum("mi,mij,mj->m", left[each, :, indices], rates, right[each, indices])
        value = values[each, indices]
        return torch.where(value > _RESOLVED * values[:, 0], found / value, math.nan)

    def to_dict(self) -> dict[str, Any]:
        """The moments of the flow, and when what became active, for JSON."""
        names = ("log_inverse_alpha", "ending", "message", "gradients")
        about = {name: getattr(self, name) for name in names}
        about |= {"times": self.times.tolist(), "losses": self.losses.tolist()}
        active = self.activation_times()
        if self.diagonal:
            return about | {"activation_times": active.tolist(), "values": self.values.tolist()}
        sizes = [logs.exp().tolist() for logs in self.log_singular_values]
        return about | {"activation_times": [times.tolist() for times in active], "singular_values": sizes}

    def __repr__(self) -> str:
        scale = f"alpha = 10^{-self.log_inverse_alpha / math.log(10):.4g}"
        return f"Flow from {scale}: {self.message} {self.gradients} gradients."


def gradient_flow(
    loss: LossFunction,
    u0: Array | Sequence[Array],
    v0: Array | Sequence[Array],
    log10_alpha: float = -32.0,
    until: float = 1.0,
    tolerance: float = 1e-5,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """Solve gradient flow from `alpha * (u0, v0)` to the rescaled time `until`.

    For a diagonal network, `loss(a)`, `u0` and `v0` are (p,), and the flow is `u' = v*g(u*v), v' = u*g(u*v)`
    with `g = -dL/da` (Eq. 4). For `loss(*products)` of matrices they are lists of U (d1, c) and V (d2, c),
    one per product, and the flow is `U' = -G V, V' = -G^T U` with `G = dL/dA` at `A = U V^T`.

    `tolerance` bounds the error of a step in the logarithm of a weight, divided by `log(1/alpha)`: at the
    default, activation times are good to about 1e-4. `progress` is called with the rescaled time reached.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=1.5)
    >>> flow.activation_times(), flow.at(0.75)
    (tensor([0.99..., 0.49...], dtype=torch.float64), tensor([ 0.0000, -2.0000], dtype=torch.float64))
    """
    if not (-math.inf < log10_alpha < 0 and 0 < until <= _LONGEST and tolerance > 0):
        raise RankriseError(
            f"log10_alpha is {log10_alpha}, until {until} and tolerance {tolerance}: pass -32 for a scale of "
            f"1e-32, a rescaled time of at most {_LONGEST:g}, and numbers above 0."
        )
    unit = -log10_alpha * math.log(10)
    matrices = isinstance(u0, list | tuple) and numpy.ndim(u0[0]) == 2
    pairs, starts = [], list[Any](zip(u0, v0, strict=True) if matrices else [(u0, v0)])
    for first, second in starts:
        u, v = (torch.as_tensor(one, dtype=torch.float64).detach() for one in (first, second))
        if u.shape[-1] != v.shape[-1]:
            raise RankriseError(
                f"u0 and v0 have shapes {tuple(u.shape)} and {tuple(v.shape)}: do they match?"
            )
        pairs.append((u, v))
    u, v = pairs[0]
    if not matrices:
        checked = checked_loss(loss, len(u))
        coordinates, z = Coordinates.of_weights(u, v, -unit)
        return diagonal_flow(checked, coordinates, z, unit, until, tolerance, progress)
    checked = checked_loss(loss, shapes=[(len(u), len(v)) for u, v in pairs])
    columns = [Columns.of_start(u, v, -unit) for u, v in pairs]
    solved = follow_columns(checked, columns, until * unit, min(tolerance * unit, _LOOSEST_MATRIX_STEP))
    return _collect(checked, solved, unit, until, None, progress)


def random_start(loss: Any, columns: int | None = None, seed: int = 1) -> tuple[Any, Any]:
    """Gaussian `u0` and `v0` for `gradient_flow`: vectors (p,), or lists of U (d1, c) and V (d2, c) with c
    `columns`. `loss` is a network, its size p or its shapes. Take another seed than the network's.

    >>> u0, v0 = random_start(4)
    >>> u0.shape, v0.dtype
    (torch.Size([4]), torch.float64)
    """
    source = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=source, dtype=torch.float64)
    size = getattr(loss, "size", loss)
    if isinstance(size, int):
        return draw(size), draw(size)
    shapes = [(d1, d2, columns or min(d1, d2)) for d1, d2 in getattr(loss, "shapes", loss)]
    u0, v0 = zip(*((draw(d1, inner), draw(d2, inner)) for d1, d2, inner in shapes), strict=True)
    return list(u0), list(v0)


def diagonal_flow(
    loss: Loss,
    coordinates: Coordinates,
    z: Tensor,
    unit: float,
    until: float,
    tolerance: float,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """The flow of a diagonal network from the place `z`, in times of `unit`."""
    # Beyond the unit itself: more at tiny scales, where transitions are far apart and their errors do not add
    # up, and a bound, because an error of log|a| that no activation time shows still shows in the values.
    allowed = tolerance * min(unit * (unit / 74) ** 0.25, 2000.0)
    solved = integrate(loss, coordinates, z, until * unit, allowed)
    return _collect(loss, solved, unit, until, coordinates, progress)


def _collect(
    loss: Loss,
    solved: Iterator[Moment],
    unit: float,
    until: float,
    coordinates: Coordinates | None,
    progress: Callable[[float], None] | None,
) -> Flow:
    """The flow through some moments; what was solved is kept, however the solve ends."""
    moments = list[Moment]()
    ending: Literal["reached", "not finite"] = "reached"
    message = f"The flow was followed to rescaled time {until:g}."
    try:
        for moment in solved:
            moments.append(moment)
            if progress is not None:
                progress(moment.time / unit)
    except StepTooSmall:
        if not moments:
            raise RankriseError("loss or its gradient is not finite at the start.") from None
        ending = "not finite"
        message = (
            f"Stopped at rescaled time {moments[-1].time / unit:.6g}, where the flow or its loss stops being "
            "finite: take an earlier until, or a loss bounded below and twice differentiable."
        )
    places = torch.stack([moment.place for moment in moments])
    logs = zip(*(moment.log_singular_values for moment in moments), strict=True)
    return Flow(
        times=places.new_tensor([min(moment.time / unit, until) for moment in moments]),
        losses=places.new_tensor([moment.loss for moment in moments]),
        log_inverse_alpha=unit,
        places=places,
        rates=torch.stack([moment.rate for moment in moments]) * unit,
        shapes=loss.shapes,
        ending=ending,
        message=message,
        gradients=loss.counts["gradients"],
        coordinates=coordinates,
        log_singular_values=tuple(torch.stack(of_product) for of_product in logs),
    )


def _hermite(part: Any, step: Any, ends: tuple[Any, Any], rates: tuple[Any, Any]) -> Any:
    """The cubic through values and rates at both ends of a step, at a `part` of it from 0 to 1."""
    rest = 1 - part
    return rest * rest * ((1 + 2 * part) * ends[0] + part * step * rates[0]) + part * part * (
        (1 + 2 * rest) * ends[1] - rest * step * rates[1]
    )


def _passages(
    times: Tensor, heights: Tensor, levels: Tensor, rates_at: Callable[[Tensor, Tensor], Tensor]
) -> list[tuple[float, int, bool]]:
    """When a column of `heights` (n, m) passes its level (m,): the time, the column, and whether upward.

    A column above its level at the beginning has a passage at time 0. Where `rates_at` gives nan, the rates
    at some moments of some columns are unknown, and growth is a line.
    """
    above = heights >= levels
    found = [(0.0, column, True) for column in above[0].nonzero()[:, 0].tolist()]
    steps, columns = (above[1:] != above[:-1]).nonzero(as_tuple=True)
    length, level = times[steps + 1] - times[steps], levels[columns]
    early, late = heights[steps, columns], heights[steps + 1, columns]
    rates = torch.stack([rates_at(steps, columns), rates_at(steps + 1, columns)])
    rates = torch.where(rates.isnan().any(0), (late - early) / length, rates)

    left, right = torch.zeros_like(length), torch.ones_like(length)
    for _ in range(60):
        middle = (left + right) / 2
        here = _hermite(middle, length, (early, late), (rates[0], rates[1]))
        before = (here > level) == (early > level)
        left, right = torch.where(before, middle, left), torch.where(before, right, middle)
    right = torch.where(early.isfinite() & late.isfinite(), right, 1.0)
    moments = times[steps] + right * length
    return found + list(
        zip(moments.tolist(), columns.tolist(), above[steps + 1, columns].tolist(), strict=True)
    )
