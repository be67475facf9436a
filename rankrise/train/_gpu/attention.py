"""Attention over an image's class token and patches: one program for each head of an image.

Kernels for long sequences pad the paper's 65 tokens to 128. In `short_attention` a program holds a whole
head: the patches' 64 x 64 scores and the class token's, a row of a tile of 16, go to the matrix units, and
the softmax needs no second pass. `class_attention` is that of the class token alone, all that the last layer
hands on; its time is that of reading keys and values once, and of writing their gradients.

In the kernels q, k, v are queries, keys and values, g the gradient of the output, p the probabilities, s the
scores, d... a gradient; `_class` marks the class token's part.
"""

# mypy: allow-untyped-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankrise.train._gpu import launch, operator

WARPS = 4


@triton.jit
def _read_tile(pointer, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    """The class token's row on top of rows of zeros [16, width], and the patches' rows [patches, width]."""
    column = tl.arange(0, width)[None, :]
    row = tl.arange(0, 16)[:, None]
    class_rows = tl.load(pointer + row * stride + column, mask=row == 0, other=0.0)
    row = 1 + tl.arange(0, patches)[:, None]
    return class_rows, tl.load(pointer + row * stride + column)


@triton.jit
def _write(pointer, rows, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    """The patches' rows."""
    row = 1 + tl.arange(0, patches)[:, None]
    tl.store(pointer + row * stride + tl.arange(0, width)[None, :], rows.to(pointer.dtype.element_ty))


@triton.jit
def _times_class(rows, class_rows):
    """Each patch's row times the class token's. [patches]"""
    products = tl.dot(rows, tl.trans(class_rows))
    return tl.sum(tl.where(tl.arange(0, 16)[None, :] == 0, products, 0.0), 1)


@triton.jit
def _class_times_class(left, right):
    return tl.sum(tl.sum(left.to(tl.float32) * right.to(tl.float32), 1), 0)


@triton.jit
def _plus_class(rows, weights, class_rows):
    """`rows` and `weights` times the class token's row."""
    tile = tl.where(tl.arange(0, 16)[None, :] == 0, weights[:, None], 0.0)
    return tl.dot(tile.to(class_rows.dtype), class_rows, rows)


@triton.jit
def _write_mixtures(
    first,
    first_weights,
    first_class,
    second,
    second_weights,
    second_class,
    rows,
    class_rows,
    count: tl.constexpr,
    patches: tl.constexpr,
    width: tl.constexpr,
):
    """Write the patches' and the class token's rows, mixed by weights, to `first`; with others to `second`.

    They are rows 0 and 1 of a product with `patches` rows: the matrix units take no fewer. `count` 1 leaves
    the second out.
    """
    row = tl.arange(0, patches)[:, None]
    weights = tl.where(row == 0, first_weights[None, :], tl.where(row == 1, second_weights[None, :], 0.0))
    class_weights = tl.where(row == 0, first_class, tl.where(row == 1, second_class, 0.0))
    class_weights = tl.where(tl.arange(0, 16)[None, :] == 0, class_weights, 0.0)
    mixed = tl.dot(weights.to(rows.dtype), rows)
    mixed = tl.dot(class_weights.to(rows.dtype), class_rows, mixed)
    place = tl.where(row == 0, first, second) + tl.arange(0, width)[None, :]
    tl.store(place, mixed.to(first.dtype.element_ty), mask=row < count)


@triton.jit
def _probabilities(q_class, q, k_class, k, scale):
    """softmax(scale * query key^T) in four parts.

    Patches to patches [patches, patches], patches to the class token [patches], the class token to patches
    [patches] and to itself. float32
    """
    s, s_to_class = tl.dot(q, tl.trans(k)) * scale, _times_class(q, k_class) * scale
    largest = tl.maximum(tl.max(s, 1), s_to_class)
    p, p_to_class = tl.exp(s - largest[:, None]), tl.exp(s_to_class - largest)
    total = tl.sum(p, 1) + p_to_class

    s_from_class, s_class = _times_class(k, q_class) * scale, _class_times_class(q_class, k_class) * scale
    largest_class = tl.maximum(tl.max(s_from_class, 0), s_class)
    p_from_class, p_class = tl.exp(s_from_class - largest_class), tl.exp(s_class - largest_class)
    total_class = tl.sum(p_from_class, 0) + p_class
    return p / total[:, None], p_to_class / total, p_from_class / total_class, p_class / total_class


@triton.jit
def _short_attention_forward(
    packed, out, scale, heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr
):
    """One head of one image: out = softmax(scale * query key^T) value."""
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    every: tl.constexpr = heads * width
    packed += image * (patches + 1) * 3 * every + head * width
    out += image * (patches + 1) * every + head * width
    q_class, q = _read_tile(packed, 3 * every, patches, width)
    k_class, k = _read_tile(packed + every, 3 * every, patches, width)
    v_class, v = _read_tile(packed + 2 * every, 3 * every, patches, width)
    p, p_to_class, p_from_class, p_class = _probabilities(q_class, q, k_class, k, scale)
    _write(out, _plus_class(tl.dot(p.to(v.dtype), v), p_to_class, v_class), every, patches, width)
    _write_mixtures(out, p_from_class, p_class, out, p_from_class, p_class, v, v_class, 1, patches, width)


@triton.jit
def _short_attention_backward(
    packed,
    out_gradient,
    gradient,
    sums,
    scale,
    heads: tl.constexpr,
    width: tl.constexpr,
    patches: tl.constexpr,
):
    """One head of one image: the gradients of query, key and value from that of out.

    Into `sums` those of query and value, summed over tokens; that of the key has the sum 0, since a row of
    probabilities does not change when all its scores do alike.
    """
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    every: tl.constexpr = heads * width
    packed += image * (patches + 1) * 3 * every + head * width
    gradient += image * (patches + 1) * 3 * every + head * width
    out_gradient += image * (patches + 1) * every + head * width
    sums += image * 2 * every + head * width
    q_class, q = _read_tile(packed, 3 * every, patches, width)
    k_class, k = _read_tile(packed + every, 3 * every, patches, width)
    g_class, g = _read_tile(out_gradient, every, patches, width)
    v_class, v = _read_tile(packed + 2 * every, 3 * every, patches, width)
    p, p_to_class, p_from_class, p_class = _probabilities(q_class, q, k_class, k, scale)

    dv = _plus_class(tl.dot(tl.trans(p.to(g.dtype)), g), p_from_class, g_class)
    _write(gradient + 2 * every, dv, 3 * every, patches, width)
    ones = tl.full([patches], 1.0, tl.float32)  # a row of probabilities has the sum 1
    _write_mixtures(
        gradient + 2 * every, p_to_class, p_class, sums + every, ones, 1.0, g, g_class, 2, patches, width
    )

    dp, dp_to_class = tl.dot(g, tl.trans(v)), _times_class(g, v_class)
    dp_from_class, dp_class = _times_class(v, g_class), _class_times_class(g_class, v_class)
    mean = tl.sum(p * dp, 1) + p_to_class * dp_to_class
    mean_class = tl.sum(p_from_class * dp_from_class, 0) + p_class * dp_class
    ds = p * (dp - mean[:, None]) * scale
    ds_to_class = p_to_class * (dp_to_class - mean) * scale
    ds_from_class = p_from_class * (dp_from_class - mean_class) * scale
    ds_class = p_class * (dp_class - mean_class) * scale

    dq = _plus_class(tl.dot(ds.to(k.dtype), k), ds_to_class, k_class)
    _write(gradient, dq, 3 * every, patches, width)
    total, total_class = tl.sum(ds, 0) + ds_from_class, tl.sum(ds_to_class, 0) + ds_class
    _write_mixtures(
        gradient, ds_from_class, ds_class, sums, total, total_class, k, k_class, 2, patches, width
    )
    dk = _plus_class(tl.dot(tl.trans(ds.to(q.dtype)), q), ds_from_class, q_class)
    _write(gradient + every, dk, 3 * every, patches, width)
    place = gradient + every
    _write_mixtures(place, ds_to_class, ds_class, place, ds_to_class, ds_class, q, q_class, 1, patches, width)


@operator
def short_attention_forward(packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    images, tokens, _, heads, width = packed.shape
    out = packed.new_empty(images, tokens, heads, width)
    sizes = heads, width, tokens - 1
    launch(_short_attention_forward, images * heads, packed, out, scale, *sizes, warps=WARPS)
    return out


@operator
def short_attention_backward(packed: Tensor, out_gradient: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, width = packed.shape
    gradient, sums = torch.empty_like(packed), packed.new_empty(images, 2, heads, width)
    given, sizes = (packed, out_gradient, gradient, sums, scale), (heads, width, tokens - 1)
    launch(_short_attention_backward, images * heads, *given, *sizes, warps=WARPS)
    return gradient, sums


def _keep_short(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    packed, _, ctx.scale = inputs
    ctx.save_for_backward(packed)


def _differentiate_short(ctx: Any, out_gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    gradient, sums = short_attention_backward(*ctx.saved_tensors, out_gradient.contiguous(), ctx.scale)
    query, value = sums.sum(0, dtype=torch.float32)
    return gradient, torch.stack([query, torch.zeros_like(query), value]), None


short_attention_forward.register_autograd(_differentiate_short, setup_context=_keep_short)


def short_attention(packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale * query key^T) value for every head, on a GPU. [images, tokens, heads, d_head]

    `packed` has queries, keys and values: [images, tokens, 3, heads, d_head], the class token first, then 16,
    32 or 64 patches; d_head is 16, 32, 64 or 128. `bias`, float32 [3, heads, d_head], must be in `packed`
    already, detached: it gets its gradient here, where the sums over tokens are at hand.
    """
    attended: Tensor = short_attention_forward(packed.contiguous(), bias, scale)
    return attended


@triton.jit
def _read_rows(pointer, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    """The class token's row [width], and the patches' rows [patches, width]. float32"""
    column = tl.arange(0, width)
    row = 1 + tl.arange(0, patches)[:, None]
    patch_rows = tl.load(pointer + row * stride + column[None, :]).to(tl.float32)
    return tl.load(pointer + column).to(tl.float32), patch_rows


@triton.jit
def _write_rows(pointer, class_row, rows, stride: tl.constexpr, patches: tl.constexpr, width: tl.constexpr):
    column = tl.arange(0, width)
    row = 1 + tl.arange(0, patches)[:, None]
    tl.store(pointer + row * stride + column[None, :], rows.to(pointer.dtype.element_ty))
    tl.store(pointer + column, class_row.to(pointer.dtype.element_ty))


@triton.jit
def _class_probabilities(q, k_class, k, scale):
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
    k_class, k = _read_rows(packed, 2 * every, patches, width)
    v_class, v = _read_rows(packed + every, 2 * every, patches, width)
    p_class, p = _class_probabilities(q, k_class, k, scale)
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
    k_class, k = _read_rows(packed, 2 * every, patches, width)
    v_class, v = _read_rows(packed + every, 2 * every, patches, width)
    p_class, p = _class_probabilities(q, k_class, k, scale)
    _write_rows(gradient + every, p_class * g, p[:, None] * g[None, :], 2 * every, patches, width)

    dp_class, dp = tl.sum(v_class * g, 0), tl.sum(v * g[None, :], 1)
    mean = tl.sum(p * dp, 0) + p_class * dp_class
    ds_class, ds = p_class * (dp_class - mean) * scale, p * (dp - mean) * scale
    _write_rows(gradient, ds_class * q, ds[:, None] * q[None, :], 2 * every, patches, width)
    dq = tl.sum(ds[:, None] * k, 0) + ds_class * k_class
    tl.store(query_gradient + column, dq.to(query_gradient.dtype.element_ty))


@operator
def class_attention_forward(query: Tensor, packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    images, tokens, _, heads, width = packed.shape
    out = torch.empty_like(query)
    given, sizes = (query, packed, out, scale), (heads, width, tokens - 1)
    launch(_class_attention_forward, images * heads, *given, *sizes, warps=WARPS)
    return out


@operator
def class_attention_backward(
    query: Tensor, packed: Tensor, out_gradient: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, width = packed.shape
    query_gradient, gradient = torch.empty_like(query), torch.empty_like(packed)
    given = query, packed, out_gradient, query_gradient, gradient, scale
    launch(_class_attention_backward, images * heads, *given, heads, width, tokens - 1, warps=WARPS)
    return query_gradient, gradient


def _keep_class(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
    query, packed, _, ctx.scale = inputs
    ctx.save_for_backward(query, packed)


def _differentiate_class(ctx: Any, out_gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    query, gradient = class_attention_backward(*ctx.saved_tensors, out_gradient.contiguous(), ctx.scale)
    # A bias in all keys changes no probability, and one in all values is in the output as it is.
    value_bias = out_gradient.sum(0, dtype=torch.float32)
    return query, gradient, torch.stack([torch.zeros_like(value_bias), value_bias]), None


class_attention_forward.register_autograd(_differentiate_class, setup_context=_keep_class)


def class_attention(query: Tensor, packed: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale * query keys^T) values for every head, on a GPU. [images, heads, d_head]

    `query` is the class token's [images, heads, d_head]; `packed` has all tokens' keys and values: [images,
    tokens, 2, heads, d_head], the class token first, then 16, 32 or 64 patches. d_head is 16, 32, 64 or 128.
    `bias`, float32 [2, heads, d_head], must be in `packed` already, detached: it gets its gradient here.
    """
    attended: Tensor = class_attention_forward(query.contiguous(), packed.contiguous(), bias, scale)
    return attended
