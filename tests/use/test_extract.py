"""Adapters from two models: loaded by PEFT and merged, they are the base and the cut change."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import MODELS, changed, inputs, llama, made
from torch import Tensor, nn

from rankrise import RankriseError, use
from rankrise.show.adapter import described
from rankrise.use.types import Adapter


def expected(base: Any, tuned: Any, adapter: Adapter) -> dict[str, Tensor]:
    """Base plus cut change, formed independently: by torch's own SVD."""
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    after = tuned.state_dict()
    if adapter.rest.kept:
        weights |= {
            name: after[name] for name in weights if f"{name.removesuffix('.weight')}" not in adapter.ranks
        }
    for name, rank in adapter.ranks.items():
        stored = f"{name}.weight"
        u, s, vh = torch.linalg.svd(after[stored].float() - base.state_dict()[stored].float())
        cut = (u[:, :rank] * s[:rank]) @ vh[:rank]
        weights[stored] = (base.state_dict()[stored].float() + cut).to(base.dtype)
    return weights


def merged(base: Any, folder: Path) -> Any:
    model = peft.PeftModel.from_pretrained(deepcopy(base), folder)
    return model.merge_and_unload()


@pytest.mark.parametrize("rest", ["keep", "leave"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_peft_merges_to_base_plus_cut_change(name: str, padded: bool, rest: Any, tmp_path: Path) -> None:
    base = made(name)
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=2, uniform=False, rest=rest)
    assert len(set(adapter.ranks.values())) > 1
    adapter.save(tmp_path / "adapter", padded=padded)
    found, want = merged(base, tmp_path / "adapter").state_dict(), expected(base, tuned, adapter)
    assert set(want) <= set(found)
    for key, tensor in want.items():
        assert torch.allclose(found[key], tensor, atol=1e-5), key


@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_the_merged_model_is_right_to_rounding(name: str, tmp_path: Path) -> None:
    base = made(name, torch.bfloat16)
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=3)
    assert adapter.dtype == torch.bfloat16
    adapter.save(tmp_path / "adapter")
    found, want = merged(base, tmp_path / "adapter").state_dict(), expected(base, tuned, adapter)
    for key, tensor in want.items():
        assert torch.allclose(found[key].float(), tensor.float(), rtol=2**-7, atol=2e-3), key


def test_at_full_rank_the_merged_model_is_the_tuned_one(tmp_path: Path) -> None:
    base = made("gpt2")
    tuned = changed(base)
    use.extract(base, tuned, rank=16).save(tmp_path / "adapter")
    model = merged(base, tmp_path / "adapter")
    with torch.no_grad():
        assert torch.allclose(model(**inputs(base)).logits, tuned(**inputs(base)).logits, atol=1e-4)


def test_every_scale_is_1_and_each_key_matches_one_module(tmp_path: Path) -> None:
    base = made("llama")
    adapter = use.extract(base, changed(base), rank=3, uniform=False, rest="leave")
    adapter.save(tmp_path / "adapter")
    config = peft.LoraConfig.from_pretrained(str(tmp_path / "adapter"))
    assert config.r == max(adapter.ranks.values())
    assert len(config.rank_pattern) == sum(0 < rank < config.r for rank in adapter.ranks.values())
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }
    assert {name: module.r["default"] for name, module in layers.items()} == {
        name: rank for name, rank in adapter.ranks.items() if rank
    }
    assert {module.scaling["default"] for module in layers.values()} == {1.0}


