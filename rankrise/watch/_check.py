"""`watch.check`: a forward pass proves, layer by layer, that the heads were read as the model uses them."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.notes import gathered
from rankrise.foundations.passed import typed
from rankrise.watch._heads import TO_FILL_IN, find_layers, none_read, unread_modules, unwrap
from rankrise.watch._linear import works_as_known
from rankrise.watch._marks import NORMALISED, ROTARY, is_norm, stands_between
from rankrise.watch._probe import Limits, Partly, probe, work_alike
from rankrise.watch._recognise import note_check, recognise
from rankrise.watch._snippets import right_layout
from rankrise.watch._trial import Refuted
from rankrise.watch._twin import Unprovable

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any] | Callable[[nn.Module], Any]
"""One argument, named arguments, several arguments, or a function that runs the model it is given."""


NO_FAMILY = (
    f"No family that is short to write agrees with it: write one with watch.add_family ({TO_FILL_IN}), or, "
    "if its heads differ in size, act on one another or are not products of weights, track its matrices "
    "instead."
)


@dataclass(frozen=True)
class LayerCheck:
    """Whether a layer's layout was proved, and if not, why. `limits` say what the proof does not cover:
    weights in the layer's path that are not read, or products that are not all of what it computes."""

    layer: str
    proved: bool
    reason: str = ""
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutCheck:
    """Every attention layer of the model, in its order. A layout that is wrong raises instead."""

    layers: tuple[LayerCheck, ...]

    @property
    def proved(self) -> bool:
        """Whether all layers are, as far as they are read: see `limits`."""
        return all(layer.proved for layer in self.layers)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the proof does not cover, each once with the layers that it is about."""
        return tuple(gathered((layer.layer, limit) for layer in self.layers for limit in layer.limits))

    def __str__(self) -> str:
        open_ones = [f"{layer.layer}: {layer.reason}" for layer in self.layers if not layer.proved]
        count = f"{len(self.layers) - len(open_ones)} of {counted(len(self.layers), 'layout')} proved"
        within = f" WITHIN LIMITS: {'; '.join(self.limits)}" if self.limits else ""
        return "; ".join([count + within, *open_ones]) + "."

    __repr__ = __str__


@typed
def check(model: nn.Module, batch: Batch) -> LayoutCheck:
    """Prove by a forward pass that the heads of `model` are read as the model uses them.

    `batch` is what the model is called with: a tensor; a dictionary of named arguments; a tuple or list of
    arguments (the first alone is passed if the model does not take them all, such as labels); or a function
    that runs the model it is given. A few tokens are enough.

    Of the attention layers that the batch reaches, one of each kind is tried, on a copy; layers are of one
    kind if with the same weights they give the same. One that is called in several ways is tried in each. The
    model's weights and mode and the random state are as before. A layout by which the layer does not work
    raises an error, with the family that settles it if that is short to write. One that is proved is no
    longer announced as a guess. `limits` name what stands in the way of the heads and is not read.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> check(model, torch.ones(1, 5, 8)).proved
    True
    """
    root = unwrap(model)
    found = find_layers(root)
    if not found:
        raise none_read(root, "such as this one, by which it works", _proved_family(root, batch))
    verdicts = {name: LayerCheck(name, False, "the batch does not reach it") for name in found}
    handles: dict[str, RemovableHandle] = {}
    calls: dict[str, list[str]] = {name: [] for name in found}
    tried: list[tuple[nn.Module, str, LayerCheck]] = []

    def watch_calls(name: str, module: nn.Module) -> None:
        def try_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = _kind_of_call(args, kwargs)
            if call in calls[name]:
                return
            handles[name].remove()  # a copy of the module must not try itself
            alike = (
                told
                for one, its_call, told in tried
                if its_call == call and work_alike(one, module, args, kwargs, recognise)
            )
            told = next(alike, None)
            if told is None:
                told = _verdict(name, module, args, kwargs)
                tried.append((module, call, told))
            verdict = replace(told, layer=name)
            if calls[name]:
                verdict = _both(verdicts[name], verdict)
            verdicts[name] = verdict
            calls[name].append(call)
            note_check(module, verdict.proved, verdict.reason or "; ".join(verdict.limits))
            watch_calls(name, module)

        handles[name] = module.register_forward_pre_hook(try_layer, with_kwargs=True)

    for name, module in found.items():
        watch_calls(name, module)
    try:
        with _undisturbed(root):
            _run(root, batch)
    finally:
        for handle in handles.values():
            handle.remove()
    return LayoutCheck(tuple(verdicts.values()))


def check_and_warn(model: nn.Module, batch: Batch) -> None:
    """The same, with a warning of what is not proved."""
    told = check(model, batch)
    if told.limits or not told.proved:
        warnings.warn(f"Of the heads that are tracked, {told}", stacklevel=4)  # past `typed`


def _proved_family(model: nn.Module, batch: Batch) -> str:
    """The code of a family for the first module that looks like attention, is not read, and works by one that
    is short to write; "" if there is none."""
    of_each_kind = {type(module): module for module in reversed(unread_modules(model))}
    for module in reversed(of_each_kind.values()):
        if family := _family_of(module, model, batch):
            return family
    return ""


def _family_of(module: nn.Module, model: nn.Module, batch: Batch) -> str:
    """The code of the family by which a module of the model works on its first call; "" if there is none."""
    found = ""

    def try_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal found
        handle.remove()  # a copy of the module must not try itself
        found = right_layout(module, partial(probe, module, args, kwargs))

    handle = module.register_forward_pre_hook(try_module, with_kwargs=True)
    with handle, _undisturbed(model):
        _run(model, batch)
    return found


def _kind_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a module may work otherwise by: which arguments it is given, and those that are plain values."""

    def kind(value: Any) -> object:
        return value if isinstance(value, (bool, int, float, str, NoneType)) else type(value).__name__

    return repr(([kind(one) for one in args], {name: kind(one) for name, one in kwargs.items()}))


