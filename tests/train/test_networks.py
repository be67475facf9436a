"""Networks: outputs and gradients are the library's, however computed; initial values are as asked."""

from dataclasses import replace

import pytest
import torch
import transformers
from tiny_training import TINY, TINY_REGRESSION, TINY_TEXT

from rankrise.train._networks import language_model, vision_transformer
from rankrise.train._regression import regression_model

VOCABULARY = 100
SHORT = {"attention": "short", "head_size": 16, "precision": "bf16"}


def made(kind, **changes):
    if kind == "image":
        return vision_transformer(replace(TINY, layers=3, **changes), channels=3, classes=7)
    if kind == "text":
        return language_model(replace(TINY_TEXT, **changes), VOCABULARY)
    return regression_model(replace(TINY_REGRESSION, **changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("image", {}),
        ("image", SHORT),
        ("image", SHORT | {"qkv_bias": True}),
        ("image", SHORT | {"qkv_bias": True, "hidden_size": 24}),
        ("text", {}),
        ("regression", {"initialisation_scale": 10.0}),
    ],
)
def test_outputs_and_gradients_are_the_librarys(kind, changes):
    """Masks, the last layer's other tokens and, with `short`, two of three matrix products are left out."""
    ours = made(kind, **changes).double()
    generator = torch.Generator().manual_seed(0)
    if kind == "image":
        theirs = transformers.ViTForImageClassification(ours.config).double()
        theirs.load_state_dict(ours.state_dict())
        pixels = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=generator)
        found, expected = (model(pixel_values=pixels).logits for model in (ours, theirs))
    elif kind == "text":
        theirs = transformers.GPT2LMHeadModel(ours.config).double()
        theirs.load_state_dict(ours.state_dict())
        tokens = torch.randint(0, VOCABULARY, (4, 32), generator=generator)
        found, expected = (model(input_ids=tokens).logits for model in (ours, theirs))
        assert found.shape[-1] == 128
        found = found[..., :VOCABULARY]
    else:
        theirs = transformers.GPT2Model(ours.config).double()
        theirs.load_state_dict(ours.transformer.state_dict(), strict=False)
        points = torch.randn(20, 6, 4, dtype=torch.float64, generator=generator)
        hidden = theirs(inputs_embeds=ours.read_in(points)).last_hidden_state
        found, expected = ours(tokens=points), ours.read_out(hidden[:, -1]).squeeze(1)
        ours, theirs = ours.transformer.h, theirs.h
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    mine, other = (
        torch.autograd.grad(result.softmax(-1).square().sum(), list(model.parameters()))
        for result, model in ((found, ours), (expected, theirs))
    )
    for one, same in zip(mine, other, strict=True):
        torch.testing.assert_close(one, same, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("image", ("embeddings", "layernorm")),
        ("text", ("wte", "wpe", ".ln_")),
        ("regression", ("read_", "wpe", ".ln_")),
    ],
)
def test_only_the_layers_are_scaled_and_the_weights_depend_on_the_seed_alone(kind, kept):
    state = torch.get_rng_state()
    whole = dict(made(kind, initialisation_scale=1.0).named_parameters())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    for name, weight in made(kind, initialisation_scale=0.25).named_parameters():
        scale = 1.0 if any(part in name for part in kept) else 0.25
        assert torch.equal(weight, scale * whole[name]), name
    other = made(kind, initialisation_scale=1.0, seed=1).named_parameters()
    assert any(not torch.equal(weight, whole[name]) for name, weight in other)
