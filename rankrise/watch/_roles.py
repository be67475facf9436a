"""Read roles from an attention module's names: which layer is the query, how many heads, what else acts.

Names tell roles and numbers only. Types and shapes tell the sides of a weight and the size of a head.
"""

import inspect
import re
from typing import Any

from torch import nn

from rankrise.watch._linear import Projection, Unreadable, is_linear


def _named(core: str, *others: str) -> re.Pattern[str]:
    """A pattern for the names of one role, such as q_proj, to_q, Wq and query."""
    before = "(to_|w_?|lin_|linear_|project_|c_)?"
    after = "(_proj|_projection|_lin|_linear|_layer|_net|_attn)?"
    return re.compile("|".join([f"{before}({core}){after}", *others]), re.IGNORECASE)


QUERY, KEY, VALUE = _named("q|query"), _named("k|key"), _named("v|value")
KEY_VALUE, FUSED = _named("kv|key_value"), _named("qkv", "c_attn", "att_proj")
OUTPUT = _named("o|out|output", "c_proj", "proj", "projection(_layer)?", "dense", "att(entio)?n_out")
INPUT = _named("q|query|k|key|v|value|qk|kv|qkv", "c_attn", r"w?_?(q|k|v|kv)_(a|b|up|down)(_proj)?")

HEADS = (
    *("num_heads", "n_heads", "n_head", "num_attention_heads"),
    *("heads", "attention_heads", "nhead", "num_head"),
)
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_query_groups", "num_query_groups")
SIZES = (
    *("head_dim", "attention_head_size", "head_size", "key_value_proj_dim"),
    *("d_head", "dim_head", "dim_per_head"),
)

ROTARY = "rotary positions turn queries and keys: the product is the position-free one"
NORMALISED = "queries and keys are normalised: the product is the one without the norms"

# Attention over channels, of whole series, with differences of maps, without a softmax
_REFUSED_CLASSES = re.compile(
    r"\w*(XCA|ChannelAttn|ChannelAttention(V2)?|CrossCovarianceAttn|LinearSelfAttention)"
    r"|Autoformer\w*Attention|DiffAttention|DiffLlama\w*Attention|MiniMaxLightningAttention|FactorAttn\w*"
)
# Deformable attention, convolutions along the tokens, recurrences with gates
_REFUSED_PARTS = re.compile(r"sampling_offsets|\w*conv1d|\w*_sconv|forget_gate|[fi]gate\w*")
_QUERY_KEY_NORM = re.compile(
    "(q|k|qk|query|key)_?(norm|layernorm|layer_norm|ln)|(norm|ln)_?(q|k)|logit_scale"
)
# Further weights that need no note: they are added, stand after the output, or have a note of their own
_HARMLESS = re.compile("bias|[Ll]ayer_?[Nn]orm|rotary|rope")


def role(module: nn.Module, pattern: re.Pattern[str]) -> nn.Module | None:
    """The one linear layer of this module whose name fits; None if there is none."""
    fitting = {
        child: name for name, child in module._modules.items() if pattern.fullmatch(name) and is_linear(child)
    }
    if len(fitting) > 1:
        raise Unreadable(f"several of its layers could have the same role: {', '.join(fitting.values())}")
    return next(iter(fitting), None)


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
    width, size = output.weight.shape[1], number(module, SIZES)
    heads = configured(module, HEADS) or (width // size if size else 0)
    if heads < 1 or width % heads:
        raise Unreadable(f"it says it has {heads} heads (num_heads, ...), and its output takes {width}")
    return heads


def configured(module: Any, names: tuple[str, ...]) -> int | None:
    """A number that the module, or else its config, says."""
    return number(module, names) or number(getattr(module, "config", None), names)


def number(owner: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a whole number; None if none is."""
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


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


def refuse(module: nn.Module) -> None:
    """Raise if the logits or values of this kind of attention are not those of W_Q, W_K, W_V and W_O."""
    part = next(filter(_REFUSED_PARTS.fullmatch, module._modules), None)
    if part or _REFUSED_CLASSES.fullmatch(type(module).__name__):
        what = f"with its {part}" if part else "by its class"
        raise Unreadable(f"{what}, it is not softmax attention of tokens by W_Q, W_K, W_V and W_O")


def notes_on(module: Any) -> tuple[str, ...]:
    """Notes on rotary positions and on norms of queries and keys, which act between products and logits."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    names = {*vars(module), *module._modules} | ({*code.co_names, *code.co_varnames} if code else set())
    used = [name for name in names if getattr(module, name, ...) is not None]
    turned = any(re.search("rotary|rope|freqs_cis", name) for name in used)
    normalised = any(_is_norm(name) for name, _ in module.named_parameters())
    return (ROTARY,) * turned + (NORMALISED,) * normalised


def acts_on_heads(name: str) -> bool:
    """Whether a weight of this name may act between the tokens and what the heads give, and has no note."""
    return _HARMLESS.search(name) is None and not _is_norm(name)


def _is_norm(name: str) -> bool:
    return any(map(_QUERY_KEY_NORM.fullmatch, name.split(".")))
