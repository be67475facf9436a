"""One linear layer as a projection: which side of its weight is which, what is merged, what is refused."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rankrise.foundations.errors import RankriseError
from rankrise.watch._factors import refuse_quantised
from rankrise.watch._projection import Projection, Unreadable

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names of the one child of what torch.compile, activation checkpointing and FSDP1 put around a module."""

_shapes_only: ContextVar[bool] = ContextVar("shapes_only", default=False)


def plain_name(path: str) -> str:
    """The name of a module, or of a weight in it, without those of what wraps it.

    >>> plain_name("h.0._orig_mod.attn.q_proj.base_layer.weight")
    'h.0.attn.q_proj.weight'
    """
    return ".".join(part for part in path.split(".") if part not in (*WRAPPERS, "base_layer"))


def is_linear(module: object) -> bool:
    """Whether `linear` knows how to read this module.

    >>> is_linear(nn.Linear(2, 3)), is_linear(nn.LayerNorm(2))
    (True, False)
    >>> is_linear(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    True
    """
    return bool(in_a_row(module))


def from_known_library(module: nn.Module) -> bool:
    """Whether a module comes from a library whose fused projections have been gone through."""
    return _is_known(type(module))


def works_as_known(module: nn.Module) -> bool:
    """The same of its forward pass too, which others can replace, in the class or in this module alone."""
    return from_known_library(module) and _is_known(used_forward(module))


def used_forward(module: nn.Module) -> Callable[..., Any]:
    """The function that a call of this module ends in, without what wraps it (such as accelerate does).

    >>> used_forward(nn.Linear(2, 2)) is nn.Linear.forward
    True
    """
    used = inspect.unwrap(module.forward)
    return getattr(used, "__func__", used)


def _is_known(made: object) -> bool:
    """Whether a class or a function is one of such a library."""
    library = str(getattr(made, "__module__", "")).split(".")[0]
    return library in ("transformers", "timm", "litgpt", "vit_pytorch")


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a linear layer may do other things with its weight than `nn.Linear` does: its class has a
    forward pass of its own, or it was given one."""
    used = used_forward(layer)
    known = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward)
    return not (used in known or is_adapter(layer) or _is_known(used))


def has_one_matrix(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer has a matrix as its weight, a bias perhaps, and no more, as those have that map tokens
    linearly."""
    own = {name: one.ndim for name, one in layer.named_parameters()}
    return own.pop("weight", 0) == 2 and own in ({}, {"bias": 1}) and not isinstance(layer, nn.Embedding)


def linear(source: nn.Module | Tensor, bias: Tensor | None = None) -> Projection:
    """Read a linear layer, or a bare weight in `nn.Linear`'s (out, in) layout, as a projection of one block.

    Reads `nn.Linear`, transformers' `Conv1D` (which keeps its weight the other way round), convolutions of
    kernel size 1, and any of these inside a PEFT adapter (merged into a copy), `torch.compile`, activation
    checkpointing or a `Sequential` with dropout; several in a `Sequential` are multiplied. Weights that are
    computed (weight norm, pruning, any parametrization) are computed anew. Sharded `DTensor`s are gathered.
    Weights without readable values are refused: quantised ones, shards of ZeRO-3 and FSDP1, meta tensors.
    `bias` is for one kept elsewhere.

    >>> layer = nn.Linear(5, 6)
    >>> torch.equal(linear(layer).weight[0], layer.weight.T)
    True
    """
    if isinstance(source, Tensor):
        return _project(source, bias, source)
    layers = in_a_row(source)
    if not layers:
        raise Unreadable(f"{type(source).__name__} is not a linear layer that is known here")
    whole = _one_layer(layers[0], bias if len(layers) == 1 else None)
    for place, layer in enumerate(layers[1:], start=2):
        whole = whole.then(_one_layer(layer, bias if place == len(layers) else None))
    return whole


