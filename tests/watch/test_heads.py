"""What `heads` promises beside the layouts: the right products, wrappers, precision, and clear refusals."""

import copy
import warnings

import peft
import pytest
import torch
from torch import nn
from torch.distributed import tensor as dtensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModel

from rankrise import watch
from rankrise.errors import RankriseError
from rankrise.watch.families import remove_family

TINY = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(family="llama", **needs):
    torch.manual_seed(0)
    wants = {name: value for name, value in (TINY | needs).items() if value is not ...}
    return AutoModel.from_config(AutoConfig.for_model(family, **wants))


def assert_same(found, expected):
    assert [layer.name for layer in found] == [layer.name for layer in expected]
    for one, other in zip(found, expected, strict=True):
        for part in ("query", "key", "value", "output"):
            torch.testing.assert_close(getattr(one, part), getattr(other, part), rtol=0, atol=0)


# The mistakes of earlier code, each as a test that it would fail.


class Plain(nn.Module):
    """Three heads of size 4 on 8 dimensions: every mix-up of sides or heads changes a shape or a number."""

    def __init__(self):
        super().__init__()
        self.num_heads = 3
        self.query, self.key, self.value = (nn.Linear(8, 12, bias=False) for _ in range(3))
        self.out_proj = nn.Linear(12, 8, bias=False)


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


# Wrappers


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    file = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_ddp(one_process):
    model = tiny()
    assert_same(watch.heads(DistributedDataParallel(model)), watch.heads(model))


def test_sharded_tensors_are_gathered(one_process):
    model, plain = tiny(), tiny()
    mesh = dtensor.init_device_mesh("cpu", (1,))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(
                dtensor.distribute_tensor(module.weight.data, mesh, [dtensor.Shard(0)])
            )
    found = list(watch.heads(model))
    assert type(found[0].query) is torch.Tensor
    assert_same(found, watch.heads(plain))


def test_fully_sharded_model(one_process):
    model, plain = tiny(), tiny()
    torch.distributed.fsdp.fully_shard(model, mesh=dtensor.init_device_mesh("cpu", (1,)))
    assert_same(watch.heads(model), watch.heads(plain))


@pytest.mark.parametrize(
    "wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))]
)
def test_wrapped_model(wrap):
    model = tiny()
    assert_same(watch.heads(wrap(model)), watch.heads(model))


@pytest.mark.parametrize("wrap", [torch.compile, checkpoint_wrapper])
def test_wrapped_blocks(wrap):
    model, plain = tiny(), tiny()
    for index, block in enumerate(model.layers):
        block.self_attn.q_proj = wrap(block.self_attn.q_proj)
        model.layers[index] = wrap(block)
    assert_same(watch.heads(model), watch.heads(plain))


# PEFT


def with_adapter(model, **needs):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **needs)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("needs", [{}, {"use_dora": True}, {"use_rslora": True, "lora_alpha": 5}])
def test_adapters_are_merged_without_touching_the_model(needs):
    model = with_adapter(tiny(), **needs)
    state = copy.deepcopy(model.state_dict())
    found = list(watch.heads(model))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert_same(found, watch.heads(model.merge_and_unload()))


def test_an_adapter_on_conv1d():
    model = tiny("gpt2", n_embd=24, n_layer=1)
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    model = peft.get_peft_model(model, config)
    found = list(watch.heads(model))
    assert found[0].name == "h.0.attn"
    assert_same(found, watch.heads(model.merge_and_unload()))


def test_disabled_adapters_are_left_out():
    model = with_adapter(tiny())
    with model.disable_adapter():
        assert_same(watch.heads(model), watch.heads(tiny()))


def test_a_small_adapter_on_bfloat16_is_not_rounded_away():
    base = tiny().bfloat16()
    before = watch.heads(base)[0].query.float().clone()
    model = with_adapter(base)
    change = {}
    for name, module in model.named_modules():
        if name.endswith("layers.0.self_attn.q_proj"):
            module.lora_A.default.weight.data = torch.randn(2, 24) * 1e-3
            module.lora_B.default.weight.data = torch.randn(32, 2) * 1e-3
            change = module.get_delta_weight("default").float()
    after = watch.heads(model)[0].query
    expected = change.unflatten(0, (4, 8)).mT
    torch.testing.assert_close(after - before, expected, rtol=0, atol=1e-8)
    assert expected.abs().max() > 1e-7


# Refusals, each by name


def refusal(model):
    with pytest.raises(RankriseError) as caught:
        watch.heads(model)[0]
    return str(caught.value)


def test_multi_head_latent_attention():
    needs = {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
    }
    model = tiny("deepseek_v3", **needs, n_routed_experts=2, first_k_dense_replace=2, num_key_value_heads=4)
    assert (
        "layers.0.self_attn and 1 more (DeepseekV3Attention): it is multi-head latent attention"
        in refusal(model)
    )


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
    assert "layers.0.self_attn: A QuantLinear holds quantised weights" in refusal(model)


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

    with pytest.warns(UserWarning, match=r"1 attention layers .* 1 left out: 1 \(GatedAttention\)"):
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
        ({"kv_b_proj": nn.Linear(2, 2)}, "multi-head latent attention"),
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
        expected = torch.einsum(
            "ih,hnd->nid", tokens, getattr(attention, part)
        )  # as in XLNetRelativeAttention.forward
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
        assert (layer.scale, layer.notes) == (1.0, ("mine",))
    finally:
        remove_family(halves)
    assert watch.heads(Plain())[0].query.shape == (3, 8, 4)
