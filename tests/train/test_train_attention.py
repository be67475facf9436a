"""The kernel for short sequences against the library's attention: on a GPU, or in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton comes with torch's GPU builds")
GPU, INTERPRETED = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
needs_either = pytest.mark.skipif(not GPU and not INTERPRETED, reason="runs in a process of its own")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests run in this process")
def test_in_the_interpreter():
    """It has to be asked for before Triton is imported."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def plain(packed: Tensor, scale: float) -> Tensor:
    query, key, value = packed.unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * scale
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)


@needs_either
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width"),
    [(3, 65, 2, 128), (2, 17, 3, 16), (1, 16, 2, 32), (2, 128, 1, 64), (2, 1, 1, 16)],
)
def test_outputs_and_gradients_are_those_of_plain_attention(batch, tokens, heads, width):
    from rankrise.train.short_attention import short_attention

    generator = torch.Generator().manual_seed(tokens)
    device, dtype, tolerance = ("cuda", torch.bfloat16, 1e-2) if GPU else ("cpu", torch.float32, 1e-6)
    packed = torch.randn(batch, tokens, 3, heads, width, generator=generator).to(device, dtype)
    gradient = torch.randn(batch, tokens, heads, width, generator=generator).to(device, dtype)
    exact = packed.double().requires_grad_()
    packed.requires_grad_()
    out, expected = short_attention(packed, 0.3), plain(exact, 0.3)
    (found,) = torch.autograd.grad(out, packed, gradient)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    assert (out - expected).norm() < tolerance * expected.norm()
    assert (found - wanted).norm() < tolerance * wanted.norm()


@needs_either
def test_the_compiler_can_trace_it():
    import rankrise.train.short_attention  # noqa: F401

    packed = torch.randn(2, 5, 3, 2, 16)
    if GPU:
        packed = packed.cuda().bfloat16()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(
        torch.ops.rankrise.short_attention, (packed.requires_grad_(), 0.5), test_utils=checks
    )


@pytest.mark.skipif(not GPU, reason="the model takes the kernel on a GPU alone")
def test_a_model_with_it_computes_the_same(tiny):
    from dataclasses import replace

    from rankrise.train.model import vision_transformer

    losses = []
    for attention in ("short", "math"):
        settings = replace(tiny, head_size=16, attention=attention)
        model = vision_transformer(settings, channels=1, classes=10).cuda()
        pixels = torch.randn(4, 1, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        with torch.autocast("cuda", torch.bfloat16):
            logits = torch.compile(model, fullgraph=True)(pixel_values=pixels).logits
        losses.append(nn.functional.cross_entropy(logits.float(), torch.arange(4, device="cuda")).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
