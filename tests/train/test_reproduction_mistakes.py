"""What broke the one reproduction of GPT-2's stable ranks: three mistakes that must not come back."""

from dataclasses import replace

import numpy
import pytest
import torch
import transformers
from tiny_text import TINY_TEXT

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.train import TrainSettings, read_recipe
from rankrise.train._language_model import language_model


@pytest.fixture
def model() -> torch.nn.Module:
    return language_model(TINY_TEXT, 100)


@torch.no_grad()
def test_initial_weights_are_no_views_of_the_live_ones(model, tmp_path):
    """There they were, and every change was zero. Here both factors are doubled: three times the product."""
    initial = [product.clone() for product in products(model)["KQ"]]
    with watch.RankTracker(model, tmp_path / "run", schedule=watch.Schedule(often=1, seldom=1)) as tracker:
        tracker.step(0)
        for block in model.transformer.h:
            block.attn.c_attn.weight.mul_(2.0)
        tracker.step(1)
    run = watch.load(tmp_path / "run")
    assert numpy.all(run.norm("KQ")[0] == 0)
    expected = [[3 * float(head.norm()) for head in layer] for layer in initial]
    numpy.testing.assert_allclose(run.norm("KQ")[1], expected, rtol=1e-4)
    values = [torch.linalg.svdvals(layer.double()) for layer in initial]
    ranks = [((heads**2).sum(1) / heads[:, 0] ** 2).tolist() for heads in values]
    numpy.testing.assert_allclose(run.stable_rank("KQ")[1], ranks, rtol=1e-3)


@torch.no_grad()
def test_heads_are_cut_out_of_whole_queries_keys_and_values(model):
    """There, queries were the first n_embd // 3 columns of the packed weight, not the first n_embd."""
    width, size = 16, 8
    for layer, found in enumerate(watch.heads(model)):
        packed = model.transformer.h[layer].attn.c_attn.weight  # [n_embd, 3 n_embd]
        assert packed.shape == (width, 3 * width)
        for head in range(2):
            for place, part in enumerate((found.query, found.key, found.value)):
                start = place * width + head * size
                assert torch.equal(part[head], packed[:, start : start + size])
        assert found.query.shape == (2, width, size)
        for name, left, right in (("KQ", found.key, found.query), ("VO", found.value, found.output)):
            torch.testing.assert_close(left @ right.mT, products(model)[name][layer])


def products(model: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """W_K W_Q^T and W_V W_O^T of each layer, head by head, straight from GPT-2's definition."""
    found: dict[str, list[torch.Tensor]] = {"KQ": [], "VO": []}
    for block in model.transformer.h:
        query, key, value = block.attn.c_attn.weight.split(16, dim=1)
        out = block.attn.c_proj.weight  # [n_embd, n_embd]: rows are the heads' dimensions
        heads = [slice(0, 8), slice(8, 16)]
        found["KQ"].append(torch.stack([key[:, head] @ query[:, head].T for head in heads]))
        found["VO"].append(torch.stack([value[:, head] @ out[head] for head in heads]))
    return found


@torch.no_grad()
def test_training_never_starts_from_pretrained_weights(monkeypatch):
    """There it did. Here nothing is loaded, and no setting could ask for it."""
    monkeypatch.setattr(
        transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("pretrained weights")
    )
    settings = replace(read_recipe("gpt2-wikipedia"), layers=2, hidden_size=192, head_size=16, mlp_size=768)
    model = language_model(settings, 1000)
    deviation = 0.02 / 4**0.5  # of what is added to the residual stream, in two layers
    for block in model.transformer.h:
        for module, wanted in (
            (block.attn.c_attn, 0.02),
            (block.attn.c_proj, deviation),
            (block.mlp.c_fc, 0.02),
            (block.mlp.c_proj, deviation),
        ):
            assert float(module.weight.std()) == pytest.approx(wanted, rel=0.05)
            assert not module.bias.any()
    inputs = torch.randint(0, 1000, (2, 65), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=inputs[:, :-1]).logits[..., :1000]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten())
    assert float(loss) == pytest.approx(numpy.log(1000), abs=0.1)  # it knows nothing
    for name in ("pretrained", "checkpoint", "model_name_or_path"):
        with pytest.raises(RankriseError, match=f"gives '{name}', which is not a setting of a training run"):
            TrainSettings().changed({name: "gpt2"}, "an example")
