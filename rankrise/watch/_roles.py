"""What an attention module tells about itself: which of its layers is the query, and how many heads it has.

Names tell roles and numbers only. Which side of a weight is which, and how wide a head is, comes from types
and shapes.
"""

import re
from typing import Any

from torch import nn

from rankrise.foundations.counted import counted
from rankrise.watch._linear import is_linear
from rankrise.watch._projection import Projection, Unreadable


def named(core: str, *others: str) -> re.Pattern[str]:
    """A pattern for the names that one role goes by.

    >>> [bool(named("q|query").fullmatch(name)) for name in ("q_proj", "to_q", "Wq", "query", "q_lin", "mlp")]
    [True, True, True, True, True, False]
    """
    before = "(to_|w_?|lin_|linear_|project_|c_)?"
    after = "(_proj|_projection|_lin|_linear|_layer|_net|_attn)?"
    return re.compile("|".join([f"{before}({core}){after}", *others]), re.IGNORECASE)


QUERY, KEY, VALUE = named("q|query"), named("k|key"), named("v|value")
KEY_VALUE, QUERY_KEY = named("kv|key_value"), named("qk|query_key")
FUSED = named("qkv", "c_attn", "att_proj")
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
SIZES = (
    "head_dim",
    "attention_head_size",
    "head_size",
    "key_value_proj_dim",
    "d_head",
    "dim_head",
    "dim_per_head",
)


def role(module: nn.Module, pattern: re.Pattern[str]) -> nn.Module | None:
    """The one linear layer of this module that goes by such a name; None if there is none."""
    named_so = {name: child for name, child in module._modules.items() if pattern.fullmatch(name)}
    found = {name: child for name, child in named_so.items() if is_linear(child)}
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
        raise Unreadable(f"it says it has {counted(heads, 'head')}, and its output projection takes {width}")
    return heads


def groups_of(module: Any) -> int | None:
    """How many keys the module, or else its config, says its heads share; None if it does not say."""
    if getattr(module, "multi_query", False):
        return 1
    return number(module, _GROUPS) or number(getattr(module, "config", None), _GROUPS)


def head_size(module: Any) -> int | None:
    """The size of a query that the module says it has; None if it does not say."""
    return number(module, SIZES)


def scale_of(module: Any) -> float | None:
    """The factor on the logits, where the module keeps one; None for the usual 1/sqrt(d_head)."""
    if type(module).__name__.startswith("GPTNeoSelf"):
        return 1.0
    if type(module).__name__.startswith("Esm"):
        return None  # its `scaling` of 1 applies to queries that are scaled already
    kept = (getattr(module, name, None) for name in ("scaling", "scale", "softmax_scale", "inv_norm_factor"))
    return next((scale for scale in kept if isinstance(scale, float)), None)


def number(owner: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a whole number; None if none is."""
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
