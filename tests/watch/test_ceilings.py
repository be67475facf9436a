"""The highest rank that an adapter's change can have: never exceeded, and reached by random adapters."""

import copy

import pytest
import torch
from tiny_heads import tiny
from torch import nn

from rankrise import watch

peft = pytest.importorskip("peft")
SIZES = {"q_proj": 3, "k_proj": 2, "v_proj": 1, "o_proj": 2}


def rank(matrix):
    """An independent rank in float64."""
    values = torch.linalg.svdvals(matrix.double())
    return int((values > 1e-9 * values[0]).sum()) if values[0] > 0 else 0


def product_changes(before, after):
    """By product, the change of every head of every layer."""
    for old, new in zip(before, after, strict=True):
        yield "KQ", new.key @ new.query.mT - old.key @ old.query.mT
        yield "VO", new.value @ new.output.mT - old.value @ old.output.mT


def read(model):
    return [copy.deepcopy(layer) for layer in watch.heads(model)]


def adapted(model, targets, sizes=None, **more):
    config = peft.LoraConfig(r=4, target_modules=list(targets), rank_pattern=sizes or {}, **more)
    return peft.get_peft_model(model, config)


def fill(model):
    """Adapters at random, as after training."""
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)


@pytest.mark.parametrize("sizes", [SIZES, {"q_proj": 5}, {"k_proj": 1, "o_proj": 4}, "fused"])
def test_a_product_has_the_ranks_of_both_factors(sizes):
    if sizes == "fused":
        model = adapted(tiny("gpt2", n_embd=24).double(), ["c_attn"], fan_in_fan_out=True)
        expected = {"KQ": 8, "VO": 4}
    else:
        model = adapted(tiny(hidden_size=40).double(), sizes, sizes)
        pairs = {"KQ": ("k_proj", "q_proj"), "VO": ("v_proj", "o_proj")}
        expected = {name: sum(sizes.get(one, 0) for one in pair) for name, pair in pairs.items()}
    before = read(model)
    [unit, _] = watch._units.find_units(model, watch._units.Choice())
    assert unit.ceilings == expected
    fill(model)
    for product, changes in product_changes(before, read(model)):
        assert {rank(change) for change in changes} == {expected[product]}


def test_an_adapter_that_had_been_trained_before_may_change_by_twice_its_rank(tmp_path):
    model = adapted(tiny(hidden_size=64).double(), ["q_proj"])
    fill(model)
    before = read(model)
    with watch.RankTracker(model, tmp_path) as tracker:
        tracker.step(0)
        fill(model)
        tracker.step(1)
    run = watch.load(tmp_path)
    assert (run.adapter_rank, run.ceilings) == (4, {"matrix": 8, "KQ": 8, "VO": 0})
    for product, changes in product_changes(before, read(model)):
        assert {rank(change) for change in changes} == {run.ceilings[product]}


@pytest.mark.parametrize("what", ["dora", "unfrozen", "none"])
def test_an_unbounded_change_has_no_ceiling(what):
    model = tiny() if what == "none" else adapted(tiny(), ["q_proj"], use_dora=what == "dora")
    if what == "unfrozen":
        model.requires_grad_(True)
    units = watch._units.find_units(model, watch._units.Choice())
    assert [unit.ceilings for unit in units] == [{}, {}]


def test_compare_counts_out_of_what_the_adapter_can_reach(tmp_path):
    base = tiny(hidden_size=40)
    base.save_pretrained(tmp_path / "base")
    model = adapted(base, SIZES, SIZES)
    fill(model)
    model.save_pretrained(tmp_path / "adapter")
    found = watch.compare(tmp_path / "base", tmp_path / "adapter", all_matrices=True, threshold=1e-6)
    assert {(row.matrix, row.full_rank, row.rank_above) for row in found.rows if row.head is not None} == {
        ("KQ", 5, 5),
        ("VO", 3, 3),
    }
    for row in found.select("weight"):
        expected = SIZES.get(row.layer.split(".")[-2], 0)
        assert (row.full_rank, row.rank_above) == (expected, expected), row
