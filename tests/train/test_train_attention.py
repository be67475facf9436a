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
    ("images", "patches", "heads", "width"), [(3, 64, 2, 128), (2, 16, 3, 16), (2, 32, 1, 64)]
)
def test_outputs_and_gradients_are_those_of_plain_attention(images, patches, heads, width):
    from rankrise.train.short_attention import short_attention

    generator = torch.Generator().manual_seed(patches)
    device, dtype, tolerance = ("cuda", torch.bfloat16, 1e-2) if GPU else ("cpu", torch.float32, 2e-6)
    packed = torch.randn(images, patches + 1, 3, heads, width, generator=generator).to(device, dtype)
    gradient = torch.randn(images, patches + 1, heads, width, generator=generator).to(device, dtype)
    exact = packed.double().requires_grad_()
    packed.requires_grad_()
    bias = torch.zeros(3, heads, width, device=device, requires_grad=True)
    out, expected = short_attention(packed, bias, 0.3), plain(exact, 0.3)
    found, found_bias = torch.autograd.grad(out, (packed, bias), gradient)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    wanted_bias = wanted.sum((0, 1))
    assert (out - expected).norm() < tolerance * expected.norm()
    for kind in range(3):
        part, its = found[:, :, kind], wanted[:, :, kind]
        assert (part - its).norm() < tolerance * its.norm()
        assert (part[:, 0] - its[:, 0]).norm() < tolerance * its[:, 0].norm()
        assert (found_bias[kind] - wanted_bias[kind]).norm() < tolerance * wanted_bias.norm()
    assert not found_bias[1].any()


@needs_either
def test_the_compiler_can_trace_it():
    import rankrise.train.short_attention  # noqa: F401

    packed, bias = torch.randn(2, 17, 3, 2, 16), torch.zeros(3, 2, 16)
    if GPU:
        packed, bias = packed.cuda().bfloat16(), bias.cuda()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(
        torch.ops.rankrise.short_attention,
        (packed.requires_grad_(), bias.requires_grad_(), 0.5),
        test_utils=checks,
    )


@pytest.mark.skipif(not GPU, reason="the model takes the kernel on a GPU alone")
def test_a_model_with_it_computes_the_same(tiny):
    from dataclasses import replace

    from rankrise.train.vision_model import vision_transformer

    losses = []
    for attention in ("short", "math"):
        settings = replace(tiny, head_size=16, attention=attention, precision="bf16")
        model = vision_transformer(settings, channels=1, classes=10).cuda()
        pixels = torch.randn(4, 1, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        with torch.autocast("cuda", torch.bfloat16):
            logits = torch.compile(model, fullgraph=True)(pixel_values=pixels).logits
        losses.append(nn.functional.cross_entropy(logits.float(), torch.arange(4, device="cuda")).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
