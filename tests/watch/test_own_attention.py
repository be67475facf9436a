"""No module of one's own is read wrongly in silence, and each message about one holds what settles it."""

import warnings

import numpy as np
import own_attention as own
import own_attention_odd as odd
import own_attention_settled as settled
import pytest
import torch
from own_models import batch, is_right, made, true_products
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._recognise import _added

NORMED = [own.WithNorm, odd.RenamedLatent, odd.RenamedLatentOfQueriesToo, odd.NormedLatent]
"""Their products are those without the norm's division."""
PLAIN = [
    own.Separate,
    own.HeadsInterleaved,
    own.OutputInterleaved,
    own.QueryAndKeyExchanged,
    own.SharedByDistantHeads,
    own.KeyAndValuePerHead,
    own.ValueBeforeKey,
    *own.FUSED,
    own.OwnMultihead,
    own.EinsumAttention,
    own.LensAttention,
    own.BareAttention,
    own.ListOfHeads,
    own.Lists,
    own.WeightNorm,
    own.OldWeightNorm,
    own.Pruned,
    own.Tied,
    own.TiedWeight,
    own.KeysAreValues,
    own.OneForAll,
    odd.OutputIsValue,
    odd.OutputHasWeightOfQuery,
    own.LowRank,
    own.WithDropout,
    own.KeysFromLatent,
    own.KeysFromWideLatent,
    settled.SharedKeyAndValueFirst,
    settled.SharedKeyAndValueFirstInGroups,
    *settled.SETTLED,
]
REFUTED = {
    odd.OfSigns: "its SignLinear does not give what its weight and bias give",
    odd.HeadsOfSeveralSizes: "if its heads differ in size, act on one another or are not products of weights",
    odd.UsedTwice: "No family that is short to write agrees with it",
    odd.TokensBesideQueries: "No family that is short to write agrees with it",
    odd.TiedWithoutKeys: "queries and keys are not paired in that way",
    odd.QueryInBothRoles: "what is read as its key changes nothing that it gives",
    odd.OutputComesFirst: "its values or outputs act on what it gives in another way too",
    odd.OutputSkipped: "its values or outputs act on what it gives in another way too",
    odd.QueryComesLast: "its queries or keys act on what it gives in another way too",
    odd.TalkingHeads: "is not read as its forward pass works",
    odd.WithoutSoftmax: "queries and keys are not paired in that way",
}
REFUSED = {
    odd.OwnLora: r"its LoraLinear has further weights beside its matrix \(lora_A, lora_B\): merge them",
    odd.OwnLoraAround: r"parts that do more than a linear layer that is known here: q_proj \(a LoRALinear\)",
    settled.OwnLoraOfSquare: r"its _WithFactors has further weights beside its matrix \(lora_A, lora_B\)",
    settled.WithoutOutput: "its projections are laid out in no way that is known here",
    odd.WithActivation: "its q_proj applies GELU to what a linear layer gives.*track its matrices instead",
}
LIMITED = {
    odd.Difference: "queries and keys do not meet in their plain product",
    odd.UnnamedNorm: "queries and keys do not meet in their plain product",
    odd.Gated: "in its path and not read: gate",
    odd.NormFirst: "in its path and not read: norm",
    odd.WithSink: "in its path and not read: sink",
}


@pytest.fixture(autouse=True)
def _no_families_left():
    before = list(_added)
    yield
    _added[:] = before


