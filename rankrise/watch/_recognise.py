"""Which family reads a module; families of one's own; and what a forward pass said about a reading."""

import re
from collections.abc import Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import shown, typed
from rankrise.watch import _roles as roles
from rankrise.watch._families import FAMILIES, Attention, Family, layers_of
from rankrise.watch._linear import has_own_forward, is_linear, works_as_known
from rankrise.watch._marks import marks, refuse

_INPUT = roles.named("q|query|k|key|v|value|qk|kv|qkv", "c_attn", r"w?_?(q|k|v|kv)_(a|b|up|down)(_proj)?")
_ACTIVATIONS = {name for name in dir(nn.modules.activation) if name not in ("MultiheadAttention", "Module")}
_added: list[Family] = []
_checked: WeakKeyDictionary[nn.Module, tuple[bool, str]] = WeakKeyDictionary()
"""Of a module that a forward pass was asked about: whether it agrees, and what has to be said beside that."""


@typed
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
    _checked.clear()  # of other readings
    _added.insert(0, family)
    return family


@typed
def remove_family(family: Family) -> None:
    """Forget a family that was added."""
    if family not in _added:
        raise RankriseError(f"family is {shown(family)} that was not added: pass one that add_family took.")
    _checked.clear()
    _added.remove(family)


def recognise(module: nn.Module) -> Attention | None:
    """The first family's reading of this module; None if it looks like no attention that is known."""
    for family in _added:
        attention = family(module)
        if attention is not None:
            notes = (*attention.notes, *marks(module), *_not_read(module, attention))
            said = f"read by your family {getattr(family, '__name__', type(family).__name__)}"
            return _with_check(module, replace(attention, notes=notes), said)
    refuse(module)
    for family in FAMILIES:
        attention = family(module)
        if attention is not None:
            scale = roles.scale_of(module) if attention.scale is None else attention.scale
            guess = "; ".join(_assumed(module, attention))
            notes = (*attention.notes, *marks(module))
            return _with_check(module, replace(attention, scale=scale, guess=guess, notes=notes), guess)
    return None


def is_guess(module: nn.Module, attention: Attention) -> bool:
    """Whether the layout was assumed, and no forward pass has proved it."""
    agrees, _ = _checked.get(module, (False, ""))
    return bool(attention.guess) and not agrees


def note_check(module: nn.Module, agrees: bool, words: str) -> None:
    """A forward pass agrees with the reading of this module, within the limits in `words`; or it does not
    prove it, for the reason in `words`."""
    _checked[module] = agrees, words


def _with_check(module: nn.Module, attention: Attention, assumed: str) -> Attention:
    """The reading with a note on what is assumed, and on what a forward pass said about it."""
    if module not in _checked:
        said = f"{assumed} (not checked, see watch.check)" if assumed else ""
    else:
        agrees, words = _checked[module]
        verdict = "a forward pass agrees" if agrees else f"a forward pass does not prove it: {words}"
        verdict += f" about what is read, within limits: {words}" if agrees and words else ""
        said = f"{assumed} ({verdict})" if assumed else verdict if words else ""
    return replace(attention, notes=(said, *attention.notes)) if said else attention


def _assumed(module: nn.Module, attention: Attention) -> Iterator[str]:
    """What could not be seen from the module: its family says so, or it only has the names of a known one;
    and layers of one's own that may do other things with their weights than `nn.Linear` does."""
    kind = type(module).__name__
    if attention.guess:
        yield attention.guess
    elif not works_as_known(module) and not isinstance(module, nn.MultiheadAttention):
        yield f"{kind} is read as the attention of transformers that has its names"
    layers = [layer for layer in layers_of(attention) if isinstance(layer, nn.Module)]
    own = {type(layer).__name__ for layer in layers if has_own_forward(layer)}
    if own:
        yield f"its {' and '.join(sorted(own))} is read as if it gave what nn.Linear gives"


def _not_read(module: nn.Module, attention: Attention) -> tuple[str, ...]:
    """The matrices of a module that a family of one's own leaves out; nothing where it computes weights from
    others, since then only a forward pass can tell."""
    layers = layers_of(attention)
    read = {weight for layer in layers if isinstance(layer, nn.Module) for weight in layer.parameters()}
    bare = {weight.data_ptr() for weight in layers if isinstance(weight, Tensor) and not weight.is_meta}
    weights = {name: weight for name, weight in module.named_parameters() if weight.ndim > 1}
    if any(isinstance(layer, DTensor) or (isinstance(layer, Tensor) and layer.is_meta) for layer in layers):
        return ()
    if not bare <= {weight.data_ptr() for weight in module.parameters()}:
        return ()
    further = [
        name.removesuffix(".weight")
        for name, weight in weights.items()
        if weight not in read and weight.data_ptr() not in bare
    ]
    return (f"it has further weights that are not read: {', '.join(further)}",) if further else ()


def looks_like_attention(module: nn.Module, path: str) -> bool:
    """Whether a module that no family reads should be mentioned: by its class or its own name, or by its
    projections."""
    named = re.search("attention|attn|mhsa|multihead", type(module).__name__, re.IGNORECASE) is not None
    called = re.fullmatch("((self|cross)_?)?(attention|attn|mha)", path.rpartition(".")[2]) is not None
    named = named or (called and sum(map(is_linear, module.modules())) > 1)
    seeming = [name for name, child in module.named_children() if _INPUT.fullmatch(name) and _projects(child)]
    bare = [name for name, weight in module.named_parameters(recurse=False) if weight.ndim > 1]
    seeming += [name for name in (one.removesuffix("_weight") for one in bare) if _INPUT.fullmatch(name)]
    fused = any(roles.FUSED.fullmatch(name) for name in seeming)
    return (named and any(True for _ in module.parameters())) or fused or len(seeming) > 1


def _projects(child: nn.Module) -> bool:
    """A linear layer, or a module around some, such as one for each head."""
    return any(is_linear(part) for part in child.modules())


def why_unknown(module: nn.Module) -> str:
    """Why no family reads a module that looks like attention."""
    odd = {
        name: child
        for name, child in module.named_children()
        if (_INPUT.fullmatch(name) or roles.OUTPUT.fullmatch(name)) and _projects(child)
        if not is_linear(child)
    }
    for name, child in odd.items():
        bent = [type(part).__name__ for part in child.modules() if type(part).__name__ in _ACTIVATIONS]
        if isinstance(child, nn.Sequential) and bent:
            return (
                f"its {name} applies {bent[0]} to what a linear layer gives, so that no product of weights "
                "says what its heads do: track its matrices instead"
            )
    if odd:
        kinds = ", ".join(f"{name} (a {type(child).__name__})" for name, child in odd.items())
        return f"it has parts that do more than a linear layer that is known here: {kinds}"
    return "its projections are laid out in no way that is known here"
