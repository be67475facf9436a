"""Heads through what training puts around a model: DDP, FSDP2, torch.compile, checkpointing, PEFT."""

import copy

import peft
import pytest
import torch
from tiny_heads import assert_same, tiny
from torch import nn
from torch.distributed import tensor as dtensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from rankrise import watch


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
