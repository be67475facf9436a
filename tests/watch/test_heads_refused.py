"""What cannot be read honestly is refused by its name, with the reason."""

import warnings

import pytest
import torch
from tiny_heads import Plain, tiny
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError


def refusal(model):
    with pytest.raises(RankriseError) as caught:
        watch.heads(model)[0]
    return str(caught.value)


@pytest.mark.parametrize("given", [{"q.weight": torch.ones(2, 2)}, torch.ones(2, 2), None])
def test_what_is_neither_a_model_nor_a_path(given):
    assert "was passed, which does not say how its weights are used: load it into its model" in refusal(given)


def test_weights_on_the_meta_device():
    with torch.device("meta"):
        model = tiny()
    assert refusal(model) == (
        "layers.0.self_attn: A weight is on the meta device, so it has no values: load the checkpoint first."
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_dtypes(dtype):
    model = tiny()
    projection = model.layers[0].self_attn.q_proj
    projection.weight = nn.Parameter(projection.weight.to(dtype), requires_grad=False)
    assert refusal(model).startswith(f"layers.0.self_attn: A weight has dtype {dtype}: it is quantised")


def test_packed_weights():
    class QuantLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("qweight", torch.zeros(2, 2, dtype=torch.int32))

    model = tiny()
    model.layers[0].self_attn.q_proj = QuantLinear()
    assert "layers.0.self_attn: QuantLinear holds quantised weights" in refusal(model)


def test_tensor_subclasses():
    class Int4(torch.Tensor):
        pass

    model = tiny()
    weight = model.layers[0].self_attn.q_proj.weight.data.as_subclass(Int4)
    model.layers[0].self_attn.q_proj._parameters["weight"] = weight
    assert "Int4, not a plain tensor: dequantise" in refusal(model)


def test_empty_shards():
    model = tiny()
    weight = nn.Parameter(torch.empty(0))
    model.layers[0].self_attn.q_proj.weight = weight
    assert "A weight of shape (0,)" in refusal(model)
    weight.ds_id = 0
    assert "ZeRO-3 keeps it on other ranks" in refusal(model)


def test_a_model_without_attention_tells_what_was_looked_for():
    message = refusal(nn.Sequential(nn.Linear(2, 2)))
    assert "No attention head of Sequential can be read" in message
    assert "torch_multihead" in message
    assert "look like attention: none" in message


def test_a_model_with_unknown_attention_names_it():
    class MyAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(2, 2)

    assert "0 (MyAttention): its projections" in refusal(nn.Sequential(MyAttention()))


def test_some_attention_left_out_is_a_warning():
    class GatedAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(2, 2)

    with pytest.warns(UserWarning, match=r"Only 1 of 2 attention layers .* left out: 1 \(GatedAttention\)"):
        assert len(watch.heads(nn.Sequential(Plain(), GatedAttention()))) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.heads(nn.Sequential(Plain()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_heads": 5}, "says it has 5 heads, and its output projection takes 12"),
        ({"head_dim": 6}, "says it has 3 heads of size 6, and its query projection has width 12"),
        ({"num_heads": None}, "does not say how many heads it has"),
        ({"key": nn.Linear(8, 8)}, "12 query heads|cannot be cut|3 query heads, 2 key heads"),
        ({"query": nn.Linear(8, 24)}, "query heads have size 8|cannot be cut"),
        ({"kv_b_proj": nn.Linear(2, 2)}, "parts of multi-head latent attention, and no kv_a_proj_with_mqa"),
        ({"k_conv1d": nn.Conv1d(12, 12, 3)}, "by a convolution"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, reason):
    module = Plain()
    for name, value in change.items():
        setattr(module, name, value)
    with pytest.raises(RankriseError, match=reason):
        watch.heads(module)


def test_fused_keys_of_other_widths_are_not_guessed():
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.qkv, self.proj = 4, nn.Linear(16, 32), nn.Linear(16, 16)

    assert "cannot be split" in refusal(Fused())
    module = Fused()
    module.num_kv_heads = 2
    assert watch.heads(module)[0].group == (0, 0, 1, 1)


def test_a_message_about_an_unknown_module_has_a_family_that_works():
    class MyAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads_here, self.mix, self.back = 4, nn.Linear(8, 24), nn.Linear(8, 8)

    model = nn.Sequential(MyAttention())
    with pytest.raises(RankriseError, match="such as this one") as caught:
        watch.heads(model)
    exec(str(caught.value).split("batch):")[1])
    assert watch.heads(model)[0].query.shape == (4, 8, 2)
