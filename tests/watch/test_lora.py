"""The rank of an adapter on a tracked model, which its change does not exceed."""

import pytest
import torch
from tiny_heads import tiny
from torch import nn

from rankrise import watch

peft = pytest.importorskip("peft")


def tracked(tmp_path, model):
    """The record of a model whose adapters are drawn at random, as after training."""
    with watch.RankTracker(model, tmp_path) as tracker:
        tracker.step(0)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                nn.init.normal_(parameter)
        tracker.step(1)
    return watch.load(tmp_path)


def test_no_change_has_a_higher_rank_than_the_record_says(tmp_path):
    config = peft.LoraConfig(r=4, target_modules=["q_proj"])
    model = peft.get_peft_model(tiny(hidden_size=64).double(), config)
    before = [layer.query.clone() for layer in watch.heads(model)]
    run = tracked(tmp_path, model)
    assert run.adapter_rank == 4
    for old, new in zip(before, watch.heads(model), strict=True):
        assert torch.linalg.matrix_rank(new.query - old, rtol=1e-9).tolist() == [4] * 4


@pytest.mark.parametrize("what", ["dora", "unfrozen"])
def test_more_than_plain_lora_has_no_rank(tmp_path, what):
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=what == "dora")
    model = peft.get_peft_model(tiny(), config)
    if what == "unfrozen":
        model.requires_grad_(True)
    assert tracked(tmp_path, model).adapter_rank is None
