"""Models that training wraps, moves, adapts or averages: the tracker reads what the weights really are."""

import copy

import numpy
import pytest
import torch
from tiny_model import batch, products, tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._spectra import leading_values

EVERY = watch.Schedule(often=1, seldom=2)


def check(folder, before, after):
    """The last row of the record is the change between the two models."""
    run = watch.load(folder)
    for name, product in products(after).items():
        values = torch.linalg.svdvals(product - products(before)[name])
        top = run.top(name)[-1]
        numpy.testing.assert_allclose(
            top, values[..., : top.shape[-1]], rtol=1e-4, atol=1e-6 * float(values.max())
        )


@pytest.mark.parametrize("way", ["data", "parameter", "module", "dtype", "wrapper"])
def test_parameters_that_move(tmp_path, way):
    """In a compiled and wrapped model, new storage, a new Parameter, a new projection, another type, a
    wrapper: views are found again."""
    model = tiny(dropout=0.0)
    before = copy.deepcopy(model)
    wrapped = torch.compile(nn.DataParallel(model), backend="eager")
    with watch.RankTracker(wrapped, tmp_path, schedule=EVERY) as tracker:
        train(model, [1], after=tracker.step)
        attention = model.layers[0].self_attn
        if way == "data":
            attention.in_proj_weight.data = attention.in_proj_weight.data.clone()
        elif way == "parameter":
            attention.in_proj_weight = nn.Parameter(attention.in_proj_weight.detach().clone())
        elif way == "module":
            attention.out_proj = copy.deepcopy(attention.out_proj)
        elif way == "dtype":
            model.double()
        else:
            model.layers[0] = nn.Sequential(model.layers[0])
        train(model, [2], after=tracker.step)
    if way == "dtype":
        before.double()
    check(tmp_path, before, model)
    assert watch.load(tmp_path).info["model"] == "Tiny"


@pytest.mark.parametrize("late", [False, True])
def test_adapters_count_as_merged(tmp_path, late):
    """LoRA: the change is that of the weights with the adapters merged in, also if they were added later."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_embd=16, n_layer=2, n_head=2, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    before = copy.deepcopy(model)
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY) if late else None
    adapted = peft.get_peft_model(model, settings)
    tracker = tracker or watch.RankTracker(adapted, tmp_path, schedule=EVERY)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    with tracker:
        for step in (1, 2):
            optimizer.zero_grad()
            adapted(batch(step), labels=batch(step)).loss.backward()
            optimizer.step()
            tracker.step(step)
    merged = adapted.merge_and_unload()
    check(tmp_path, before, merged)
    assert (watch.load(tmp_path).stable_rank("KQ")[-1] > 0).all()


def test_shards_without_values_are_refused(tmp_path):
    """ZeRO-3 leaves empty parameters."""
    model = tiny()
    weight = model.layers[0].self_attn.in_proj_weight
    weight.data, weight.ds_id = torch.empty(0), 0
    with pytest.raises(RankriseError, match="ZeRO-3"):
        watch.RankTracker(model, tmp_path)


@pytest.mark.parametrize("shape", [(700, 400), (300, 900)])
@pytest.mark.parametrize("decay", [0.0, 0.3, 3.0])
def test_leading_values_of_large_matrices(shape, decay):
    """Flat spectra, steep ones, and some of very low rank, against a full decomposition."""
    generator = torch.Generator().manual_seed(0)
    before, random = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    left, values, right = torch.linalg.svd(random, full_matrices=False)
    values = values * torch.exp(-decay * torch.arange(len(values)))
    difference = left @ torch.diag(values) @ right
    found, norm = leading_values(before, before + difference, 8)
    true = torch.linalg.svdvals((before + difference) - before)
    torch.testing.assert_close(found, true[:8], rtol=1e-5, atol=1e-6 * float(true[0]))
    torch.testing.assert_close(norm, torch.linalg.vector_norm(true))
