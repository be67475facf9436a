"""`watch.check`: a forward pass proves, layer by layer, that the heads are read as the model uses them."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.watch._heads import family_template, none_read, unwrap
from rankrise.watch._linear import plain_name, works_as_known
from rankrise.watch._recognise import find_attention, record_verdict
from rankrise.watch._trial import Refuted, Trial, Unprovable, trial_of, with_tensors

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any] | Callable[[nn.Module], Any]
"""One argument, named arguments, several arguments, or a function that runs the model it is given."""


@dataclass(frozen=True)
class LayerCheck:
    """Whether a layer's layout was proved, and if not, why. `limits` say what the proof does not cover."""

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
        """Whether every layer is proved, as far as it is read: see `limits`."""
        return all(layer.proved for layer in self.layers)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the proof does not cover, each once; `layers` have them by layer."""
        return tuple(dict.fromkeys(limit for layer in self.layers for limit in layer.limits))

    def __str__(self) -> str:
        unproved = [f"{layer.layer}: {layer.reason}" for layer in self.layers if not layer.proved]
        count = f"{len(self.layers) - len(unproved)} of {len(self.layers)} layouts proved"
        within = f" WITHIN LIMITS: {'; '.join(self.limits)}" if self.limits else ""
        return "; ".join([count + within, *unproved]) + "."

    __repr__ = __str__


def check(model: nn.Module, batch: Batch) -> LayoutCheck:
    """Prove by a forward pass that the heads of `model` are read as the model uses them.

    `batch` is what the model is called with: a tensor; a dictionary of named arguments; a tuple or list of
    arguments (only the first is passed if the model does not take them all, such as labels); or a function
    that runs the model it is given. A few tokens are enough.

    Each attention layer is tried on a copy, on its first call; layers that work alike are tried once. The
    model's weights, its mode and the random state stay as they are. A layout by which a layer does not work
    raises an error. A proof holds for the class in this process: it is no longer announced as a guess.
    `limits` name what acts on the heads and is not read.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> check(model, torch.ones(1, 5, 8)).proved
    True
    """
    root = unwrap(model)
    found, _ = find_attention(root)
    if not found:
        raise none_read(root)
    names = {module: plain_name(path) for path, module in found.items()}
    verdicts: dict[nn.Module, LayerCheck] = {}
    tried: list[tuple[Trial, tuple[str, ...]]] = []

    def try_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handles[module].remove()  # only the first call counts, and a copy must not try itself
        reason, limits = "", None
        try:
            trial = trial_of(module, args, kwargs)
            limits = next((limits for other, limits in tried if trial.works_like(other)), None)
            limits = tuple(trial.prove()) if limits is None else limits
            tried.append((trial, limits))
        except Refuted as refuted:
            if not works_as_known(module):
                raise RankriseError(
                    f"{names[module]} ({type(module).__name__}) is not read as its forward pass works: "
                    f"{refuted}. Add a family for it, as docs/heads.md#your-own-module shows; or, if its "
                    f"heads are no products of weights, track its matrices instead.{family_template(module)}"
                ) from None
            reason = f"{refuted}, or what its notes name acts between"  # the layout is the library's own
        except Unprovable as unprovable:
            reason = str(unprovable)
        except Exception as error:
            reason = f"a copy of it does not run by itself ({type(error).__name__}: {first_line(error)})"
        verdicts[module] = LayerCheck(names[module], not reason, reason, limits or ())

    handles = {module: module.register_forward_pre_hook(try_layer, with_kwargs=True) for module in names}
    try:
        with _undisturbed(root):
            _run(root, batch)
    finally:
        for handle in handles.values():
            handle.remove()
    for module, verdict in sorted(verdicts.items(), key=lambda pair: not pair[1].proved):  # the worst stays
        record_verdict(module, verdict.proved, verdict.reason or "; ".join(verdict.limits))
    unreached = {name: LayerCheck(name, False, "the batch does not reach it") for name in names.values()}
    return LayoutCheck(tuple(verdicts.get(module, unreached[name]) for module, name in names.items()))


def check_and_warn(model: nn.Module, batch: Batch) -> None:
    """Like `check`, with a warning about what is not proved."""
    result = check(model, batch)
    if result.limits or not result.proved:
        warnings.warn(f"Heads of the tracked model: {result}", stacklevel=3)


def _run(model: nn.Module, batch: Batch) -> None:
    """Call the model with the batch, on the model's device."""
    if not isinstance(batch, (Tensor, Mapping, tuple, list)):
        batch(model)
        return
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    given = with_tensors(batch, lambda tensor: tensor.to(device))
    if isinstance(given, Mapping):
        model(**given)
        return
    several = (given,) if isinstance(given, Tensor) else given
    try:
        inspect.signature(model.forward).bind(*several)
    except TypeError:  # more than it takes, such as labels
        several = several[:1]
    model(*several)


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
