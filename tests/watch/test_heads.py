"""What `heads` promises beside the layouts: the right products, precision, marks, families of one's own."""

import pytest
import torch
from tiny_heads import Plain, tiny
from torch import nn
from transformers import AutoConfig, AutoModel

from rankrise import watch
from rankrise.watch._recognise import remove_family

# The mistakes of earlier code, each as a test that it would fail.


def test_products_contract_the_heads_and_not_the_model():
    module = Plain()
    (layer,) = watch.heads(module)
    tokens = torch.eye(8)
    queries, keys = module.query(tokens), module.key(tokens)
    for head in range(3):
        of_head = slice(4 * head, 4 * head + 4)
        logits = queries[:, of_head] @ keys[:, of_head].T
        product = layer.key[head] @ layer.query[head].T
        torch.testing.assert_close(product.T, logits)
        assert product.shape == (8, 8)  # key.weight @ query.weight.T would be 12 x 12
        written = module.value(tokens)[:, of_head] @ module.out_proj.weight[:, of_head].T
        torch.testing.assert_close(layer.value[head] @ layer.output[head].T, written)


def test_heads_are_not_blocks_of_the_product_of_all_heads():
    module = Plain()
    (layer,) = watch.heads(module)
    products = layer.key @ layer.query.mT
    torch.testing.assert_close(products.sum(0), module.key.weight.T @ module.query.weight)
    assert torch.linalg.matrix_rank(products).tolist() == [4, 4, 4]


def test_conv1d_and_linear_of_the_same_name_are_told_apart_by_type():
    gpt2 = tiny("gpt2", n_embd=24, n_layer=1).h[0].attn

    class Linears(nn.Module):
        n_head = 4

        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(24, 72), nn.Linear(24, 24)
            self.c_attn.weight = nn.Parameter(gpt2.c_attn.weight.T.clone())
            self.c_proj.weight = nn.Parameter(gpt2.c_proj.weight.T.clone())

    (conv1d,), (linears,) = watch.heads(gpt2), watch.heads(Linears())
    for part in ("query", "key", "value", "output"):
        torch.testing.assert_close(getattr(conv1d, part), getattr(linears, part), rtol=0, atol=0)


def test_weights_are_views_so_a_kept_start_must_be_cloned():
    module = Plain()
    (layer,) = watch.heads(module)
    kept = layer.key.clone()
    with torch.no_grad():
        module.key.weight.add_(1.0)
    torch.testing.assert_close(layer.key, kept + 1.0)
    for part in (layer.query, layer.key, layer.value, layer.output):
        assert not part.requires_grad


def test_key_and_value_products_are_different_things():
    (layer,) = watch.heads(Plain())
    assert not torch.allclose(layer.key @ layer.query.mT, layer.value @ layer.output.mT)


# Grouped queries, tied and half-precision weights


def test_each_query_head_has_the_key_of_its_group():
    model = tiny()
    for layer, block in zip(watch.heads(model), model.layers, strict=True):
        assert layer.group == (0, 0, 1, 1)
        keys = block.self_attn.k_proj.weight.unflatten(0, (2, 8))
        for head, group in enumerate(layer.group):
            torch.testing.assert_close(layer.key[head], keys[group].T)


def test_one_key_for_all_heads_stays_a_view():
    model = tiny(num_key_value_heads=1)
    layer = watch.heads(model)[0]
    assert layer.group == (0, 0, 0, 0)
    assert layer.key.data_ptr() == model.layers[0].self_attn.k_proj.weight.data_ptr()


def test_layers_are_read_one_by_one_and_can_be_indexed():
    layers = watch.heads(tiny())
    assert len(layers) == 2
    assert layers[-1].name == "layers.1.self_attn"
    assert (
        [layer.name for layer in layers] == ["layers.0.self_attn", "layers.1.self_attn"] == list(layers.names)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_is_kept(dtype):
    assert {layer.query.dtype for layer in watch.heads(tiny().to(dtype))} == {dtype}


def test_tied_modules_are_read_once_and_tied_weights_twice():
    module = Plain()
    assert len(watch.heads(nn.ModuleList([module, module]))) == 1
    other = Plain()
    other.query.weight = module.query.weight
    first, second = watch.heads(nn.ModuleList([module, other]))
    assert first.query.data_ptr() == second.query.data_ptr()


# Marks


@pytest.mark.parametrize(
    ("family", "needs", "marks"),
    [
        ("bert", {}, []),
        ("gpt2", {"n_embd": 24}, []),
        ("llama", {}, ["rotary"]),
        ("qwen3", {}, ["rotary", "normalised"]),
        (
            "swinv2",
            {"embed_dim": 24, "depths": [1], "num_attention_heads": ..., "num_heads": [4], "head_dim": ...},
            ["normalised"],
        ),
        ("longformer", {"attention_window": [2, 2]}, ["query_global, key_global, value_global"]),
        (
            "deberta-v2",
            {"relative_attention": True, "pos_att_type": ["c2p"], "share_att_key": False},
            ["pos_key_proj"],
        ),
        ("gpt_oss", {"num_local_experts": 2}, ["rotary", "sinks"]),
    ],
)
def test_what_stands_between_product_and_logits_is_marked(family, needs, marks):
    notes = watch.heads(tiny(family, **needs))[0].notes
    assert len(notes) == len(marks)
    assert all(mark in note for mark, note in zip(marks, notes, strict=True))


def test_xlnet():
    model = AutoModel.from_config(
        AutoConfig.for_model("xlnet", d_model=24, n_layer=1, n_head=4, d_inner=8, vocab_size=9)
    )
    (layer,) = watch.heads(model)
    attention, tokens = model.layer[0].rel_attn, torch.randn(5, 24)
    for part in "qkv":
        weight = {"q": layer.query, "k": layer.key, "v": layer.value}[part]
        # As in XLNetRelativeAttention.forward.
        expected = torch.einsum("ih,hnd->nid", tokens, getattr(attention, part))
        torch.testing.assert_close(tokens @ weight, expected)
    mixed = torch.randn(5, 4, 6)
    expected = torch.einsum("ind,hnd->ih", mixed, attention.o)
    torch.testing.assert_close(torch.einsum("ind,nhd->ih", mixed, layer.output), expected)


# A family of one's own


def test_a_family_of_ones_own_comes_first():
    @watch.add_family
    def halves(module):
        if isinstance(module, Plain):
            query, key, value = (
                watch.linear(part).cut(2) for part in (module.query, module.key, module.value)
            )
            return watch.Attention(
                query, key, value, watch.linear(module.out_proj), scale=1.0, notes=("mine",)
            )

    try:
        (layer,) = watch.heads(Plain())
        assert layer.query.shape == (2, 8, 6)
        told = "read by your family halves (not checked, see watch.check)"
        assert (layer.scale, layer.notes) == (1.0, (told, "mine"))
    finally:
        remove_family(halves)
    assert watch.heads(Plain())[0].query.shape == (3, 8, 4)
