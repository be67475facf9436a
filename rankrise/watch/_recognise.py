"""Which family reads a module, families of your own, and which readings a forward pass has proved."""

from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._families import FAMILIES, Attention, Family
from rankrise.watch._linear import has_own_forward, works_as_known

_added: list[Family] = []
_verdicts: WeakKeyDictionary[type, dict[str, tuple[bool, str]]] = WeakKeyDictionary()
"""By class, and by what is assumed of it: whether a forward pass proved it, and the limits or the reason."""


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
    """The first family's reading of this module; None if no family knows it.

    A `guess` that a forward pass has proved for this class is gone from it.
    """
    read = _read(module)
    if read is None:
        return None
    attention, assumed = read
    proved, words = _verdicts.get(type(module), {}).get(assumed, (False, ""))
    if proved:
        note, attention = words if assumed else "", replace(attention, guess="")
    elif words:
        note = f"{assumed or 'its layout'} (not proved: {words})"
    else:
        note = f"{assumed} (not checked, see watch.check)" if assumed else ""
    return replace(attention, notes=(note, *attention.notes)) if note else attention


def record_verdict(module: nn.Module, proved: bool, words: str) -> None:
    """Remember what a forward pass said about this class of modules; `words` are limits, or the reason why
    nothing is proved."""
    read = _read(module)
    assert read is not None
    _verdicts.setdefault(type(module), {})[read[1]] = proved, words


def _read(module: nn.Module) -> tuple[Attention, str] | None:
    """The reading of a module, and what is assumed in it."""
    for family in _added:
        attention = family(module)
        if attention is not None:
            notes = (*attention.notes, *roles.notes_on(module), *_left_out(module, attention))
            name = getattr(family, "__name__", repr(family))
            return replace(attention, notes=notes), attention.guess or f"read by your family {name}"
    roles.refuse(module)
    for family in FAMILIES:
        attention = family(module)
        if attention is not None:
            scale = roles.scale_of(module) if attention.scale is None else attention.scale
            guess, notes = _assumed(module, attention), (*attention.notes, *roles.notes_on(module))
            return replace(attention, scale=scale, guess=guess, notes=notes), guess
    return None


def _assumed(module: nn.Module, attention: Attention) -> str:
    """What the module does not show: the family's guess, or that a class with the names of a known one, or a
    linear layer of the user's own, works as the known one does."""
    found = [attention.guess] if attention.guess else []
    if not found and not works_as_known(module) and not isinstance(module, nn.MultiheadAttention):
        found.append(f"{type(module).__name__} is read as the attention of transformers that has its names")
    layers = [layer for layer in attention.layers if isinstance(layer, nn.Module)]
    own = {type(layer).__name__ for layer in layers if has_own_forward(layer)}
    if own:
        found.append(f"its {' and '.join(sorted(own))} is read as if it gave what nn.Linear gives")
    return "; ".join(found)


def _left_out(module: nn.Module, attention: Attention) -> tuple[str, ...]:
    """A note on the matrices that a family of the user's own leaves out. Nothing where it reads bare weights:
    then only a forward pass can tell."""
    if any(isinstance(layer, Tensor) for layer in attention.layers):
        return ()
    layers = [layer for layer in attention.layers if isinstance(layer, nn.Module)]
    read = {weight for layer in layers for weight in layer.parameters()}
    names = [name for name, weight in module.named_parameters() if weight.ndim > 1 and weight not in read]
    further = ", ".join(name.removesuffix(".weight") for name in names)
    return (f"it has further weights that are not read: {further}",) if further else ()
