"""`watch.check`: a forward pass proves a layout or refutes it, and a proof counts from then on."""

import copy
import dataclasses
import warnings

import own_attention as own
import peft
import pytest
import torch
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._heads import _added


@pytest.fixture(autouse=True)
def _no_families_left():
    yield
    _added.clear()


def made(kind):
    """A model of a class that nothing is known of yet."""
    return nn.Sequential(type(kind.__name__, (kind,), {})()).eval()


def batch(tokens=5):
    return torch.randn(2, tokens, own.WIDTH, generator=torch.Generator().manual_seed(0))


def rebuilt(layer, x):
    """The forward pass from the heads alone."""
    logits = layer.scale * torch.einsum("btd,hde,hfe,bsf->bhts", x, layer.query, layer.key, x)
    values = torch.einsum("bsd,hde,hfe->bhsf", x, layer.value, layer.output)
    return (logits.softmax(-1) @ values).sum(1)


def is_right(model):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = model(batch())
        layer = watch.heads(model)[0]
        fits = layer.query.shape[1] == layer.output.shape[1] == own.WIDTH == layer.value.shape[1]
        return fits and torch.allclose(rebuilt(layer, batch()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*own.PLAIN, own.Gated, own.OfSigns])
def test_what_is_read_wrongly_is_announced_or_refused_and_never_proved(kind, recwarn):
    model = made(kind)
    try:
        layer = watch.heads(model)[0]
    except RankriseError:
        return
    assert "is a GUESS" in str(recwarn.pop(UserWarning).message)
    assert "not checked" in layer.notes[0]
    try:
        proved = watch.check(model, batch()).proved
    except RankriseError:
        proved = False
    right = is_right(model) or kind is own.QueryAndKeyExchanged  # with the same spectra
    assert proved == (right and kind is not own.Parametrised)


@pytest.mark.parametrize("kind", own.PLAIN)
def test_the_family_that_the_docs_show_for_a_layout_is_right_and_proved(kind):
    model = made(kind)
    watch.add_family(lambda module: module.family() if isinstance(module, kind) else None)
    assert is_right(model)
    assert watch.check(model, batch()).proved == (kind not in own.UNPROVED)


def shuffled_values(plain):
    value = dataclasses.replace(plain.value, weight=plain.value.weight[..., [1, 0, 2, 3, 4, 5]])
    return dataclasses.replace(plain, value=value)


def query_is_value(plain):
    return dataclasses.replace(plain, query=plain.value, value=plain.query)


def without_biases(plain):
    inputs = (dataclasses.replace(part, bias=None) for part in (plain.query, plain.key, plain.value))
    return watch.Attention(*inputs, plain.output)


class WithBiases(own.Separate):
    """Biases begin at zero."""

    def change(self):
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(own.WIDTH, own.INSIDE))
            nn.init.zeros_(getattr(self, name).bias)


def with_heads(count):
    def family(plain):
        inputs = (watch.linear(part.layers[0]).cut(count) for part in (plain.query, plain.key, plain.value))
        return watch.Attention(*inputs, plain.output)

    return family


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((own.Separate, with_heads(count)) for count in (1, 2, 8)),
        (own.UnnamedNorm, with_heads(2)),
        (own.Separate, shuffled_values),
        (own.Separate, query_is_value),
        (WithBiases, without_biases),
    ],
)
def test_a_wrong_family_is_refuted(kind, family):
    watch.add_family(lambda module: family(module.family()) if isinstance(module, own.Separate) else None)
    with pytest.raises(RankriseError, match=kind.__name__):
        watch.check(made(kind), batch())


def test_a_proof_counts_for_every_later_use_of_the_class_and_for_each_layer_that_works_alike(recwarn):
    class Mine(own.Fused):
        pass

    model = nn.Sequential(Mine(), Mine())
    assert watch.check(model, batch()).proved
    for other in (model, nn.Sequential(Mine()), copy.deepcopy(model)):
        assert watch.heads(other)[0].notes == ()
    assert not recwarn.list
    with pytest.raises(RankriseError, match=r"2 \(Mine\)"):
        watch.check(nn.Sequential(*model, Mine(axes="h3d")), batch())


def test_a_layer_that_is_not_reached_is_named():
    model = made(own.Fused)
    model.add_module("unused", type(model[0])())
    result = watch.check(model, lambda model: model[0](batch()))
    assert [layer.proved for layer in result.layers] == [True, False]
    assert "unused" in str(result)


@pytest.mark.parametrize("given", [{"x": batch()}, (batch(),), lambda model: model(batch())])
def test_any_form_of_batch(given):
    assert watch.check(made(own.Fused)[0], given).proved


def test_a_batch_that_the_model_cannot_run_is_named():
    with pytest.raises(RankriseError, match=r"Sequential cannot be run on .*tensor \[1, 3\]"):
        watch.check(made(own.Fused), {"x": torch.ones(1, 3)})


def test_weights_and_tokens_that_say_nothing_do_not_hinder():
    model = made(own.FusedByHead)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-30)
    with pytest.raises(RankriseError, match="FusedByHead"):
        watch.check(model, torch.zeros(1, 4, own.WIDTH))


def test_one_token_proves_nothing():
    assert not watch.check(made(own.Fused), batch(1)[:1]).proved


def test_training_is_left_as_it_was():
    model = nn.Sequential(own.Separate(), nn.Dropout(0.5)).train()
    nn.utils.parametrizations.spectral_norm(model[0].q_proj)
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    watch.check(model, batch())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_adapters_are_tried_merged():
    config = peft.LoraConfig(r=2, target_modules=["qkv", "proj"], init_lora_weights=False)
    assert watch.check(peft.get_peft_model(made(own.Fused), config), batch()).proved
