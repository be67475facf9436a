"""Families of one's own: what is wrong with one is told, and one that is suggested is proved."""

import dataclasses

import own_attention as own
import own_attention_odd as odd
import pytest
import torch
from own_models import batch, is_right, made
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._recognise import _added


@pytest.fixture(autouse=True)
def _no_families_left():
    before = list(_added)
    yield
    _added[:] = before


def test_a_family_that_reads_layers_in_a_row_which_are_not_is_refuted():
    model = made(odd.Square)

    @watch.add_family
    def mine(module):
        if isinstance(module, odd.Square):
            query = watch.linear(module.v_proj).then(watch.linear(module.q_proj))
            parts = (watch.linear(one).cut(2) for one in (module.k_proj, module.v_proj))
            return watch.Attention(query.cut(2), *parts, watch.linear(module.o_proj))

    with pytest.raises(RankriseError, match="v_proj is read before the rest of its query, which it does not"):
        watch.check(model, batch())


def test_a_family_that_reads_a_matrix_which_is_not_used_is_refuted():
    model = made(odd.WithUnusedMatrix)

    @watch.add_family
    def mine(module):
        if isinstance(module, odd.WithUnusedMatrix):
            query = watch.linear(module.q_down).then(watch.linear(module.q_proj))
            parts = (watch.linear(one).cut(4) for one in (module.k_proj, module.v_proj))
            return watch.Attention(query.cut(4), *parts, watch.linear(module.o_proj))

    with pytest.raises(RankriseError, match="q_down is read, and changes nothing that it gives"):
        watch.check(model, batch())


def _of_square(names, turned=False):
    """A family by which these layers are the query, the key, the value and the output."""

    def mine(module):
        if isinstance(module, odd.Square):
            *inputs, output = (getattr(module, f"{name}_proj") for name in names)
            parts = (watch.linear(layer).cut(2) for layer in inputs)
            return watch.Attention(*parts, watch.linear(output.weight.T if turned else output))

    return mine


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("names", ["qqvo", "kkvo", "qkko", "qvvo", "qkqo", "qkvv", "qkoo", "qkvq", "qqqq"])
def test_a_weight_that_is_read_in_two_roles_and_used_in_one_is_refuted(names, turned):
    model = made(odd.Square)
    watch.add_family(_of_square(names, turned))
    with pytest.raises(RankriseError, match="is not read as its forward pass works"):
        watch.check(model, batch())


def test_a_weight_that_has_two_roles_under_one_name_is_not_refuted():
    """By its two names it is proved."""
    model = made(type("Tied", (odd.Square,), {"tie": lambda self: setattr(self, "v_proj", self.k_proj)}))
    assert watch.check(model, batch()).proved
    watch.add_family(_of_square("qkko"))
    assert "its key and its value have the same weights" in watch.check(model, batch()).layers[0].reason


@pytest.mark.parametrize("role", ["query", "value", "output"])
def test_a_head_that_is_read_twice_is_refuted(role):
    model = made(own.FUSED[2])

    @watch.add_family
    def mine(module):
        if isinstance(module, own.Fused):
            parts = dict(
                zip(("query", "key", "value"), watch.linear(module.qkv).cut(4).split(3), strict=True)
            )
            weight = module.proj.weight.unflatten(1, (4, -1))
            if role == "output":
                weight = weight[:, [0, 1, 2, 2]]
            else:
                parts[role] = dataclasses.replace(parts[role], weight=parts[role].weight[[0, 1, 2, 2]])
            return watch.Attention(**parts, output=watch.linear(weight.flatten(1)))

    with pytest.raises(
        RankriseError, match=f"its {role} has the same weights several times, and it does not"
    ):
        watch.check(model, batch())


@pytest.mark.parametrize("kind", [own.OwnMultihead, own.BareAttention, own.LensAttention])
def test_queries_read_as_keys_are_refuted_where_no_layer_is_called(kind):
    model = made(kind)
    with pytest.raises(RankriseError) as caught:
        watch.check(model, batch())
    right = str(caught.value)
    _read_by(right[right.index("from rankrise") :])
    assert watch.check(model, batch()).proved
    _read_by(right[right.index("from rankrise") :].replace("Attention(query, key", "Attention(key, query"))
    with pytest.raises(RankriseError, match="the query of one token changes what other tokens get"):
        watch.check(model, batch())


