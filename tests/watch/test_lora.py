"""The rank of an adapter on a tracked model, which its change never exceeds."""

import copy

import pytest
import torch
from tiny_heads import tiny
from torch import nn

from rankrise import watch

peft = pytest.importorskip("peft")


def fill(model):
    """Adapters at random, as after training."""
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)


@pytest.mark.parametrize("begun", [False, True])
def test_no_change_has_a_higher_rank_than_the_record_says(tmp_path, begun):
    config = peft.LoraConfig(r=4, target_modules=["q_proj"])
    model = peft.get_peft_model(tiny(hidden_size=64).double(), config)
    if begun:
        fill(model)
    before = [copy.deepcopy(layer) for layer in watch.heads(model)]
    with watch.RankTracker(model, tmp_path) as tracker:
        tracker.step(0)
        fill(model)
        tracker.step(1)
    run = watch.load(tmp_path)
    assert (run.adapter_rank, run.ceilings["matrix"]) == (4, 8 if begun else 4)
    for old, new in zip(before, watch.heads(model), strict=True):
        change = new.key @ new.query.mT - old.key @ old.query.mT
        ranks = torch.linalg.matrix_rank(change, rtol=1e-9)
        assert ranks.tolist() == [8 if begun else 4] * 4
        assert ranks.max() <= run.ceilings["KQ"]


@pytest.mark.parametrize("what", ["dora", "unfrozen"])
def test_more_than_plain_lora_has_no_rank(tmp_path, what):
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=what == "dora")
    model = peft.get_peft_model(tiny(), config)
    if what == "unfrozen":
        model.requires_grad_(True)
    with watch.RankTracker(model, tmp_path) as tracker:
        tracker.step(0)
    run = watch.load(tmp_path)
    assert (run.adapter_rank, run.ceilings) == (None, {})
