"""An adapter as each program applies it, by its own arithmetic: right where our verdict says so."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_models import changed, made
from torch import Tensor, nn

from rankrise import RankriseError, use
from rankrise.commands import main
from rankrise.use import Adapter

Weights = dict[str, Tensor]


class Refused(Exception):
    """What a program raises for an adapter that it cannot load."""


def merged_by_peft(folder: Path, base: Any) -> Weights:
    return peft.PeftModel.from_pretrained(deepcopy(base), folder).merge_and_unload().state_dict()


def stored(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """PEFT's config, and by module its lora_A and lora_B; else the whole name and the tensor."""
    factors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, _, which = name.removeprefix("base_model.model.").partition(".lora_")
        factors.setdefault(module, {})[which.removesuffix(".weight")] = tensor
    return json.loads((folder / "adapter_config.json").read_text()), factors


PAIRS = (("A", "B"), ("embedding_A", "embedding_B"))


def merged_by_llama_cpp(folder: Path, base: Any) -> Weights:
    """convert_lora_to_gguf.py and `get_scale` in llama-adapter.h."""
    config, factors = stored(folder)
    weights = deepcopy(base.state_dict())
    for module, both in factors.items():
        if set(both) == {"A", "B"}:
            weights[f"{module}.weight"] += config["lora_alpha"] / both["B"].shape[1] * both["B"] @ both["A"]
        elif set(both) == {"embedding_A", "embedding_B"}:  # looked up, and turned by B: llm_build_inp_embd
            scale = config["lora_alpha"] / both["embedding_B"].shape[1]
            weights[f"{module}.weight"] += scale * both["embedding_A"].T @ both["embedding_B"].T
        elif not re.search(r"_layernorm|\.norm", module):  # norms are read and then left out
            raise Refused(module)
    return weights


def merged_by_vllm(folder: Path, base: Any) -> Weights:
    """`PEFTHelper`, `parse_fine_tuned_lora_name` and `set_lora`, of embeddings too."""
    config, factors = stored(folder)
    said = re.search(r"max-lora-rank (\d+)", json.loads((folder / "rankrise.json").read_text())["load"])
    most = int(said[1]) if said else 8
    if config["modules_to_save"] or config["bias"] != "none" or config["r"] > most:
        raise Refused
    weights = deepcopy(base.state_dict())
    for module, both in factors.items():
        names = next((pair for pair in PAIRS if set(both) == set(pair)), None)
        if names is None:
            raise Refused(module)
        a, b = (both[name] for name in names)
        whole_a, whole_b = torch.zeros(most, a.shape[1]), torch.zeros(len(b), most)
        whole_a[: len(a)], whole_b[:, : b.shape[1]] = a, b
        change = whole_b @ whole_a * (config["lora_alpha"] / config["r"])
        weights[f"{module}.weight"] += change if names == PAIRS[0] else change.T
    return weights


def merged_by_sglang(folder: Path, base: Any) -> Weights:
    """`normalize_qkv_proj`, `normalize_gate_up_proj` and the slices of rank r in mem_pool.py."""
    config, factors = stored(folder)
    if isinstance(config["target_modules"], str):
        raise Refused
    weights, rank = deepcopy(base.state_dict()), config["r"]
    scale = config["lora_alpha"] / rank
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("o_proj",), ("down_proj",)):
        for first in [module for module in weights if module.endswith(f".{group[0]}.weight")]:
            names = [first.removesuffix(".weight").replace(group[0], one) for one in group]
            found = [factors.pop(name, {}) for name in names]
            if any(set(one) != {"A", "B"} or len(one["A"]) != rank for one in found):
                raise Refused(names)
            stacked, outputs = torch.cat([one["A"] for one in found]), [len(one["B"]) for one in found]
            below = torch.cat([one["B"] for one in found]).split(outputs)  # all of one rank
            for place, name in enumerate(names):
                part = stacked[place * rank : (place + 1) * rank]
                weights[f"{name}.weight"] += below[place] @ part * scale
    for module, both in factors.items():  # lm_head, and embed_tokens, which it does not scale
        names = next((pair for pair in PAIRS if set(both) == set(pair)), None)
        if names is None or len(both[names[0]]) != rank:
            raise Refused(module)
        change = both[names[1]] @ both[names[0]]
        weights[f"{module}.weight"] += change * scale if names == PAIRS[0] else change.T
    return weights


PROGRAMS: dict[str, Callable[[Path, Any], Weights]] = {
    "PEFT and mergekit": merged_by_peft,
    "llama.cpp": merged_by_llama_cpp,
    "vLLM": merged_by_vllm,
    "SGLang": merged_by_sglang,
}


