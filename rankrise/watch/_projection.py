"""One linear map as a matrix, cut into the blocks of its heads."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Reading = Literal["values", "shapes", "last layers"]
_reading: ContextVar[Reading] = ContextVar("reading", default="values")


class Unreadable(Exception):
    """Why a module that looks like attention cannot be read. `heads` turns it into an error or a warning."""


@contextlib.contextmanager
def read_as(reading: Reading) -> Iterator[None]:
    """Choose what projections hold: the weights' values; only their shapes, which costs no memory; or, where
    layers follow one another, the values of the last layer instead of their product."""
    token = _reading.set(reading)
    try:
        yield
    finally:
        _reading.reset(token)


def reading() -> Reading:
    """What projections hold at the moment."""
    return _reading.get()


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map `x -> x @ weight + bias`, cut into blocks: one at first, later one for each head.

    `weight` is [blocks, d_in, width] and `bias`, if there is one, [blocks, width]. Both are views wherever
    strides allow it.

    >>> from rankrise.watch import linear
    >>> fused = linear(torch.nn.Linear(8, 24))          # q, k and v of 4 heads of size 2
    >>> query, key, value = fused.split(3)              # laid out one after the other ...
    >>> tuple(query.cut(4).weight.shape)
    (4, 8, 2)
    >>> query, key, value = fused.cut(4).split(3)       # ... or side by side within each head
    >>> tuple(query.weight.shape)
    (4, 8, 2)
    """

    weight: Tensor
    bias: Tensor | None = None
    layers: tuple[object, ...] = ()
    """The layers, or bare weights, that it is made of, in the order in which they act."""

    @property
    def blocks(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[-1]

    def cut(self, parts: int, interleaved: bool = False) -> "Projection":
        """Cut every block into `parts` blocks of equal width. `interleaved` deals the columns out in turn, as
        `view(..., size, parts)` does.

        >>> [list(block[0]) for block in Projection(torch.arange(4.0)[None, None]).cut(2, True).weight]
        [[tensor(0.), tensor(2.)], [tensor(1.), tensor(3.)]]
        """
        if parts < 1 or self.width % parts:
            raise Unreadable(f"its projection of width {self.width} cannot be cut into {parts} equal parts")

        def apart(columns: Tensor) -> Tensor:
            """[..., width] as [..., parts, width / parts]."""
            return (
                columns.unflatten(-1, (-1, parts)).mT if interleaved else columns.unflatten(-1, (parts, -1))
            )

        weight = apart(self.weight).transpose(1, 2).flatten(0, 1)
        bias = None if self.bias is None else apart(self.bias).flatten(0, 1)
        return replace(self, weight=weight, bias=bias)

    def split(self, *widths: int, interleaved: bool = False) -> tuple["Projection", ...]:
        """Split every block along its width: into these widths, or into one number of equal parts.
        `interleaved` deals the columns out in turn, as `view(..., size, parts)` does."""
        if len(widths) == 1:
            widths = (self.width // widths[0],) * widths[0]
        if sum(widths) != self.width or min(widths) < 1:
            raise Unreadable(f"its projection of width {self.width} cannot be split into widths {widths}")
        if self.bias is not None and self.bias.shape[-1] != self.width:
            raise Unreadable(f"its projection of width {self.width} has a bias of {self.bias.shape[-1]}")
        if interleaved:
            return tuple(self._columns(slice(place, None, len(widths))) for place in range(len(widths)))
        starts = [sum(widths[:place]) for place in range(len(widths))]
        return tuple(
            self._columns(slice(start, start + width)) for start, width in zip(starts, widths, strict=True)
        )

    def then(self, second: "Projection", scale: Tensor | None = None) -> "Projection":
        """Compose: this map of one block, an elementwise `scale` (the weights of a norm), then `second`.

        The result is a product, not a view, in float32 at least: half precision would round away a small
        change.

        >>> from rankrise.watch import linear
        >>> down, up = linear(torch.nn.Linear(6, 2)), linear(torch.nn.Linear(2, 8)).cut(4)
        >>> both = down.then(up)
        >>> tuple(both.weight.shape), torch.allclose(both.weight[3], down.weight[0] @ up.weight[3])
        ((4, 6, 2), True)
        """
        if self.blocks != 1 or self.width != second.weight.shape[1]:
            raise Unreadable(
                f"a projection to {self.width} in {self.blocks} blocks stands before one that takes "
                f"{second.weight.shape[1]}"
            )
        layers = (*self.layers, *(() if scale is None else (scale,)), *second.layers)
        if reading() == "last layers":
            return replace(second, layers=layers)
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        if isinstance(scale, DTensor):
            scale = scale.full_tensor()
        factor = torch.ones(()) if scale is None else scale.detach()
        factor = factor.to(self.weight.device, dtype)
        up = second.weight.to(dtype)
        bias = None if second.bias is None else second.bias.to(dtype)
        if self.bias is not None:
            moved = ((self.bias.to(dtype) * factor) @ up)[:, 0]
            bias = moved if bias is None else bias + moved
        return Projection((self.weight.to(dtype) * factor) @ up, bias, layers)

    def with_shared(self, shared: "Projection") -> "Projection":
        """Widen each block by the one block of `shared`, which all of them have."""
        rows = max(
            self.weight.shape[1], shared.weight.shape[1]
        )  # they differ where only last layers are read
        own, common = (
            torch.nn.functional.pad(one.weight.to(self.weight), (0, 0, 0, rows - one.weight.shape[1]))
            for one in (self, shared)
        )
        bias = None
        if self.bias is not None or shared.bias is not None:
            first, second = (
                one.weight.new_zeros(one.blocks, one.width) if one.bias is None else one.bias
                for one in (self, shared)
            )
            bias = torch.cat([first, second.to(own).expand(self.blocks, -1)], -1)
        weight = torch.cat([own, common.expand(self.blocks, -1, -1)], -1)
        return Projection(weight, bias, (*self.layers, *shared.layers))

    def from_interleaved(self, heads: int) -> "Projection":
        """Sort the inputs of an output projection that takes the heads' columns dealt out in turn, as after
        `flatten` of (..., size, heads)."""
        inputs = self.weight.shape[1]
        if heads < 1 or inputs % heads:
            raise Unreadable(f"its projection from {inputs} cannot be cut into {heads} equal parts")
        return replace(self, weight=self.weight.mT.unflatten(-1, (-1, heads)).mT.flatten(-2).mT)

    def _columns(self, columns: slice) -> "Projection":
        bias = None if self.bias is None else self.bias[..., columns]
        return replace(self, weight=self.weight[..., columns], bias=bias)
