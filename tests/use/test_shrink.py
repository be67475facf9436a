"""Adapters at lower ranks, from their factors alone."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tiny_models import SPARSE, inputs, made

from rankrise import RankriseError, use


def trained(name: str, folder: Path, **settings: Any) -> Any:
    """An adapter by PEFT itself with random weights, saved; the model with it merged."""
    torch.manual_seed(0)
    given = {"r": 6, "lora_alpha": 9, "target_modules": "all-linear", "init_lora_weights": False, **settings}
    model = peft.get_peft_model(made(name), peft.LoraConfig(**given))
    model.save_pretrained(folder, save_embedding_layers=False)
    return model.merge_and_unload()


PATTERNS = {
    "rank_pattern": {"q_proj": 3, "down_proj": 2},
    "alpha_pattern": {"gate_up_proj": 5, "middle.0": 7},
}
MOE = {
    "target_modules": ["q_proj", "embed_tokens"],
    "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    **PATTERNS,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {}),
        ("llama", {"use_rslora": True, "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"v_proj": 5}}),
        ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
        (
            "bert",
            {"bias": "lora_only", "modules_to_save": ["classifier"], "target_modules": ["query", "value"]},
        ),
        ("bert", {"target_modules": ["word_embeddings", "query"]}),
        *[(name, MOE) for name in SPARSE],
        ("resnet", {"target_modules": ".*convolution"}),
        ("unet", {"target_modules": ["down", "middle.0", "middle.2", "line", "time"], **PATTERNS}),
    ],
)
def test_at_its_own_rank_nothing_changes(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = trained(name, tmp_path / "large", **settings)
    for base in (None, made(name)):
        small = use.shrink(tmp_path / "large", rank=6, base=base)
        assert small.kept == pytest.approx(1)
        folder = small.save(tmp_path / f"small {base is None}")
        again = peft.PeftModel.from_pretrained(made(name), folder).merge_and_unload()
        for key, tensor in model.state_dict().items():
            assert torch.allclose(again.state_dict()[key], tensor, atol=1e-4), key
        less = use.shrink(tmp_path / "large", rank=1, base=base)
        assert less.held == pytest.approx(less.kept, abs=1e-4)
        assert less.held < 0.99


def test_each_product_is_cut_as_its_svd_is_and_its_square_is_held(tmp_path: Path) -> None:
    base, model = made("llama"), trained("llama", tmp_path / "large")
    small = use.shrink(tmp_path / "large", rank=2)
    assert set(small.ranks.values()) == {2}
    whole = held = 0.0
    for name, rank in small.ranks.items():
        b, a = small.cuts[name].factors(rank)
        u, s, vh = torch.linalg.svd(model.get_submodule(name).weight - base.get_submodule(name).weight)
        assert torch.allclose(b.float() @ a.float(), (u[:, :2] * s[:2]) @ vh[:2], atol=1e-4), name
        whole, held = whole + float(s.square().sum()), held + float(s[:2].square().sum())
    assert small.held == pytest.approx(held / whole, abs=1e-4)
    assert small.held == pytest.approx(small.kept, abs=1e-4)


@pytest.mark.parametrize("whole", [["wte"], ["wte", "lm_head"]])
def test_a_kept_module_that_was_tied_is_measured_as_peft_loads_it(whole: list[str], tmp_path: Path) -> None:
    base = made("gpt2")
    settings = {"target_modules": ["c_attn"], "fan_in_fan_out": True, "modules_to_save": whole}
    model = peft.get_peft_model(made("gpt2"), peft.LoraConfig(r=2, init_lora_weights=False, **settings))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "large")
    loaded = peft.PeftModel.from_pretrained(made("gpt2"), tmp_path / "large").eval()

    def evaluate(model: Any) -> float:
        return float(model(**inputs(base)).logits.square().mean())

    with torch.no_grad():
        losses = evaluate(base), evaluate(loaded)
    measured = use.shrink(tmp_path / "large", rank=2, base=base, evaluate=evaluate).measured
    assert measured is not None
    assert (measured.base["loss"], measured.tuned["loss"]) == pytest.approx(losses)
    assert measured.adapter["loss"] == pytest.approx(losses[1])


def test_mistakes_are_named(tmp_path: Path) -> None:
    trained("llama", tmp_path / "large")
    path, other = tmp_path / "large/adapter_config.json", made("llama")
    other.config._name_or_path = "another/model"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"base_model_name_or_path": "a/b"}))
    for named, base in (("does not have", made("gpt2")), ("another/model", other)):
        with pytest.raises(RankriseError, match=named):
            use.shrink(tmp_path / "large", rank=2, base=base)
    path.write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(RankriseError, match="use_dora"):
        use.shrink(tmp_path / "large", rank=2)
