"""Adapters from two models: merged by PEFT, they are the base and the cut change, and hold what they say."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import MODELS, changed, imitation, inputs, llama, made
from torch import nn

from rankrise import RankriseError, use
from rankrise.use import Adapter
from rankrise.watch._matrix import matrices


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


def merged(base: Any, folder: Path) -> Any:
    return peft.PeftModel.from_pretrained(deepcopy(base), folder).merge_and_unload()


def share_held(base: Any, tuned: Any, given: Any) -> float:
    """How much of the square of the whole change a model gives back."""
    before, after, have = (dict(model.named_parameters()) for model in (base, tuned, given))
    whole = sum(float((after[name] - before[name]).detach().double().square().sum()) for name in before)
    lost = sum(float((after[name].float() - have[name].float()).double().square().sum()) for name in before)
    return 1 - lost / whole


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_peft_merges_to_base_plus_cut_change(name: str, padded: bool, tmp_path: Path) -> None:
    """As it loads it and after merging, and the adapter says what it holds and leaves out."""
    base, rest = made(name), "leave" if padded else "keep"
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=2, uniform=False, rest=rest)
    assert len(set(adapter.ranks.values())) > 1
    want = with_cuts(base, tuned, adapter)
    folder = adapter.save(tmp_path / "adapter", "all" if padded else "peft")
    have = peft.PeftModel.from_pretrained(deepcopy(base), folder)
    given = inputs(base)
    with torch.no_grad():
        logits = [
            next(iter(model.eval()(**given).values())) if name != "unet" else model(**given)
            for model in (have, want)
        ]
    assert torch.allclose(*logits, atol=1e-4)
    found = have.merge_and_unload()
    for key, tensor in want.state_dict().items():
        assert torch.allclose(found.state_dict()[key].float(), tensor.float(), atol=1e-5), key
    if name == "gpt2":  # PEFT unties what it keeps whole
        found.lm_head.weight = found.transformer.wte.weight
    assert adapter.held == pytest.approx(share_held(base, tuned, found), abs=1e-4)
    shares = list(adapter.left_out.values())
    assert shares == sorted(shares, reverse=True)
    cut = {matrix.stored for matrix in adapter.matrices}
    assert bool(set(adapter.left_out) - cut) == padded
    whole = use.extract(base, tuned, rank=1000, rest=rest)
    assert sum(share for name, share in whole.left_out.items() if name in cut) == pytest.approx(0, abs=1e-6)
    if padded:  # it can be trained on
        tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
        rows = [tensor.abs().flatten(1).amax(1) for key, tensor in tensors.items() if ".lora_A" in key]
        assert all(row.min() > 0 for row in rows)
        assert {len(row) for row in rows} <= {max(adapter.ranks.values()) * experts for experts in (1, 4)}


@pytest.mark.parametrize("size", [0.05, 1e-4])
@pytest.mark.parametrize(
    ("name", "dtype", "rest"), [("bert", torch.float32, "leave"), ("gpt2", torch.bfloat16, "keep")]
)
def test_what_an_adapter_holds_is_what_peft_gives_back(
    name: str, dtype: torch.dtype, size: float, rest: Any, tmp_path: Path
) -> None:
    """Also for changes below the spacing of bfloat16, which merging rounds."""
    base = made(name, dtype)
    tuned = changed(base, size)
    adapter = use.extract(base, tuned, rank=3, rest=rest, uniform=False)
    folder = adapter.save(tmp_path / "adapter")
    have = merged(base, folder)
    if name == "gpt2":  # PEFT unties what it keeps whole
        have.lm_head.weight = have.transformer.wte.weight
    assert adapter.held == pytest.approx(share_held(base, tuned, have), abs=1e-4)
    assert json.loads((folder / "rankrise.json").read_text())["held"] == adapter.held


def test_a_layer_whose_name_ends_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    base = nn.ModuleDict({"fc": nn.Linear(4, 4), "block": nn.ModuleDict({"fc": nn.Linear(4, 4)})})
    tuned = deepcopy(base)
    with torch.no_grad():
        tuned["fc"].weight.add_(1.0)
    use.extract(base, tuned, rank=1).save(tmp_path / "adapter")
    model = merged(base, tmp_path / "adapter")
    assert torch.allclose(model["fc"].weight, tuned["fc"].weight, atol=1e-5)
    assert torch.equal(model["block"]["fc"].weight, base["block"]["fc"].weight)


def test_budgets() -> None:
    base = made("llama")
    tuned = changed(base)
    one = use.extract(base, tuned, rank=2)
    assert set(one.ranks.values()) == {2}
    free = use.extract(base, tuned, rank=2, uniform=False)
    assert 0.98 * one.parameters < free.parameters <= one.parameters
    assert free.kept > one.kept
    share = use.extract(base, tuned, keep=0.5, uniform=False)
    assert 0.5 <= share.kept < 0.55
    assert use.extract(base, tuned, parameters=one.parameters).ranks == one.ranks


def test_a_new_head_is_named_and_kept_whole(tmp_path: Path) -> None:
    base = made("bert")
    base.bert.save_pretrained(tmp_path / "encoder")
    tuned = changed(base)
    tuned.save_pretrained(tmp_path / "tuned")
    adapter = use.extract(tmp_path / "encoder", tmp_path / "tuned", rank=16)
    assert "classifier" not in adapter.ranks
    assert {"classifier.weight", "classifier.bias"} <= set(adapter.rest.changed)
    model = merged(base, adapter.save(tmp_path / "adapter"))
    for key, tensor in tuned.state_dict().items():
        assert torch.allclose(model.state_dict()[key], tensor, atol=1e-5), key


def test_a_parameter_of_the_model_itself_is_in_the_rest_and_peft_loads_it(tmp_path: Path) -> None:
    class Sighted(nn.Module):
        """timm's ViT has such tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.blocks = nn.ModuleList([nn.Linear(4, 4)])

    base = Sighted()
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=4)
    assert torch.equal(adapter.rest.tensors["cls_token"], tuned.cls_token)
    assert torch.equal(merged(base, adapter.save(tmp_path / "adapter")).cls_token, tuned.cls_token)