def test_a_layer_whose_name_ends_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    base = nn.ModuleDict({"fc": nn.Linear(4, 4), "block": nn.ModuleDict({"fc": nn.Linear(4, 4)})})
    tuned = deepcopy(base)
    with torch.no_grad():
        tuned["fc"].weight.add_(1.0)
    use.extract(base, tuned, rank=1).save(tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(deepcopy(base), tmp_path / "adapter").merge_and_unload()
    assert torch.allclose(model["fc"].weight, tuned["fc"].weight, atol=1e-5)
    assert torch.equal(model["block"]["fc"].weight, base["block"]["fc"].weight)


@pytest.mark.parametrize("name", ["gpt2", "vit"])
@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_folders_give_what_models_give(name: str, shard: str, tmp_path: Path) -> None:
    base = made(name)
    tuned = changed(base)
    base.save_pretrained(tmp_path / "base", max_shard_size=shard)
    tuned.save_pretrained(tmp_path / "tuned", max_shard_size=shard)
    from_models = use.extract(base, tuned, rank=2)
    from_folders = use.extract(tmp_path / "base", tmp_path / "tuned", rank=2)
    assert from_models.ranks == from_folders.ranks
    assert from_models.rest.changed == from_folders.rest.changed
    for key, (b, a) in from_models.factors.items():
        other_b, other_a = from_folders.factors[key]
        assert torch.allclose(b @ a, other_b @ other_a, atol=1e-6)
    assert from_folders.base == str(tmp_path / "base")


def test_a_new_head_is_named_and_kept_whole(tmp_path: Path) -> None:
    base = made("bert")
    base.bert.save_pretrained(tmp_path / "encoder")
    tuned = changed(base)
    tuned.save_pretrained(tmp_path / "tuned")
    adapter = use.extract(tmp_path / "encoder", tmp_path / "tuned", rank=16)
    assert "classifier" not in adapter.ranks
    assert {"classifier.weight", "classifier.bias"} <= set(adapter.rest.changed)
    adapter.save(tmp_path / "adapter")
    found = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert torch.equal(found["base_model.model.classifier.weight"], tuned.classifier.weight)
    model = merged(base, tmp_path / "adapter")
    for key, tensor in tuned.state_dict().items():
        assert torch.allclose(model.state_dict()[key], tensor, atol=1e-5), key


@pytest.mark.parametrize("rest", ["keep", "leave"])
def test_matrices_that_are_not_chosen_are_kept_whole_or_left_out(rest: Any, tmp_path: Path) -> None:
    base = made("bert")
    tuned = changed(base)
    adapter = use.extract(base, tuned, rank=2, only=lambda name: "layer" in name, rest=rest)
    assert "classifier" not in adapter.ranks
    adapter.save(tmp_path / "adapter")
    head = merged(base, tmp_path / "adapter").classifier.weight
    assert torch.equal(head, (tuned if rest == "keep" else base).classifier.weight)


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


@pytest.mark.parametrize("uniform", [True, False])
def test_a_share_that_a_largest_rank_cannot_keep_is_refused_with_the_one_that_it_can(uniform: bool) -> None:
    base = nn.Sequential(nn.Linear(4, 4, bias=False))
    tuned = deepcopy(base)
    with torch.no_grad():
        tuned[0].weight += torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.0]))  # squares 9, 4, 1 of 14
    with pytest.raises(
        RankriseError, match=r"keep is 0\.95, .* 2 directions of a matrix 0\.9285 of the square"
    ):
        use.extract(base, tuned, keep=0.95, largest=2, uniform=uniform)
    assert use.extract(base, tuned, keep=0.9285, largest=2, uniform=uniform).ranks == {"0": 2}
    assert use.extract(base, tuned, keep=1.0, largest=4, uniform=uniform).ranks == {"0": 3}


