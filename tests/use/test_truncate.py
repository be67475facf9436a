"""Curves of loss against rank: groups of matrices, head products with widened heads, functional ranks."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tiny_models import changed, imitation, inputs, made
from torch import Tensor

from rankrise import RankriseError, use, watch
from rankrise.use._head_products import HeadProducts
from rankrise.use._truncate import grouped
from rankrise.watch._matrix import matrices


@pytest.mark.parametrize("rank", [0, 3, 16])
@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_widened_heads_compute_the_cut_products(name: str, rank: int) -> None:
    """One attention layer by hand, from the products as [d, d] matrices."""
    base = made(name)
    tuned = changed(base, 0.3)
    found = HeadProducts(base, tuned)
    old, new = watch.heads(base)[1], watch.heads(tuned)[1]
    x = torch.randn(5, 16)

    def cut(before: Tensor, after: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(after - before)
        return before + (u[:, :rank] * s[:rank]) @ vh[:rank]

    total = torch.zeros(5, 16)
    for head in range(2):
        kq = cut(old.key[head] @ old.query[head].mT, new.key[head] @ new.query[head].mT)
        vo = cut(old.value[head] @ old.output[head].mT, new.value[head] @ new.output[head].mT)
        biased = (x @ new.key[head] @ new.query_bias[head]).expand(5, 5)
        logits = new.scale * (x @ kq.mT @ x.mT + biased)
        if name == "gpt2":
            logits = logits.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        total = total + logits.softmax(-1) @ x @ vo + new.value_bias[head] @ new.output[head].mT
    module = tuned.get_submodule(new.name)
    with torch.no_grad():
        trained = module(x[None])[0]
        with found.cut_to(tuned, rank, ("KQ", "VO")):
            have = module(x[None])[0]
        assert torch.allclose(have[0], total + new.output_bias, atol=1e-4)
        assert torch.equal(module(x[None])[0], trained)
        assert torch.allclose(have, trained, atol=1e-4) == (rank == 16)


def test_groups_of_fused_and_of_single_matrices() -> None:
    for name in ("gpt2", "vit", "llama", "bert"):
        model = made(name)
        groups = grouped(model, matrices(model))
        assert {role: len(groups[role]) for role in "qkvo"} == dict.fromkeys("qkvo", 2), name
        assert len(groups["attention"]) == 8
        assert len(groups["all"]) == 8 + len(groups["mlp"])
        assert not {"classifier", "lm_head", "bert.pooler.dense"} & {each.name for each in groups["all"]}
    fused = grouped(made("neox"), matrices(made("neox")))
    assert (len(fused["q"]), len(fused["attention"])) == (0, 4)


@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_curves_rise_to_the_whole_gain(name: str) -> None:
    base = made(name)
    tuned = changed(base, 0.2)
    weights = deepcopy(tuned.state_dict())
    moments = use.moments(tuned, [inputs(tuned, 16, seed) for seed in range(4)], use.sampled)
    named = ("all", "q", "KQ", "VO", "KQ+VO")
    found = use.truncate(base, tuned, imitation(tuned), groups=named, moments=moments)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in tuned.state_dict().items())
    assert {(curve.group, curve.method) for curve in found.curves} == {
        *((name, method) for name in ("all", "q") for method in ("plain", "weighted")),
        *((name, "plain") for name in ("KQ", "VO", "KQ+VO")),
    }
    for curve in found.curves:
        assert curve.points[-1].gain == pytest.approx(1, abs=0.02), curve.group
        assert curve.points[-1].scores["agreement"] > 0.95
        parameters = [point.parameters for point in curve.points]
        assert parameters == sorted(parameters)
        gains = {point.rank: point.gain for point in curve.points}
        assert gains[curve.functional_rank] >= 0.99 > gains.get(curve.functional_rank - 1, 0)
        assert curve.metric_rank is None


def test_a_rank_for_another_score_is_found_too() -> None:
    base = made("gpt2")
    tuned = changed(base, 0.2)
    found = use.truncate(base, tuned, imitation(tuned), groups=("all",), metric="agreement", gain=0.9)
    (curve,) = found.curves
    start, agreed = curve.initial["agreement"], {one.rank: one.scores["agreement"] for one in curve.points}
    shares = {rank: (each - start) / (1 - start) for rank, each in agreed.items()}
    assert shares[curve.metric_rank] >= 0.9 > shares.get(curve.metric_rank - 1, 0)
    assert curve.metric_rank != curve.functional_rank
    with pytest.raises(RankriseError, match="accuracy"):
        use.truncate(base, tuned, imitation(tuned), metric="accuracy")


def test_a_change_of_rank_2_has_functional_rank_2_at_most() -> None:
    base = made("vit")
    tuned = deepcopy(base)
    with torch.no_grad():
        for layer in tuned.vit.layers:
            layer.mlp.fc1.weight.add_(torch.randn(24, 2) @ torch.randn(2, 16))
    found = use.truncate(base, tuned, imitation(tuned), groups=("mlp", "q"))
    mlp, q = found.curves
    assert mlp.full_rank == 2
    assert mlp.functional_rank in (1, 2)
    assert (q.full_rank, q.functional_rank, q.points) == (0, None, ())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_config_gives_every_module_the_ranks_that_were_found(name: str, weighted: bool) -> None:
    base = made(name)
    tuned = changed(base, 0.2)
    moments = use.moments(tuned, [inputs(tuned, 32)], use.sampled) if weighted else None
    found = use.truncate(base, tuned, imitation(tuned), groups=("all",), moments=moments, gain=0.6)
    ranks = found.curves[-1].ranks
    assert len(set(ranks.values())) > 1 or (name == "llama" and not weighted)
    model = peft.get_peft_model(made(name), peft.LoraConfig(**found.config))
    layers = {
        each.removeprefix("base_model.model."): (module.r["default"], module.scaling["default"])
        for each, module in model.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }
    assert layers == {each: (rank, 1.0) for each, rank in ranks.items() if rank}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"groups": ("KQ",)}, "Llama"),
        ({"groups": ("qkv",)}, "qkv"),
        ({"evaluate": lambda model: 1.0}, "gain"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], named: str) -> None:
    base = made("llama")
    tuned = changed(base)
    with pytest.raises(RankriseError, match=named):
        use.truncate(base, tuned, **({"evaluate": imitation(tuned)} | given))


def test_curves_in_a_folder_are_measured_once_and_never_for_another_model(tmp_path: Path) -> None:
    base = made("vit")
    tuned = changed(base, 0.2)
    found = use.truncate(base, tuned, imitation(tuned), groups=("q", "KQ"), out=tmp_path)
    again = use.truncate(base, tuned, imitation(tuned), groups=("KQ",), out=tmp_path)
    assert again.curves == found.curves[1:]
    other = changed(base, 0.2, seed=2)
    with pytest.raises(RankriseError, match="weights"):
        use.truncate(base, other, imitation(other), groups=("KQ",), out=tmp_path)