def test_what_changed_by_rounding_alone_is_not_kept() -> None:
    exact = made("llama")
    base, moved = deepcopy(exact).to(torch.bfloat16), deepcopy(exact)
    with torch.no_grad():
        for layer in moved.model.layers:
            weight = layer.mlp.up_proj.weight
            weight.add_(0.1 * torch.finfo(torch.bfloat16).eps * weight * torch.randn_like(weight))
            layer.self_attn.q_proj.weight[:, 0] += 0.1
    tuned = moved.to(torch.bfloat16)
    assert not torch.equal(tuned.model.layers[0].mlp.up_proj.weight, base.model.layers[0].mlp.up_proj.weight)
    wide = [deepcopy(model).float() for model in (base, tuned)]  # the same numbers in float32
    for before, after in ((base, tuned), wide):
        ranks = use.extract(before, after, rank=4).ranks
        assert {rank for name, rank in ranks.items() if name.endswith("q_proj")} == {1}
        assert {rank for name, rank in ranks.items() if not name.endswith("q_proj")} == {0}


@pytest.mark.parametrize("uniform", [True, False])
def test_a_gain_is_kept_with_the_fewest_directions(uniform: bool) -> None:
    base = made("vit")
    tuned = changed(base, 0.2)
    evaluate, before = imitation(tuned), deepcopy(tuned.state_dict())
    adapter = use.extract(base, tuned, gain=0.9, evaluate=evaluate, uniform=uniform)
    assert adapter.measured is not None
    assert adapter.measured.gains["loss"] >= 0.9
    assert adapter.measured.tuned["loss"] < adapter.measured.adapter["loss"] < adapter.measured.base["loss"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items())
    if uniform:
        rank = max(adapter.ranks.values())
        less = use.extract(base, tuned, rank=rank - 1, evaluate=evaluate)
        assert less.measured is not None
        assert less.measured.gains["loss"] < 0.9


def test_matrices_are_chosen_by_patterns_or_a_function() -> None:
    base = made("llama")
    tuned = changed(base)
    for only in ("*self_attn*", ["*q_proj", "*[kvo]_proj"], lambda name: "self_attn" in name):
        adapter = use.extract(base, tuned, rank=2, only=only)
        assert {name.split(".")[3] for name in adapter.ranks} == {"self_attn"}
        assert len(adapter.ranks) == 8
        assert len(repr(adapter)) < 200


def test_a_gain_of_another_score_is_searched_for_and_measured_on_other_data() -> None:
    base = made("gpt2")
    tuned = changed(base, 0.2)
    evaluate = imitation(tuned)
    searched = {"gain": 0.9, "evaluate": evaluate, "metric": "agreement"}
    adapter = use.extract(base, tuned, **searched, final=lambda model: evaluate(model)["loss"])
    by_loss = use.extract(base, tuned, gain=0.9, evaluate=evaluate)
    by_rank = use.extract(base, tuned, rank=max(adapter.ranks.values()), evaluate=evaluate)
    assert adapter.measured is not None
    assert by_rank.measured is not None
    assert set(adapter.measured.gains) == {"loss"}
    assert adapter.measured.searched >= 0.9
    assert by_rank.measured.gains["agreement"] >= 0.9
    assert by_loss.ranks != adapter.ranks


@pytest.mark.parametrize(
    ("tuned", "given", "named"),
    [
        (llama, {"rank": 1, "keep": 0.5}, "rank and keep"),
        (llama, {"gain": 0.9}, "evaluate"),
        (lambda: made("gpt2"), {"rank": 1}, "different architectures"),
        (lambda: llama(vocab_size=30), {"rank": 1}, "embed_tokens.weight"),
        (lambda: llama(num_hidden_layers=3), {"rank": 1}, r"layers\.2\."),
    ],
)
def test_mistakes_are_named(tuned: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(RankriseError, match=named):
        use.extract(made("llama"), tuned(), **given)


def test_an_adapter_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    base = made("llama")
    with pytest.raises(RankriseError, match="rank 0"):
        use.extract(base, deepcopy(base), rank=1).save(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(RankriseError, match="full"):
        use.extract(base, changed(base), rank=1).save(tmp_path / "full")