@pytest.mark.parametrize("kind", PLAIN)
def test_the_truth_is_true(kind):
    model = made(kind)
    model(batch())  # hooks that compute weights have run
    with torch.no_grad():
        found = model.double()(batch().double())
        torch.testing.assert_close(found, own.rebuilt(model[0], batch().double()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", PLAIN + NORMED)
def test_what_is_read_wrongly_is_announced_or_refused(kind):
    model = made(kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            [layer] = watch.heads(model)
        except RankriseError as error:
            refusal = str(error)
        else:
            refusal = ""
    if refusal:
        assert "def my_attention(module):" in refusal
        return
    assert [one for one in caught if "is a GUESS" in str(one.message)]
    assert is_right(layer, model[0]) or "not checked, see watch.check" in layer.notes[0]


@pytest.mark.parametrize("kind", PLAIN + NORMED)
def test_messages_lead_to_the_right_heads(kind):
    """At most one family from the error of `heads`, and one from that of `check`, which is proved."""
    model = made(kind)
    for _ in range(3):
        try:
            result = watch.check(model, batch())
            break
        except RankriseError as error:
            text = str(error)
            _added.clear()
            exec(text[text.index("import ") if "import torch" in text else text.index("from rankrise") :])
    assert result.proved, result
    assert not result.limits or kind in NORMED
    [layer] = watch.heads(model)
    assert is_right(layer, model[0])
    by_numpy = [np.linalg.svd(one.numpy(), compute_uv=False) for one in true_products(model[0])]
    for head, values in enumerate(by_numpy[: len(layer.query)]):
        found = watch.singular_values(layer.key[head], layer.query[head])
        np.testing.assert_allclose(found, values[: len(found)], atol=1e-5)
        expected = (values**2).sum() / values[0] ** 2
        assert float(watch.stable_rank(layer.key[head], layer.query[head])) == pytest.approx(expected, 1e-4)


@pytest.mark.parametrize("kind", settled.SETTLED)
def test_what_is_suggested_first_is_proved(kind):
    model = made(kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            watch.heads(model)
        except RankriseError as error:
            text = str(error)
        else:
            text = str(caught[0].message)
    exec(text[text.index("import torch" if "import torch" in text else "from rankrise") :])
    assert str(watch.check(model, batch())) == "1 of 1 layout proved."
    assert is_right(watch.heads(model)[0], model[0])


def test_a_bare_weight_is_suggested_with_the_bias_beside_it():
    class WithBias(nn.MultiheadAttention):
        def __init__(self):
            super().__init__(own.WIDTH, 2, batch_first=True)

        def forward(self, x):
            fused = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (2, 3, -1))
            return self.out_proj(own.attend(*fused.permute(3, 0, 2, 1, 4)))

    model = nn.Sequential(WithBias())
    with pytest.raises(RankriseError, match="This settles it") as caught:
        watch.check(model, batch())
    exec(str(caught.value).split("settles it:")[1])
    assert watch.check(model, batch()).proved
    bias = model[0].in_proj_bias.unflatten(0, (2, 3, -1))
    assert torch.equal(watch.heads(model)[0].value_bias, bias[:, 2])


def test_numbers_that_are_no_weights_are_not_taken_for_some():
    model = made(settled.WithoutOutput)

    @watch.add_family
    def mine(module):
        if isinstance(module, settled.WithoutOutput):
            parts = (watch.linear(one).cut(4) for one in (module.q_proj, module.k_proj, module.v_proj))
            return watch.Attention(*parts, watch.linear(torch.eye(own.INSIDE)))

    result = watch.check(model, batch())
    assert "numbers that are no weights of it" in result.layers[0].reason


@pytest.mark.parametrize("kind", REFUTED)
def test_what_no_family_reads_is_refuted_in_a_sentence(kind):
    with pytest.warns(UserWarning, match="is a GUESS"):
        watch.heads(model := made(kind))
    with pytest.raises(RankriseError, match=REFUTED[kind]):
        watch.check(model, batch())


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_says_why_and_what_to_do(kind):
    with pytest.raises(RankriseError, match=REFUSED[kind]) as caught:
        watch.heads(made(kind))
    assert "my_attention" not in str(caught.value)


@pytest.mark.parametrize("kind", LIMITED)
def test_a_proof_names_its_limits_wherever_it_is_told(kind, tmp_path):
    model = made(kind)
    result = watch.check(model, batch())
    assert result.proved
    for text in (str(result), repr(result)):
        assert "1 of 1 layout proved WITHIN LIMITS: " in text
        assert LIMITED[kind] in text
    assert any(LIMITED[kind] in limit for limit in result.layers[0].limits)
    assert LIMITED[kind] in repr(watch.heads(model))


def test_weights_before_what_is_read_are_not_passed_over():
    """No family has a convolution: it is not proved, and the reason is told."""
    result = watch.check(made(odd.ConvolutionFirst), batch())
    assert not result.proved
    assert "mixer stands between the tokens and what is read" in str(result)


def test_an_output_projection_of_several_layers_is_not_proved_and_says_why():
    module = own.Separate()
    module.o_proj = nn.Sequential(own.linear(own.INSIDE, 5), own.linear(5, own.WIDTH))
    result = watch.check(nn.Sequential(module), batch())
    assert str(result) == "0 of 1 layout proved; 0: its output projection is several layers in a row."


def test_a_layer_that_takes_another_width_than_its_weight_says_is_refuted():
    model = made(odd.OfTurned)

    @watch.add_family
    def mine(module):
        if isinstance(module, odd.OfTurned):
            parts = [watch.linear(one).cut(2) for one in (module.q_proj, module.k_proj, module.v_proj)]
            return watch.Attention(*parts, watch.linear(module.o_proj))

    with pytest.raises(RankriseError, match="its TurnedLinear does not give what its weight and bias give"):
        watch.check(model, batch())


@pytest.mark.parametrize("second", ["3hd", "h3d"])
def test_a_module_that_is_called_in_two_ways_is_tried_in_both(second):
    class Told(own.Fused):
        def forward(self, x, axes):
            self.axes = axes
            return super().forward(x)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Told()

        def forward(self, x):
            return self.attn(self.attn(x, "3hd"), second)

    model = Twice()
    if second == "3hd":
        assert watch.check(model, batch()).proved
    else:
        with pytest.raises(RankriseError, match=r"attn .Told. is not read as its forward pass works"):
            watch.check(model, batch())
    assert not model.attn._forward_pre_hooks


def test_a_bare_fused_weight_is_not_passed_over():
    """Beside layers that are read, one that is left out has to be named, whatever its class is called."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv_weight = nn.Parameter(torch.randn(3, 4, 6, own.WIDTH))

    with pytest.warns(UserWarning, match=r"1 \(Mixing\)"):
        watch.heads(nn.Sequential(own.Separate(), Mixing()))


def test_reading_a_spectral_norm_does_not_train_it():
    model = nn.Sequential(own.Separate()).train()
    nn.utils.parametrizations.spectral_norm(model[0].q_proj)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    list(watch.heads(model))
    assert watch.check(model, batch()).proved
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    model(batch())  # the copy that was tried has not taken its class apart


@pytest.mark.parametrize("kind", [own.OldWeightNorm, own.Pruned])
def test_weights_that_hooks_compute_are_read_as_the_next_pass_uses_them(kind, tmp_path):
    """The tracker reads after the optimizer's step, before the hook has run again."""
    model = made(kind)
    model(batch())
    before = true_products(model[0])
    with watch.RankTracker(model, tmp_path, check=batch()) as tracker:
        tracker.step(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        tracker.step(1)
    after = true_products(model[0])
    run = watch.load(tmp_path)
    for head in range(own.HEADS):
        values = np.linalg.svd((after[head] - before[head]).numpy(), compute_uv=False)
        assert run.stable_rank("KQ")[1, 0, head] == pytest.approx((values**2).sum() / values[0] ** 2, 1e-4)


def test_a_known_layer_with_another_forward_pass_is_announced():
    """Its class is a library's, but what it computes is not: its names alone do not tell the layout."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=30, n_positions=16)
    model = transformers.GPT2Model(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.heads(model)
    attention = model.h[0].attn
    attention.forward = lambda hidden_states, *args, **kwargs: (hidden_states, None)
    with pytest.warns(UserWarning, match="The layout of h.0.attn is a GUESS"):
        watch.heads(model)
