"""`watch.check`: a layout that was guessed is proved by a forward pass, or refuted with what settles it."""

import copy
import gc
import warnings

import pytest
import torch
from tiny_heads import Plain, tiny
from torch import nn
from torch.nn import functional

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._recognise import _added

HEADS, SIZE, WIDTH = 4, 3, 10


class Fused(nn.Module):
    """Attention of one's own with a fused projection: `layout` is what its forward pass makes of it."""

    def __init__(self, layout, rotary=False, norm=None, kernel=True):
        super().__init__()
        self.n_heads, self.layout, self.turns, self.kernel = HEADS, layout, rotary, kernel
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * HEADS * SIZE), nn.Linear(HEADS * SIZE, WIDTH)
        self.q_norm, self.k_norm = (nn.Identity() if norm is None else norm() for _ in range(2))

    def forward(self, x):
        batch, tokens, _ = x.shape
        fused = self.qkv(x)
        if self.layout.startswith("per head"):
            parts = fused.view(batch, tokens, HEADS, 3, SIZE).permute(3, 0, 2, 1, 4)
        else:
            parts = fused.view(batch, tokens, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        query, key, value = parts[[1, 0, 2]] if self.layout.endswith("keys first") else parts
        query, key = self.q_norm(query), self.k_norm(key)
        if self.turns:
            angles = torch.arange(tokens)[:, None] * torch.ones(SIZE // 2)
            query, key = (self._turned(x, angles) for x in (query, key))
        if self.kernel:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = torch.softmax(query @ key.mT * SIZE**-0.5, -1) @ value
        return self.proj(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def _turned(x, angles):
        half = SIZE // 2
        one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        return torch.cat([one * cos - two * sin, one * sin + two * cos, rest], -1)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attn, self.drop = attention, nn.Dropout(0.5)

    def forward(self, x):
        return x + self.drop(self.attn(x))


@pytest.fixture(autouse=True)
def _no_families_left():
    before = list(_added)
    yield
    _added[:] = before


def quietly(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(watch.heads(model))


def x(tokens=5):
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(0))


def trained_norm():
    norm = nn.LayerNorm(SIZE)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("norm", [None, lambda: nn.RMSNorm(SIZE), trained_norm])
def test_the_usual_layout_is_proved(rotary, norm, kernel):
    model = Block(Fused("thirds", rotary, norm, kernel))
    result = watch.check(model, x())
    assert result.proved
    if rotary and norm is None:  # which no name tells
        assert str(result).startswith("1 of 1 layout proved WITHIN LIMITS: queries and keys do not meet in")
    else:
        assert repr(result) == str(result) == "1 of 1 layout proved."
    assert "a forward pass agrees" in quietly(model)[0].notes[0]


@pytest.mark.parametrize("layout", ["per head", "per head, keys first", "thirds, keys first"])
@pytest.mark.parametrize("rotary", [False, True])
def test_another_layout_is_refuted_and_the_snippet_settles_it(layout, rotary):
    model = Block(Fused(layout, rotary))
    wrong = quietly(model)[0]
    with pytest.raises(RankriseError, match=r"attn .Fused. is not read as") as caught:
        watch.check(model, x())
    exec(str(caught.value).split("settles it:")[1])
    assert watch.check(model, x()).proved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [right] = watch.heads(model)
    assert not torch.equal(right.query, wrong.query)
    fused = model.attn.qkv.weight.T
    view = fused.view(WIDTH, HEADS, 3, SIZE) if "per head" in layout else None
    expected = fused.view(WIDTH, 3, HEADS, SIZE).transpose(1, 2) if view is None else view
    place = 1 if "keys first" in layout else 0
    torch.testing.assert_close(right.query, expected[:, :, place].transpose(0, 1), rtol=0, atol=0)


class SharingAttention(nn.Module):
    """Attention of one's own in which two heads share a key; no name that is known says how many heads."""

    def __init__(self, layout):
        super().__init__()
        self.nh, self.groups, self.layout = HEADS, 2, layout
        if layout == "separate":
            self.asks, self.finds, self.gives = (
                nn.Linear(WIDTH, heads * SIZE) for heads in (HEADS, self.groups, self.groups)
            )
        else:
            self.mix = nn.Linear(WIDTH, (HEADS + 2 * self.groups) * SIZE)
        self.back = nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x):
        if self.layout == "separate":
            query, key, value = self.asks(x), self.finds(x), self.gives(x)
        elif self.layout == "all of each":
            query, key, value = self.mix(x).split([HEADS * SIZE, 2 * SIZE, 2 * SIZE], -1)
        else:
            grouped = self.mix(x).unflatten(-1, (self.groups, -1))
            query, key, value = (part.flatten(-2) for part in grouped.split([2 * SIZE, SIZE, SIZE], -1))
        query, key, value = (one.unflatten(-1, (-1, SIZE)).transpose(1, 2) for one in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return self.back(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("layout", ["separate", "all of each", "group by group"])
def test_heads_that_share_keys_and_are_not_counted_by_a_known_name_have_a_snippet_too(layout):
    model = Block(SharingAttention(layout))
    with pytest.raises(RankriseError) as caught:
        watch.heads(model)
    exec(str(caught.value).split("watch.check(model, batch):")[1])
    try:
        assert watch.check(model, x()).proved
    except RankriseError as refuted:  # the first that fits may be another; that of the check is proved
        _added.pop()
        exec(str(refuted).split("settles it:")[1])
        assert watch.check(model, x()).proved
    [layer] = quietly(model)
    assert layer.query.shape[0] == HEADS


def test_a_guess_warns_once_with_a_snippet_that_works_and_shows_everywhere():
    class Guessed(Fused):
        pass

    model = Block(Guessed("per head"))
    with pytest.warns(UserWarning, match=r"attn is a GUESS: .*Guessed.* all queries.*watch.check") as caught:
        layers = watch.heads(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.heads(model)
    assert "not checked" in repr(layers)
    assert "not checked" in repr(layers[0])
    exec(str(caught[0].message).split("prove it, too:")[1])
    assert watch.check(model, x()).proved
    del layers, model
    gc.collect()


def test_training_is_left_as_it_was():
    model = Block(Fused("thirds")).train()
    weights = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    watch.check(model, x())
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert model.drop.training
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "batch",
    [
        lambda: x(),
        lambda: {"x": x()},
        lambda: (x(),),
        lambda: [x(), torch.tensor([0, 1])],  # with labels, which the model does not take
        lambda: lambda model: model(x()),
    ],
)
def test_any_form_of_batch(batch):
    assert watch.check(Block(Fused("thirds")), batch()).proved


def test_other_batches_are_refused():
    with pytest.raises(RankriseError, match="The batch is of type int: pass a tensor"):
        watch.check(Block(Fused("thirds")), 3)
    for batch in ({"words": x()}, x()[..., :3]):
        with pytest.raises(RankriseError, match=r"Block cannot be run on the batch \(.*: pass what it is"):
            watch.check(Block(Fused("thirds")), batch)


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_weights_that_say_nothing_do_not_hinder(scale):
    model = Block(Fused("per head"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    with pytest.raises(RankriseError, match="is not read as its forward pass"):
        watch.check(model, torch.zeros(1, 4, WIDTH))


def test_a_module_that_cannot_be_copied_is_told():
    class Single(Fused):
        def __deepcopy__(self, memory):
            raise TypeError("there is only one")

    result = watch.check(Block(Single("thirds")), x())
    assert not result.proved
    assert result.layers[0].reason == ("a copy of it does not run by itself (TypeError: there is only one)")


def test_one_token_proves_nothing():
    result = watch.check(Block(Fused("thirds")), x(tokens=1)[:1])
    assert not result.proved
    assert "longer samples" in result.layers[0].reason


def test_layers_of_one_class_that_work_differently_are_told_apart():
    model = nn.Sequential(Block(Fused("thirds")), Block(Fused("thirds")), Block(Fused("per head")))
    with pytest.raises(RankriseError, match=r"2\.attn .Fused. is not read as"):
        watch.check(model, x())
    assert watch.check(model[:2], x()).proved
    notes = [layer.notes[0] for layer in quietly(model)]
    assert ["a forward pass agrees" in note for note in notes] == [True, True, False]


def by_tuple(module, layout):
    module.axes = tuple(layout.split())


def by_child(module, layout):
    module.q_norm.layout = layout


def by_number(module, layout):
    module.layer_idx = ("thirds", "per head").index(layout)


@pytest.mark.parametrize(
    ("put", "take"),
    [
        (by_tuple, lambda module: " ".join(module.axes)),
        (by_child, lambda module: module.q_norm.layout),
        (by_number, lambda module: ("thirds", "per head")[module.layer_idx]),
    ],
)
def test_layers_are_alike_by_what_they_give_not_by_their_attributes(put, take):
    class Hidden(Fused):
        def __init__(self, layout):
            super().__init__(layout)
            put(self, layout)

        layout = property(take, lambda module, layout: None)

    model = nn.Sequential(Block(Hidden("thirds")), Block(Hidden("thirds")), Block(Hidden("per head")))
    assert watch.check(model[:2], x()).proved
    with pytest.raises(RankriseError, match=r"2\.attn .Hidden. is not read as"):
        watch.check(model, x())


def test_a_layer_that_is_not_reached_is_told():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = Fused("thirds"), Fused("thirds")

        def forward(self, x):
            return self.used(x)

    result = watch.check(Two(), x())
    assert [layer.proved for layer in result.layers] == [True, False]
    assert "does not reach it" in str(result)


@pytest.mark.parametrize("order", ["followed", "turned"])
def test_shared_keys(order):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.num_kv_heads = 4, 2
            self.q_proj, self.o_proj = nn.Linear(WIDTH, 4 * SIZE), nn.Linear(4 * SIZE, WIDTH)
            self.k_proj, self.v_proj = nn.Linear(WIDTH, 2 * SIZE), nn.Linear(WIDTH, 2 * SIZE)

        def forward(self, x):
            query, key, value = (
                layer(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            if order == "followed":
                key, value = (one.repeat_interleave(2, 1) for one in (key, value))
            else:
                key, value = (one.repeat(1, 2, 1, 1) for one in (key, value))
            mixed = functional.scaled_dot_product_attention(query, key, value)
            return self.o_proj(mixed.transpose(1, 2).flatten(2))

    model = Shared()
    if order == "followed":
        assert watch.check(model, x()).proved
    else:
        with pytest.raises(RankriseError, match="is not read as its forward pass works"):
            watch.check(model, x())


@pytest.mark.parametrize(
    "family", ["llama", "bert", "gpt2", "gpt_neox", "qwen3", "olmo2", "falcon", "vit", "t5"]
)
def test_layers_of_known_libraries(family):
    if family == "vit":
        model = tiny(family, image_size=8, patch_size=4, num_channels=3, head_dim=...)
        batch = {"pixel_values": torch.randn(1, 3, 8, 8)}
    else:
        model = tiny(family, **({"head_dim": ...} if family not in ("llama", "qwen3", "olmo2") else {}))
        batch = {"input_ids": torch.arange(3, 9)[None]}
    if family == "t5":
        batch["decoder_input_ids"] = torch.arange(3, 7)[None]
    result = watch.check(model, batch)
    assert result.proved, str(result)


def test_separate_projections_are_proved_too():
    class Running(Plain):
        def forward(self, x):
            query, key, value = (
                layer(x).unflatten(-1, (3, -1)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            return self.out_proj((torch.softmax(query @ key.mT, -1) @ value).transpose(1, 2).flatten(2))

    assert watch.check(Running(), torch.randn(1, 4, 8)).proved


def test_a_learned_key_and_value_do_not_refute_torch_multihead():
    attention = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
    tokens = torch.randn(2, 5, 8)
    assert watch.check(attention, (tokens, tokens, tokens)).proved
    assert attention.bias_k is not None


def test_torch_multihead_and_adapters():
    peft = pytest.importorskip("peft")
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    assert watch.check(model, torch.randn(2, 5, 8)).proved
    adapted = peft.get_peft_model(
        Block(Fused("thirds")), peft.LoraConfig(r=2, target_modules=["qkv", "proj"], init_lora_weights=False)
    )
    assert watch.check(adapted, x()).proved


def test_a_family_by_widths_is_proved_and_forgotten():
    class PerGroup(nn.Module):
        """Per group [query, query, key, value]."""

        def __init__(self):
            super().__init__()
            self.groups, self.mix, self.back = 2, nn.Linear(WIDTH, 2 * 4 * SIZE), nn.Linear(4 * SIZE, WIDTH)

        def forward(self, x):
            parts = self.mix(x).unflatten(-1, (2, 4, SIZE)).permute(0, 2, 3, 1, 4)  # batch, group, part, ...
            query = parts[:, :, :2].flatten(1, 2)
            key, value = (parts[:, :, part].repeat_interleave(2, 1) for part in (2, 3))
            mixed = functional.scaled_dot_product_attention(query, key, value)
            return self.back(mixed.transpose(1, 2).flatten(2))

    @watch.add_family
    def mine(module):
        if isinstance(module, PerGroup):
            queries, key, value = watch.linear(module.mix).cut(module.groups).split(2 * SIZE, SIZE, SIZE)
            return watch.Attention(queries.cut(2), key, value, watch.linear(module.back))

    model = nn.Sequential(PerGroup())
    assert watch.check(model, x()).proved
    watch.remove_family(mine)
    with pytest.raises(RankriseError, match="No attention head"):
        watch.check(model, x())
