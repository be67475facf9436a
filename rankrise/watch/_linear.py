"""Linear layers as projections, cut into the blocks of their heads."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

from rankrise.foundations.errors import RankriseError
from rankrise.watch._change import refuse_quantised

# The only child of a module inside torch.compile, activation checkpointing and FSDP1
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_LIBRARIES = ("transformers", "timm", "litgpt", "vit_pytorch")  # checked against their own forward pass
_shapes_alone: ContextVar[bool] = ContextVar("shapes_alone", default=False)


class Unreadable(Exception):
    """Why a module that looks like attention cannot be read. `heads` turns it into an error or a warning."""


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Read projections without values, which costs no memory."""
    token = _shapes_alone.set(True)
    try:
        yield
    finally:
        _shapes_alone.reset(token)


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map `x -> x @ weight + bias`, cut into blocks: one at first, later one for each head.

    `weight` is [blocks, d_in, width] and `bias`, if there is one, [blocks, width]. Both are views wherever
    strides allow it. Where q, k and v are fused, `[part.cut(heads) for part in fused.split(3)]` reads those
    that stand one after the other, and `fused.cut(heads).split(3)` those that stand so within each head.
    """

    weight: Tensor
    bias: Tensor | None = None
    layers: tuple[object, ...] = ()  # or bare weights, in the order in which they act

    @property
    def blocks(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[-1]

    def cut(self, parts: int) -> "Projection":
        """Cut every block into `parts` blocks of equal width."""
        if parts < 1 or self.width % parts:
            raise Unreadable(f"its projection of width {self.width} cannot be cut into {parts} equal parts")
        weight = self.weight.unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
        bias = None if self.bias is None else self.bias.unflatten(-1, (parts, -1)).flatten(0, 1)
        return replace(self, weight=weight, bias=bias)

    def split(self, *widths: int) -> tuple["Projection", ...]:
        """Split every block along its width: into these widths, or into one number of equal parts."""
        if len(widths) == 1:
            widths = (self.width // widths[0],) * widths[0]
        if sum(widths) != self.width or min(widths) < 1:
            raise Unreadable(f"its projection of width {self.width} cannot be split into widths {widths}")
        biases = [None] * len(widths) if self.bias is None else self.bias.split(widths, -1)
        parts = zip(self.weight.split(widths, -1), biases, strict=True)
        return tuple(replace(self, weight=weight, bias=bias) for weight, bias in parts)

    def then(self, second: "Projection", scale: Tensor | None = None) -> "Projection":
        """Compose: this map of one block, an elementwise `scale` (the weights of a norm), then `second`.

        The result is a product, not a view, in float32 at least: half precision would round away a small
        change.
        """
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        factor = 1.0 if scale is None else _values(scale).to(self.weight.device, dtype)
        up = second.weight.to(dtype)
        bias = None if second.bias is None else second.bias.to(dtype)
        if self.bias is not None:
            moved = ((self.bias.to(dtype) * factor) @ up)[:, 0]
            bias = moved if bias is None else bias + moved
        layers = (*self.layers, *(() if scale is None else (scale,)), *second.layers)
        return Projection((self.weight.to(dtype) * factor) @ up, bias, layers)

    def with_shared(self, shared: "Projection") -> "Projection":
        """Widen each block by the one block of `shared`, which all of them have."""
        weight = torch.cat([self.weight, shared.weight.to(self.weight).expand(self.blocks, -1, -1)], -1)
        bias = None
        if self.bias is not None or shared.bias is not None:
            own = weight.new_zeros(self.blocks, self.width) if self.bias is None else self.bias
            other = weight.new_zeros(1, shared.width) if shared.bias is None else shared.bias
            bias = torch.cat([own.to(weight), other.to(weight).expand(self.blocks, -1)], -1)
        return Projection(weight, bias, (*self.layers, *shared.layers))


def linear(source: nn.Module | Tensor, bias: Tensor | None = None) -> Projection:
    """Read a linear layer, or a bare weight in `nn.Linear`'s (out, in) layout, as a projection of one block.

    Reads `nn.Linear`, transformers' `Conv1D`, convolutions of kernel size 1, and any of these inside a PEFT
    adapter (merged into a copy), `torch.compile`, activation checkpointing or a `Sequential` with dropout.
    Parametrizations are computed, `DTensor`s gathered. Quantised weights, shards of ZeRO-3 and FSDP1 and meta
    tensors are refused. `bias` is for one kept elsewhere.

    >>> layer = nn.Linear(5, 6)
    >>> torch.equal(linear(layer).weight[0], layer.weight.T)
    True
    """
    if isinstance(source, Tensor):
        return _project(source, bias, source)
    layer = _inside(source)
    if layer is None:
        raise Unreadable(f"{type(source).__name__} is not a linear layer that is known here")
    module: Any = merged_adapter(layer) if is_adapter(layer) else layer
    computed = parametrize.is_parametrized(module, "weight")
    further = {name for name, _ in module.named_parameters() if not name.startswith("parametrizations.")}
    if (not computed and "weight" not in module._parameters) or further - {"weight", "bias"}:
        raise Unreadable(
            f"its {type(module).__name__} computes its matrix from {', '.join(sorted(further))}: merge them"
        )
    with torch.no_grad():
        # in training, a spectral norm would take a step
        weight = copy.deepcopy(module.parametrizations["weight"]).eval()() if computed else module.weight
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        weight = weight.flatten(1)
    elif is_conv1d(module):
        weight = weight.T
    return _project(weight, module.bias if bias is None else bias, layer)


def is_linear(module: object) -> bool:
    """Whether `linear` can read this module."""
    return _inside(module) is not None


def _inside(module: object) -> nn.Module | None:
    """The linear layer, or PEFT's layer around it, inside wrappers and beside dropout."""
    if not isinstance(module, nn.Module):
        return None
    wrapped = next((module._modules[name] for name in _WRAPPERS if name in module._modules), None)
    if wrapped is not None:
        return _inside(wrapped)
    if is_adapter(module):
        return module if _inside(module._modules["base_layer"]) is not None else None
    if isinstance(module, nn.ModuleList) or used_forward(module) is nn.Sequential.forward:
        rest = [one for one in module.children() if not isinstance(one, (nn.Dropout, nn.Identity))]
        return _inside(rest[0]) if len(rest) == 1 else None
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module if set(module.kernel_size) == {1} and module.groups == 1 else None
    return module if isinstance(module, nn.Linear) or is_conv1d(module) else None


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' `Conv1D`, whose weight is (in, out). Does not import transformers."""
    kinds = type(module).__mro__
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in kinds)


