"""Gradient flow at any initialisation scale: of diagonal networks exactly (Eq. 4), and of full matrices."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.predict._diagonal import Coordinates, DiagonalPath, integrate
from rankrise.predict._loss import Loss, LossFunction, Shape, checked_columns, checked_loss
from rankrise.predict._matrices.columns import Columns
from rankrise.predict._matrices.follow import MatrixPath, follow_columns
from rankrise.predict._paths import Crossing, Moment, StepTooSmall, hermite

Ending = Literal["reached", "max steps", "not finite"]

LONGEST = 1e9
"""Beyond this rescaled time, float64 has no room for steps."""
MOST_COORDINATES = 10_000
MOST_STEPS = 100_000
_LOOSEST_MATRIX_STEP = 1e-2


@dataclass(frozen=True, eq=False, repr=False)
class Flow:
    """A solved gradient flow, in rescaled time `t / log(1/alpha)`.

    `times` (n,) are its moments, `losses` (n,) the loss there, `log_inverse_alpha` the unit of time. `ending`
    says how the solve ended and `message` what to do about it; `steps`, `gradients` and `hessian_columns` are
    what it cost. `path` gives what lies between the moments.
    """

    times: Tensor
    losses: Tensor
    log_inverse_alpha: float
    path: DiagonalPath | MatrixPath
    ending: Ending
    message: str
    steps: int
    gradients: int
    hessian_columns: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each product; (1, 1) throughout in a diagonal network."""
        return self.path.shapes

    @property
    def diagonal(self) -> bool:
        """Whether this is the flow of a diagonal network."""
        return isinstance(self.path, DiagonalPath)

    @cached_property
    def values(self) -> Tensor:
        """`a = u * v` at the moments, (n, p); for matrices, their flat products."""
        return self.path.product(self.path.places)

    def at(self, time: float | Array) -> Any:
        """`a` (p,) at a rescaled time, or a list of matrices (d1, d2); several times add a first axis."""
        flat = self.path.product(self.place_at(time))
        if self.diagonal:
            return flat
        parts = flat.split([rows * columns for rows, columns in self.shapes], dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def place_at(self, time: float | Array) -> Tensor:
        """The exact coordinate z of a diagonal network, or flat products, at one time or several, (m, p)."""
        asked = as_tensor("time", time, self.times.device).double()
        last = float(self.times[-1])
        if not ((asked >= 0) & (asked <= last * (1 + 1e-12))).all():
            raise RankriseError(f"time is {time}, but this flow goes from 0 to {last:g}: {self.message}")
        flat = asked.reshape(-1)
        after = torch.searchsorted(self.times, flat).clamp(1, len(self.times) - 1)
        step = self.times[after] - self.times[after - 1]
        part = ((flat - self.times[after - 1]) / step).clamp(0, 1)
        ends, rates = ((one[after - 1], one[after]) for one in (self.path.places, self.path.rates))
        place: Tensor = hermite(part[:, None], step[:, None], ends, rates)
        return place.reshape(*asked.shape, -1)

    def weights_at(self, time: float | Array) -> tuple[Tensor, Tensor]:
        """The weights (u, v) of a diagonal network at a time or several, (m, p) each; zero below 1e-308."""
        return self.path.coordinates.weights(self.place_at(time))  # type: ignore[union-attr]

    def activation_times(self, threshold: float = 1e-3) -> Any:
        """The rescaled time (p,) at which each `|a|` first reaches `threshold`, inf for never. For matrices,
        one tensor (min(d1, d2),) per product, of its singular values.
        """
        first = [torch.full((min(shape),), math.inf, dtype=torch.float64) for shape in self.shapes]
        for (product, rank), times in self.rises(threshold).items():
            first[product][rank - 1] = times[0]
        return torch.cat(first) if self.diagonal else tuple(first)

    def rises(self, threshold: float = 1e-3) -> dict[tuple[int, int], list[float]]:
        """The times of rises above `threshold`, by (product, rank); the rank of a coordinate is 1."""
        times: dict[tuple[int, int], list[float]] = {}
        for crossing in self.crossings(threshold):
            if crossing.upward:
                times.setdefault((crossing.product, crossing.rank), []).append(crossing.time)
        return times

    def crossings(self, threshold: float = 1e-3) -> list[Crossing]:
        """Every rise above `threshold` and every fall below it, in order of time."""
        if not threshold > 0:
            raise RankriseError(f"threshold is {threshold}: pass a size above 0, such as 1e-3.")
        return sorted(self.path.crossings(self.times, threshold), key=lambda crossing: crossing.time)

    def singular_values(self, product: int = 0) -> Tensor:
        """The singular values (n, min(d1, d2)) of a product at every moment, largest first."""
        return self.log_singular_values(product).exp()

    def log_singular_values(self, product: int = 0) -> Tensor:
        """Their logarithms, which resolve values below 1e-308 too."""
        if isinstance(self.path, MatrixPath):
            return self.path.log_singular_values[product]
        return self.values[:, product, None].abs().log()

    @property
    def tied(self) -> Tensor:
        """Whether `|u0| = |v0|`, (p,), in a diagonal network: such a coordinate never changes its sign."""
        return self.path.coordinates.tied  # type: ignore[union-attr]

    @property
    def conserved(self) -> tuple[Tensor, ...]:
        """For matrices, `U^T U - V^T V` (c, c) per product in units of alpha^2, which never changes."""
        return self.path.conserved  # type: ignore[union-attr]

    @property
    def drift(self) -> float:
        """For matrices, the largest relative change of a column by errors, before it was restored."""
        return self.path.drift  # type: ignore[union-attr]

    @property
    def balanced(self) -> tuple[bool, ...]:
        """Whether `U^T U = V^T V`, per product: its signs are then kept for ever, which is not generic."""
        return tuple(bool(constant.abs().max() < 1e-12) for constant in self.conserved)

    def to_dict(self) -> dict[str, Any]:
        """The moments of the flow, and when what became active, for JSON."""
        names = ("log_inverse_alpha", "ending", "message", "steps", "gradients", "hessian_columns")
        about = {name: getattr(self, name) for name in names}
        about |= {"times": self.times.tolist(), "losses": self.losses.tolist()}
        active = self.activation_times()
        if self.diagonal:
            return about | {"activation_times": active.tolist(), "values": self.values.tolist()}
        return about | {
            "drift": self.drift,
            "activation_times": [times.tolist() for times in active],
            "singular_values": [self.singular_values(one).tolist() for one in range(len(self.shapes))],
        }

    def __repr__(self) -> str:
        rises = sorted((times[0], key) for key, times in self.rises().items())
        columns = {
            "active from": [f"{time:.4f}" for time, _ in rises],
            "coordinate" if self.diagonal else "product": [str(product) for _, (product, _) in rises],
            "rank": ["" if self.diagonal else str(rank) for _, (_, rank) in rises],
        }
        scale = f"alpha = 10^{-self.log_inverse_alpha / math.log(10):.4g}"
        cost = f"{self.steps} steps, {self.gradients} gradients"
        return text_table(f"Flow from {scale}: {self.message} {cost}.", columns)


def gradient_flow(
    loss: LossFunction,
    u0: Array | Sequence[Array],
    v0: Array | Sequence[Array],
    log10_alpha: float = -32.0,
    until: float = 1.0,
    tolerance: float = 1e-5,
    max_steps: int = MOST_STEPS,
    device: torch.device | str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """Solve gradient flow from `alpha * (u0, v0)` to the rescaled time `until`.

    For a diagonal network, `loss(a)`, `u0` and `v0` are (p,), and the flow is `u' = v*g(u*v), v' = u*g(u*v)`
    with `g = -dL/da` (Eq. 4). For `loss(*products)` of matrices they are lists of U (d1, c) and V (d2, c),
    one per product, and the flow is `U' = -G V, V' = -G^T U` with `G = dL/dA` at `A = U V^T`.

    The scale is given as its logarithm, so 10**-1000 is as good as 0.1. `tolerance` bounds the error of a
    step in the logarithm of a weight, divided by `log(1/alpha)`: at the default, activation times are good to
    about 1e-4. `progress` is called with the rescaled time reached.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=1.5)
    >>> flow.activation_times(), flow.at(0.75)
    (tensor([0.99..., 0.49...], dtype=torch.float64), tensor([ 0.0000, -2.0000], dtype=torch.float64))
    """
    if not -math.inf < log10_alpha < 0:
        raise RankriseError(f"log10_alpha is {log10_alpha}: pass a number below 0, -32 for a scale of 1e-32.")
    if not 0 < until <= LONGEST:
        raise RankriseError(f"until is {until}: pass a rescaled time above 0 and at most {LONGEST:g}.")
    if not 0 < tolerance < 1 or max_steps < 1:
        raise RankriseError(f"tolerance is {tolerance} and max_steps {max_steps}: pass numbers above 0.")
    unit = -log10_alpha * math.log(10)
    pairs, matrices = _checked_start(u0, v0, device)
    if not matrices:
        ((u, v),) = pairs
        checked = checked_loss(loss, len(u), device=u.device)
        coordinates, z = Coordinates.of_weights(u, v, -unit)
        return diagonal_flow(checked, coordinates, z, unit, until, tolerance, max_steps, progress)
    checked = checked_loss(loss, shapes=[(len(u), len(v)) for u, v in pairs], device=pairs[0][0].device)
    columns = [Columns.of_start(u, v, -unit) for u, v in pairs]
    solved = follow_columns(checked, columns, until * unit, min(tolerance * unit, _LOOSEST_MATRIX_STEP))
    conserved = tuple(u.T @ u - v.T @ v for u, v in pairs)
    path_of = partial(MatrixPath.of, shapes=checked.shapes, conserved=conserved, unit=unit)
    return _solve(checked, solved, path_of, unit, until, max_steps, progress)


def random_start(
    loss: Any, columns: int | Sequence[int] | None = None, seed: int = 1, device: torch.device | str = "cpu"
) -> tuple[Any, Any]:
    """Gaussian `u0` and `v0` for `gradient_flow`: the direction of a start, before the scale alpha.

    `loss` is a network, or its size, or its shapes. For a size p both are (p,); for shapes they are lists of
    U (d1, c) and V (d2, c), c being `columns`. The seed should not be the network's, whose data were drawn
    from the same numbers.

    >>> u0, v0 = random_start(4)
    >>> u0.shape, v0.dtype
    (torch.Size([4]), torch.float64)
    >>> u0, v0 = random_start([(3, 4), (2, 2)], columns=2)
    >>> [tuple(u.shape) for u in u0], [tuple(v.shape) for v in v0]
    ([(3, 2), (2, 2)], [(4, 2), (2, 2)])
    """
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(device)

    size = getattr(loss, "size", loss)
    if isinstance(size, int):
        return draw(size), draw(size)
    shapes = getattr(loss, "shapes", loss)
    inner = checked_columns(columns, shapes)
    pairs = [(draw(d1, count), draw(d2, count)) for (d1, d2), count in zip(shapes, inner, strict=True)]
    return [u for u, _ in pairs], [v for _, v in pairs]


def diagonal_flow(
    loss: Loss,
    coordinates: Coordinates,
    z: Tensor,
    unit: float,
    until: float,
    tolerance: float,
    max_steps: int = MOST_STEPS,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """The flow of a diagonal network from the place `z`, in times of `unit`."""
    # Beyond the unit itself: more at tiny scales, where transitions are far apart and their errors do not add
    # up, and a bound, because an error of log|a| that no activation time shows still shows in the values.
    allowed = tolerance * min(unit * (unit / 74) ** 0.25, 2000.0)
    if len(z) > MOST_COORDINATES:
        raise RankriseError(
            f"{len(z)} coordinates have a Jacobian of {8e-9 * len(z) ** 2:.3g} GB: a flow takes at most "
            f"{MOST_COORDINATES}."
        )

    def path_of(moments: list[Moment]) -> DiagonalPath:
        places, rates = ([getattr(moment, name) for moment in moments] for name in ("place", "rate"))
        return DiagonalPath(coordinates, torch.stack(places), torch.stack(rates) * unit)

    solved = integrate(loss, coordinates, z, until * unit, allowed)
    return _solve(loss, solved, path_of, unit, until, max_steps, progress)


def _solve(
    loss: Loss,
    solved: Iterator[Moment],
    path_of: Callable[[list[Moment]], DiagonalPath | MatrixPath],
    unit: float,
    until: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> Flow:
    """Collect the moments of a flow; what was solved is kept, however the solve ends."""
    moments, steps = list[Moment](), -1
    ending: Ending = "reached"
    message = f"The flow was followed to rescaled time {until:g}."
    try:
        for moment in solved:
            moments.append(moment)
            steps += moment.accepted
            if progress is not None and moment.accepted:
                progress(moment.time / unit)
            if steps >= max_steps and moment.time < until * unit:
                ending = "max steps"
                where = f"at rescaled time {moment.time / unit:.6g}"
                message = f"Stopped after {max_steps} steps {where}: raise max_steps or tolerance."
                break
    except StepTooSmall:
        if not moments:
            raise RankriseError("loss or its gradient is not finite at the start.") from None
        ending = "not finite"
        message = (
            f"Stopped at rescaled time {moments[-1].time / unit:.6g}, where the flow or its loss stops being "
            "finite: take an earlier until, or a loss bounded below and twice differentiable."
        )
    path, times = path_of(moments), [min(moment.time / unit, until) for moment in moments]
    return Flow(
        times=torch.tensor(times, dtype=torch.float64, device=path.places.device),
        losses=torch.tensor([one.loss for one in moments], dtype=torch.float64, device=path.places.device),
        log_inverse_alpha=unit,
        path=path,
        ending=ending,
        message=message,
        steps=steps,
        gradients=loss.counts["gradients"],
        hessian_columns=loss.counts["columns"],
    )


def _checked_start(
    u0: Any, v0: Any, device: torch.device | str | None
) -> tuple[list[tuple[Tensor, Tensor]], bool]:
    """The initial weights of each product, and whether they are matrices rather than one pair of vectors."""
    matrices = numpy.ndim(u0[0]) == 2 if isinstance(u0, list | tuple) and u0 else getattr(u0, "ndim", 0) == 3
    if matrices and len(u0) != len(v0):
        raise RankriseError(f"u0 has {len(u0)} matrices and v0 has {len(v0)}: pass one per product in each.")
    pairs = []
    for first, second in zip(u0, v0, strict=True) if matrices else [(u0, v0)]:
        u, v = as_tensor("u0", first), as_tensor("v0", second)
        if u.ndim != 1 + matrices or v.ndim != u.ndim or u.shape[-1] != v.shape[-1]:
            raise RankriseError(
                f"u0 and v0 have shapes {tuple(u.shape)} and {tuple(v.shape)}: pass two vectors (p,), or two "
                "lists of matrices (d, c)."
            )
        if not (u.isfinite().all() and v.isfinite().all()):
            raise RankriseError("u0 or v0 is not finite.")
        moves = u.any() | v.any() if matrices else ((u != 0) | (v != 0)).all()
        if not moves:
            raise RankriseError("u0 and v0 are both zero in a product, which then never moves: leave it out.")
        u, v = (one.detach().to(dtype=torch.float64, device=device or one.device) for one in (u, v))
        pairs.append((u, v))
    return pairs, matrices
