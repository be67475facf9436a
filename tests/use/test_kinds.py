"""Convolutions, embeddings and experts: PEFT merges to base plus cut change, and it holds what it says."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny_models import SMALL, changed
from torch import Tensor, nn

from rankrise import use
from rankrise.use import Adapter
from rankrise.watch._matrix import matrices

SPARSE = {**SMALL, "num_key_value_heads": 1, "vocab_size": 20, "head_dim": 8, "tie_word_embeddings": False}


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SPARSE, num_local_experts=4))


def qwen3() -> Any:
    sizes = {**SPARSE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, mlp_only_layers=[1]))


def qwen2() -> Any:
    sizes = {**SPARSE, "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 8}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes, num_experts_per_tok=2))


def gpt_oss() -> Any:
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**SPARSE, num_local_experts=4, num_experts_per_tok=2)
    )


def resnet() -> Any:
    sizes = {"embedding_size": 6, "hidden_sizes": [6, 10], "depths": [2, 1], "layer_type": "bottleneck"}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=3))


class UNet(nn.Module):
    """Every kind of convolution, an embedding, and a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, 1, 1))
        self.time = nn.Embedding(5, 6)
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.middle = nn.Sequential(
            nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 3, padding="same")
        )
        self.wide = nn.Conv2d(6, 6, 3, dilation=2, padding=2)
        self.grouped = nn.Conv2d(6, 6, 3, groups=3, padding=1)
        self.line = nn.Conv1d(6, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x) * self.scale + self.time(torch.tensor([2]))[:, :, None, None]
        x = self.grouped(self.wide(self.middle(x)))
        return self.up(self.line(x.flatten(2)).unflatten(2, x.shape[2:]))


KINDS: dict[str, Callable[[], Any]] = {
    **{"mixtral": mixtral, "qwen2": qwen2, "qwen3": qwen3, "gpt_oss": gpt_oss},
    **{"resnet": resnet, "unet": UNet},
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = KINDS[name]().eval()
    with torch.no_grad():  # no parameter is 0 or empty
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


def run(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sees = any(isinstance(module, nn.Conv2d) for module in model.modules())
    with torch.no_grad():
        if sees:
            found = model(torch.randn(2, 3, 32, 32, generator=generator))
        else:
            found = model(torch.randint(20, (2, 6), generator=generator))
    return found if isinstance(found, Tensor) else found.logits


def loaded(base: Any, folder: Path) -> Any:
    return peft.PeftModel.from_pretrained(deepcopy(base), folder).eval()


def with_cuts(base: Any, tuned: Any, adapter: Adapter) -> Any:
    """The base with each change cut by torch's own SVD, and the rest of the tuned model if it is kept."""
    model = deepcopy(tuned if adapter.rest.kept else base)
    before, after = base.state_dict(), tuned.state_dict()
    for matrix in matrices(base):
        weight, rank = model.state_dict()[matrix.stored], adapter.ranks[matrix.name]
        change = (after[matrix.stored] - before[matrix.stored]).flatten(2 if matrix.experts else 1)
        u, s, vh = torch.linalg.svd(change, full_matrices=False)
        cut = (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]
        weight.copy_(before[matrix.stored] + cut.view(weight.shape))
    return model


def share(base: Any, tuned: Any, given: Any) -> float:
    before, after, have = (dict(model.named_parameters()) for model in (base, tuned, given))
    squares = [
        sum(float((after[name] - of[name]).detach().double().square().sum()) for name in before)
        for of in (have, before)
    ]
    return 1 - squares[0] / squares[1]


@pytest.mark.parametrize("rest", ["keep", "leave"])
@pytest.mark.parametrize("name", KINDS)
def test_peft_merges_to_base_plus_cut_change_and_holds_what_is_said(
    name: str, rest: Any, tmp_path: Path
) -> None:
    base = made(name)
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=2, rest=rest, uniform=rest == "keep")
    folder = adapter.save(tmp_path / "adapter", padded=rest == "leave")
    want, have = with_cuts(base, tuned, adapter), loaded(base, folder)
    assert torch.allclose(run(have), run(want), atol=1e-5)
    given = have.merge_and_unload()
    for key, tensor in want.named_parameters():
        assert torch.allclose(given.get_parameter(key), tensor, atol=1e-5), key
    assert adapter.held == pytest.approx(share(base, tuned, given), abs=1e-5)
    left = adapter.left_out
    assert (not left) == (rest == "keep")
    assert list(left.values()) == sorted(left.values(), reverse=True)
    everything = use.extract(base, tuned, rank=1000)
    assert everything.held == pytest.approx(1, abs=1e-6)
    leaves = use.extract(base, tuned, rank=1000, rest="leave")
    assert leaves.held + sum(leaves.left_out.values()) == pytest.approx(1, abs=1e-6)


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


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_shrinking_at_its_own_rank_changes_nothing(name: str, with_base: bool, tmp_path: Path) -> None:
    """An adapter that PEFT made itself."""
    torch.manual_seed(0)
    base = made(name)
    leaves = {"gate_up_proj", "down_proj"}
    parameters = [
        key for key, one in base.named_parameters() if one.ndim == 3 and key.endswith(tuple(leaves))
    ]
    modules = [matrix.name for matrix in matrices(base) if not matrix.experts]
    modules = [module for module in modules if not parameters or module.rpartition(".")[2].endswith("q_proj")]
    modules += ["model.embed_tokens"] if parameters else []
    patterns = {"rank_pattern": {"q_proj": 3, "middle.0": 4}, "alpha_pattern": {"down_proj": 5}}
    settings: dict[str, Any] = {"target_modules": modules, "target_parameters": parameters or None}
    config = peft.LoraConfig(r=6, lora_alpha=9, init_lora_weights=False, **patterns, **settings)
    model = peft.get_peft_model(deepcopy(base), config).eval()
    model.save_pretrained(tmp_path / "large", save_embedding_layers=False)
    small = use.shrink(tmp_path / "large", rank=6, base=base if with_base else None)
    assert small.kept == pytest.approx(1)
    assert small.held == pytest.approx(1)
    again = loaded(base, small.save(tmp_path / "small"))
    assert torch.allclose(run(again), run(model), atol=1e-5)
    less = use.shrink(tmp_path / "large", rank=2, base=base if with_base else None)
    tuned, given = model.merge_and_unload(), loaded(base, less.save(tmp_path / "less")).merge_and_unload()
    assert less.held == pytest.approx(share(base, tuned, given), abs=1e-4)
