"""What an attention module says about itself: which layer is the query, how many heads, what else acts.

Names tell roles and numbers only. Types and shapes tell the sides of a weight and the size of a head.
"""

import inspect
import re
from typing import Any

from torch import nn

from rankrise.watch._linear import is_linear
from rankrise.watch._projection import Projection, Unreadable


def named(core: str, *others: str) -> re.Pattern[str]:
    """A pattern for the names of one role.

    >>> [bool(named("q|query").fullmatch(name)) for name in ("q_proj", "to_q", "Wq", "query", "q_lin", "mlp")]
    [True, True, True, True, True, False]
    """
    before = "(to_|w_?|lin_|linear_|project_|c_)?"
    after = "(_proj|_projection|_lin|_linear|_layer|_net|_attn)?"
    return re.compile("|".join([f"{before}({core}){after}", *others]), re.IGNORECASE)


QUERY, KEY, VALUE = named("q|query"), named("k|key"), named("v|value")
KEY_VALUE, FUSED = named("kv|key_value"), named("qkv", "c_attn", "att_proj")
OUTPUT = named("o|out|output", "c_proj", "proj", "projection(_layer)?", "dense", "att(entio)?n_out")

HEADS = (
    "num_heads",
    "n_heads",
    "n_head",
    "num_attention_heads",
    "heads",
    "attention_heads",
    "nhead",
    "num_head",
)
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_query_groups", "num_query_groups")
_SIZES = (
    "head_dim",
    "attention_head_size",
    "head_size",
    "key_value_proj_dim",
    "d_head",
    "dim_head",
    "dim_per_head",
)

ROTARY = "rotary positions turn queries and keys: the product is the position-free one"
NORMALISED = "queries and keys are normalised: the product is the one without the norms"

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
"""Modules that have the parts of attention but no W_Q, W_K, W_V and W_O: by class name, or by a part."""

_QUERY_KEY_NORM = re.compile(
    "(q|k|qk|query|key)_?(norm|layernorm|layer_norm|ln)|(norm|ln)_?(q|k)|logit_scale"
)
_HARMLESS = re.compile("bias|LayerNorm|layer_norm|rotary|rope")
"""Further weights that need no note: they are added, stand after the output, or have a note of their own."""


# Roles


def role(module: nn.Module, pattern: re.Pattern[str]) -> nn.Module | None:
    """The one linear layer of this module whose name fits; None if there is none."""
    fitting = {name: child for name, child in module._modules.items() if pattern.fullmatch(name)}
    found = {name: child for name, child in fitting.items() if is_linear(child)}
    if len(set(found.values())) > 1:
        raise Unreadable(f"several of its layers could have the same role: {', '.join(found)}")
    return next(iter(found.values()), None)


def inputs(module: nn.Module) -> tuple[nn.Module, ...] | None:
    """Query, key and value; or query and fused key and value; or all three fused."""
    query, fused = role(module, QUERY), role(module, FUSED)
    if query is None:
        return None if fused is None else (fused,)
    key, value = role(module, KEY), role(module, VALUE)
    if key is not None and value is not None:
        return query, key, value
    both = role(module, KEY_VALUE) or fused  # GPT-2's cross attention has its keys and values in `c_attn`
    return None if both is None or key is not None or value is not None else (query, both)


# Numbers


def heads_of(module: Any, output: Projection) -> int:
    """How many heads the module, or else its config, says it has."""
    width = output.weight.shape[1]
    heads = number(module, HEADS) or number(getattr(module, "config", None), HEADS)
    size = head_size(module)
    if heads is None and size is not None:
        heads = width // size
    if heads is None:
        raise Unreadable(
            f"it does not say how many heads it has: set one of {', '.join(HEADS)} as an attribute of it"
        )
    if heads < 1 or width % heads:
        raise Unreadable(f"it says it has {heads} heads, and its output projection takes {width}")
    return heads


def groups_of(module: Any) -> int | None:
    """How many keys the heads share, if the module or its config says so."""
    if getattr(module, "multi_query", False):
        return 1
    return number(module, _GROUPS) or number(getattr(module, "config", None), _GROUPS)


def head_size(module: Any) -> int | None:
    """The size of a query, if the module says it."""
    return number(module, _SIZES)


def scale_of(module: Any) -> float | None:
    """The factor on the logits, where the module keeps one; None for the usual 1/sqrt(d_head)."""
    if type(module).__name__.startswith("GPTNeoSelf"):
        return 1.0
    if type(module).__name__.startswith("Esm"):
        return None  # its `scaling` of 1 applies to queries that are scaled already
    kept = (getattr(module, name, None) for name in ("scaling", "scale", "softmax_scale", "inv_norm_factor"))
    scale = next((scale for scale in kept if isinstance(scale, float)), None)
    if scale is None and hasattr(module, "key_value_proj_dim"):
        return 1.0  # T5 in transformers 4
    if scale is None and getattr(module, "scale_attn_by_inverse_layer_idx", False):
        return float(module.head_dim**-0.5 / (module.layer_idx + 1))  # GPT-2 in transformers 4
    return scale


def number(owner: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a whole number; None if none is."""
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


# What else acts


def refuse(module: nn.Module) -> None:
    """Raise the reason if heads of this kind of module have no W_Q, W_K, W_V and W_O.

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


def notes_on(module: Any) -> tuple[str, ...]:
    """Notes on rotary positions and on norms of queries and keys, which act between products and logits."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    names = {*vars(module), *module._modules} | ({*code.co_names, *code.co_varnames} if code else set())
    used = [name for name in names if getattr(module, name, ...) is not None]
    found = []
    if any(re.search("rotary|rope|freqs_cis", name) for name in used):
        found.append(ROTARY)
    if any(is_norm(name) for name in weights_of(module)) or any(
        (QUERY.fullmatch(name) or KEY.fullmatch(name))
        and isinstance(part, nn.Sequential)
        and "Norm" in type(part[-1]).__name__
        for name, part in module.named_children()
    ):
        found.append(NORMALISED)
    return tuple(found)


def unread_parts(module: nn.Module, read: tuple[nn.Module, ...]) -> tuple[str, ...]:
    """A note on what else the module applies: gates, relative positions, pooling, sinks, global tokens."""
    further = [name for name, part in weights_of(module).items() if all(part is not one for one in read)]
    further = [name for name in further if acts_on_heads(name) and not is_norm(name)]
    return (f"it has further weights that are not read: {', '.join(further)}",) if further else ()


def is_norm(name: str) -> bool:
    """Whether a part of this name is a norm of queries or keys."""
    return _QUERY_KEY_NORM.fullmatch(name.partition(".")[0]) is not None


def acts_on_heads(name: str) -> bool:
    """Whether a weight of this name may act between the tokens and what the heads give."""
    return _HARMLESS.search(name) is None


def weights_of(module: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
    """The module's own parameters, and its children that have any."""
    children = {
        name: child for name, child in module.named_children() if any(True for _ in child.parameters())
    }
    return children | dict(module.named_parameters(recurse=False))
