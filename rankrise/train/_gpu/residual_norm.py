"""The residual stream with a layer's output added, and its layer norm; the gradients of both in one kernel.

Backward, one kernel reads once what gives the gradient of the stream in float32 and, for the matrix products
before it, in bfloat16, and the gradients of the norm's weight and bias and of the branch's bias. Each program
adds up its own rows in a fixed order, so that the bits repeat.
"""

# mypy: allow-untyped-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankrise.train._gpu import launch, operator

ROWS = 2
PROGRAMS = 1056
"""At most, in the backward pass: eight for each multiprocessor of an H200."""


@triton.jit
def _normalised(rows, width: tl.constexpr, epsilon):
    """Rows less their mean over their standard deviation, and 1 / that [rows, 1]."""
    mean = tl.sum(rows, 1)[:, None] / width
    centred = rows - mean
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / width + epsilon)
    return centred * scale, scale


@triton.jit
def _residual_norm_forward(
    stream, branch, weight, bias, total, out, count, epsilon, width: tl.constexpr, rows: tl.constexpr
):
    """Some rows: total = stream + branch, out = layer norm of total."""
    column = tl.arange(0, width)[None, :]
    row = tl.program_id(0) * rows + tl.arange(0, rows)[:, None]
    real = row < count
    place = row.to(tl.int64) * width + column
    sums = tl.load(stream + place, mask=real, other=0.0)
    sums += tl.load(branch + place, mask=real, other=0.0).to(tl.float32)
    tl.store(total + place, sums, mask=real)
    normalised, _ = _normalised(sums, width, epsilon)
    w = tl.load(weight + column)
    b = tl.load(bias + column)
    tl.store(out + place, (normalised * w + b).to(out.dtype.element_ty), mask=real)


@triton.jit
def _residual_norm_backward(
    total,
    weight,
    total_gradient,
    out_gradient,
    stream_gradient,
    branch_gradient,
    sums,
    count,
    epsilon,
    width: tl.constexpr,
    rows: tl.constexpr,
    turns: tl.constexpr,
):
    """A group of rows at each turn: the gradient of stream and branch from those of total and out.

    Into `sums` [programs, 3, width]: over these rows, the gradient of the norm's weight, of its bias, and of
    the branch.
    """
    column = tl.arange(0, width)[None, :]
    w = tl.load(weight + column)
    for_weight = tl.zeros([rows, width], tl.float32)
    for_bias = tl.zeros([rows, width], tl.float32)
    for_branch = tl.zeros([rows, width], tl.float32)
    for turn in range(turns):
        row = (turn * tl.num_programs(0) + tl.program_id(0)) * rows + tl.arange(0, rows)[:, None]
        real = row < count
        place = row.to(tl.int64) * width + column
        x = tl.load(total + place, mask=real, other=0.0)
        g = tl.load(out_gradient + place, mask=real, other=0.0).to(tl.float32)
        through = tl.load(total_gradient + place, mask=real, other=0.0)
        x, scale = _normalised(x, width, epsilon)
        for_weight += g * x
        for_bias += g
        g = g * w
        along = tl.sum(g * x, 1)[:, None] / width
        mean = tl.sum(g, 1)[:, None] / width
        gradient = through + (g - mean - x * along) * scale
        for_branch += gradient
        tl.store(stream_gradient + place, gradient, mask=real)
        tl.store(branch_gradient + place, gradient.to(branch_gradient.dtype.element_ty), mask=real)
    place = sums + tl.program_id(0) * 3 * width + tl.arange(0, width)
    tl.store(place, tl.sum(for_weight, 0))
    tl.store(place + width, tl.sum(for_bias, 0))
    tl.store(place + 2 * width, tl.sum(for_branch, 0))


@operator
def residual_norm_forward(
    stream: Tensor, branch: Tensor, branch_bias: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    width = stream.shape[-1]
    count = stream.numel() // width
    total, out = torch.empty_like(stream), torch.empty_like(branch)
    given, sizes = (stream, branch, weight, bias, total, out), (count, epsilon, width, ROWS)
    launch(_residual_norm_forward, triton.cdiv(count, ROWS), *given, *sizes, warps=_warps(width))
    return total, out


@operator
def residual_norm_backward(
    total: Tensor, weight: Tensor, total_gradient: Tensor, out_gradient: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    width = total.shape[-1]
    count = total.numel() // width
    programs = min(PROGRAMS, triton.cdiv(count, ROWS))
    stream_gradient, branch_gradient = torch.empty_like(total), torch.empty_like(out_gradient)
    sums = total.new_empty(programs, 3, width)
    given = total, weight, total_gradient, out_gradient, stream_gradient, branch_gradient, sums
    sizes = count, epsilon, width, ROWS, triton.cdiv(count, programs * ROWS)
    launch(_residual_norm_backward, programs, *given, *sizes, warps=_warps(width))
    return stream_gradient, branch_gradient, sums


def _warps(width: int) -> int:
    return max(1, width // 256)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, _, weight, _, ctx.epsilon = inputs
    ctx.save_for_backward(output[0], weight)


def _differentiate(
    ctx: Any, total_gradient: Tensor, out_gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None]:
    stream, branch, sums = residual_norm_backward(
        *ctx.saved_tensors, total_gradient.contiguous(), out_gradient.contiguous(), ctx.epsilon
    )
    weight, bias, branch_bias = sums.sum(0)
    return stream, branch, branch_bias, weight, bias, None


residual_norm_forward.register_autograd(_differentiate, setup_context=_keep)


def residual_norm(
    stream: Tensor, branch: Tensor, branch_bias: Tensor, norm: torch.nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """`stream + branch`, and its layer norm as `norm` has it, on a GPU.

    `stream` is float32 [..., d], `branch` bfloat16 [..., d]; so are the two that come back. d is a power of
    two. `branch_bias`, float32 [d], must be in `branch` already, detached: it gets its gradient here, where
    the sums are at hand.
    """
    given = stream.contiguous(), branch.contiguous(), branch_bias, norm.weight, norm.bias, norm.eps
    summed: tuple[Tensor, Tensor] = residual_norm_forward(*given)
    return summed