def test_a_parameter_of_the_model_itself_is_named_and_can_be_left() -> None:
    class Sighted(nn.Module):
        """As timm's ViT has its tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.pos_embed = nn.Parameter(torch.zeros(1, 3, 4))
            self.blocks = nn.ModuleList([nn.Linear(4, 4)])

    base = Sighted()
    tuned = deepcopy(base)
    with torch.no_grad():
        for parameter in (tuned.cls_token, tuned.pos_embed, tuned.blocks[0].weight):
            parameter += torch.randn_like(parameter)
    said = r"cls_token, pos_embed changed .* the model itself, .* also holds blocks\.0, .* \(--leave_rest\)"
    with pytest.raises(RankriseError, match=said):
        use.extract(base, tuned, rank=1)
    assert use.extract(base, tuned, rank=1, rest="leave").rest.changed == ("cls_token", "pos_embed")


@pytest.mark.parametrize("uniform", [True, False])
def test_a_gain_is_kept_with_the_fewest_directions(uniform: bool) -> None:
    base = made("vit")
    tuned = changed(base, 0.2)
    batch = inputs(base, 32)
    with torch.no_grad():
        labels = tuned(**batch).logits.softmax(-1)

    def evaluate(model: Any) -> float:
        return float(-(model(**batch).logits.log_softmax(-1) * labels).sum(-1).mean())

    before = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    adapter = use.extract(base, tuned, gain=0.9, evaluate=evaluate, uniform=uniform)
    assert adapter.measured is not None
    assert adapter.measured.gain >= 0.9
    assert adapter.measured.tuned["loss"] < adapter.measured.adapter["loss"] < adapter.measured.base["loss"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items())
    if uniform:
        rank = max(adapter.ranks.values())
        less = use.extract(base, tuned, rank=rank - 1, evaluate=evaluate)
        assert less.measured is not None
        assert less.measured.gain < 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "No budget is given"),
        ({"rank": 1, "keep": 0.5}, "rank and keep are given"),
        ({"rank": 0}, "rank is 0"),
        ({"keep": 1.5}, "keep is 1.5"),
        ({"gain": 0.9}, "pass evaluate"),
    ],
)
def test_bad_budgets_are_refused(given: dict[str, Any], message: str) -> None:
    base = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RankriseError, match=message):
        use.extract(base, deepcopy(base), **given)


def test_bad_pairs_are_refused(tmp_path: Path) -> None:
    base = made("llama")
    with pytest.raises(RankriseError, match="share their weights"):
        use.extract(base, base, rank=1)
    with pytest.raises(RankriseError, match="no linear layer in common"):
        use.extract(nn.Linear(2, 2), made("gpt2"), rank=1)
    larger = made("llama")
    larger.resize_token_embeddings(30)
    with pytest.raises(
        RankriseError, match=r"vocabularies: model.embed_tokens.weight is \[20, 16\] in the base"
    ):
        use.extract(base, larger, rank=1)
    with pytest.raises(RankriseError, match="No direction of any matrix is kept"):
        use.extract(base, deepcopy(base), rank=1).save(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(RankriseError, match="exists"):
        use.extract(base, changed(base), rank=1).save(tmp_path / "full")


@pytest.mark.parametrize("as_folders", [False, True])
@pytest.mark.parametrize(
    ("base", "tuned", "message"),
    [
        ({"num_hidden_layers": 3}, {}, r"the base has layers\.2\.\S+, which the tuned model lacks"),
        ({}, {"num_hidden_layers": 3}, r"the tuned model has layers\.2\.\S+, which the base lacks"),
        ({"num_key_value_heads": 2}, {}, r"num_key_value_heads is 2 in the base's config, 1 in the tuned"),
        ({"num_attention_heads": 4, "head_dim": 4}, {"head_dim": 8}, "num_attention_heads is 4 in the base"),
    ],
)
def test_models_of_other_depth_or_other_heads_are_refused(
    base: dict[str, Any], tuned: dict[str, Any], message: str, as_folders: bool, tmp_path: Path
) -> None:
    pair: list[Any] = [llama(**base), llama(**tuned)]
    if as_folders:
        for place, model in enumerate(pair):
            model.save_pretrained(tmp_path / str(place))
            pair[place] = tmp_path / str(place)
    with pytest.raises(RankriseError, match=message):
        use.extract(*pair, rank=1)


def test_an_adapter_of_a_model_from_nowhere_names_no_base(tmp_path: Path) -> None:
    base = made("llama")
    use.extract(base, changed(base), rank=2, rest="leave").save(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    base.save_pretrained(tmp_path / "base")
    loaded = type(base).from_pretrained(tmp_path / "base")
    assert set(use.shrink(tmp_path / "adapter", rank=1, base=loaded).ranks.values()) == {1}


def test_what_is_kept_whole_has_to_be_finite() -> None:
    base = made("llama")
    tuned = changed(base)
    with torch.no_grad():
        tuned.model.norm.weight[3] = float("nan")
    with pytest.raises(RankriseError, match=r"model\.norm\.weight holds infinite or undefined numbers"):
        use.extract(base, tuned, rank=1)
    assert "model.norm.weight" in use.extract(base, tuned, rank=1, rest="leave").rest.changed


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("side", [0, 1])
def test_weights_of_eight_bits_are_refused(name: str, side: int) -> None:
    both = [made("llama"), changed(made("llama"))]
    quantised = both[side].get_parameter(name)
    quantised.data = quantised.data.to(torch.float8_e4m3fn)
    with pytest.raises(RankriseError, match=rf"{name} in LlamaForCausalLM has dtype torch\.float8_e4m3fn"):
        use.extract(both[0], both[1], rank=1)


@pytest.mark.parametrize("rest", ["keep", "leave"])
def test_it_is_told_that_a_server_refuses_biases_too(rest: Any) -> None:
    base = made("bert")
    tuned = deepcopy(base)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "query" in name:
                parameter.add_(torch.randn_like(parameter))
    adapter = use.extract(base, tuned, rank=2, rest=rest)
    assert not adapter.rest.modules
    told = [line for line in described(adapter, 2) if "vLLM refuses" in str(line)]
    assert len(told) == (rest == "keep")
