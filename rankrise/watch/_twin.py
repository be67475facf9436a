"""A copy of an attention module to try things on, and where in its parameters each head's weights lie."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rankrise.watch._families import Attention, Read
from rankrise.watch._linear import computed_weight, is_adapter, merged_adapter, used_forward
from rankrise.watch._projection import Projection

SEVERAL = "its heads are put together from several weights, or from numbers that are no weights of it"
FIRST = 2**20 + 1
"""The number that stands for the first weight, beyond what a matrix of its own could hold, such as ones."""


class Unprovable(Exception):
    """Why nothing can be said."""


def plain_copy(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy in evaluation, with adapters merged, computed weights as plain ones, and norms without what they
    add or take away, so that signs pass through them."""
    memory: dict[int, Any] = {}
    for part in module.modules():
        kept = vars(part).get("weight")
        if isinstance(kept, Tensor):  # computed by a hook: it is no leaf of the graph, and cannot be copied
            memory[id(kept)] = kept.detach().clone()
    twin = copy.deepcopy(module, memory)
    twin.eval()  # which gives nothing back in some classes
    for path, part in list(twin.named_modules()):
        owner, _, name = path.rpartition(".")
        if path and is_adapter(part):
            twin.get_submodule(owner)._modules[name] = merged_adapter(part)
        elif path and type(part) is nn.LayerNorm:
            norm = nn.RMSNorm(part.normalized_shape, part.eps, part.elementwise_affine)
            norm._parameters["weight"] = part._parameters["weight"]
            twin.get_submodule(owner)._modules[name] = norm
        else:
            _make_plain(part)
        if isinstance(part, nn.MultiheadAttention) and used_forward(part) is nn.MultiheadAttention.forward:
            part.bias_k = part.bias_v = None  # a key and a value beside those of the tokens
    for part in twin.modules():
        added = part._parameters.get("bias")
        if added is not None and "norm" in type(part).__name__.lower():
            added.data = torch.zeros_like(added)
    return twin if dtype is None else twin.to(dtype)


def is_tied(module: nn.Module) -> bool:
    """Whether a parameter of it has several names."""
    names = module.named_parameters(remove_duplicate=False)
    return len(list(names)) > len(list(module.parameters()))


def untie(module: nn.Module) -> None:
    """Give each name of a layer, or of a parameter, one of its own: what the module does with each is then
    seen, and is what it does with the one that they share."""
    layers: set[nn.Module] = set()
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if part in layers and any(True for _ in part.parameters()):
            owner, _, name = path.rpartition(".")
            module.get_submodule(owner)._modules[name] = copy.deepcopy(part)
        layers.add(part)
    parameters: set[nn.Parameter | None] = {None}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter in parameters and parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.detach().clone())
            parameters.add(parameter)


def _make_plain(part: nn.Module) -> None:
    """A weight that hooks or parametrizations compute becomes a parameter with that value."""
    if parametrize.is_parametrized(part):
        values = {name: getattr(part, name).detach() for name in part.parametrizations}  # type: ignore[union-attr]
        del part._modules["parametrizations"]
        # Its own class has the computed weights, for the original too.
        part.__class__ = type(part).__bases__[0]
        for name, value in values.items():
            part.register_parameter(name, nn.Parameter(value.clone()))
    elif "weight" in vars(part) and "weight" not in part._parameters:
        weight = computed_weight(part)
        part._forward_pre_hooks.clear()
        for name in [name for name in part._parameters if name.startswith("weight_")]:
            del part._parameters[name]
        delattr(part, "weight")
        part.register_parameter("weight", nn.Parameter(weight.detach().clone()))


def cast(given: Any, dtype: torch.dtype | None, widths: set[int]) -> Any:
    """The arguments in that type, and random where they are tokens; one tensor stays one tensor."""
    generator = torch.Generator().manual_seed(1)

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        kind = dtype or tensor.dtype
        if widths & set(tensor.shape[1:]) and tensor.ndim >= 2:
            return torch.randn(tensor.shape, generator=generator).to(tensor.device, kind)
        return tensor.detach().to(kind)

    return _with_tensors(given, converted)


def with_token_changed(given: Any, place: float, widths: set[int]) -> Any:
    """The arguments with the first feature of one token changed, at this share of all tokens."""

    def changed(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.ndim < 2 or tensor.shape[-1] not in widths:
            return tensor
        tokens = tensor.clone().flatten(0, -2)
        tokens[int(place * (len(tokens) - 1)), 0] += 1
        return tokens.view_as(tensor)

    return _with_tensors(given, changed)


def _with_tensors(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each tensor changed; one that is there several times stays one."""
    memory: dict[int, Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return memory.setdefault(id(value), change(value))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(convert(one) for one in value)
        if isinstance(value, dict):
            return {name: convert(one) for name, one in value.items()}
        return value

    return convert(given)


def numbered_heads(module: nn.Module, parameters: Sequence[nn.Parameter], read: Read) -> Attention:
    """The layout with numbers from `FIRST` on instead of weights, counted through the parameters: they tell
    where each head's weights lie, whatever views, cuts and copies are made of them."""
    kept = [parameter.data for parameter in parameters]
    start = FIRST
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


def numbers(projection: Projection, count: int) -> Tensor:
    """The numbers of the parameters by which each column of each block is turned, [blocks, d_in + 1, width]:
    those of its last layer, and of the bias in the last row, from 1 on; 0 is no parameter's."""
    last = projection.last or projection
    bias = last.weight.new_zeros(last.blocks, last.width) if last.bias is None else last.bias
    together = torch.cat([last.weight, bias[:, None]], 1)
    inside = torch.where(together == 0, 0, together.double() - (FIRST - 1))
    if (inside != inside.round()).any() or inside.min() < 0 or inside.max() > count:
        raise Unprovable(SEVERAL)
    return inside.long()


def shared_columns(numbered: Tensor) -> Tensor:
    """Which columns several blocks all have in common, [width]."""
    same = (numbered == numbered[:1]).all(1).all(0)
    return same if len(numbered) > 1 else torch.zeros_like(same)
