"""Learning rate, times, the step and every optimiser, against slow and plain ways; resumed to the bit."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import TINY, TINY_TEXT, steps_on, write_stories
from torch import nn

from rankrise import RankriseError, watch
from rankrise.train import train
from rankrise.train._optimiser import optimiser_of
from rankrise.train._times import Times

CPU = torch.device("cpu")


@given(st.integers(1, 500), st.integers(0, 100))
@settings(max_examples=50)
def test_the_rate_warms_up_linearly_and_falls_as_a_cosine(total, warm_up):
    """In a run of `warm_up` steps and `2 * total` more."""
    whole = warm_up + 2 * total
    asked = replace(TINY, batch_size=1, epochs=whole, warm_up_epochs=warm_up, learning_rate=1)
    times = Times(replace(asked, final_learning_rate=0.1), examples=1)
    rates = [times.rate(step) for step in range(1, whole + 2)]
    assert all(math.isclose(rate, step / warm_up) for step, rate in enumerate(rates[:warm_up], start=1))
    falling = rates[warm_up:]
    assert all(later <= rate for rate, later in pairwise(falling))
    assert falling[:: len(falling) // 2] == pytest.approx([1.0, 0.55, 0.1])


def test_decay_is_the_product_over_steps_and_the_record_notes_it(tmp_path):
    asked = replace(TINY, weight_decay=20, log_every=1, learning_rate=1e-3, final_learning_rate=1e-4)
    train(asked, tmp_path / "run")
    run = watch.load(tmp_path / "run")
    rates = run.steps()["learning_rate"]
    expected = math.prod(1 - 20 * rate for rate in rates[numpy.isfinite(rates)])
    assert Times(asked, 1500).decay() == pytest.approx(expected)
    assert f"{expected:.2g}" in run.notes[0]


def test_times_of_the_papers_run():
    asked = replace(
        TINY, epochs=500, batch_size=512, warm_up_epochs=15, evaluate_every=5, checkpoint_every=50
    )
    times = Times(replace(asked, measurements=250, spectra_epochs=(0.1, 1, 250, 500, 900)), examples=50_000)
    assert (times.epoch_steps, times.total, times.warm_up) == (97, 48_500, 1455)
    assert sorted(times.evaluations) == [97, *range(485, 48_501, 485)]
    assert sorted(times.saves) == [*range(4850, 48_501, 4850)]
    schedule = times.schedule
    assert schedule.seldom == (10, 97, 24_250, 48_500)
    due = [step for step in range(times.total + 1) if schedule.due(step)]
    assert (due[0], due[-1]) == (0, 48_500)
    assert 200 <= len(due) <= 260
    assert max(later - step for step, later in pairwise(due)) <= 4 * 97
    with pytest.raises(RankriseError, match="batch_size"):
        Times(asked, examples=99)


def test_a_step_is_adam_on_the_mean_gradient_whatever_the_micro_batch():
    weights = []
    for size in (0, 30, None):
        asked = replace(TINY, micro_batch_size=size or 0, clip=0.05, weight_decay=0.1)
        task, model, _, step, _ = steps_on(asked)
        batches = task.batches(0, 0, asked.batch_size, slice(None))
        if size is None:  # plainly, by torch.optim
            matrices = [weight for weight in model.parameters() if weight.ndim > 1]
            others = [weight for weight in model.parameters() if weight.ndim < 2]
            groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
            plain = torch.optim.AdamW(groups, lr=asked.learning_rate)
            for _ in range(3):
                plain.zero_grad()
                task.loss(model, *next(batches)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                plain.step()
        else:
            for _ in range(3):
                step(next(batches))
        weights.append([weight.detach().clone() for weight in model.parameters()])
    for whole, parts, plain in zip(*weights, strict=True):
        assert torch.equal(whole, plain)
        torch.testing.assert_close(whole, parts, rtol=0, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [TINY, TINY_TEXT])
def test_a_compiled_step_and_score_compute_the_same(asked, tmp_path, monkeypatch):
    """With the compiler's own eager backend: the whole graph is traced, without its code generation."""
    attended = []

    def eager(graph, inputs):
        attended.extend(dict(node.kwargs) for node in graph.graph.nodes if "attention" in str(node.target))
        return graph

    compile_here = torch.compile
    monkeypatch.setattr(torch, "compile", partial(compile_here, backend=eager))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_stories(tmp_path / "data")
    results = []
    for compiled in ("none", "model"):
        chosen = replace(asked, compile=compiled, batch_size=20, data_folder=str(tmp_path / "data"))
        task, model, _, step, score = steps_on(chosen)
        loss = step(next(task.batches(0, 0, 20, slice(None))))
        scored = score(next(task.validation_batches(20, slice(None))))
        results.append([loss, scored, *(weight.detach().clone() for weight in model.parameters())])
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4)
    assert all(call.get("attn_mask") is None for call in attended)


class Layered(nn.Module):
    """An embedding, two layers and an output, as transformers have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 6)
        self.layers = nn.ModuleList([nn.Linear(6, 9), nn.Linear(9, 6), nn.LayerNorm(6)])
        self.answer = nn.Linear(6, 3)

    def gradients(self, step):
        generator = torch.Generator().manual_seed(step)
        for weight in self.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)


def weights_after(settings, steps=4):
    model = Layered()
    optimiser = optimiser_of(settings, model, CPU)
    for step in range(steps):
        model.gradients(step)
        optimiser.step()
    return model


def test_muon_is_torchs_for_the_layers_matrices_and_adamw_for_the_rest():
    asked = replace(TINY, optimiser="muon", learning_rate=0.01, momentum=0.95, weight_decay=0.1)
    model, plain = weights_after(asked), Layered()
    inside = [one for one in plain.layers.parameters() if one.ndim == 2]
    groups = [
        {"params": [plain.embedding.weight, plain.answer.weight], "weight_decay": 0.1},
        {"params": [one for one in plain.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(inside, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(groups, lr=0.01)
    for step in range(4):
        plain.gradients(step)
        muon.step()
        adamw.step()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        matrix = name.startswith("layers") and one.ndim == 2
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4 if matrix else 0.0)
        assert not one.equal(dict(Layered().named_parameters())[name])


def test_a_random_walk_has_adams_sizes_and_signs_of_its_own():
    asked = replace(TINY, optimiser="random-walk", learning_rate=0.01)
    begun, adam = Layered(), weights_after(replace(asked, optimiser="adamw"), steps=1)
    torch.manual_seed(5)
    walk = weights_after(asked, steps=1)
    signs = []
    for start, one, other in zip(begun.parameters(), adam.parameters(), walk.parameters(), strict=True):
        torch.testing.assert_close((one - start).abs(), (other - start).abs(), rtol=1e-3, atol=1e-6)
        signs.append(((one - start) * (other - start)).flatten())
    assert (torch.cat(signs) > 0).double().mean() == pytest.approx(0.5, abs=0.1)  # of 186
