"""Convolutions, embeddings and experts: what PEFT loads and merges is base plus cut change, and what is held."""

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
