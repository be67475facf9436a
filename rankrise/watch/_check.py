"""`watch.check`: a forward pass proves, layer by layer, that the heads were read as the model uses them."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.watch._families import from_known_library, note_proof, recognise
from rankrise.watch._heads import find_layers, heads, unwrap
from rankrise.watch._probe import Refuted, probe
from rankrise.watch._snippets import right_layout
from rankrise.watch._twin import Unprovable

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any] | Callable[[nn.Module], Any]
"""One argument, named arguments, several arguments, or a function that runs the model it is given."""


@dataclass(frozen=True)
class LayerCheck:
    """Whether a layer's layout was proved, and if not, why nothing can be said about it."""

    layer: str
    proved: bool
    reason: str = ""


@dataclass(frozen=True)
class LayoutCheck:
    """Every attention layer of the model, in its order. A layout that is wrong raises instead."""

    layers: tuple[LayerCheck, ...]

    @property
    def proved(self) -> bool:
        """Whether all layers are."""
        return all(layer.proved for layer in self.layers)

    def __str__(self) -> str:
        open_ones = [f"{layer.layer}: {layer.reason}" for layer in self.layers if not layer.proved]
        count = f"{len(self.layers) - len(open_ones)} of {counted(len(self.layers), 'layout')} proved"
        return "; ".join([count, *open_ones]) + "."


def check(model: nn.Module, batch: Batch) -> LayoutCheck:
    """Prove by a forward pass that the heads of `model` are read as the model uses them.

    `batch` is what the model is called with: a tensor; a dictionary of named arguments; a tuple or list of
    arguments (the first alone is passed if the model does not take them all, such as labels); or a function
    that runs the model it is given. A few tokens are enough.

    Of the attention layers that the batch reaches, one of each kind (class, sizes and settings) is tried, on
    a copy; the model's weights and mode and the random state are as before. A layout by which the layer does
    not work raises an error, with the family that settles it if that is short to write. One that is proved is
    no longer announced as a guess.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> check(model, torch.ones(1, 5, 8)).proved
    True
    """
    root = unwrap(model)
    found = find_layers(root)
    if not found:
        heads(root)  # raises, with the reasons
    verdicts = {name: LayerCheck(name, False, "the batch does not reach it") for name in found}
    handles: dict[str, RemovableHandle] = {}
    reasons: dict[object, str] = {}

    def hook(name: str) -> Callable[..., None]:
        def try_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            handles[name].remove()  # a copy of the module must not try itself
            kind = _kind(module)
            if kind not in reasons:
                reasons[kind] = _reason(name, module, args, kwargs)
            if not reasons[kind]:
                note_proof(module)
            verdicts[name] = LayerCheck(name, not reasons[kind], reasons[kind])

        return try_layer

    with ExitStack() as stack:
        for name, module in found.items():
            handles[name] = module.register_forward_pre_hook(hook(name), with_kwargs=True)
            stack.callback(handles[name].remove)
        stack.enter_context(_undisturbed(root))
        _run(root, batch)
    return LayoutCheck(tuple(verdicts.values()))


def _kind(module: nn.Module) -> object:
    """What layers have in common that work alike: all but their weights and their number in the model."""
    plain = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (int, float, str)) and not re.search("idx|index|layer_(id|number)", name)
    }
    shapes = [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]
    return type(module), tuple(shapes), tuple(sorted(plain.items()))


def _reason(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why nothing can be said about a layer's layout, "" if it is proved; an error if it is wrong."""
    try:
        probe(module, args, kwargs, recognise)
    except Unprovable as unprovable:
        return str(unprovable)
    except Refuted as refuted:
        if from_known_library(module):  # its layout was gone through: what stands between is in its notes
            return f"{refuted}, or what its notes name stands between"
        snippet = right_layout(module, partial(probe, module, args, kwargs))
        remedy = f"This settles it:\n\n{snippet}\n" if snippet else "Teach it with watch.add_family."
        raise RankriseError(
            f"{name} ({type(module).__name__}) is not read as its forward pass works: {refuted}. {remedy}"
        ) from None
    return ""


def _run(model: nn.Module, batch: Batch) -> None:
    if not isinstance(batch, (Tensor, Mapping, tuple, list)):
        if not callable(batch):
            kind = type(batch).__name__
            raise RankriseError(
                f"The batch is a {kind}: pass a tensor, a dictionary, a tuple or a function of the model."
            )
        batch(model)
        return
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    given = _placed(batch, device)
    if isinstance(given, Mapping):
        model(**given)
    elif isinstance(given, Tensor):
        model(given)
    else:
        model(*(given if _takes(model, len(given)) else given[:1]))


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
