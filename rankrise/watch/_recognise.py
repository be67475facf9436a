"""Which modules of a model are attention, which family reads each, and which readings are proved."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._families import FAMILIES, Attention, Family, assumed_of
from rankrise.watch._linear import (
    Unreadable,
    has_own_forward,
    is_linear,
    plain_name,
    read_as,
    works_as_known,
)

_added: list[Family] = []
_verdicts: WeakKeyDictionary[type, dict[str, tuple[bool, str]]] = WeakKeyDictionary()
"""By class, and by what is assumed of it: whether a forward pass proved it, and a note."""


def add_family(family: Family) -> Family:
    """Teach `heads` the layout of your own module. Usable as a decorator; the latest is asked first.

    >>> class Mine(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mix, self.back = nn.Linear(8, 24), nn.Linear(8, 8)
    >>> from rankrise.watch import linear
    >>> @add_family
    ... def mine(module):
    ...     if isinstance(module, Mine):
    ...         query, key, value = linear(module.mix).cut(2).split(3)  # two heads, each [q, k, v]
    ...         return Attention(query, key, value, linear(module.back))
    >>> from rankrise import watch
    >>> [tuple(layer.query.shape) for layer in watch.heads(nn.Sequential(Mine()))]
    [(2, 8, 4)]
    >>> remove_family(mine)
    """
    _verdicts.clear()  # they are about other readings
    _added.insert(0, family)
    return family


def remove_family(family: Family) -> None:
    """Forget a family that was added."""
    if family not in _added:
        raise RankriseError(f"{family} was not added: pass a function that add_family took.")
    _verdicts.clear()
    _added.remove(family)


def recognise(module: nn.Module) -> Attention | None:
    """The first family's reading of this module, checked for misfits; None if no family knows it.

    A `guess` that a forward pass has proved for this class is gone from it.
    """
    attention = _read(module)
    if attention is None:
        return None
    attention.refuse_misfit()
    guess = attention.guess
    unchecked = False, f"{guess} (not checked, see watch.check)" if guess else ""
    proved, note = _verdicts.get(type(module), {}).get(guess, unchecked)
    notes = (note, *attention.notes) if note else attention.notes
    return replace(attention, guess="" if proved else guess, notes=notes)


def recognised(module: nn.Module) -> Attention:
    """The reading of a module that is known to be attention."""
    attention = recognise(module)
    assert attention is not None
    return attention


def read_shapes(module: nn.Module) -> Attention:
    """The reading of a module that is known to be attention, without values."""
    with read_as("shapes"):
        return recognised(module)


def record_verdict(module: nn.Module, proved: bool, words: str) -> None:
    """Remember what a forward pass said about this class of modules; `words` are limits, or the reason why
    nothing is proved."""
    with read_as("shapes"):
        attention = _read(module)
    guess = attention.guess if attention else ""
    note = words * bool(guess) if proved else f"{guess or 'its layout'} (not proved: {words})"
    _verdicts.setdefault(type(module), {})[guess] = proved, note


def find_attention(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The attention modules of a model by path, recognised by their shapes, and why others are not read."""
    found: dict[str, nn.Module] = {}
    reasons: dict[str, str] = {}
    inside: str | None = None
    for path, module in model.named_modules():
        if inside is not None and _below(path, inside):
            continue
        try:
            with read_as("shapes"), naming(path):
                if recognise(module) is not None:
                    found[path], inside = module, path
                elif _looks_like_attention(module, path):
                    packed = any("quant" in type(part).__name__.lower() for part in module.modules())
                    known = "its projections are laid out in no way that is known here"
                    reasons[path] = "it is quantised: dequantise the model first" if packed else known
        except Unreadable as refusal:
            reasons[path] = str(refusal)
    for path in [path for path in reasons if any(_below(other, path) for other in (*found, *reasons))]:
        del reasons[path]  # a block around an attention module, which is read or mentioned itself
    return found, reasons


def _below(path: str, above: str) -> bool:
    return path != above and (not above or path.startswith(f"{above}."))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the module's name before the sentence of an error about its weights."""
    try:
        yield
    except RankriseError as error:
        raise RankriseError(f"{plain_name(name)}: {error}") from None


def _read(module: nn.Module) -> Attention | None:
    """The reading of a module, with what it assumes as its guess, and with notes on what it leaves out."""
    attention = next(filter(None, (family(module) for family in _added)), None)
    added = attention is not None
    if attention is None:
        roles.refuse(module)
        attention = next(filter(None, (family(module) for family in FAMILIES)), None)
    if attention is None:
        return None
    layers = [layer for layer in attention.layers if isinstance(layer, nn.Module)]
    scale, guess = attention.scale, attention.guess
    if not added:
        known = works_as_known(module) or isinstance(module, nn.MultiheadAttention)
        guesses = [guess or ("" if known else assumed_of(module))]
        if own := sorted({type(layer).__name__ for layer in layers if has_own_forward(layer)}):
            guesses.append(f"its {' and '.join(own)} is read as if it gave what nn.Linear gives")
        scale, guess = roles.scale_of(module) if scale is None else scale, "; ".join(filter(None, guesses))
    notes = [*attention.notes, *roles.notes_on(module)]
    # gates, relative positions, pooling, sinks; beside bare matrices, only a forward pass can tell
    if not any(isinstance(layer, Tensor) and layer.ndim > 1 for layer in attention.layers):
        read = {weight for layer in layers for weight in layer.parameters()}
        further = [name for name, weight in module.named_parameters() if weight not in read]
        if names := [name.removesuffix(".weight") for name in further if roles.acts_on_heads(name)]:
            notes.append(f"it has further weights that are not read: {', '.join(names)}")
    return replace(attention, scale=scale, guess=guess, notes=tuple(dict.fromkeys(notes)))


def _looks_like_attention(module: nn.Module, path: str) -> bool:
    """Whether a module that no family reads should be mentioned: for its class, its name or its layers."""
    if re.search("attention|attn|mhsa|multihead", type(module).__name__, re.IGNORECASE):
        return any(True for _ in module.parameters())
    if re.fullmatch("((self|cross)_?)?(attention|attn|mha)", path.rpartition(".")[2]):
        return sum(map(is_linear, module.modules())) > 1
    layers = [name for name, child in module.named_children() if any(map(is_linear, child.modules()))]
    bare = [name for name, weight in module.named_parameters(recurse=False) if weight.ndim > 1]
    names = [name.removesuffix("_weight") for name in (*layers, *bare)]
    inputs = [name for name in names if roles.INPUT.fullmatch(name)]
    return len(inputs) > 1 or any(map(roles.FUSED.fullmatch, inputs))
