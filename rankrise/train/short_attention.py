"""Attention over short sequences, one head of one example at a time, in a kernel of its own.

The paper's vision transformer has 65 tokens, an awkward number for kernels that are made for long sequences.
Here a program holds a whole head: the scores never leave it, softmax needs no second pass, and the backward
pass reads nothing but queries, keys, values and the incoming gradient.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op


@triton.jit
def _tile(tokens, row_length: tl.constexpr, width: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the [size, width] values of a head lie, and which of its rows exist."""
    row = tl.arange(0, size)[:, None]
    column = tl.arange(0, width)[None, :]
    return row * row_length + column, (row < tokens) & (column < width)


@triton.jit
def _probabilities(query, key, scale, tokens, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """softmax(scale * query key^T) over the keys that exist. float32 [size, size]"""
    scores = tl.dot(query, tl.trans(key)) * scale
    scores = tl.where(tl.arange(0, size)[None, :] < tokens, scores, float("-inf"))
    exponents = tl.exp(scores - tl.max(scores, 1)[:, None])
    return exponents / tl.sum(exponents, 1)[:, None]


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    packed, out, scale, tokens, heads: tl.constexpr, width: tl.constexpr, size: tl.constexpr
):
    """One head of one example: out = softmax(scale * query key^T) value."""
    example, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    packed += example * tokens * 3 * heads * width + head * width
    out += example * tokens * heads * width + head * width
    place, exists = _tile(tokens, 3 * heads * width, width, size)
    q = tl.load(packed + place, mask=exists, other=0.0)
    k = tl.load(packed + heads * width + place, mask=exists, other=0.0)
    v = tl.load(packed + 2 * heads * width + place, mask=exists, other=0.0)
    mixed = tl.dot(_probabilities(q, k, scale, tokens, size).to(v.dtype), v)
    place, exists = _tile(tokens, heads * width, width, size)
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=exists)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    packed,
    out_gradient,
    gradient,
    scale,
    tokens,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
):
    """One head of one example: the gradients of query, key and value, from that of out."""
    example, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    packed += example * tokens * 3 * heads * width + head * width
    gradient += example * tokens * 3 * heads * width + head * width
    out_gradient += example * tokens * heads * width + head * width
    place, exists = _tile(tokens, 3 * heads * width, width, size)
    q = tl.load(packed + place, mask=exists, other=0.0)
    k = tl.load(packed + heads * width + place, mask=exists, other=0.0)
    p = _probabilities(q, k, scale, tokens, size)
    out_place, out_exists = _tile(tokens, heads * width, width, size)
    g = tl.load(out_gradient + out_place, mask=out_exists, other=0.0)
    dv = tl.dot(tl.trans(p.to(g.dtype)), g)
    tl.store(gradient + 2 * heads * width + place, dv.to(gradient.dtype.element_ty), mask=exists)
    v = tl.load(packed + 2 * heads * width + place, mask=exists, other=0.0)
    dp = tl.dot(g, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    tl.store(gradient + place, tl.dot(ds, k).to(gradient.dtype.element_ty), mask=exists)
    dk = tl.dot(tl.trans(ds), q)
    tl.store(gradient + heads * width + place, dk.to(gradient.dtype.element_ty), mask=exists)


@custom_op("rankrise::short_attention", mutates_args=())
def _attention(packed: Tensor, scale: float) -> Tensor:
    batch, tokens, _, heads, width = packed.shape
    out = packed.new_empty(batch, tokens, heads, width)
    _forward_kernel[(batch * heads,)](
        packed, out, scale, tokens, heads, width, _size(tokens), num_warps=8, maxnreg=128
    )
    return out


@custom_op("rankrise::short_attention_backward", mutates_args=())
def _attention_backward(packed: Tensor, out_gradient: Tensor, scale: float) -> Tensor:
    batch, tokens, _, heads, width = packed.shape
    gradient = torch.empty_like(packed)
    _backward_kernel[(batch * heads,)](
        packed, out_gradient, gradient, scale, tokens, heads, width, _size(tokens), num_warps=8
    )
    return gradient


@_attention.register_fake
def _(packed: Tensor, scale: float) -> Tensor:
    batch, tokens, _, heads, width = packed.shape
    return packed.new_empty(batch, tokens, heads, width)


@_attention_backward.register_fake
def _(packed: Tensor, out_gradient: Tensor, scale: float) -> Tensor:
    return torch.empty_like(packed)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    packed, ctx.scale = inputs
    ctx.save_for_backward(packed)


def _differentiate(ctx: Any, out_gradient: Tensor) -> tuple[Tensor, None]:
    return _attention_backward(*ctx.saved_tensors, out_gradient.contiguous(), ctx.scale), None


_attention.register_autograd(_differentiate, setup_context=_keep)


def _size(tokens: int) -> int:
    """The next power of two, at least what a matrix unit takes."""
    return max(16, 1 << (tokens - 1).bit_length())


def short_attention(packed: Tensor, scale: float) -> Tensor:
    """softmax(scale * query key^T) value for every head, on a GPU. [batch, tokens, heads, d_head]

    `packed` has queries, keys and values: [batch, tokens, 3, heads, d_head]. At most 128 tokens; d_head is
    16, 32, 64 or 128.
    """
    return _attention(packed.contiguous(), scale)
