"""Optimisers against slow and plain ways, one parameter at a time, and resumed to the bit."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from tiny_training import same_run, stop_at
from torch import nn

from rankrise.recipes.train_settings import Optimiser
from rankrise.train import Interrupted, train
from rankrise.train._optimiser import optimiser_of, orthogonalised

CPU = torch.device("cpu")


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


def close(model, plain):
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_sgd_adds_up_past_gradients(tiny, momentum):
    asked = replace(tiny, optimiser="sgd", learning_rate=0.1, momentum=momentum, weight_decay=0.01)
    plain = Layered()
    sums = {name: torch.zeros_like(weight) for name, weight in plain.named_parameters()}
    for step in range(4):
        plain.gradients(step)
        for name, weight in plain.named_parameters():
            pull = weight.grad + (0.01 * weight.detach() if weight.ndim > 1 else 0)
            sums[name] = momentum * sums[name] + pull
            weight.data -= 0.1 * sums[name]
    close(weights_after(asked), plain)


def test_lion_steps_by_the_sign_of_a_mean(tiny):
    asked = replace(tiny, optimiser="lion", learning_rate=0.1, momentum=0.9, weight_decay=0.5)
    plain = Layered()
    means = {name: torch.zeros_like(weight) for name, weight in plain.named_parameters()}
    for step in range(4):
        plain.gradients(step)
        for name, weight in plain.named_parameters():
            sign = (0.9 * means[name] + 0.1 * weight.grad).sign()
            weight.data -= 0.1 * (sign + (0.5 * weight.detach() if weight.ndim > 1 else 0.0))
            means[name] = 0.99 * means[name] + 0.01 * weight.grad
    close(weights_after(asked), plain)


def test_muon_is_torchs_for_the_layers_matrices_and_adamw_for_the_rest(tiny):
    asked = replace(tiny, optimiser="muon", learning_rate=0.01, momentum=0.95, weight_decay=0.1)
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


def test_orthogonal_steps_grow_every_direction_alike():
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(16, 16)).Q for _ in range(2))
    matrix = left @ torch.diag(torch.logspace(-1.5, 0, 16)) @ right.T
    for one in (matrix, matrix[:, :9], matrix[:9]):
        values = torch.linalg.svdvals(orthogonalised(one[None])[0].float())
        assert 0.3 < values.min() <= values.max() < 1.35
    both = torch.stack([matrix, 100 * matrix])
    torch.testing.assert_close(*orthogonalised(both).unbind(), rtol=0, atol=0.05)


def test_a_random_walk_has_adams_sizes_and_signs_of_its_own(tiny):
    asked = replace(tiny, optimiser="random-walk", learning_rate=0.01)
    begun, adam = Layered(), weights_after(replace(asked, optimiser="adamw"), steps=1)
    torch.manual_seed(5)
    walk = weights_after(asked, steps=1)
    signs = []
    for start, one, other in zip(begun.parameters(), adam.parameters(), walk.parameters(), strict=True):
        torch.testing.assert_close((one - start).abs(), (other - start).abs(), rtol=1e-3, atol=1e-6)
        signs.append(((one - start) * (other - start)).flatten())
    assert (torch.cat(signs) > 0).double().mean() == pytest.approx(0.5, abs=0.1)  # of 186


@pytest.mark.parametrize(
    "changes", [*({"optimiser": name} for name in get_args(Optimiser)), {"optimiser": "sgd", "momentum": 0.0}]
)
def test_a_run_stopped_midway_ends_as_one_that_was_not(tiny, tmp_path, changes):
    asked = replace(tiny, epochs=1, weight_decay=0.1, **changes)
    train(asked, tmp_path / "whole")
    with pytest.raises(Interrupted, match="SIGTERM at step 8"):
        train(asked, tmp_path / "stopped", progress=stop_at(8))
    train(asked, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")
