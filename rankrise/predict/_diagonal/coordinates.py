"""The exact coordinates of gradient flow on `a = u * v`: one number per pair (u, v), at any scale.

The gap `c = u^2 - v^2` never changes (Lemma 4.1), so each pair (u, v) moves on a hyperbola, and
`z = arcsinh(2uv/|c|)` says where. In `z` the flow `u' = v*g, v' = u*g` is

    dz/dt = 2 g(a),    a = (|c|/2) sinh(z) = exp(lift + z) - exp(lift - z),    lift = log(|c|/4),

and the initialisation scale enters only through `lift`, so nothing underflows. If `|u| = |v|`, the hyperbola
degenerates into two lines: `a` keeps its sign for ever, one of the two exponentials is absent, and `z` is
`log|a|` times that sign.
"""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The constants of motion of a flow, (p,) each.

    `lift` is `log(|c|/4)`; `rising` and `falling` are 1 where that exponential is present, else 0; `swapped`
    marks `|u| < |v|`; `sign` is that of the larger of the two weights.
    """

    lift: Tensor
    rising: Tensor
    falling: Tensor
    swapped: Tensor
    sign: Tensor

    @staticmethod
    def of_weights(u: Tensor, v: Tensor, log_alpha: float = 0.0) -> tuple["Coordinates", Tensor]:
        """The coordinates of weights `exp(log_alpha) * (u, v)`, and their place `z` (p,) in them.

        >>> u, v = torch.tensor([2.0, 1.0, 3.0]).double(), torch.tensor([1.0, -1.0, 0.0]).double()
        >>> coordinates, z = Coordinates.of_weights(u, v)
        >>> coordinates.product(z)
        tensor([ 2., -1.,  0.], dtype=torch.float64)
        """
        product, gap = u * v, (u - v).abs() * (u + v).abs()
        tied, one = gap == 0, torch.ones_like(gap)
        gap, size = torch.where(tied, one, gap), torch.where(tied, product.abs(), one)
        swapped = u.abs() < v.abs()
        coordinates = Coordinates(
            lift=torch.where(tied, 0.0, gap.log() + 2 * log_alpha - math.log(4)),
            rising=torch.where(tied & (product < 0), 0.0, one),
            falling=torch.where(tied & (product > 0), 0.0, one),
            swapped=swapped,
            sign=torch.where(swapped, v.sign(), u.sign()),
        )
        z = torch.where(tied, product.sign() * (size.log() + 2 * log_alpha), torch.asinh(2 * product / gap))
        return coordinates, z

    def where(self, chosen: Tensor, other: "Coordinates") -> "Coordinates":
        """These coordinates where `chosen` (p,), and the `other` ones elsewhere."""
        names = (part.name for part in fields(Coordinates))
        return Coordinates(*(torch.where(chosen, getattr(self, one), getattr(other, one)) for one in names))

    @property
    def tied(self) -> Tensor:
        """Whether `|u| = |v|`, (p,): the paper's theorem leaves this case out."""
        return self.rising != self.falling

    def product(self, z: Tensor) -> Tensor:
        """`a = u * v` at `z` (..., p)."""
        rising, falling = self._exponentials(z)
        return rising - falling

    def slope(self, z: Tensor) -> Tensor:
        """`da/dz = (u^2 + v^2)/2` at `z` (..., p): next to nothing for a coordinate that is not active."""
        rising, falling = self._exponentials(z)
        return rising + falling

    def level(self, magnitude: float) -> tuple[Tensor, Tensor]:
        """The `z` (p,) at which `a` is `-magnitude` and `+magnitude`; infinite for a sign it never has."""
        # exp(lift + z) - exp(lift - z) = m has z = arcsinh(m / (2 exp(lift))), taken in logarithms when that
        # overflows.
        ratio = math.log(magnitude / 2) - self.lift
        untied = torch.where(ratio > 20, ratio + math.log(2), torch.asinh(torch.exp(ratio.clamp(max=20))))
        height = torch.where(self.tied, math.log(magnitude), untied)
        never = torch.full_like(height, math.inf)
        low = -torch.where(self.falling == 0, never, height)
        return low, torch.where(self.rising == 0, never, height)

    def weights(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (u, v) at `z`, (p,) each; those too small for a float are zero.

        >>> u, v = torch.tensor([2.0, 1.0, -0.5]).double(), torch.tensor([1.0, -1.0, 3.0]).double()
        >>> coordinates, z = Coordinates.of_weights(u, v)
        >>> torch.stack(coordinates.weights(z))
        tensor([[ 2.0000,  1.0000, -0.5000],
                [ 1.0000, -1.0000,  3.0000]], dtype=torch.float64)
        """
        rising, falling = self._exponentials(z, root=2)
        larger, smaller = self.sign * (rising + falling), self.sign * (rising - falling)
        return torch.where(self.swapped, smaller, larger), torch.where(self.swapped, larger, smaller)

    def _exponentials(self, z: Tensor, root: int = 1) -> tuple[Tensor, Tensor]:
        """The two exponentials, or their roots; an absent one is 0, however large it would be."""
        rising, falling = torch.exp((self.lift + z) / root), torch.exp((self.lift - z) / root)
        return torch.where(self.rising == 0, 0.0, rising), torch.where(self.falling == 0, 0.0, falling)