def mixed(base: nn.Module, rest: Any = "leave") -> Adapter:
    """An adapter whose matrices have ranks from 0 to 4."""
    adapter = use.extract(base, changed(base), rank=4, rest=rest)
    return adapter.at({name: 4 - place % 5 for place, name in enumerate(adapter.ranks)})


def wanted(base: nn.Module, adapter: Adapter) -> Weights:
    """The base with every cut change."""
    weights = deepcopy(base.state_dict())
    for name, rank in adapter.ranks.items():
        b, a = adapter.cuts[name].factors(rank)
        change = (b @ a).T if isinstance(base.get_submodule(name), nn.Embedding) else b @ a
        weights[f"{name}.weight"] += change.reshape(weights[f"{name}.weight"].shape)
    return weights


def far(found: Weights, want: Weights) -> float:
    assert set(want) <= set(found)
    return max(float((found[name] - tensor).abs().max()) for name, tensor in want.items())


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("for_", ["peft", "llama.cpp", "vllm", "sglang", "all"])
def test_a_program_applies_an_adapter_rightly_where_we_say_so(
    for_: Any, uniform: bool, tmp_path: Path
) -> None:
    base = made("llama")
    adapter = mixed(base)
    adapter = adapter.at(dict.fromkeys(adapter.ranks, 3)) if uniform else adapter
    folder, want = adapter.save(tmp_path / "a", for_), wanted(base, adapter)
    report = json.loads((folder / "rankrise.json").read_text())
    file = load_file(folder / "adapter_model.safetensors")
    assert report["parameters"] == sum(tensor.numel() for tensor in file.values())
    assert set(report["readers"]) == set(PROGRAMS)
    right = set()
    for program, merged in PROGRAMS.items():
        try:
            found = merged(folder, base)
        except Refused:
            assert "refuses" in report["readers"][program]
            continue
        if far(found, want) < 1e-6:
            right.add(program)
        else:
            ratio = {"strong": 4.0, "weak": 0.25}[report["readers"][program].split()[-1]]
            before = base.state_dict()
            ratios = [
                float((found[name] - before[name]).norm() / (want[name] - before[name]).norm())
                for name in want
                if not torch.equal(want[name], before[name])
            ]
            assert (max if ratio > 1 else min)(ratios) == pytest.approx(ratio, rel=1e-3)
    assert right == {program for program, verdict in report["readers"].items() if verdict == "right"}
    mine = {"peft": "PEFT and mergekit", "llama.cpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
    assert right >= ({mine[for_]} if for_ in mine and not uniform else set(PROGRAMS))


def test_what_is_kept_whole_is_for_peft_alone(tmp_path: Path) -> None:
    base = made("bert")
    adapter = mixed(base, rest="keep")
    for for_ in ("llama.cpp", "vllm", "sglang", "diffusers", "kohya", "all"):
        with pytest.raises(RankriseError, match="leave_rest"):
            adapter.save(tmp_path / "a", for_)
    folder = adapter.save(tmp_path / "a")
    for program, merged in PROGRAMS.items():
        verdict = json.loads((folder / "rankrise.json").read_text())["readers"][program]
        if verdict != "right":
            with pytest.raises(Refused):
                merged(folder, base)


def test_mistakes_are_named(tmp_path: Path) -> None:
    for other, named in (("gpt2", "c_attn"), ("vit", "projection")):
        with pytest.raises(RankriseError, match=named):
            mixed(made(other)).save(tmp_path / "a", "llama.cpp")
    assert not (tmp_path / "a").exists()
    wide = nn.Sequential(nn.Linear(600, 600))
    with pytest.raises(RankriseError, match="600"):
        use.extract(wide, changed(wide), rank=600, rest="leave").save(tmp_path / "a", "vllm")


def merged_by_kohya(file: Path, base: nn.Module) -> Weights:
    """`LoRAModule.merge_to` of sd-scripts' networks/lora.py; ComfyUI's `LoRAAdapter` does the same."""
    tensors, weights = load_file(file), deepcopy(base.state_dict())
    for name in [name for name in weights if name.endswith(".weight")]:
        key = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if f"{key}.lora_down.weight" in tensors:
            down, up = tensors.pop(f"{key}.lora_down.weight"), tensors.pop(f"{key}.lora_up.weight")
            scale = float(tensors.pop(f"{key}.alpha")) / len(down)
            weights[name] += scale * (up.flatten(1) @ down.flatten(1)).reshape(weights[name].shape)
    assert not tensors
    return weights


def small_unet() -> nn.Module:
    torch.manual_seed(0)
    block = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("to_q", "to_k", "to_out", "ff")})
    return nn.ModuleDict({"down_blocks": nn.ModuleList([block])})


