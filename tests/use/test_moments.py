"""Second moments against gradients of single examples, for every kind of layer; weighting by them helps."""

import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import MODELS, changed, inputs, made
from torch import Tensor, nn

from rankrise import RankriseError, use
from rankrise.watch._matrix import matrices


def square_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y).square().sum(-1).mean()


def test_moments_are_those_of_each_examples_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x, y = torch.randn(7, 4), torch.randn(7, 2)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    found = use.moments(model, batches, square_loss)
    gradients = []
    for each in zip(x, y, strict=True):
        hidden = model[0](each[0])
        hidden.retain_grad()
        (model[2](torch.tanh(hidden)) - each[1]).square().sum().backward()
        gradients.append(hidden.grad)
    stacked = torch.stack([gradient for gradient in gradients if gradient is not None])
    assert found.examples == 7
    assert torch.allclose(found.inputs["0"].blocks[0], x.mT @ x / 7, atol=1e-6)
    assert torch.allclose(found.outputs["0"].blocks[0], stacked.mT @ stacked / 7, atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"unet"}))
def test_every_layer_is_seen_whether_weights_are_trained_or_frozen(name: str) -> None:
    model = made(name).requires_grad_(False)
    found = use.moments(model, [inputs(model), inputs(model, seed=1)], use.sampled)
    adapter = use.extract(model, changed(model), rank=2, moments=found)
    parts = {part for matrix in matrices(model) for part in matrix.parts}
    assert set(found.inputs) == set(found.outputs) == parts
    assert set(adapter.ranks) == {matrix.name for matrix in matrices(model)}
    linear = {n for n, m in model.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"}
    assert linear - {"lm_head"} <= parts
    assert all(block.isfinite().all() for moment in found.outputs.values() for block in moment.blocks)


@pytest.mark.parametrize("way", ["grouped_mm", "eager"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3", "gpt_oss"])
def test_an_expert_has_the_moments_of_the_tokens_that_reach_it(name: str, way: str) -> None:
    """Against a loop over single tokens; changed experts are then cut by them."""
    model = made(name)
    batch = {"input_ids": torch.randint(20, (3, 5), generator=torch.Generator().manual_seed(1))}
    model.set_experts_implementation(way)
    found = use.moments(model, [batch], use.labelled)
    owner = "model.layers.0.mlp.experts"
    experts = model.get_submodule(owner)
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {part: [] for part in found.inputs if owner in part}

    def slowly(states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        def product(leaf: str, expert: int, x: Tensor) -> Tensor:
            weight, bias = getattr(experts, leaf)[expert], getattr(experts, f"{leaf}_bias", None)
            y = (x @ weight if name == "gpt_oss" else weight @ x) + 0.0
            y.requires_grad_() if y.is_leaf else y.retain_grad()
            seen[f"{owner}.{leaf}.{expert}"].append((x.detach(), y))
            return y if bias is None else y + bias[expert]

        rows = []
        for x, places, shares in zip(states, chosen, weights, strict=True):
            row = torch.zeros_like(x)
            for expert, amount in zip(places.tolist(), shares, strict=True):
                hidden = experts._apply_gate(product("gate_up_proj", expert, x)[None])[0]
                row = row + amount * product("down_proj", expert, hidden)
            rows.append(row)
        return torch.stack(rows)

    experts.forward = slowly
    for example in batch["input_ids"]:
        use.labelled(model, {"input_ids": example[None]}).backward()
    for part, some in seen.items():
        reached = [(x, y.grad) for x, y in some if y.grad is not None and y.grad.any()]
        assert found.tokens[part] == len(reached)
        if reached:
            inputs = sum(torch.outer(x, x) for x, _ in reached) / len(reached)
            outputs = sum(torch.outer(g, g) for _, g in reached) / 3
            assert torch.allclose(found.inputs[part].blocks[0], inputs, atol=1e-5), part
            assert torch.allclose(found.outputs[part].blocks[0], outputs, rtol=1e-3, atol=1e-7), part
        else:
            assert not found.inputs[part].blocks[0].any()
    del experts.forward
    tuned = changed(model)
    kept = [use.extract(model, tuned, rank=2, moments=found, uniform=one).kept for one in (True, False)]
    assert 0 < kept[0] < kept[1] < 1


def test_moments_of_convolutions_and_embeddings() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(7, 4), nn.Conv1d(5, 3, 3, stride=2, padding=1), nn.Conv2d(1, 2, (2, 1))
    )
    ids = torch.randint(7, (6, 5))
    table, line, plane = model

    def forward(model: Any, ids: Tensor) -> Tensor:
        hidden = model[1](model[0](ids))[:, None]
        return model[2](hidden).tanh().square().sum((1, 2, 3)).mean()

    found = use.moments(model, ids.split(2), forward)
    inputs = torch.nn.functional.pad(table(ids), (1, 1)).detach()
    patches = torch.stack([inputs[:, :, 2 * place : 2 * place + 3].flatten(1) for place in range(2)], 1)
    counts = ids.flatten().bincount(minlength=7) / ids.numel()
    assert torch.allclose(found.inputs["0"].blocks[0], counts)
    rows = patches.flatten(0, 1)
    assert torch.allclose(found.inputs["1"].blocks[0], rows.mT @ rows / len(rows), atol=1e-5)
    hidden = line(table(ids))[:, None].detach()
    output = plane(hidden).detach().requires_grad_()
    output.tanh().square().sum().backward()
    gradients = output.grad.movedim(1, -1).flatten(0, -2)
    assert torch.allclose(found.outputs["2"].blocks[0], gradients.mT @ gradients / 6, atol=1e-5)
    rows = torch.stack([hidden[:, 0, :-1], hidden[:, 0, 1:]], -1).flatten(0, -2)
    assert torch.allclose(found.inputs["2"].blocks[0], rows.mT @ rows / len(rows), atol=1e-5)
    adapter = use.extract(model, changed(model), rank=9, moments=found)
    assert adapter.held == pytest.approx(1, abs=1e-6)


def test_a_layer_that_is_used_twice_and_one_that_is_not_used() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(input=self.used(x))

    model = Twice()
    x = torch.randn(5, 3)
    found = use.moments(model, [x], lambda model, batch: model(batch).square().mean())
    middle = model.used(x).detach()
    assert torch.allclose(found.inputs["used"].blocks[0], (x.mT @ x + middle.mT @ middle) / 10, atol=1e-5)
    assert set(found.inputs) == {"used"}
    tuned = deepcopy(model)
    with torch.no_grad():
        tuned.used.weight.add_(1.0)
    assert use.extract(model, tuned, rank=1, moments=found).ranks == {"used": 1, "unused": 0}
    with torch.no_grad():
        tuned.unused.weight.add_(1.0)
    with pytest.raises(RankriseError, match="no moments of unused"):
        use.extract(model, tuned, rank=1, moments=found)


def test_only_tokens_that_the_gradient_reaches_count() -> None:
    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        one, other = model["one"](batch["x"]), model["other"](batch["x"])
        return (one * batch["first"][:, None]).sum() + other.sum()

    model = nn.ModuleDict({"one": nn.Linear(3, 2), "other": nn.Linear(3, 2)})
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    batches = [{"x": x, "first": torch.ones(4)}, {"x": y, "first": torch.tensor([1.0, 1.0, 0.0, 0.0])}]
    found = use.moments(model, batches, loss)
    assert torch.allclose(found.inputs["one"].blocks[0], (x.mT @ x + y[:2].mT @ y[:2]) / 6, atol=1e-6)
    assert torch.allclose(found.inputs["other"].blocks[0], (x.mT @ x + y.mT @ y) / 8, atol=1e-6)
    assert found.tokens == {"one": 6, "other": 8}


def test_moments_of_fewer_tokens_than_inputs_are_warned_of_when_measured_and_when_read(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    measured = partial(use.moments, model, [torch.randn(3, 6)], lambda model, x: model(x).square().mean())
    with pytest.warns(UserWarning, match="2 of 3 layers"):
        found = measured()
    with pytest.warns(UserWarning, match="2 of 3 layers"):
        use.Moments.load(found.save(tmp_path / "moments"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured(block=3)


def test_moments_come_back_from_their_file(tmp_path: Path) -> None:
    model = made("llama")
    found = use.moments(model, [inputs(model)], use.sampled, block=10, about={"seed": 3})
    again = use.Moments.load(found.save(tmp_path / "moments.safetensors"))
    assert again.to_dict() == found.to_dict()
    assert (again.about["block"], again.about["seed"]) == (10, 3)
    for side in ("inputs", "outputs"):
        for name, moment in getattr(found, side).items():
            assert all(map(torch.equal, moment.blocks, getattr(again, side)[name].blocks))


def test_sampled_labels_give_the_fisher_matrix_of_a_softmax() -> None:
    """For a linear classifier, G is `diag(p) - p p^T`."""

    torch.manual_seed(0)
    linear = nn.Linear(2, 3)
    p = linear(torch.ones(2)).softmax(-1).detach()
    model = nn.Sequential(linear)
    batch = {"input": torch.ones(1, 2).expand(20000, 2)}

    def loss(model: Any, batch: Any) -> Tensor:
        return use.sampled(lambda input: type("Output", (), {"logits": model(input)}), batch)

    found = use.moments(model, [batch], loss).outputs["0"].blocks[0]
    assert torch.allclose(found, p.diag() - torch.outer(p, p), atol=0.01)


def test_mistakes_are_named(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), [torch.ones(2, 2)]
    with pytest.raises(RankriseError, match="nan"):
        use.moments(model, x, lambda model, batch: model(batch).mean() * float("nan"))
    save_file({"weight": torch.eye(2)}, tmp_path / "moments")
    with pytest.raises(RankriseError, match="holds no moments"):
        use.Moments.load(tmp_path / "moments")