def _read_by(code):
    _added.clear()
    exec(code)


def test_values_whose_dimensions_are_in_another_order_are_refuted():
    model = made(own.Separate)

    @watch.add_family
    def mine(module):
        if isinstance(module, own.Separate):
            query, key, value = (
                watch.linear(one).cut(4) for one in (module.q_proj, module.k_proj, module.v_proj)
            )
            value = dataclasses.replace(value, weight=value.weight[..., [1, 0, 2, 3, 4, 5]])
            return watch.Attention(query, key, value, watch.linear(module.o_proj))

    with pytest.raises(RankriseError, match="the dimensions of its values go to others of its outputs"):
        watch.check(model, batch())


@pytest.mark.parametrize("biases", ["kqvo", "qkvq", "qk o", "q vo", "qkv "])
def test_a_bias_of_another_layer_or_none_is_refuted(biases):
    """Also where all of them begin with zeros."""

    def tie(self):
        for name in "qkvo":
            layer = nn.Linear(own.WIDTH, own.WIDTH)
            nn.init.zeros_(layer.bias)
            setattr(self, f"{name}_proj", layer)

    model = made(type("WithBiases", (odd.Square,), {"tie": tie}))
    assert watch.check(model, batch()).proved

    @watch.add_family
    def mine(module):
        if isinstance(module, odd.Square):
            *parts, output = (
                watch.linear(
                    getattr(module, f"{name}_proj").weight,
                    None if bias == " " else getattr(module, f"{bias}_proj").bias,
                )
                for name, bias in zip("qkvo", biases, strict=True)
            )
            return watch.Attention(*(part.cut(2) for part in parts), output)

    with pytest.raises(RankriseError, match="is read without the bias that its layer adds"):
        watch.check(model, batch())


def test_a_bias_that_the_module_adds_by_itself_or_does_not_add_is_told():
    class WithoutBias(odd.Square):
        def tie(self):
            self.q_proj = nn.Linear(own.WIDTH, own.WIDTH)

        def parts(self, x):
            layers = (self.q_proj, self.k_proj, self.v_proj)
            return [own.cut(nn.functional.linear(x, layer.weight), 2) for layer in layers]

    with pytest.raises(RankriseError, match="read as the bias of its query changes nothing that it gives"):
        watch.check(nn.Sequential(WithoutBias()), batch())

    @watch.add_family
    def mine(module):
        if isinstance(module, nn.MultiheadAttention):
            parts = (part.cut(2) for part in watch.linear(module.in_proj_weight).split(3))
            return watch.Attention(*parts, watch.linear(module.out_proj))

    model = nn.TransformerEncoderLayer(own.WIDTH, 2, 4, batch_first=True)
    with pytest.raises(RankriseError, match="is not read as its forward pass works"):
        watch.check(model, batch())


@pytest.mark.parametrize("kind", [own.Separate, odd.UnnamedNorm])
@pytest.mark.parametrize("count", [1, 2])
def test_several_heads_that_are_read_as_one_are_refuted(kind, count):
    model = made(kind)

    @watch.add_family
    def fewer(module):
        if isinstance(module, kind):
            layers = (module.q_proj, module.k_proj, module.v_proj)
            parts = (watch.linear(layer).cut(count) for layer in layers)
            return watch.Attention(*parts, watch.linear(module.o_proj))

    with pytest.raises(RankriseError, match=r"several heads are read as one. This settles it") as caught:
        watch.check(model, batch())
    exec(str(caught.value).split("settles it:")[1])
    assert watch.check(model, batch()).proved
    assert is_right(watch.heads(model)[0], model[0])


