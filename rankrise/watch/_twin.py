"""A copy of an attention module to try things on, and where in its parameters each head's weights lie."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.watch._families import Attention, Read
from rankrise.watch._projection import Projection, is_adapter, merged_adapter


class Unprovable(Exception):
    """Why nothing can be said."""


def plain_copy(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy in evaluation, with adapters merged, and norms without what they add, which keeps its sign."""
    twin = copy.deepcopy(module)
    twin.eval()  # which gives nothing back in some classes
    for path, part in list(twin.named_modules()):
        if path and is_adapter(part):
            owner, _, name = path.rpartition(".")
            twin.get_submodule(owner)._modules[name] = merged_adapter(part)
    for part in twin.modules():
        added = part._parameters.get("bias")
        if added is not None and "norm" in type(part).__name__.lower():
            added.data = torch.zeros_like(added)
    return twin if dtype is None else twin.to(dtype)


def cast(given: Any, dtype: torch.dtype | None, widths: set[int]) -> Any:
    """The arguments in that type, and random where they are tokens; one tensor stays one tensor."""
    generator = torch.Generator().manual_seed(1)
    memory: dict[int, Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return memory.setdefault(id(value), converted(value))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(convert(one) for one in value)
        if isinstance(value, dict):
            return {name: convert(one) for name, one in value.items()}
        return value

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        kind = dtype or tensor.dtype
        if widths & set(tensor.shape[1:]) and tensor.ndim >= 2:
            return torch.randn(tensor.shape, generator=generator).to(tensor.device, kind)
        return tensor.detach().to(kind)

    return convert(given)


def numbered_heads(module: nn.Module, parameters: Sequence[nn.Parameter], read: Read) -> Attention:
    """The layout with numbers from 1 on instead of weights, counted through the parameters: they tell where
    each head's weights lie, whatever views, cuts and copies are made of them."""
    kept = [parameter.data for parameter in parameters]
    start = 1
    try:
        for parameter in parameters:
            numbers = torch.arange(start, start + parameter.numel(), dtype=torch.float64)
            parameter.data = numbers.view(parameter.shape)
            start += parameter.numel()
        attention = read(module)
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data
    assert attention is not None
    return attention


def places(projection: Projection, count: int) -> list[Tensor]:
    """The numbers of each block's weights and biases; 0 is no parameter's."""
    weights = projection.weight.flatten(1)
    together = weights if projection.bias is None else torch.cat([weights, projection.bias], 1)
    if (together != together.round()).any() or together.min() < 0 or together.max() > count:
        raise Unprovable("its heads are put together from several weights")
    found = [block[block > 0].long() for block in together]
    seen = torch.zeros(count + 1, dtype=torch.bool)
    seen[torch.cat(found)] = True
    if seen.sum() < sum(map(len, found)):
        raise Unprovable("its heads are put together from several weights")
    return found