def test_kohyas_file_is_written_read_and_shrunk(tmp_path: Path) -> None:
    base = small_unet()
    adapter = mixed(base)
    folder = adapter.save(tmp_path / "style", "kohya")
    assert far(merged_by_kohya(folder / "style.safetensors", base), wanted(base, adapter)) < 1e-6
    for source in (folder, folder / "style.safetensors"):
        same, smaller = use.shrink(source, rank=6), use.shrink(source, rank=1)
        assert same.kept == pytest.approx(1)
        again = same.save(tmp_path / f"again-{source.suffix}", "kohya")
        (file,) = again.glob("*.safetensors")
        assert far(merged_by_kohya(file, base), wanted(base, adapter)) < 1e-6
        assert set(smaller.ranks.values()) == {1}
    named = use.shrink(folder, rank=6, base=base, evaluate=lambda model: 1.0)
    assert named.ranks == {name: rank for name, rank in adapter.ranks.items() if rank}
    assert far(merged_by_peft(named.save(tmp_path / "peft"), base), wanted(base, adapter)) < 1e-6
    with pytest.raises(RankriseError, match="--for kohya"):
        smaller.save(tmp_path / "unnamed")


def unet(**others: Any) -> Any:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    sizes = {"sample_size": 8, "layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    blocks = {"down_block_types": down, "up_block_types": up, "attention_head_dim": 4}
    return diffusers.UNet2DConditionModel(**sizes, **blocks, cross_attention_dim=12, **others)


def unet_xl() -> Any:
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4}
    return unet(**added, projection_class_embeddings_input_dim=20, use_linear_projection=True)


def transformer() -> Any:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    sizes = {"sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2}
    joint = {"joint_attention_dim": 12, "caption_projection_dim": 16, "pooled_projection_dim": 12}
    return diffusers.SD3Transformer2DModel(**sizes, **joint, in_channels=4, out_channels=4)


@pytest.mark.parametrize("for_", ["diffusers", "kohya"])
@pytest.mark.parametrize("make", [unet, unet_xl, transformer])
def test_diffusers_loads_its_files_and_kohyas(make: Callable[[], Any], for_: Any, tmp_path: Path) -> None:
    base, loaded = make(), make()
    import diffusers

    adapter = mixed(base)
    folder, want = adapter.save(tmp_path / "a", for_), wanted(base, adapter)
    if make is transformer:
        pipeline, part = diffusers.StableDiffusion3Pipeline, "transformer"
        tensors, about = pipeline.lora_state_dict(folder, return_lora_metadata=True)
        pipeline.load_lora_into_transformer(tensors, transformer=loaded, metadata=about)
    else:
        pipeline, part = diffusers.StableDiffusionXLPipeline, "unet"
        settings = {"unet_config": base.config, "return_lora_metadata": True}
        tensors, alphas, about = pipeline.lora_state_dict(folder, **settings)
        pipeline.load_lora_into_unet(tensors, network_alphas=alphas, unet=loaded, metadata=about)
    verdict = json.loads((folder / "rankrise.json").read_text())["readers"]["diffusers"]
    if verdict == "right":
        loaded.fuse_lora()
    found = {name.replace(".base_layer", ""): tensor for name, tensor in loaded.state_dict().items()}
    assert (far(found, want) < 1e-6) == (verdict == "right") == ((make, for_) != (transformer, "kohya"))
    if for_ == "diffusers":  # without the scales in the header, diffusers had them wrong until August 2026
        (file,) = folder.glob("*.safetensors")
        with safe_open(file, "pt") as opened:
            config = json.loads(opened.metadata()["lora_adapter_metadata"])
        assert config[f"{part}.alpha_pattern"] == config[f"{part}.rank_pattern"] != {}
        loaded = make()
        loaded.load_lora_adapter(folder, prefix=part, weight_name=file.name)
        loaded.fuse_lora()
        found = {name.replace(".base_layer", ""): tensor for name, tensor in loaded.state_dict().items()}
        assert far(found, want) < 1e-6


def test_a_unet_becomes_kohyas_file_by_one_command(tmp_path: Path, capsys: Any) -> None:
    base = unet()
    base.save_pretrained(tmp_path / "base")
    changed(base).save_pretrained(tmp_path / "tuned")
    models = [str(tmp_path / part) for part in ("base", "tuned")]
    main(["extract", *models, "--leave_rest", "--for", "kohya", "--out", str(tmp_path / "style")])
    assert "Applied rightly by diffusers, ComfyUI; not by PEFT" in " ".join(capsys.readouterr().out.split())
    adapter = use.extract(base, changed(base), rank=8, rest="leave")
    found = merged_by_kohya(tmp_path / "style/style.safetensors", base)
    assert far(found, wanted(base, adapter)) < 1e-5
