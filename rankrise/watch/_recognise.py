"""Which modules of a model are attention, which family reads each, and which readings are proved."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._families import FAMILIES, Attention, Family
from rankrise.watch._linear import has_own_forward, is_linear, plain_name, shapes_only, works_as_known
from rankrise.watch._projection import Unreadable

_INPUT = roles.named("q|query|k|key|v|value|qk|kv|qkv", "c_attn", r"w?_?(q|k|v|kv)_(a|b|up|down)(_proj)?")
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
    with shapes_only():
        read = _read(module)
    assert read is not None
    _verdicts.setdefault(type(module), {})[read[1]] = proved, words


def read_shapes(module: nn.Module) -> Attention:
    """The reading of a module that is known to be attention, without values."""
    with shapes_only():
        attention = recognise(module)
    assert attention is not None
    return attention


def find_attention(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The attention modules of a model by path, recognised by their shapes, and why others are not read."""
    found: dict[str, nn.Module] = {}
    reasons: dict[str, str] = {}
    inside: str | None = None
    for path, module in model.named_modules():
        if inside is not None and _below(path, inside):
            continue
        try:
            with shapes_only(), naming(path):
                attention = recognise(module)
                if attention is not None:
                    attention.refuse_misfit()
                    found[path], inside = module, path
                elif _looks_like_attention(module, path):
                    reasons[path] = _why_unknown(module)
        except Unreadable as refusal:
            reasons[path] = str(refusal)
    for path in [path for path in reasons if any(_below(other, path) for other in (*found, *reasons))]:
        del reasons[path]  # a block around an attention module, which is read or mentioned itself
    return found, reasons


def _below(path: str, above: str) -> bool:
    return path != above and (not above or path.startswith(f"{above}."))


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the module's name before the sentence of an error about its weights."""
    try:
        yield
    except RankriseError as error:
        raise RankriseError(f"{plain_name(name)}: {error}") from None


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


def _looks_like_attention(module: nn.Module, path: str) -> bool:
    """Whether a module that no family reads should be mentioned: for its class, its name or its layers."""
    by_class = re.search("attention|attn|mhsa|multihead", type(module).__name__, re.IGNORECASE) is not None
    called = re.fullmatch("((self|cross)_?)?(attention|attn|mha)", path.rpartition(".")[2]) is not None
    by_class = by_class or (called and sum(map(is_linear, module.modules())) > 1)
    inputs = [name for name, child in module.named_children() if _INPUT.fullmatch(name) and _projects(child)]
    bare = [name for name, weight in module.named_parameters(recurse=False) if weight.ndim > 1]
    inputs += [name for name in (one.removesuffix("_weight") for one in bare) if _INPUT.fullmatch(name)]
    fused = any(roles.FUSED.fullmatch(name) for name in inputs)
    return (by_class and any(True for _ in module.parameters())) or fused or len(inputs) > 1


def _projects(child: nn.Module) -> bool:
    """Whether it is a linear layer, or a module around some, such as one for each head."""
    return any(is_linear(part) for part in child.modules())


def _why_unknown(module: nn.Module) -> str:
    """Why no family reads a module that looks like attention."""
    odd = [
        f"{name} (a {type(child).__name__})"
        for name, child in module.named_children()
        if (_INPUT.fullmatch(name) or roles.OUTPUT.fullmatch(name))
        and _projects(child)
        and not is_linear(child)
    ]
    if odd:
        return f"it has parts that do more than a linear layer that is known here: {', '.join(odd)}"
    return "its projections are laid out in no way that is known here"
