"""The families of attention modules: how each one lays out its heads.

A family is a function that looks at one module and returns its `Attention`, or None if the module is not of
that family. A new family goes here and into `FAMILIES`, the particular before the general.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.watch import _roles as roles
from rankrise.watch._linear import (
    Projection,
    Unreadable,
    is_known,
    is_linear,
    linear,
    used_forward,
    works_as_known,
)

ROLES = ("query", "key", "value", "output")
PRODUCTS = {"KQ": ("key", "query"), "VO": ("value", "output")}  # their left and right factors


@dataclass(frozen=True, eq=False)
class Attention:
    """The projections of one attention module, cut into heads: what a family returns.

    `query` has one block for each head, `key` and `value` one for each group of heads that share them (as
    many as heads without sharing), and `output` a single block. `scale` multiplies the logits; None is
    1/sqrt(d_head). `notes` say what acts between the projections and the logits. `guess` is what was assumed
    because the module does not show it; `heads` announces it until `check` has proved it. `group[h]` is the
    number of the key and value that head h uses; by default, neighbouring heads share them.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection
    scale: float | None = None
    notes: tuple[str, ...] = ()
    guess: str = ""
    group: tuple[int, ...] = ()

    @property
    def group_of_head(self) -> tuple[int, ...]:
        """The number of the key and value that each head uses."""
        heads, groups = self.query.blocks, self.key.blocks
        return tuple(self.group) or tuple(head * groups // heads for head in range(heads))

    @property
    def layers(self) -> list[object]:
        """The layers, or bare weights, of the projections."""
        return [layer for role in ROLES for layer in getattr(self, role).layers]

    def refuse_misfit(self) -> None:
        """Raise if the projections do not fit together as heads."""
        query, key, value, inputs = self.query, self.key, self.value, self.output.weight.shape[1]
        heads, groups, group = query.blocks, key.blocks, self.group_of_head
        fits = query.width == key.width and value.blocks == groups and inputs == heads * value.width
        shared = len(group) == heads and set(group) == set(range(groups))
        if not fits or not shared or self.output.blocks != 1 or (heads % groups and not self.group):
            raise Unreadable(
                f"{heads} query heads of size {query.width}, {groups} key heads of size {key.width} and "
                f"{value.blocks} value heads of size {value.width} do not fit its output, from {inputs}"
            )


Family = Callable[[Any], Attention | None]


def assumed_of(module: Any) -> str:
    """The assumption behind reading a class that no known library made."""
    return (
        f"the heads of {type(module).__name__} are read as following one another, neighbours as sharing a "
        "key, and a fused projection as all queries, all keys, all values"
    )


def torch_multihead(module: Any) -> Attention | None:
    """`torch.nn.MultiheadAttention`: one (3E, E) weight, or three where keys and values have other sizes."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if module.in_proj_weight is not None:
        parts = linear(module.in_proj_weight, module.in_proj_bias).split(3)
    else:
        biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        parts = tuple(linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    query, key, value = (part.cut(module.num_heads) for part in parts)
    notes = ("a learned key and value stand beside those of the tokens",) * (module.bias_k is not None)
    own = used_forward(module) is not nn.MultiheadAttention.forward
    guess = f"{type(module).__name__} is read as nn.MultiheadAttention, whose forward pass it replaces" * own
    return Attention(query, key, value, linear(module.out_proj), notes=notes, guess=guess)


def per_head(module: Any) -> Attention | None:
    """Per head [q, k, v] in one projection: GPT-NeoX, Bloom, Persimmon, GPT-BigCode with many keys; and in
    timm MaxViT and CoAtNet (`head_first`), TinyViT and EfficientFormer (values of another size than keys).
    """
    name = type(module).__name__
    if name.startswith(("GPTNeoX", "Bloom", "Persimmon")) and hasattr(module, "query_key_value"):
        fused, output = module.query_key_value, module.dense
    elif name.startswith("GPTBigCode") and hasattr(module, "c_attn") and not module.multi_query:
        fused, output = module.c_attn, module.c_proj
    elif is_known(type(module)) and (getattr(module, "head_first", False) or hasattr(module, "val_dim")):
        if not is_linear(getattr(module, "qkv", None)):
            return None
        fused, output = module.qkv, module.proj
    else:
        return None
    sizes = (module.key_dim, module.key_dim, module.val_dim) if hasattr(module, "val_dim") else (3,)
    last = linear(output)
    query, key, value = linear(fused).cut(roles.heads_of(module, last)).split(*sizes)
    return Attention(query, key, value, last)


def falcon(module: Any) -> Attention | None:
    """Falcon's three layouts, all of them per group [queries, key, value]."""
    if not type(module).__name__.startswith("Falcon") or not hasattr(module, "query_key_value"):
        return None
    groups = 1 if module.multi_query and not module.new_decoder_architecture else module.num_kv_heads
    together, size = module.num_heads // groups, module.head_dim
    query, key, value = linear(module.query_key_value).cut(groups).split(together * size, size, size)
    return Attention(query.cut(together), key, value, linear(module.dense))


def codegen(module: Any) -> Attention | None:
    """CodeGen: four blocks for four tensor-parallel devices, each [queries, values, keys] of its heads."""
    if not type(module).__name__.startswith("CodeGen") or not hasattr(module, "qkv_proj"):
        return None
    parts = linear(module.qkv_proj).cut(4).split(3)
    query, value, key = (part.cut(module.num_attention_heads // 4) for part in parts)
    return Attention(query, key, value, linear(module.out_proj))


def xlnet(module: Any) -> Attention | None:
    """XLNet: bare parameters of shape [d_model, heads, d_head]."""
    weights: list[Any] = [getattr(module, name, None) for name in ("q", "k", "v", "o")]
    if not type(module).__name__.startswith("XLNet") or not isinstance(weights[0], nn.Parameter):
        return None
    query, key, value = (linear(weight.flatten(1).T).cut(weight.shape[1]) for weight in weights[:3])
    notes = ("logits have further terms from relative positions",)
    return Attention(query, key, value, linear(weights[3].flatten(1)), notes=notes)


def gated_query(module: Any) -> Attention | None:
    """Qwen3-Next and its successors: a query projection twice as wide, per head [query, gate]."""
    known = re.match(r"Qwen(3Next|3_5|4Exp)\w*Attention", type(module).__name__)
    if not known or not hasattr(module, "q_proj"):
        return None
    output, key, value = linear(module.o_proj), linear(module.k_proj), linear(module.v_proj)
    query, _ = linear(module.q_proj).cut(output.weight.shape[1] // module.head_dim).split(2)
    groups = key.width // module.head_dim
    notes = ("the output of each head is gated by its input",)
    return Attention(query, key.cut(groups), value.cut(groups), output, notes=notes)


def latent(module: Any) -> Attention | None:
    """Multi-head latent attention (DeepSeek-V2 and later, MiniCPM3, Kimi): a projection down to latent
    dimensions, a norm's weights, and a projection up to heads, which share a part of their keys.
    """
    if any(getattr(module, name, None) is None for name in ("kv_a_proj_with_mqa", "kv_b_proj", "v_head_dim")):
        return None
    heads, own, turned = module.num_heads, module.qk_nope_head_dim, module.qk_rope_head_dim
    down, shared = linear(module.kv_a_proj_with_mqa).split(module.kv_lora_rank, turned)
    up = linear(module.kv_b_proj).cut(heads)
    weights = getattr(module, "mla_scale_kv_lora", 1.0) * module.kv_a_layernorm.weight  # a factor in LongCat
    key, value = down.then(up, weights).split(own, module.v_head_dim)
    if getattr(module, "q_b_proj", None) is None:
        query = linear(module.q_proj).cut(heads)
    else:
        weights = getattr(module, "mla_scale_q_lora", 1.0) * module.q_a_layernorm.weight
        query = linear(module.q_a_proj).then(linear(module.q_b_proj).cut(heads), weights)
    notes = ("a bottleneck with a norm: the product has its weights, not its division by a token's size",)
    return Attention(query, key.with_shared(shared), value, linear(module.o_proj), notes=notes)


def standard(module: Any) -> Attention | None:
    """The standard form: query, key and value, or a fused projection of all three or of the last two, one
    after the other; the output is beside them, or (BERT) in the module `output` beside theirs.
    """
    holder, last = module, roles.role(module, roles.OUTPUT)
    inputs = roles.inputs(module)
    if inputs is None:
        inner = [one for one in module.children() if roles.inputs(one) and not roles.role(one, roles.OUTPUT)]
        beside = module._modules.get("output")
        if len(inner) != 1 or beside is None:
            return None
        holder, last = inner[0], beside if is_linear(beside) else roles.role(beside, roles.OUTPUT)
        inputs = roles.inputs(holder)
        roles.refuse(holder)
    if inputs is None or last is None:
        return None

    query_bias, value_bias = _bias(holder, "q_bias"), _bias(holder, "v_bias")
    if len(inputs) == 1 and query_bias is not None and value_bias is not None:  # and none on the keys
        query_bias = torch.cat([query_bias, torch.zeros_like(query_bias), value_bias])
    output, first = linear(last), linear(inputs[0], query_bias)
    heads = roles.heads_of(holder, output)
    if len(inputs) == 1:
        size = output.weight.shape[1] // heads
        shared = 1 if getattr(holder, "multi_query", False) else roles.configured(holder, roles.GROUPS)
        groups = heads if first.width == 3 * heads * size else shared or heads
        query, key, value = first.split(heads * size, groups * size, groups * size)
    elif len(inputs) == 2:
        query, groups = first, heads
        key, value = linear(inputs[1]).split(2)
    else:
        query, key, value = first, linear(inputs[1]), linear(inputs[2], value_bias)
        groups = key.width // query.cut(heads).width
    width = heads * (roles.number(holder, roles.SIZES) or query.width // heads)
    if query.width != width:
        raise Unreadable(f"it has {heads} heads that take {width}, and a query projection of {query.width}")
    return Attention(
        query.cut(heads),
        key.cut(groups),
        value.cut(groups),
        output,
        scale=roles.scale_of(holder),
        notes=roles.notes_on(holder),
        guess="" if works_as_known(holder) else assumed_of(holder),
    )


def _bias(module: Any, name: str) -> Tensor | None:
    """A bias that BEiT, EVA and VideoMAE keep beside the layer that it belongs to."""
    bias = getattr(module, name, None)
    return bias.flatten() if isinstance(bias, Tensor) else None


FAMILIES = (torch_multihead, per_head, falcon, codegen, xlnet, gated_query, latent, standard)
