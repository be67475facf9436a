"""The vision transformer: the library's function, the paper's sizes, the scale where it belongs."""

import sys
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from rankrise import RankriseError, watch
from rankrise.train import TrainSettings, train
from rankrise.train._begun import last_checkpoint
from rankrise.train._vision_model import our_kernels_serve, vision_transformer


def library_model(model):
    """The library's own class with the same weights."""
    other = transformers.ViTForImageClassification(model.config).double()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(
    ("attention", "hidden_size", "qkv_bias"),
    [("auto", 16, False), ("short", 16, False), ("short", 16, True), ("short", 24, True)],
)
def test_faster_ways_change_neither_outputs_nor_gradients(tiny, attention, hidden_size, qkv_bias):
    """The last layer's other tokens and masks are left out, and with `short` two of three matrix products."""
    changes = {"attention": attention, "hidden_size": hidden_size, "qkv_bias": qkv_bias}
    settings = replace(tiny, layers=3, head_size=16, precision="bf16", **changes)
    ours = vision_transformer(settings, channels=3, classes=7).double()
    theirs = library_model(ours)
    pixels = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    outputs = []
    for model in (ours, theirs):
        logits = model(pixel_values=pixels).logits
        nn.functional.cross_entropy(logits, torch.arange(5)).backward()
        outputs.append(logits.detach())
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-14, msg=name)


def test_dropout_is_the_librarys(tiny):
    ours = vision_transformer(replace(tiny, dropout=0.3), channels=1, classes=10).double().train()
    theirs = library_model(ours).train()
    pixels = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    found = []
    for model, seed in ((ours, 0), (theirs, 0), (theirs, 1)):
        torch.manual_seed(seed)
        found.append(model(pixel_values=pixels).logits.detach())
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[1], found[2])


def test_the_defaults_are_the_papers_network():
    settings = replace(TrainSettings(), layers=1)
    with torch.device("meta"):
        config = vision_transformer(settings, channels=3, classes=10).config
        model = transformers.ViTForImageClassification(config)
    assert model.vit.layers[0].attention.q_proj.weight.shape == (1024, 512)
    assert model.vit.layers[0].attention.o_proj.weight.shape == (512, 1024)
    assert model.vit.layers[0].mlp.fc1.weight.shape == (512, 512)
    assert model.vit.embeddings.position_embeddings.shape == (1, 65, 512)


@pytest.mark.parametrize(
    ("changed", "serves"),
    [
        ({}, True),
        ({"image_size": 64, "patch_size": 8, "head_size": 64}, True),
        ({"patch_size": 2}, False),
        ({"head_size": 48}, False),
        ({"precision": "fp32"}, False),
        ({"dropout": 0.1}, False),
    ],
)
def test_our_kernels_serve_the_papers_network_and_leave_others_to_the_library(changed, serves):
    assert our_kernels_serve(replace(TrainSettings(), **changed)) == serves


def test_our_kernels_without_triton_are_refused(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RankriseError, match="Triton"):
        vision_transformer(replace(tiny, head_size=16, precision="bf16"), channels=1, classes=10)


def test_only_the_layers_are_scaled(tiny):
    whole, scaled = (
        dict(
            vision_transformer(
                replace(tiny, initialisation_scale=scale), channels=1, classes=10
            ).named_parameters()
        )
        for scale in (1.0, 0.25)
    )
    for name, weight in whole.items():
        kept = "embeddings" in name or "layernorm" in name
        assert torch.equal(scaled[name], weight if kept else 0.25 * weight), name


def test_the_initial_weights_depend_on_the_seed_alone(tiny):
    before = torch.get_rng_state()
    one = vision_transformer(tiny, channels=1, classes=10).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    same = vision_transformer(tiny, channels=1, classes=10).state_dict()
    other = vision_transformer(replace(tiny, seed=1), channels=1, classes=10).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("qkv_bias", [True, False])
@pytest.mark.parametrize(
    ("initialisation", "std", "largest", "biases"),
    [
        ("linear", 64**-0.5 / 3**0.5, 64**-0.5, True),
        ("normal", 0.02, 0.2, False),
        ("truncated-normal", 0.02 * 0.88, 0.04, False),  # 0.88: what the cut at two deviations leaves
    ],
)
def test_linear_layers_begin_as_asked(tiny, qkv_bias, initialisation, std, largest, biases):
    settings = replace(tiny, hidden_size=64, initialisation=initialisation, qkv_bias=qkv_bias)
    model = vision_transformer(settings, channels=1, classes=10)
    layers = [part for name, part in model.vit.layers.named_modules() if name.endswith(("q_proj", "fc1"))]
    for layer in layers:
        assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.1)
        assert float(layer.weight.detach().abs().max()) <= largest
    queries, hidden = layers[:2]
    assert (queries.bias is not None) == qkv_bias
    assert bool(hidden.bias.any()) == biases
    assert float(model.vit.embeddings.position_embeddings.detach().std()) == pytest.approx(0.02, rel=0.3)


def test_single_matrices_are_measured_beside_the_products(tiny, tmp_path):
    settings = replace(tiny, epochs=0.2, warm_up_epochs=0, leading_values=1)
    train(replace(settings, matrices=("*.mlp.*", "classifier*")), tmp_path / "run")
    run = watch.load(tmp_path / "run")
    assert len(run.matrices) == 2 * tiny.layers + 1
    assert run.top("KQ").shape[-1] == 1
    after, before = (
        {name: weight.double() for name, weight in load_file(path).items()}
        for path in (last_checkpoint(run.folder) / "model.safetensors", run.folder / "initial.safetensors")
    )
    for name in run.matrices:
        change = after[name] - (before[name] if before[name].shape == after[name].shape else before[name].T)
        values = torch.linalg.svdvals(change)
        assert run.stable_rank(name)[-1] == pytest.approx(
            float((values / values[0]).square().sum()), rel=1e-4
        )
