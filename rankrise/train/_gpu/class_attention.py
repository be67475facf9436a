"""Attention of an image's class token alone, one head of one image at a time, in a kernel of its own.

All that a vision transformer's last layer hands on. There is one query for each head, so nothing is left for
the matrix units, and the time is that of reading keys and values once; backward, of writing their gradients.

In the kernels q, k, v are query, keys and values, g the gradient of the output, p the probabilities, s the
scores, d... a gradient; `_class` marks the class token's part.
"""

# mypy: allow-untyped-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

WARPS = 4


@triton.jit
def _read(pointer, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    """The class token's row [width], and the patches' rows [patches, width]. float32"""
    column = tl.arange(0, width)
    row = 1 + tl.arange(0, patches)[:, None]
    patch_rows = tl.load(pointer + row * stride + column[None, :]).to(tl.float32)
    return tl.load(pointer + column).to(tl.float32), patch_rows


@triton.jit
def _write(pointer, class_row, rows, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    column = tl.arange(0, width)
    row = 1 + tl.arange(0, patches)[:, None]
    tl.store(pointer + row * stride + column[None, :], rows.to(pointer.dtype.element_ty))
    tl.store(pointer + column, class_row.to(pointer.dtype.element_ty))


@triton.jit
def _probabilities(q, k_class, k, scale):
    """softmax(scale * keys query): the class token's, and the patches' [patches]."""
    s_class, s = tl.sum(k_class * q, 0) * scale, tl.sum(k * q[None, :], 1) * scale
    largest = tl.maximum(tl.max(s, 0), s_class)
    p_class, p = tl.exp(s_class - largest), tl.exp(s - largest)
    total = tl.sum(p, 0) + p_class
    return p_class / total, p / total


@triton.jit
def _class_attention_forward(
    query, packed, out, scale, heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr
):
    """One head of one image: out = softmax(scale * query keys^T) values."""
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    every: tl.constexpr = heads * width
    packed += image * (patches + 1) * 2 * every + head * width
    column = tl.program_id(0) * width + tl.arange(0, width)
    q = tl.load(query + column).to(tl.float32)
    k_class, k = _read(packed, 2 * every, patches, width)
    v_class, v = _read(packed + every, 2 * every, patches, width)
    p_class, p = _probabilities(q, k_class, k, scale)
    tl.store(out + column, (tl.sum(p[:, None] * v, 0) + p_class * v_class).to(out.dtype.element_ty))


@triton.jit
def _class_attention_backward(
    query,
    packed,
    out_gradient,
    query_gradient,
    gradient,
    scale,
    heads: tl.constexpr,
    width: tl.constexpr,
    patches: tl.constexpr,
):
    """One head of one image: the gradients of query, keys and values from that of out."""
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    every: tl.constexpr = heads * width
    packed += image * (patches + 1) * 2 * every + head * width
    gradient += image * (patches + 1) * 2 * every + head * width
    column = tl.program_id(0) * width + tl.arange(0, width)
    q, g = tl.load(query + column).to(tl.float32), tl.load(out_gradient + column).to(tl.float32)
    k_class, k = _read(packed, 2 * every, patches, width)
    v_class, v = _read(packed + every, 2 * every, patches, width)
    p_class, p = _probabilities(q, k_class, k, scale)
    _write(gradient + every, p_class * g, p[:, None] * g[None, :], 2 * every, patches, width)

    dp_class, dp = tl.sum(v_class * g, 0), tl.sum(v * g[None, :], 1)
    mean = tl.sum(p * dp, 0) + p_class * dp_class
    ds_class, ds = p_class * (dp_class - mean) * scale, p * (dp - mean) * scale
    _write(gradient, ds_class * q, ds[:, None] * q[None, :], 2 * every, patches, width)
    dq = tl.sum(ds[:, None] * k, 0) + ds_class * k_class
    tl.store(query_gradient + column, dq.to(query_gradient.dtype.element_ty))


@custom_op("rankrise::class_attention", mutates_args=())
def _attention(query: Tensor, packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    images, tokens, _, heads, width = packed.shape
    out = torch.empty_like(query)
    _class_attention_forward[(images * heads,)](
        query, packed, out, scale, heads, width, tokens - 1, num_warps=WARPS
    )
    return out


@custom_op("rankrise::class_attention_backward", mutates_args=())
def _attention_backward(
    query: Tensor, packed: Tensor, out_gradient: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, width = packed.shape
    query_gradient, gradient = torch.empty_like(query), torch.empty_like(packed)
    _class_attention_backward[(images * heads,)](
        query,
        packed,
        out_gradient,
        query_gradient,
        gradient,
        scale,
        heads,
        width,
        tokens - 1,
        num_warps=WARPS,
    )
    return query_gradient, gradient


@_attention.register_fake
def _(query: Tensor, packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    return torch.empty_like(query)


@_attention_backward.register_fake
def _(query: Tensor, packed: Tensor, out_gradient: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(packed)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
    query, packed, _, ctx.scale = inputs
    ctx.save_for_backward(query, packed)


def _differentiate(ctx: Any, out_gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    query, gradient = _attention_backward(*ctx.saved_tensors, out_gradient.contiguous(), ctx.scale)
    # A bias in all keys changes no probability, and one in all values is in the output as it is.
    value_bias = out_gradient.sum(0, dtype=torch.float32)
    return query, gradient, torch.stack([torch.zeros_like(value_bias), value_bias]), None


_attention.register_autograd(_differentiate, setup_context=_keep)


def class_attention(query: Tensor, packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale * query keys^T) values for every head, on a GPU. [images, heads, d_head]

    `query` is the class token's [images, heads, d_head]; `packed` has all tokens' keys and values: [images,
    tokens, 2, heads, d_head], the class token first, then 16, 32 or 64 patches. d_head is 16, 32, 64 or 128.
    `bias`, float32 [2, heads, d_head], must be in `packed` already, detached: it gets its gradient here.
    """
    return _attention(query.contiguous(), packed.contiguous(), bias, scale)
