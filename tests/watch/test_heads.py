"""What `heads` promises beside the layouts: the right products, views, precision, wrappers, refusals."""

import copy
import re
from pathlib import Path

import peft
import pytest
import torch
from tiny_heads import Plain, assert_same, tiny
from torch import nn
from torch.distributed import tensor as dtensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

from rankrise import watch
from rankrise.foundations.errors import RankriseError

# Products


def test_the_docs_page_prints_what_it_says(capsys):
    page = (Path(__file__).parents[2] / "docs" / "heads.md").read_text(encoding="utf-8")
    code, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == output


# What training puts around a model


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    file = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_fully_sharded_model(one_process):
    model, plain = tiny(), tiny()
    torch.distributed.fsdp.fully_shard(model, mesh=dtensor.init_device_mesh("cpu", (1,)))
    assert type(watch.heads(model)[0].query) is torch.Tensor
    assert_same(watch.heads(model), watch.heads(plain))
    assert watch.check(model, {"input_ids": torch.arange(3, 9)[None]}).proved
    assert_same(watch.heads(model), watch.heads(plain))


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda m: torch.compile(nn.DataParallel(m))])
def test_wrapped_model(wrap, one_process):
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


def with_adapter(model, *layers, **needs):
    config = peft.LoraConfig(r=2, target_modules=layers, init_lora_weights=False, **needs)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize(
    ("family", "layers", "needs"),
    [
        ("llama", ("q_proj", "v_proj"), {}),
        ("llama", ("q_proj", "v_proj"), {"use_dora": True}),
        ("llama", ("q_proj", "v_proj"), {"use_rslora": True, "lora_alpha": 5}),
        ("gpt2", ("c_attn",), {"fan_in_fan_out": True}),
    ],
)
def test_adapters_are_merged_without_touching_the_model_and_left_out_while_disabled(family, layers, needs):
    model = with_adapter(tiny(family, n_embd=24), *layers, **needs)
    state = copy.deepcopy(model.state_dict())
    found = list(watch.heads(model))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with model.disable_adapter():
        assert_same(watch.heads(model), watch.heads(tiny(family, n_embd=24)))
    assert_same(found, watch.heads(model.merge_and_unload()))


def test_a_small_adapter_on_bfloat16_is_not_rounded_away():
    base = tiny().bfloat16()
    before = watch.heads(base)[0].query.float().clone()
    model = with_adapter(base, "q_proj", "v_proj")
    [adapter] = [one for name, one in model.named_modules() if name.endswith("layers.0.self_attn.q_proj")]
    adapter.lora_A.default.weight.data = torch.randn(2, 24) * 1e-3
    adapter.lora_B.default.weight.data = torch.randn(32, 2) * 1e-3
    change = adapter.get_delta_weight("default").float()
    after = watch.heads(model)[0].query
    expected = change.unflatten(0, (4, 8)).mT
    torch.testing.assert_close(after - before, expected, rtol=0, atol=1e-8)
    assert expected.abs().max() > 1e-7


# Ordinary mistakes: each is refused, with the name of what is wrong


class Int4(torch.Tensor):
    pass


class LoraLinear(nn.Linear):
    """As in loralib."""

    def __init__(self):
        super().__init__(8, 12)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(12, 2))


def named(kind, **parts):
    """A module of a class of that name."""
    return changed(type(kind, (nn.Module,), {})(), **parts)


def changed(module, **parts):
    for name, value in parts.items():
        setattr(module, name, value)
    return module


def plain(**parts):
    return changed(Plain(), **parts)


def with_weight(change):
    module = Plain()
    module.query._parameters["weight"] = change(module.query.weight)
    return module


def pruned():
    return prune.l1_unstructured(nn.Linear(8, 12), "weight", 0.5)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: Plain().to("meta"), "meta device"),
        (lambda: with_weight(lambda weight: nn.Parameter(weight.to(torch.float8_e4m3fn), False)), "float8"),
        (lambda: with_weight(lambda weight: weight.data.as_subclass(Int4)), "Int4"),
        (lambda: with_weight(lambda weight: nn.Parameter(torch.empty(0))), "ZeRO-3"),
        (lambda: plain(query=named("QuantLinear", base=nn.Linear(8, 12))), "quantised"),
        (lambda: plain(query=LoraLinear()), "LoraLinear .*lora_A, lora_B"),
        (lambda: plain(query=pruned()), "weight_orig"),
        (lambda: plain(query=nn.Sequential(nn.Linear(8, 12), nn.GELU())), "Plain"),
        (lambda: plain(num_heads=5), "5 heads"),
        (lambda: plain(head_dim=6), "3 heads"),
        (lambda: plain(num_heads=None), "num_heads"),
        (lambda: plain(key=nn.Linear(8, 8)), "key heads"),
        (lambda: plain(k_conv1d=nn.Conv1d(12, 12, 3)), "k_conv1d"),
        (lambda: nn.Sequential(named("SomeAttention", mix=nn.Linear(2, 2))), "SomeAttention"),
    ],
)
def test_mistakes(model, match):
    with pytest.raises(RankriseError, match=match):
        watch.heads(model())[0]


def test_attention_that_is_left_out_is_a_warning():
    other = named("Mixing", qkv_weight=nn.Parameter(torch.randn(3, 4, 6, 8)))  # shown by a bare weight alone
    with pytest.warns(UserWarning, match=r"1 \(Mixing\)"):
        assert len(watch.heads(nn.Sequential(Plain(), other))) == 1


def test_a_known_layer_with_another_forward_pass_is_announced(recwarn):
    model = tiny("gpt2", n_embd=24)
    watch.heads(model)
    assert not recwarn.list
    for block in model.h:
        block.attn.forward = lambda hidden_states, *args, **kwargs: (hidden_states, None)
    with pytest.warns(UserWarning, match=r"The layout of h.0.attn \(GPT2Attention\) is a GUESS"):
        watch.heads(model)
