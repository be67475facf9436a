"""One projection as a matrix: which side of its weight is which, what is merged into it, what is refused."""

import contextlib
import copy
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.foundations.errors import RankriseError

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names of the one child of what torch.compile, activation checkpointing and FSDP1 put around a module."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_shapes_only: ContextVar[bool] = ContextVar("shapes_only", default=False)


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map `x -> x @ weight + bias`, cut into blocks: one at first, later one for each head.

    `weight` is [blocks, d_in, width] and `bias`, if there is one, [blocks, width]. Both are views wherever
    strides allow it.

    >>> fused = linear(nn.Linear(8, 24))                # q, k and v of 4 heads of size 2
    >>> query, key, value = fused.split(3)              # laid out one after the other ...
    >>> tuple(query.cut(4).weight.shape)
    (4, 8, 2)
    >>> query, key, value = fused.cut(4).split(3)       # ... or side by side within each head
    >>> tuple(query.weight.shape)
    (4, 8, 2)
    """

    weight: Tensor
    bias: Tensor | None = None

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
        return Projection(weight, bias)

    def split(self, *widths: int) -> tuple["Projection", ...]:
        """Split every block along its width: into those widths, or for one number into that many parts."""
        if len(widths) == 1:
            widths = (self.width // widths[0],) * widths[0]
        if sum(widths) != self.width or min(widths) < 1:
            raise Unreadable(f"its projection of width {self.width} cannot be split into widths {widths}")
        if self.bias is not None and self.bias.shape[-1] != self.width:
            raise Unreadable(f"its projection of width {self.width} has a bias of {self.bias.shape[-1]}")
        weights = self.weight.split(widths, dim=-1)
        biases = (None,) * len(widths) if self.bias is None else self.bias.split(widths, dim=-1)
        return tuple(Projection(weight, bias) for weight, bias in zip(weights, biases, strict=True))


def composed(first: Projection, between: Tensor | None, second: Projection) -> Projection:
    """`first` of one block, then an elementwise factor, then `second`, as one projection.

    It is a product, not a view, and in float32 at least: half precision would round away a small change.

    >>> down, up = linear(nn.Linear(6, 2)), linear(nn.Linear(2, 8))
    >>> both = composed(down, None, up.cut(4))
    >>> tuple(both.weight.shape), torch.allclose(both.weight[3], down.weight[0] @ up.cut(4).weight[3])
    ((4, 6, 2), True)
    """
    dtype = torch.promote_types(first.weight.dtype, torch.float32)
    scale = torch.ones((), dtype=dtype) if between is None else _values(between).to(dtype)
    weight = (first.weight.to(dtype) * scale) @ second.weight.to(dtype)
    bias = None if second.bias is None else second.bias.to(dtype)
    if first.bias is not None:
        moved = ((first.bias.to(dtype) * scale) @ second.weight.to(dtype))[:, 0]
        bias = moved if bias is None else bias + moved
    return Projection(weight, bias)


def joined(blocks: Projection, shared: Projection) -> Projection:
    """Each block, made wider by the one block that all of them share."""
    count = blocks.blocks
    weight = torch.cat([blocks.weight, shared.weight.to(blocks.weight).expand(count, -1, -1)], -1)
    if blocks.bias is None and shared.bias is None:
        return Projection(weight)
    biases = [
        part.weight.new_zeros(part.blocks, part.width) if part.bias is None else part.bias
        for part in (blocks, shared)
    ]
    return Projection(weight, torch.cat([biases[0], biases[1].to(weight).expand(count, -1)], -1))


class Unreadable(Exception):
    """Why a module that looks like attention cannot be read; `heads` makes a sentence of it that names it."""


def is_linear(module: object) -> bool:
    """Whether `linear` knows how to read this module.

    >>> is_linear(nn.Linear(2, 3)), is_linear(nn.LayerNorm(2))
    (True, False)
    >>> is_linear(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    True
    """
    return _find_linear(module) is not None


def linear(source: nn.Module | Tensor, bias: Tensor | None = None) -> Projection:
    """Read a linear layer, or a bare weight in `nn.Linear`'s (out, in) layout, as a projection of one block.

    Reads `nn.Linear`, transformers' `Conv1D` (which keeps its weight the other way round), convolutions of
    kernel size 1, and any of these inside a PEFT adapter (merged into a copy), `torch.compile`, activation
    checkpointing or a `Sequential` with dropout. Sharded `DTensor`s are gathered. Weights without readable
    values are refused: quantised ones, shards of ZeRO-3 and FSDP1, meta tensors. `bias` is for one kept
    elsewhere.

    >>> layer = nn.Linear(5, 6)
    >>> torch.equal(linear(layer).weight[0], layer.weight.T)
    True
    """
    if isinstance(source, Tensor):
        return _project(source, bias)
    module: Any = _find_linear(source)
    if module is None:
        raise Unreadable(f"a {type(source).__name__} is not a linear layer that is known here")
    if is_adapter(module):
        module = merged_adapter(module)
    if _is_packed(module):
        raise RankriseError(f"A {type(module).__name__} holds quantised weights: dequantise the model first.")
    weight, bias = module.weight, module.bias if bias is None else bias
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        weight = weight.flatten(1)
    elif is_conv1d(module):
        weight = weight.T
    return _project(weight, bias)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Within this, projections carry shapes and no values: to recognise a layout costs no memory."""
    token = _shapes_only.set(True)
    try:
        yield
    finally:
        _shapes_only.reset(token)


def _project(weight: Tensor, bias: Tensor | None) -> Projection:
    weight = _values(weight)
    if weight.ndim != 2:
        raise RankriseError(
            f"A weight of shape {tuple(weight.shape)} stands where a matrix was expected, as ZeRO-3 and "
            "FSDP1 leave it: gather it first (deepspeed.zero.GatheredParameters, FSDP.summon_full_params)."
        )
    return Projection(weight.T[None], None if bias is None else _values(bias)[None])


def _values(tensor: Tensor) -> Tensor:
    """The tensor's values as a plain tensor that needs no gradient, or the reason why there are none."""
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise RankriseError("A lazy module has no weights yet: run one forward pass first.")
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and not isinstance(tensor, DTensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise RankriseError(f"A weight is a {kind}, not a plain tensor: dequantise the model first.")
    if tensor.dtype not in _FLOATS:
        raise RankriseError(
            f"A weight has dtype {tensor.dtype}: it is quantised, so dequantise the model first."
        )
    if hasattr(tensor, "ds_id") and tensor.numel() == 0:
        raise RankriseError(
            "A weight is empty, as ZeRO-3 keeps it on other ranks: read it within "
            "deepspeed.zero.GatheredParameters."
        )
    if _shapes_only.get():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if tensor.is_meta:
        raise RankriseError("A weight is on the meta device, so it has no values: load the checkpoint first.")
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _find_linear(module: object) -> nn.Module | None:
    """The linear layer within its wrappers, or None."""
    if not isinstance(module, nn.Module):
        return None
    for wrapper in WRAPPERS:
        if wrapper in module._modules:
            return _find_linear(module._modules[wrapper])
    if is_adapter(module):
        return module if _find_linear(module._modules["base_layer"]) is not None else None
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        rest = [child for child in module if not isinstance(child, (nn.Dropout, nn.Identity))]
        return _find_linear(rest[0]) if len(rest) == 1 else None
    if type(module).__name__.endswith("Linear") and [*module._modules] == ["linear"] and not module._buffers:
        return _find_linear(module._modules["linear"])  # Moshi
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module if set(module.kernel_size) == {1} and module.groups == 1 else None
    return module if isinstance(module, nn.Linear) or is_conv1d(module) or _is_packed(module) else None


def _is_packed(module: nn.Module) -> bool:
    """A layer of a quantisation library (GPTQ, AWQ, compressed-tensors, I-BERT), told by what it holds."""
    return any(hasattr(module, held) for held in ("qweight", "weight_packed", "weight_integer"))


def is_conv1d(module: nn.Module) -> bool:
    """Transformers' `Conv1D`, a linear layer whose weight is (in, out); told by type without an import."""
    kinds = type(module).__mro__
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in kinds)


def is_adapter(module: nn.Module) -> bool:
    """A PEFT tuner layer: an original layer with adapters around it."""
    return "base_layer" in module._modules and hasattr(module, "merge") and hasattr(module, "active_adapters")


def merged_adapter(adapter: Any) -> nn.Module:
    """A plain layer with the active adapters merged in: PEFT's own arithmetic on a copy, in float32 or
    better.

    Merging in half precision would round away exactly the small change that is to be measured.
    """
    base: Any = _find_linear(adapter.base_layer)
    if is_adapter(base):
        raise RankriseError("A PEFT adapter is around another one: merge the inner one first.")
    if _shapes_only.get() or adapter.disable_adapters or adapter.merged:
        return base
    _values(base.weight)
    adapter = copy.deepcopy(adapter)
    if base.weight.dtype in (torch.float16, torch.bfloat16):
        adapter = adapter.float()
    with torch.no_grad():
        adapter.merge()
    return adapter.get_base_layer()
