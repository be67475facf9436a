"""One projection as a matrix, cut into the blocks of its heads."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Unreadable(Exception):
    """Why a module that looks like attention cannot be read; `heads` makes a sentence of it that names it."""


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
    last: "Projection | None" = None
    """Of several layers in a row the last one, cut in the same way: its signs are those of the whole."""

    @property
    def blocks(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[-1]

    def cut(self, parts: int, interleaved: bool = False) -> "Projection":
        """Cut every block into `parts` blocks of equal width; `interleaved` where the columns are dealt to
        them in turn, as in `view(..., size, parts)`.

        >>> [list(block[0]) for block in Projection(torch.arange(4.0)[None, None]).cut(2, True).weight]
        [[tensor(0.), tensor(2.)], [tensor(1.), tensor(3.)]]
        """
        if parts < 1 or self.width % parts:
            raise Unreadable(f"its projection of width {self.width} cannot be cut into {parts} equal parts")
        return self._on_columns(lambda columns: _apart(columns, parts, interleaved))

    def split(self, *widths: int, interleaved: bool = False) -> tuple["Projection", ...]:
        """Split every block along its width: into those widths, or for one number into that many parts, which
        are `interleaved` where the columns are dealt to them in turn, as in `view(..., size, parts)`."""
        if len(widths) == 1:
            widths = (self.width // widths[0],) * widths[0]
        elif interleaved:
            raise Unreadable(f"interleaved parts of widths {widths} were asked for, which have to be equal")
        if sum(widths) != self.width or min(widths) < 1:
            raise Unreadable(f"its projection of width {self.width} cannot be split into widths {widths}")
        if self.bias is not None and self.bias.shape[-1] != self.width:
            raise Unreadable(f"its projection of width {self.width} has a bias of {self.bias.shape[-1]}")
        if interleaved:
            count = len(widths)
            return tuple(self._part(slice(place, None, count)) for place in range(count))
        starts = [sum(widths[:place]) for place in range(len(widths))]
        return tuple(
            self._part(slice(start, start + width)) for start, width in zip(starts, widths, strict=True)
        )

    def then(self, second: "Projection", scale: Tensor | None = None) -> "Projection":
        """This map of one block, an elementwise `scale` (the weights of a norm), then `second`: as one map.

        It is a product, not a view, and in float32 at least: half precision would round away a small change.

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
        return Projection(
            (self.weight.to(dtype) * factor) @ up,
            bias,
            (*self.layers, *(() if scale is None else (scale,)), *second.layers),
            second.last or replace(second, last=None),
        )

    def with_shared(self, shared: "Projection") -> "Projection":
        """Each block, made wider by the one block of `shared` that all of them have."""
        weight, bias = _joined(self, shared)
        last = Projection(*_joined(self.last or self, shared.last or shared))
        return Projection(weight, bias, (*self.layers, *shared.layers), last)

    def from_interleaved(self, heads: int) -> "Projection":
        """The output projection that takes what heads give head by head, of one that takes it interleaved, as
        after `flatten` of (..., size, heads)."""
        if heads < 1 or self.weight.shape[1] % heads:
            raise Unreadable(
                f"its projection from {self.weight.shape[1]} cannot be cut into {heads} equal parts"
            )
        sorted_rows = _apart(self.weight.mT, heads, interleaved=True).flatten(-2).mT
        return replace(self, weight=sorted_rows)

    def _on_columns(self, cut: Callable[[Tensor], Tensor]) -> "Projection":
        """Each block in several, by a function from [..., width] to [..., parts, width of a part]."""
        weight = cut(self.weight).transpose(1, 2).flatten(0, 1)
        bias = None if self.bias is None else cut(self.bias).flatten(0, 1)
        return Projection(weight, bias, self.layers, self.last and self.last._on_columns(cut))

    def _part(self, columns: slice) -> "Projection":
        """Some columns of each block."""
        bias = None if self.bias is None else self.bias[..., columns]
        last = self.last and self.last._part(columns)
        return Projection(self.weight[..., columns], bias, self.layers, last)


def _apart(columns: Tensor, parts: int, interleaved: bool) -> Tensor:
    """[..., width] as [..., parts, width / parts]."""
    return columns.unflatten(-1, (-1, parts)).mT if interleaved else columns.unflatten(-1, (parts, -1))


def _joined(blocks: Projection, shared: Projection) -> tuple[Tensor, Tensor | None]:
    """The columns of all blocks and those of the one that they share; where the two come from inputs of
    another width, with zeros below the narrower."""
    count, rows = blocks.blocks, max(blocks.weight.shape[1], shared.weight.shape[1])
    wide, narrow = (
        torch.nn.functional.pad(one.weight.to(blocks.weight), (0, 0, 0, rows - one.weight.shape[1]))
        for one in (blocks, shared)
    )
    weight = torch.cat([wide, narrow.expand(count, -1, -1)], -1)
    if blocks.bias is None and shared.bias is None:
        return weight, None
    biases = [
        part.weight.new_zeros(part.blocks, part.width) if part.bias is None else part.bias
        for part in (blocks, shared)
    ]
    return weight, torch.cat([biases[0], biases[1].to(weight).expand(count, -1)], -1)
