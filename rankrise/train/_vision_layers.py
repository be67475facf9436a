"""Faster ways to compute the vision transformer's layers, with the library's numbers."""

from collections.abc import Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError


class Unsummed(NamedTuple):
    """The residual stream and a branch that the next layer norm's kernel adds to it. [batch, tokens, d]"""

    stream: Tensor
    branch: Tensor
    bias: Tensor
    """The bias in `branch`, which gets its gradient in that kernel. [d]"""


def forward_patches(patches: Any, pixel_values: Tensor, **_: Any) -> Tensor:
    """`ViTPatchEmbeddings.forward` by a matrix product. [batch, channels, h, w] -> [batch, patches, d]"""
    weight, bias = patches.projection.weight, patches.projection.bias
    height, width = weight.shape[2:]
    grid = pixel_values.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    rows = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return nn.functional.linear(rows, weight.flatten(1), bias)


def forward_class_token(
    layer: Any, hidden_states: Tensor | Unsummed, attention_mask: None = None, **_: Any
) -> Tensor:
    """`ViTLayer.forward` for the class token alone, all that is read. [batch, tokens, d] -> [batch, 1, d]"""
    attention = layer.attention
    stream, normalised = _summed(hidden_states, layer.layernorm_before)
    query = attention.q_proj(normalised[:, :1])
    if isinstance(hidden_states, Unsummed) and stream.is_cuda:
        from rankrise.train._gpu.attention import class_attention

        packed, bias = _packed((attention.k_proj, attention.v_proj), normalised, attention.head_dim)
        by_head = query.unflatten(-1, (-1, attention.head_dim)).squeeze(1)
        mixed = class_attention(by_head, packed, bias, attention.scaling).unsqueeze(1)
    else:
        query, key, value = (
            projected.unflatten(-1, (-1, attention.head_dim))
            for projected in (query, attention.k_proj(normalised), attention.v_proj(normalised))
        )
        weights = ((query.to(normalised.dtype) * key).sum(-1, keepdim=True) * attention.scaling).softmax(1)
        mixed = (weights * value).sum(1, keepdim=True)
    token = stream[:, :1] + attention.o_proj(mixed.flatten(2))
    return token + layer.mlp(layer.layernorm_after(token))


def use_our_kernels(model: Any) -> None:
    """Let every layer but the last compute queries, keys and values by one product, read by our kernels."""
    if torch.cuda.is_available():
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise RankriseError(f"attention is short, which needs Triton ({error}): pass cudnn.") from error
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    for layer in model.vit.layers[:-1]:
        # The kernel takes powers of two; FSDP would take the bias away with its layer.
        if alone and model.config.hidden_size.bit_count() == 1:
            layer.forward = MethodType(_forward_layer, layer)
        else:
            layer.attention.forward = MethodType(_forward_attention, layer.attention)


def _forward_layer(layer: Any, hidden_states: Tensor | Unsummed, *_: Any, **__: Any) -> Unsummed:
    """`ViTLayer.forward`, but leave the last sum to the next layer's norm. [batch, tokens, d]"""
    attention, mlp = layer.attention, layer.mlp
    stream, normalised = _summed(hidden_states, layer.layernorm_before)
    mixed = _mixed_by_heads(attention, normalised)
    unsummed = Unsummed(stream, _bias_aside(attention.o_proj, mixed), attention.o_proj.bias)
    stream, normalised = _summed(unsummed, layer.layernorm_after)
    activation = mlp.activation_fn(mlp.fc1(normalised))
    return Unsummed(stream, _bias_aside(mlp.fc2, activation), mlp.fc2.bias)


def _summed(hidden_states: Tensor | Unsummed, norm: Any) -> tuple[Tensor, Tensor]:
    """The residual stream and its layer norm."""
    if isinstance(hidden_states, Tensor):
        return hidden_states, norm(hidden_states)
    stream, branch, bias = hidden_states
    if stream.is_cuda:
        from rankrise.train._gpu.residual_norm import residual_norm

        return residual_norm(stream, branch, bias, norm.weight, norm.bias, norm.eps)
    stream = stream + branch
    return stream, norm(stream)


def _bias_aside(linear: Any, inputs: Tensor) -> Tensor:
    """Apply a linear layer; on a GPU our kernel computes the gradient of its bias."""
    bias = linear.bias.detach() if inputs.is_cuda else linear.bias
    return nn.functional.linear(inputs, linear.weight, bias)


def _forward_attention(attention: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """`ViTAttention.forward`. [batch, tokens, d]"""
    return attention.o_proj(_mixed_by_heads(attention, hidden_states)), None


def _mixed_by_heads(attention: Any, hidden_states: Tensor) -> Tensor:
    """Outputs of all heads, projected by one matrix product. [batch, tokens, heads * d_head]"""
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    packed, bias = _packed(parts, hidden_states, attention.head_dim)
    if hidden_states.is_cuda:
        from rankrise.train._gpu.attention import short_attention

        return short_attention(packed, bias, attention.scaling).flatten(2)
    query, key, value = packed.transpose(1, 3).unbind(2)
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
    return mixed.transpose(1, 2).flatten(2)


def _packed(parts: Sequence[Any], hidden_states: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """The tokens' projections [batch, tokens, parts, heads, d_head], and their biases (zeros for none)."""
    weight = torch.cat([part.weight for part in parts])
    missing = parts[0].bias is None
    bias = weight.new_zeros(len(weight)) if missing else torch.cat([part.bias for part in parts])
    shape = (len(parts), -1, head_size)
    held = bias.detach() if hidden_states.is_cuda else bias
    return nn.functional.linear(hidden_states, weight, held).unflatten(-1, shape), bias.unflatten(0, shape)
