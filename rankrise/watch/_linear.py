"""One linear layer as a projection: which side of its weight is which, what is merged, what is refused."""

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rankrise.foundations.errors import RankriseError
from rankrise.watch._change import refuse_quantised
from rankrise.watch._projection import Projection, Unreadable, read_as, reading

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Name of the only child of a module inside torch.compile, activation checkpointing and FSDP1."""
_LIBRARIES = ("transformers", "timm", "litgpt", "vit_pytorch")
"""Libraries whose layouts were checked against their own forward pass."""


def linear(source: nn.Module | Tensor, bias: Tensor | None = None) -> Projection:
    """Read a linear layer, or a bare weight in `nn.Linear`'s (out, in) layout, as a projection of one block.

    Reads `nn.Linear`, transformers' `Conv1D` (whose weight is transposed), convolutions of kernel size 1, and
    any of these inside a PEFT adapter (merged into a copy), `torch.compile`, activation checkpointing or a
    `Sequential` with dropout. Several in a `Sequential` are multiplied. Weights that a norm, pruning or a
    parametrization computes are computed anew. `DTensor`s are gathered. Weights without readable values are
    refused: quantised ones, shards of ZeRO-3 and FSDP1, meta tensors. `bias` is for one kept elsewhere.

    >>> layer = nn.Linear(5, 6)
    >>> torch.equal(linear(layer).weight[0], layer.weight.T)
    True
    """
    if isinstance(source, Tensor):
        return _project(source, bias, source)
    layers = in_a_row(source)
    if not layers:
        raise Unreadable(f"{type(source).__name__} is not a linear layer that is known here")
    return reduce(
        Projection.then, [_one_layer(layer, bias if layer is layers[-1] else None) for layer in layers]
    )


def is_linear(module: object) -> bool:
    """Whether `linear` can read this module.

    >>> is_linear(nn.Linear(2, 3)), is_linear(nn.LayerNorm(2))
    (True, False)
    >>> is_linear(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    True
    """
    return bool(in_a_row(module))


def in_a_row(module: object) -> tuple[nn.Module, ...]:
    """The linear layers that a module applies one after another, without their wrappers; () if it does
    anything else."""
    if not isinstance(module, nn.Module):
        return ()
    wrapped = next((module._modules[name] for name in _WRAPPERS if name in module._modules), None)
    if wrapped is None and [*module._modules] == ["linear"] and type(module).__name__.endswith("Linear"):
        wrapped = module._modules["linear"] if works_as_known(module) else None  # Moshi
    if wrapped is not None:
        return in_a_row(wrapped)
    if is_adapter(module):
        return (module,) if len(in_a_row(module._modules["base_layer"])) == 1 else ()
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        rest = [in_a_row(child) for child in module if not isinstance(child, (nn.Dropout, nn.Identity))]
        if isinstance(module, nn.Sequential):
            known = used_forward(module) is nn.Sequential.forward
        else:
            known = len(rest) == 1
        return sum(rest, ()) if known and all(rest) else ()
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return (module,) if set(module.kernel_size) == {1} and module.groups == 1 else ()
    return (module,) if isinstance(module, nn.Linear) or is_conv1d(module) else ()


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
    """The function that runs when this module is called, inside wrappers such as accelerate's.

    >>> used_forward(nn.Linear(2, 2)) is nn.Linear.forward
    True
    """
    used = inspect.unwrap(module.forward)
    return getattr(used, "__func__", used)


def plain_name(path: str) -> str:
    """The name of a module or weight without the names of its wrappers.

    >>> plain_name("h.0._orig_mod.attn.q_proj.base_layer.weight")
    'h.0.attn.q_proj.weight'
    """
    return ".".join(part for part in path.split(".") if part not in (*_WRAPPERS, "base_layer"))


def shapes_only() -> AbstractContextManager[None]:
    """Read shapes and no values, to recognise a layout without any cost in memory."""
    return read_as("shapes")


def merged_adapter(adapter: Any) -> nn.Module:
    """A plain layer with the active adapters merged in by PEFT, on a copy in float32 or better.

    Merging in half precision would round away exactly the small change that is to be measured.
    """
    base: Any = in_a_row(adapter.base_layer)[0]
    if reading() == "shapes" or adapter.disable_adapters or adapter.merged:
        return base
    _values(base.weight)  # refuses quantised ones, which PEFT would merge
    adapter = copy.deepcopy(adapter)
    if base.weight.dtype in (torch.float16, torch.bfloat16):
        adapter = adapter.float()
    with torch.no_grad():
        adapter.merge()
    return adapter.get_base_layer()


def _one_layer(layer: nn.Module, bias: Tensor | None) -> Projection:
    module: Any = merged_adapter(layer) if is_adapter(layer) else layer
    further = [
        name for name, _ in module.named_parameters() if not name.startswith(("weight", "bias", "para"))
    ]
    if further:
        raise Unreadable(
            f"its {type(module).__name__} has further weights beside its matrix ({', '.join(further)}): "
            "merge them into it, or add a family that passes watch.linear the matrix that all of them make"
        )
    weight = _computed_weight(module)
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        weight = weight.flatten(1)
    elif is_conv1d(module):
        weight = weight.T
    return _project(weight, module.bias if bias is None else bias, layer)


def _computed_weight(module: Any) -> Tensor:
    """The weight as the next forward pass will use it, also where it is computed from other tensors.

    The hooks of `nn.utils.weight_norm`, `spectral_norm` and pruning keep the weight of the last pass as an
    attribute. A parametrization computes on access; in training mode a spectral norm would take a step.
    """
    with torch.no_grad():
        if parametrize.is_parametrized(module, "weight"):
            return copy.deepcopy(module.parametrizations["weight"]).eval()()
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (WeightNorm, SpectralNorm, BasePruningMethod)):
                module = copy.copy(module)
                module.training = False
                hook(module, ())
    return module.weight


def _project(weight: Tensor, bias: Tensor | None, source: object) -> Projection:
    weight = _values(weight)
    if weight.ndim != 2:
        raise RankriseError(
            f"A weight of shape {tuple(weight.shape)} stands where a matrix was expected, as ZeRO-3 and "
            "FSDP1 leave it: gather it first (deepspeed.zero.GatheredParameters, FSDP.summon_full_params)."
        )
    return Projection(weight.T[None], None if bias is None else _values(bias)[None], (source,))


def _values(tensor: Tensor) -> Tensor:
    """The tensor's values as a plain tensor that needs no gradient, or the reason why there are none."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and not isinstance(tensor, DTensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise RankriseError(f"A weight is a {kind}, not a plain tensor: dequantise the model first.")
    refuse_quantised(tensor, "A weight")
    if reading() == "shapes":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if tensor.is_meta:
        raise RankriseError("A weight is on the meta device, so it has no values: load the checkpoint first.")
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