def _one_layer(layer: nn.Module, bias: Tensor | None) -> Projection:
    module: Any = layer
    if is_adapter(module):
        module = merged_adapter(module)
    if _is_packed(module):
        raise RankriseError(f"{type(module).__name__} holds quantised weights: dequantise the model first.")
    _refuse_further_weights(module)
    weight, bias = computed_weight(module), module.bias if bias is None else bias
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        weight = weight.flatten(1)
    elif is_conv1d(module):
        weight = weight.T
    return _project(weight, bias, layer)


def _refuse_further_weights(module: nn.Module) -> None:
    """A linear layer of one's own with more weights than one and a bias, such as a LoRA's factors."""
    own = [name for name, one in module._parameters.items() if one is not None]
    further = [name for name in own if not name.startswith(("weight", "bias"))]
    further += [
        name
        for name, child in module._modules.items()
        if name != "parametrizations" and child is not None and any(True for _ in child.parameters())
    ]
    if further:
        raise Unreadable(
            f"its {type(module).__name__} has further weights beside its matrix ({', '.join(further)}): "
            "merge them into it, or add a family that passes watch.linear the matrix that all of them make"
        )


def computed_weight(module: Any) -> Tensor:
    """The weight of a layer as its next forward pass will use it, where it is computed from others too.

    `nn.utils.weight_norm`, `spectral_norm` and pruning keep the one of the last pass as an attribute; a
    parametrization of today is computed on access, and is not to take a step of its own for that.
    """
    for hook in module._forward_pre_hooks.values():
        if getattr(hook, "name", getattr(hook, "_tensor_name", None)) != "weight":
            continue
        with torch.no_grad():
            if isinstance(hook, WeightNorm):
                return hook.compute_weight(module)
            if isinstance(hook, SpectralNorm):
                return hook.compute_weight(module, do_power_iteration=False)
            if isinstance(hook, BasePruningMethod):
                return hook.apply_mask(module)
    if not parametrize.is_parametrized(module, "weight"):
        return module.weight
    parts = list(module.parametrizations.weight.modules())
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        with torch.no_grad():
            return module.weight
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Within this, projections carry shapes and no values: to recognise a layout costs no memory."""
    token = _shapes_only.set(True)
    try:
        yield
    finally:
        _shapes_only.reset(token)


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
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        raise RankriseError("A lazy module has no weights yet: run one forward pass first.")
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and not isinstance(tensor, DTensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise RankriseError(f"A weight is a {kind}, not a plain tensor: dequantise the model first.")
    refuse_quantised(tensor, "A weight")
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


def in_a_row(module: object) -> tuple[nn.Module, ...]:
    """The linear layers that a module applies one after another, without their wrappers; () if it does
    anything else."""
    if not isinstance(module, nn.Module):
        return ()
    for wrapper in WRAPPERS:
        if wrapper in module._modules:
            return in_a_row(module._modules[wrapper])
    if is_adapter(module):
        return (module,) if len(in_a_row(module._modules["base_layer"])) == 1 else ()
    if isinstance(module, nn.Sequential) and used_forward(module) is not nn.Sequential.forward:
        return ()
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        rest = [in_a_row(child) for child in module if not isinstance(child, (nn.Dropout, nn.Identity))]
        known = all(rest) and (len(rest) == 1 or isinstance(module, nn.Sequential))
        return tuple(layer for one in rest for layer in one) if known else ()
    inner = [*module._modules] == ["linear"] and not module._buffers and not module._parameters
    if inner and type(module).__name__.endswith("Linear") and works_as_known(module):
        return in_a_row(module._modules["linear"])  # Moshi
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return (module,) if set(module.kernel_size) == {1} and module.groups == 1 else ()
    return (module,) if isinstance(module, nn.Linear) or is_conv1d(module) or _is_packed(module) else ()


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
    base: Any = in_a_row(adapter.base_layer)[0]
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