@pytest.mark.parametrize("names", [("mix_proj", "back"), ("a", "b")])
def test_where_no_layer_is_read_check_has_a_family_that_is_proved(names):
    """Of a class that says neither by its name, nor how many heads it has, but is called `attn`."""
    mix, back = names

    class PerHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.many = own.HEADS
            setattr(self, mix, own.linear(own.WIDTH, 3 * own.INSIDE))
            setattr(self, back, own.linear(own.INSIDE, own.WIDTH))

        def forward(self, x):
            parts = getattr(self, mix)(x).unflatten(-1, (self.many, 3, -1)).movedim(-2, 0)
            return getattr(self, back)(own.attend(*(part.transpose(1, 2) for part in parts)))

    model = nn.ModuleDict({"attn": PerHead()})
    with pytest.raises(
        RankriseError, match=r"attn \(PerHead\).*such as this one, by which it works"
    ) as caught:
        watch.check(model, lambda model: model["attn"](batch()))
    exec(str(caught.value).split("it works:")[1])
    assert watch.check(model, lambda model: model["attn"](batch())).proved
    [layer] = watch.heads(model)
    assert layer.notes == ("read by your family my_attention (a forward pass agrees)",)
    fused = getattr(model["attn"], mix).weight.unflatten(0, (own.HEADS, 3, own.SIZE))
    torch.testing.assert_close(layer.key, fused[:, 1].mT)


class Mixer(nn.Module):
    """Attention that no name tells of."""

    def __init__(self, count):
        super().__init__()
        self.n, self.mix_in, self.mix_out = count, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        count = self.n if isinstance(self.n, int) else self.n[0]
        query, key, value = (own.cut(part, count) for part in self.mix_in(x).chunk(3, -1))
        return self.mix_out((torch.softmax(query @ key.mT, -1) @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("read", [watch.heads, lambda model: watch.check(model, torch.randn(2, 5, 8))])
def test_attention_that_no_name_tells_of_has_a_family_too(read):
    model = nn.Sequential(nn.Linear(8, 8), Mixer(2))
    with pytest.raises(RankriseError, match="modules that look like attention: none") as caught:
        read(model)
    exec(str(caught.value)[str(caught.value).index("from rankrise") :])
    assert str(watch.check(model, torch.randn(2, 5, 8))) == "1 of 1 layout proved."


def test_a_gate_in_the_same_layer_is_left_out_of_the_family_and_named():
    class GatedAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.qkvg, self.proj = 2, nn.Linear(8, 32), nn.Linear(8, 8)

        def forward(self, x):
            *parts, gate = self.qkvg(x).chunk(4, -1)
            return self.proj(own.attend(*(own.cut(part, 2) for part in parts)) * gate.sigmoid())

    model = nn.Sequential(GatedAttention())
    with pytest.raises(RankriseError) as caught:
        watch.heads(model)
    exec(str(caught.value)[str(caught.value).index("from rankrise") :])
    told = watch.check(model, torch.randn(2, 5, 8))
    assert told.proved
    assert "in its path and not read: a part of qkvg" in str(told)


def test_where_no_family_can_be_given_the_message_says_what_to_fill_in_and_where_that_is_shown():
    with pytest.raises(RankriseError, match=r"how many heads .* docs/heads.md#your-own-module shows\.$"):
        watch.heads(nn.Sequential(Mixer((2, 4))))


def test_a_large_model_that_cannot_be_read_is_refused_at_once():
    """Its blocks' layers are not put together in every way that there is."""
    model = nn.Sequential(*(nn.Sequential(odd.WithActivation(), nn.Linear(10, 10)) for _ in range(40)))
    with pytest.raises(RankriseError, match=r"and 39 more .*heads.md#your-own-module shows\.$"):
        watch.heads(model)


def test_a_family_of_ones_own_that_leaves_out_a_matrix_is_told():
    model = made(own.KeysFromLatent)

    @watch.add_family
    def mine(module):
        if isinstance(module, own.KeysFromLatent):
            parts = (watch.linear(one).cut(4) for one in (module.q_proj, module.k_proj, module.v_proj))
            return watch.Attention(*parts, watch.linear(module.o_proj))

    assert watch.heads(model)[0].notes == (
        "read by your family mine (not checked, see watch.check)",
        "it has further weights that are not read: kv_down",
    )
    with pytest.raises(RankriseError, match="kv_down stands between the tokens and what is read"):
        watch.check(model, batch())
