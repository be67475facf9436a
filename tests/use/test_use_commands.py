"""The commands extract, shrink and truncate, on folders with data of each kind."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
import yaml
from PIL import Image
from tiny_models import changed, vit

from rankrise.claims import check_claims
from rankrise.commands import main
from rankrise.runs import open as open_runs
from rankrise.train import TrainSettings, train


def answer(capsys: Any, *words: object) -> Any:
    main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "data"), [("gpt2", "gpt2.txt"), ("bert", "bert.jsonl")])
def test_from_two_folders_to_an_adapter_with_a_measured_loss(name, data, folders, capsys) -> None:
    here, base, tuned = folders["here"], folders[name] / "base", folders[name] / "tuned"
    words = ["--data", here / data, "--batch_size", 4]
    budget = ["--rank", 4, "--moments", here / "m"]
    found = answer(capsys, "extract", base, tuned, *words, "--out", here / "adapter", *budget)
    measured = found["measured"]
    initial, trained, cut = (measured[which]["loss"] for which in ("base", "tuned", "adapter"))
    assert measured["gains"]["loss"] == pytest.approx((initial - cut) / (initial - trained))
    assert set(measured["gains"]) == {"loss", "perplexity" if name == "gpt2" else "accuracy"}
    assert measured["on"].startswith("13 held-out" if name == "gpt2" else "10 held-out")
    assert json.loads((here / "adapter/rankrise.json").read_text())["measured"] == measured
    assert len({row["rank"] for row in found["matrices"]}) > 1
    assert found["parameters"] <= 4 * sum(sum(row["shape"]) for row in found["matrices"])
    assert 0 < found["held"] < 1
    facts = {
        "data": str(here / data),
        "labels": "sampled",
        "seed": 0,
        "examples": 14 if name == "gpt2" else 10,
    }
    assert {fact: found["moments"][fact] for fact in facts} == facts
    kind = transformers.AutoModelForCausalLM if name == "gpt2" else transformers.BertForSequenceClassification
    peft.PeftModel.from_pretrained(kind.from_pretrained(base), here / "adapter")

    words = ["--out", here / "smaller", "--rank", 1, "--base", base, *words]
    smaller = answer(capsys, "shrink", here / "adapter", *words)
    assert smaller["parameters"] < found["parameters"]
    assert smaller["measured"]["base"] == pytest.approx(measured["base"])
    assert smaller["measured"]["tuned"]["loss"] == pytest.approx(cut, rel=1e-3)
    with pytest.raises(SystemExit, match="2"):
        answer(capsys, "extract", tuned, base, "--out", here / "other", "--moments", here / "m")
    assert "other weights" in capsys.readouterr().err


def test_without_data_a_plain_svd_and_a_table(folders, capsys) -> None:
    here, models = folders["here"], [str(folders["gpt2"] / part) for part in ("base", "tuned")]
    main(["extract", *models, "--out", str(here / "a"), "--leave_rest", "--for", "all"])
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"transformer\.h\.\*\.attn\.c_attn 2 48x16 8 [\d.]+%", printed)
    assert (
        "Applied rightly by PEFT and mergekit; not by llama.cpp (loads no layers that are stored" in printed
    )
    assert re.match(r"Warning: the adapter holds [\d.]+% of everything", printed)
    assert re.search(r"Not held, of the whole change: .*transformer.wte.weight \([\d.]+%\)", printed)
    assert "Left out: transformer.wte.weight, transformer.h.*.ln_*.weight" in printed


def test_the_same_command_gives_the_same_factors_and_another_seed_gives_others(folders, capsys) -> None:
    here, words = folders["here"], [folders["gpt2"] / part for part in ("base", "tuned")]
    words += ["--data", here / "gpt2.txt", "--rank", 2]

    def factors(name: str, *others: object) -> bytes:
        torch.rand(7)  # torch's own generator must not matter
        answer(capsys, "extract", *words, "--out", here / name, *others)
        return (here / name / "adapter_model.safetensors").read_bytes()

    assert factors("a") == factors("b") != factors("c", "--seed", 1)


@pytest.mark.slow
def test_images_in_folders_and_curves_that_are_measured_once(folders, capsys) -> None:
    here, images = folders["here"], folders["here"] / "images"
    for part, each in (("base", changed(model := vit(channels=3), 0.5)), ("tuned", model)):
        each.save_pretrained(folders["vit"] / part)
        transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folders["vit"] / part)
    generator = np.random.default_rng(0)
    for name in ("cat", "dog", "owl"):
        (images / name).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / name / f"{number}.png")
    models = [folders["vit"] / "base", folders["vit"] / "tuned", "--data", images]
    words = ["truncate", *models, "--out", here / "curves"]
    found = answer(capsys, *words, "--groups", "all,q,KQ+VO")
    assert {curve["group"] for curve in found["curves"]} == {"all", "q", "KQ+VO"}
    assert [path.name for path in (here / "curves").iterdir()] == ["truncation.json"]
    assert answer(capsys, *words, "--groups", "all,q,KQ+VO")["curves"] == found["curves"]
    assert {curve["group"] for curve in answer(capsys, *words, "--groups", "q")["curves"]} == {"q"}
    kept = json.loads((here / "curves/truncation.json").read_text())
    assert sorted(map(str, kept["curves"])) == sorted(map(str, found["curves"]))
    for others, named in ((["--gain", "0.5"], "gain"), (["--labels", "data"], "labels"), ([], "weights")):
        if named == "weights":
            changed(model).save_pretrained(folders["vit"] / "tuned")
        with pytest.raises(SystemExit):
            main([*map(str, words), *others])
        assert named in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_ours_brings_its_initial_weights_and_its_data(tmp_path: Path, capsys) -> None:
    settings = TrainSettings(
        data="digits", image_size=8, patch_size=2, augmentation="crop", layers=1, heads=2, hidden_size=16,
        mlp_size=16, head_size=8, epochs=2, warm_up_epochs=0.5, batch_size=100, learning_rate=3e-3,
        precision="fp32", compile="none", evaluate_every=1, log_every=4, checkpoint_every=1, measurements=2,
        spectra_epochs=(1,),
    )  # fmt: skip
    run, config = tmp_path / "run", tmp_path / "lora.json"
    train(settings, run)
    words = ["--groups", "all,KQ", "--examples", 200, "--config", config]
    found = answer(capsys, "truncate", run, *words)
    assert json.loads(config.read_text()) == found["config"]
    curves = {(curve["group"], curve["method"]): curve for curve in found["curves"]}
    assert found["config"]["r"] == max(curves["all", "weighted"]["ranks"].values())
    answer(capsys, "truncate", run, "--groups", "all", "--examples", 200, "--config", tmp_path / "lora.yaml")
    settings = yaml.safe_load((tmp_path / "lora.yaml").read_text())
    assert settings["lora_rank_pattern"] == found["config"]["rank_pattern"]
    assert settings["lora_r"] == settings["lora_alpha"] == found["config"]["r"]
    assert "KQ" in {curve["group"] for curve in found["curves"]}
    for way in (("all", "plain"), ("KQ", "plain")):
        assert curves[way]["points"][-1]["gain"] == pytest.approx(1, abs=0.01)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert found["measured_on"] == "1500 training examples"
    assert found["trained"]["validation_loss"] == pytest.approx(steps[-1]["validation_loss"], rel=1e-4)
    again = answer(capsys, "truncate", run, "--groups", "KQ", "--loss", "validation", "--out", run)
    assert again["measured_on"] == "the whole validation set"
    assert again["trained"]["loss"] == pytest.approx(steps[-1]["validation_loss"], rel=1e-4)
    (claim,) = (c for c in check_claims(open_runs([run]), everything=True) if c.name == "functional rank")
    assert claim.part != "KQ" or claim.deciding[0].value == again["curves"][0]["functional_rank"] / 8
    adapter = answer(capsys, "extract", run, "--out", tmp_path / "adapter", "--gain", 0.9)
    assert adapter["measured"]["gains"]["loss"] >= 0.9


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("extract gpt2/base gpt2/tuned", "--out"),
        ("extract gpt2/tuned gpt2/base --out a --gain 0.9 --data gpt2.txt", "swapped"),
        ("extract gpt2/base gpt2/tuned --out a --moments m", "--data"),
        ("extract gpt2/base gpt2/tuned --out a --for diffusers --data gpt2.txt", "--leave_rest"),
        ("shrink gpt2/base --out a --data gpt2.txt", "--base and --data"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(words, named, folders, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folders["here"])
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert named in capsys.readouterr().err
    assert not Path("a").exists()