def is_adapter(module: nn.Module) -> bool:
    """Whether it is a PEFT layer: an original layer with adapters around it."""
    return "base_layer" in module._modules and hasattr(module, "merge") and hasattr(module, "active_adapters")


def is_known(made: object) -> bool:
    """Whether a class or function comes from a library whose layouts were checked."""
    return str(getattr(made, "__module__", "")).split(".")[0] in _LIBRARIES


def works_as_known(module: nn.Module) -> bool:
    """Whether its class and also its forward pass come from such a library: users replace forward passes."""
    return is_known(type(module)) and is_known(used_forward(module))


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a linear layer may use its weight in another way than `nn.Linear` does."""
    used = used_forward(layer)
    known = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward)
    return not (used in known or is_adapter(layer) or is_known(used))


def used_forward(module: nn.Module) -> Callable[..., Any]:
    """The function that runs when this module is called, inside wrappers such as accelerate's."""
    used = inspect.unwrap(module.forward)
    return getattr(used, "__func__", used)


def plain_name(path: str) -> str:
    """The name of a module or weight without the names of its wrappers."""
    return ".".join(part for part in path.split(".") if part not in (*_WRAPPERS, "base_layer"))


def merged_adapter(adapter: Any) -> nn.Module:
    """A plain layer with the active adapters merged in by PEFT, on a copy.

    In float32 or better: half precision would round away the small change that is to be measured.
    """
    base: Any = _inside(adapter.base_layer)
    if _shapes_alone.get() or adapter.disable_adapters or adapter.merged:
        return base
    _values(base.weight)  # refuses quantised ones, which PEFT would merge
    adapter = copy.deepcopy(adapter)
    if base.weight.dtype in (torch.float16, torch.bfloat16):
        adapter = adapter.float()
    with torch.no_grad():
        adapter.merge()
    return adapter.get_base_layer()


def _project(weight: Tensor, bias: Tensor | None, source: object) -> Projection:
    weight = _values(weight)
    if weight.ndim != 2:
        raise RankriseError(f"A weight has shape {[*weight.shape]}: gather it first from ZeRO-3 or FSDP1.")
    return Projection(weight.T[None], None if bias is None else _values(bias)[None], (source,))


def _values(tensor: Tensor) -> Tensor:
    """The tensor's values as a plain tensor that needs no gradient."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and not isinstance(tensor, DTensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise RankriseError(f"A weight is a {kind}, not a plain tensor: dequantise the model first.")
    refuse_quantised(tensor, "A weight")
    if _shapes_alone.get():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if tensor.is_meta:
        raise RankriseError("A weight is on the meta device, so it has no values: load the checkpoint first.")
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
