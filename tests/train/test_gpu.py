"""Our kernels against plain torch in float64: on a GPU, or in Triton's interpreter. CUDA graphs on a GPU."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest
import torch
from tiny_training import TINY, TINY_TEXT, same_run, steps_on, stop_at
from torch import Tensor, nn

from rankrise.recipes.train_settings import Optimiser
from rankrise.train import Interrupted, train
from rankrise.train._step import chosen_kernels
from rankrise.train._times import set_rate

pytest.importorskip("triton", reason="Triton comes with torch's GPU builds")
GPU, INTERPRETED = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
needs_either = pytest.mark.skipif(not GPU and not INTERPRETED, reason="runs in a process of its own")
sizes = pytest.mark.parametrize(
    ("images", "patches", "heads", "width"), [(3, 64, 2, 128), (2, 16, 3, 16), (2, 32, 1, 64)]
)
DEVICE, DTYPE, TOLERANCE = ("cuda", torch.bfloat16, 1e-2) if GPU else ("cpu", torch.float32, 2e-6)


@pytest.mark.slow
@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests run in this process")
def test_in_the_interpreter(tmp_path):
    """It has to be asked for before Triton is imported."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled there")
@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("name", ["short_attention", "class_attention", "residual_norm"])
def test_they_compile_for_an_h200(name, kind):
    """On any machine, since Triton brings the assembler; at the paper's size."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    place = "attention" if name.endswith("attention") else name
    module = importlib.import_module(f"rankrise.train._gpu.{place}")
    kernel = getattr(module, f"_{name}_{kind}")
    types = dict.fromkeys(kernel.arg_names, "*bf16") | {"scale": "fp32", "epsilon": "fp32", "count": "i32"}
    if name == "residual_norm":
        sizes, warps = {"rows": 2, "turns": 32, "width": 512}, module._warps(512)
        single = ("stream", "total", "weight", "bias", "total_gradient", "stream_gradient", "sums")
        types |= dict.fromkeys(single, "*fp32")
    else:
        sizes, warps = {"heads": 8, "patches": 64, "width": 128}, module.WARPS
    types |= dict.fromkeys(sizes, "constexpr")
    signature = {argument: types[argument] for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, {size: sizes[size] for size in sizes if size in signature})
    built = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert built.asm["cubin"]
    assert built.metadata.shared <= 227 * 1024, "a program may have no more"


def random(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_()


def exact(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def close(found: Tensor, wanted: Tensor, size: Tensor | None = None) -> bool:
    """To rounding, measured by the norm of what is wanted, or by another `size`."""
    return bool((found - wanted).norm() < TOLERANCE * (wanted if size is None else size).norm())


def plain(packed: Tensor, scale: float) -> Tensor:
    query, key, value = packed.unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * scale
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)


@needs_either
@sizes
def test_attention_is_plain_attention(images, patches, heads, width):
    from rankrise.train._gpu.attention import short_attention

    packed, bias = random(images, patches + 1, 3, heads, width), random(3, heads, width, dtype=torch.float32)
    gradient = random(images, patches + 1, heads, width).detach()
    (same,) = exact(packed)
    out, expected = short_attention(packed, bias, 0.3), plain(same, 0.3)
    found, found_bias = torch.autograd.grad(out, (packed, bias), gradient)
    (wanted,) = torch.autograd.grad(expected, same, gradient.double())
    wanted_bias = wanted.sum((0, 1))
    assert close(out, expected)
    for kind in range(3):
        part, its = found[:, :, kind], wanted[:, :, kind]
        assert close(part, its)
        assert close(part[:, 0], its[:, 0])
        assert close(found_bias[kind], wanted_bias[kind], size=wanted_bias)
    assert not found_bias[1].any()


@needs_either
@sizes
def test_the_class_tokens_attention_is_the_first_row_of_plain_attention(images, patches, heads, width):
    from rankrise.train._gpu.attention import class_attention

    query, packed = random(images, heads, width), random(images, patches + 1, 2, heads, width)
    bias, gradient = random(2, heads, width, dtype=torch.float32), random(images, heads, width).detach()
    same_query, same_packed = exact(query, packed)
    queries = torch.cat([same_query[:, None, None], same_packed[:, 1:, :1]], 1)  # the others do not matter
    out = class_attention(query, packed, bias, 0.3)
    expected = plain(torch.cat([queries, same_packed], 2), 0.3)[:, 0]
    found = torch.autograd.grad(out, (query, packed, bias), gradient)
    wanted = torch.autograd.grad(expected, (same_query, same_packed), gradient.double())
    assert close(out, expected)
    assert close(found[0], wanted[0])
    assert close(found[1], wanted[1])
    assert close(found[1][:, 0], wanted[1][:, 0])
    wanted_bias = wanted[1].sum((0, 1))
    assert not found[2][0].any()
    assert close(found[2], wanted_bias)


@needs_either
@pytest.mark.parametrize(("rows", "width"), [((5, 7), 64), ((100,), 32), ((2, 65), 512)])
def test_the_norm_of_a_sum_is_the_librarys(rows, width, monkeypatch):
    from rankrise.train._gpu import residual_norm as module
    from rankrise.train._gpu.residual_norm import residual_norm

    monkeypatch.setattr(module, "PROGRAMS", 16)  # so that they take turns
    norm = nn.LayerNorm(width, eps=1e-12)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.to(DEVICE)
    stream, branch = random(*rows, width, dtype=torch.float32), random(*rows, width)
    bias = torch.zeros(width, device=DEVICE, requires_grad=True)
    gradients = random(*rows, width, dtype=torch.float32).detach(), random(*rows, width).detach()
    same = exact(stream, branch, bias, norm.weight, norm.bias)
    total = same[0] + same[1] + same[2]
    expected = total, nn.functional.layer_norm(total, (width,), same[3], same[4], norm.eps)
    out = residual_norm(stream, branch, bias, norm)
    found = torch.autograd.grad(out, (stream, branch, bias, norm.weight, norm.bias), gradients)
    wanted = torch.autograd.grad(expected, same, [gradient.double() for gradient in gradients])
    assert (out[0] - expected[0]).norm() < 1e-6 * expected[0].norm()
    assert (found[0] - wanted[0]).norm() < 1e-6 * wanted[0].norm()
    for mine, other in zip((out[1], *found[1:]), (expected[1], *wanted[1:]), strict=True):
        assert close(mine, other)


@needs_gpu
def test_a_model_with_them_computes_the_same():
    from rankrise.train._networks import vision_transformer

    results = []
    for attention in ("short", "flash"):
        settings = replace(TINY, layers=3, head_size=16, attention=attention, precision="bf16")
        model = vision_transformer(settings, channels=1, classes=10).cuda()
        pixels = torch.randn(64, 1, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        with torch.autocast("cuda", torch.bfloat16):
            logits = torch.compile(model, fullgraph=True)(pixel_values=pixels).logits
        loss = nn.functional.cross_entropy(logits.float(), torch.arange(64, device="cuda") % 10)
        loss.backward()
        results.append((loss.item(), {name: weight.grad for name, weight in model.named_parameters()}))
    (loss, gradients), (expected, wanted) = results
    assert loss == pytest.approx(expected, rel=1e-3)
    size = {name: gradient.norm() for name, gradient in wanted.items()}
    for name, gradient in gradients.items():
        if not name.endswith("k_proj.bias"):  # the library's is rounding around 0
            assert (gradient - wanted[name]).norm() < 0.05 * size[name], name


IMAGES = replace(TINY, head_size=16)
CHOICES = replace(IMAGES, label_noise=0.5, redraw_labels=True, optimiser="muon", matrices=("*.mlp.*",))
kinds = pytest.mark.parametrize(
    "settings", [IMAGES, TINY_TEXT, CHOICES], ids=["images", "text", "images-otherwise"]
)


@needs_gpu
@pytest.mark.parametrize("optimiser", get_args(Optimiser))
def test_a_graph_of_any_optimisers_step_reads_the_rate_and_changes_no_number(optimiser):
    asked = replace(TINY, optimiser=optimiser, weight_decay=0.1, compile="model")
    weights = []
    for replayed in (False, True):
        task, model, chosen, step, _ = steps_on(replace(asked, cuda_graph=replayed), "cuda")
        begun = [weight.detach().clone() for weight in model.parameters()]
        with chosen_kernels(asked):
            for number, batch in enumerate(task.batches(0, 0, 100, slice(None))):
                set_rate(chosen, 1e-3 * (number + 1))
                step(batch)
        weights.append([weight.detach().clone() for weight in model.parameters()])
    if optimiser != "random-walk":  # a graph has random numbers of its own
        for plain, graph in zip(*weights, strict=True):
            torch.testing.assert_close(plain, graph, rtol=0, atol=0)
    assert not any(one.equal(other) for one, other in zip(weights[1], begun, strict=True))


@needs_gpu
@kinds
def test_resumed_to_the_bit(settings, stories, tmp_path):
    settings = replace(settings, data_folder=str(stories), precision="bf16", compile="model", cuda_graph=True)
    train(settings, tmp_path / "whole")
    torch._dynamo.reset()
    with pytest.raises(Interrupted, match="SIGTERM at step 8"):
        train(settings, tmp_path / "stopped", progress=stop_at(8))
    torch._dynamo.reset()
    train(settings, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")
