"""Where `W_K W_Q^T` is not the whole of the logits: what is refused for it, and what is marked."""

import inspect
import re
from typing import Any

from torch import nn

from rankrise.watch._projection import Unreadable
from rankrise.watch._roles import KEY, QUERY

# What has the parts of attention and means something else by them: by class name, or by a part that tells.
_REFUSED_CLASSES = {
    r"\w*(XCA|ChannelAttn|ChannelAttention(V2)?|CrossCovarianceAttn)": "it attends over channels, not tokens",
    r"Autoformer\w*Attention": "it correlates whole series, and has no logits for pairs of tokens",
    r"DiffAttention|DiffLlama\w*Attention": "each head is the difference of two attention maps",
    r"MiniMaxLightningAttention|FactorAttn\w*|\w*LinearSelfAttention": "it is attention without a softmax",
}
_REFUSED_PARTS = {
    r"sampling_offsets": "it is deformable attention: it samples values at learned places and has no keys",
    r"\w*conv1d|\w*_sconv": "its queries, keys or values are mixed along the tokens by a convolution",
    r"forget_gate|fgate\w*|igate\w*": "it is a recurrence with gates, not softmax attention",
}

_QUERY_KEY_NORM = re.compile(
    "(q|k|qk|query|key)_?(norm|layernorm|layer_norm|ln)|(norm|ln)_?(q|k)|logit_scale"
)
_NOT_BETWEEN = re.compile("bias|LayerNorm|layer_norm|rotary|rope")
"""What is added, stands after the output, or is marked as such."""

ROTARY = "rotary positions turn queries and keys: the product is the position-free one"
NORMALISED = "queries and keys are normalised: the product is the one without the norms"


def refuse(module: nn.Module) -> None:
    """Raise the reason if this is a kind of module whose heads have no W_Q, W_K, W_V and W_O.

    >>> refuse(nn.ModuleDict({"sampling_offsets": nn.Linear(2, 2)}))
    Traceback (most recent call last):
    rankrise.watch._projection.Unreadable: it is deformable attention: ...
    """
    for pattern, reason in _REFUSED_CLASSES.items():
        if re.fullmatch(pattern, type(module).__name__):
            raise Unreadable(reason)
    for pattern, reason in _REFUSED_PARTS.items():
        if any(re.fullmatch(pattern, name) for name in module._modules):
            raise Unreadable(reason)


def marks(module: Any) -> tuple[str, ...]:
    """Rotary positions and norms of queries and keys, which stand between the projections and the logits."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    names = {*vars(module), *module._modules} | ({*code.co_names, *code.co_varnames} if code else set())
    used = [name for name in names if getattr(module, name, ...) is not None]
    found = []
    if any(re.search("rotary|rope|freqs_cis", name) for name in used):
        found.append(ROTARY)
    if any(is_norm(name) for name, _ in _parts(module)) or any(map(_normalises, module.named_children())):
        found.append(NORMALISED)
    return tuple(found)


def is_norm(name: str) -> bool:
    """Whether a part of this name is a norm of queries or keys."""
    return _QUERY_KEY_NORM.fullmatch(name.partition(".")[0]) is not None


def stands_between(name: str) -> bool:
    """Whether a weight of this name may stand between the tokens and what the heads give."""
    return _NOT_BETWEEN.search(name) is None


def _normalises(named: tuple[str, nn.Module]) -> bool:
    """A query or key in a `Sequential` that ends with a norm."""
    name, part = named
    of_logits = QUERY.fullmatch(name) or KEY.fullmatch(name)
    return bool(of_logits) and isinstance(part, nn.Sequential) and "Norm" in type(part[-1]).__name__


def unread_parts(module: nn.Module, read: tuple[nn.Module, ...]) -> tuple[str, ...]:
    """What else the module applies: gates, relative positions, pooling, sinks, weights for global tokens."""
    further = [name for name, part in _parts(module) if all(part is not one for one in read)]
    further = [name for name in further if stands_between(name) and not is_norm(name)]
    return (f"it has further weights that are not read: {', '.join(further)}",) if further else ()


def _parts(module: nn.Module) -> list[tuple[str, nn.Module | nn.Parameter]]:
    """Its own parameters, and those of its children that have any."""
    children = [
        (name, child) for name, child in module.named_children() if any(True for _ in child.parameters())
    ]
    return [*children, *module.named_parameters(recurse=False)]