def _both(first: LayerCheck, second: LayerCheck) -> LayerCheck:
    """The check of a module that is called in two ways."""
    if not first.proved or not second.proved:
        return first if not first.proved else second
    return replace(first, limits=tuple(dict.fromkeys((*first.limits, *second.limits))))


def _verdict(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCheck:
    """Whether a layer's layout is proved, with the limits of that, or why not; an error if it is wrong."""
    try:
        limits = probe(module, args, kwargs, recognise)
    except Unprovable as unprovable:
        return LayerCheck(name, False, str(unprovable))
    except Refuted as refuted:
        if works_as_known(module):  # its layout was gone through: what stands between is in its notes
            return LayerCheck(name, False, f"{refuted}, or what its notes name stands between")
        snippet = right_layout(module, partial(probe, module, args, kwargs))
        if isinstance(refuted, Partly) and not snippet:
            return LayerCheck(name, False, str(refuted))
        remedy = f"This settles it:\n\n{snippet}\n" if snippet else NO_FAMILY
        raise RankriseError(
            f"{name} ({type(module).__name__}) is not read as its forward pass works: {refuted}. {remedy}"
        ) from None
    return LayerCheck(name, True, "", tuple(_words(module, limits)))


def _words(module: nn.Module, limits: Limits) -> Iterator[str]:
    """The limits that the notes on a layer do not tell already."""
    attention = recognise(module)
    known = () if attention is None else attention.notes
    unread = [
        name for name in limits.unread if stands_between(name) and not (NORMALISED in known and is_norm(name))
    ]
    if unread:
        yield f"in its path and not read: {', '.join(unread)}"
    if limits.turned and not {NORMALISED, ROTARY} & set(known):
        yield (
            "queries and keys do not meet in their plain product, as with rotary positions, norms or a "
            "difference of two maps"
        )
    if limits.bent:
        yield "what heads give is gated, normalised or mixed on its way to the output projection"


def _run(model: nn.Module, batch: Batch) -> None:
    if not isinstance(batch, (Tensor, Mapping, tuple, list)):
        if not callable(batch):
            raise RankriseError(
                f"The batch is of type {type(batch).__name__}: pass a tensor, a dictionary, a tuple or a "
                "function of the model."
            )
        batch(model)
        return
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    given = _placed(batch, device)
    try:
        if isinstance(given, Mapping):
            model(**given)
        elif isinstance(given, Tensor):
            model(given)
        else:
            model(*(given if _takes(model, len(given)) else given[:1]))
    except RankriseError:
        raise
    except Exception as error:
        raise RankriseError(
            f"{type(model).__name__} cannot be run on the batch ({type(error).__name__}: "
            f"{first_line(error)}): pass what it is called with, as a tensor, a dictionary of arguments "
            "or a tuple."
        ) from error


def _takes(model: nn.Module, count: int) -> bool:
    try:
        inspect.signature(model.forward).bind(*range(count))
    except TypeError:
        return False
    return True


def _placed(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _placed(value, device) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [_placed(value, device) for value in batch]
    return batch


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation and without gradients, and afterwards as before: modes and random states."""
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it goes past the attention module
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode
