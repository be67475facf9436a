"""The commands extract, shrink, truncate and advise, on folders with data of each kind."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers
import yaml
from PIL import Image
from rankrise.use._models import load_model
from tiny_models import changed

from rankrise.commands import main
from rankrise.train import TrainSettings, train
from rankrise.train._begun import last_checkpoint, settings_of
from rankrise.train._task import task_of


def answer(capsys: Any, *words: object) -> Any:
    main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "data"), [("gpt2", "gpt2.txt"), ("bert", "bert.jsonl")])
def test_from_two_folders_to_an_adapter_with_a_measured_loss(name, data, folders, capsys) -> None:
    here = folders["here"]
    found = answer(
        capsys, "extract", folders[name] / "base", folders[name] / "tuned", "--out", here / "adapter",
        "--rank", 4, "--data", here / data, "--batch_size", 4, "--moments", here / "moments.safetensors",
    )  # fmt: skip
    assert found["measured"]["gain"] == pytest.approx(
        (found["measured"]["base"]["loss"] - found["measured"]["adapter"]["loss"])
        / (found["measured"]["base"]["loss"] - found["measured"]["tuned"]["loss"])
    )
    assert found["measured_on"] == ("14 held-out examples" if name == "gpt2" else "10 held-out examples")
    assert len({row["rank"] for row in found["matrices"]}) > 1
    kind = (
        transformers.AutoModelForCausalLM
        if name == "gpt2"
        else transformers.AutoModelForSequenceClassification
    )
    peft.PeftModel.from_pretrained(kind.from_pretrained(folders[name] / "base"), here / "adapter")

    smaller = answer(
        capsys, "shrink", here / "adapter", "--out", here / "smaller", "--rank", 1,
        "--base", folders[name] / "base", "--data", here / data, "--batch_size", 4,
    )  # fmt: skip
    assert smaller["parameters"] < found["parameters"]
    assert smaller["measured"]["base"] == pytest.approx(found["measured"]["base"])
    assert smaller["measured"]["tuned"]["loss"] == pytest.approx(
        found["measured"]["adapter"]["loss"], rel=1e-3
    )

    advice = answer(
        capsys, "advise", folders[name] / "base", folders[name] / "tuned", "--rank", 2,
        "--moments", here / "moments.safetensors", "--out", here / "advice",
    )  # fmt: skip
    assert json.loads((here / "advice/lora_config.json").read_text()) == advice["config"]
    written = (here / "advice/axolotl.yaml").read_text()
    assert written.startswith("# Keys for the configuration file of Axolotl")
    assert "\n# Ranks by Fisher" in written
    assert advice["moments"] == found["moments"]
    assert found["moments"] | {"model": ""} == {
        "examples": 13 if name == "gpt2" else 10, "model": "", "block": 4096, "data": str(here / data),
        "labels": "sampled", "seed": 0, "fewest_tokens": found["moments"]["fewest_tokens"], "too_few": None,
    }  # fmt: skip
    swapped = [folders[name] / "tuned", folders[name] / "base", "--out", here / "other"]
    with pytest.raises(SystemExit) as refused:
        answer(capsys, "extract", *swapped, "--moments", here / "moments.safetensors")
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "labels sampled, seed 0." in said
    assert "on a model with other weights" in said


@pytest.mark.parametrize("command", ["extract", "truncate", "advise"])
def test_hardly_any_examples_are_warned_of_in_one_sentence(command, folders, capsys) -> None:
    here, words = folders["here"], [str(folders["bert"] / part) for part in ("base", "tuned")]
    lines = (here / "bert.jsonl").read_text().splitlines()
    (here / "few.jsonl").write_text("\n".join(lines[:3]))
    words += ["--data", str(here / "few.jsonl")]
    words += ["--out", str(here / "a")] if command == "extract" else []
    words += ["--groups", "all", "--ranks", "1"] if command == "truncate" else []
    main([command, *words, "--json"])
    printed = capsys.readouterr()
    said = json.loads(printed.out)["moments"]["too_few"]
    assert said.startswith("The moments say little: ")
    assert said.endswith("measure them on more examples.")
    assert f"Warning: {said}\n" in printed.err
    assert "UserWarning" not in printed.err


def test_without_data_a_plain_svd_and_a_table(folders, capsys) -> None:
    main(
        [
            "extract",
            *map(str, (folders["gpt2"] / "base", folders["gpt2"] / "tuned")),
            "--out",
            str(folders["here"] / "a"),
        ]
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "transformer.h.*.attn.c_attn" in printed
    counts = re.search(r"([\d,]+) of its ([\d,]+) parameters", printed)
    low, whole = (int(count.replace(",", "")) for count in counts.groups())
    assert f"kept whole ({whole - low:,} parameters; --leave_rest" in printed
    assert "low-rank factors, of rank 8 at most" in printed
    assert "% of the change's energy (its plain square) kept" in printed
    assert "A low rank cannot hold transformer.wte.weight" in printed
    assert "Load it: peft.PeftModel.from_pretrained(base_model, " in printed
    assert "is a budget" not in printed


def test_advice_says_what_it_is_for_and_is_yaml(folders, capsys) -> None:
    words = ["advise", *(str(folders["gpt2"] / part) for part in ("base", "tuned")), "--rank", "2"]
    main(words)
    alone = capsys.readouterr().out
    assert "Axolotl" in alone.splitlines()[0]
    assert alone.splitlines()[-1].startswith("# Pass --out FOLDER for lora_config.json")
    main([*words, "--out", str(folders["here"] / "advice")])
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == yaml.safe_load(alone)
    assert yaml.safe_load(printed) == yaml.safe_load((folders["here"] / "advice/axolotl.yaml").read_text())
    assert "lora_config.json (the arguments of peft.LoraConfig)" in printed.splitlines()[-1]


def test_it_is_said_that_a_rank_is_a_budget(folders, capsys) -> None:
    here, words = folders["here"], [str(folders["gpt2"] / part) for part in ("base", "tuned")]
    words += ["--data", str(here / "gpt2.txt"), "--rank", "2"]
    found = answer(capsys, "extract", *words, "--out", here / "a")
    assert found["parameters"] <= found["budget"] == 2 * sum(sum(row["shape"]) for row in found["matrices"])
    main(["extract", *words, "--out", str(here / "b")])
    printed = " ".join(capsys.readouterr().out.split())
    assert found["kept_of"] == "weighted square"
    assert "kept, weighted by what it does to the loss" in printed
    assert f"Rank 2 is a budget: the {found['budget']:,} parameters of rank 2 in every matrix." in printed
    main(["extract", *words, "--uniform", "--out", str(here / "c")])
    assert "is a budget" not in capsys.readouterr().out


def test_a_loss_that_did_not_fall_has_no_share_that_is_kept(folders, capsys) -> None:
    here, swapped = folders["here"], [str(folders["gpt2"] / part) for part in ("tuned", "base")]
    swapped += ["--data", str(here / "gpt2.txt")]
    main(["extract", *swapped, "--rank", "2", "--out", str(here / "a"), "--json"])
    printed = capsys.readouterr()
    measured = json.loads(printed.out)["measured"]
    assert measured["base"]["loss"] < measured["tuned"]["loss"]
    assert measured["gain"] is None
    assert "are BASE and TUNED swapped" in measured["no_gain"]
    assert measured["no_gain"] in printed.err
    main(["extract", *swapped, "--rank", "2", "--out", str(here / "b")])
    assert "% of the gain" not in capsys.readouterr().out
    main(["advise", *swapped, "--rank", "2"])
    assert "Warning: The loss is" in capsys.readouterr().err
    for words in (
        ["extract", *swapped, "--gain", "0.9", "--out", str(here / "c")],
        ["truncate", *swapped, "--groups", "q"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert "there is no gain to keep a share of: are BASE and TUNED swapped" in capsys.readouterr().err
    assert not (here / "c").exists()


def test_the_same_command_gives_the_same_factors_and_another_seed_gives_others(folders, capsys) -> None:
    here, words = folders["here"], [folders["gpt2"] / part for part in ("base", "tuned")]
    words += ["--data", here / "gpt2.txt", "--rank", 2]

    def factors(name: str, *others: object) -> dict[str, torch.Tensor]:
        torch.rand(7)  # what torch's own generator gives must not matter
        answer(capsys, "extract", *words, "--out", here / name, *others)
        return safetensors.torch.load_file(here / name / "adapter_model.safetensors")

    first, again, other = factors("a"), factors("b"), factors("c", "--seed", 1)
    assert first.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert first.keys() != other.keys() or any(
        not torch.equal(tensor, other[name]) for name, tensor in first.items()
    )
    assert answer(capsys, "advise", *words) == answer(capsys, "advise", *words)


def test_a_rank_above_that_of_an_adapter_is_told(folders, capsys) -> None:
    here = folders["here"]
    answer(
        capsys,
        "extract",
        *(folders["gpt2"] / part for part in ("base", "tuned")),
        "--out",
        here / "a",
        "--rank",
        3,
    )
    main(["shrink", str(here / "a"), "--rank", "40", "--out", str(here / "b")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "The adapter holds no more than rank 3 beyond noise, so rank 40 cuts nothing of it." in printed


def test_the_budget_that_is_taken_where_none_is_given_is_told(folders, capsys) -> None:
    models = [str(folders["gpt2"] / part) for part in ("base", "tuned")]
    place = str(folders["here"] / "a")
    main(["extract", *models, "--out", place])
    assert "No budget is given, so it is that of rank 8: --rank" in " ".join(capsys.readouterr().out.split())
    smaller = ["shrink", place, "--out", str(folders["here"] / "b")]
    main(smaller)
    printed = " ".join(capsys.readouterr().out.split())
    assert "No budget is given, so it is the least that keeps 99 % of its change (--keep 0.99): " in printed
    main([*smaller[:-1], str(folders["here"] / "c"), "--rank", "2"])
    assert "No budget" not in capsys.readouterr().out


def test_a_text_of_unknown_words_is_told(folders, capsys) -> None:
    here, words = folders["here"], [str(folders["gpt2"] / part) for part in ("base", "tuned")]
    (here / "other.txt").write_text("w1 none of the others is known " * 20)
    for data, told in (("other.txt", True), ("gpt2.txt", False)):
        main(["advise", *words, "--rank", "1", "--data", str(here / data)])
        assert ("86% of the tokens" in capsys.readouterr().err) == told


def test_it_is_said_what_a_text_file_is_read_as(folders, capsys) -> None:
    here, words = folders["here"], [str(folders["gpt2"] / part) for part in ("base", "tuned")]
    path = folders["gpt2"] / "tuned/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 12}))
    main(["advise", *words, "--rank", "1", "--data", str(here / "gpt2.txt")])
    said = capsys.readouterr().err
    assert "gpt2.txt is read as running text, cut into 27 examples of up to 12 tokens; a .jsonl file" in said
    assert "Token indices" not in said, "they are never given to the model as one"


def test_texts_that_are_cut_are_counted(folders, capsys) -> None:
    here, words = folders["here"], [str(folders["bert"] / part) for part in ("base", "tuned")]
    rows = [{"text": "w1 " * count, "label": 0} for count in (3, 12, 13, 40, 5)]
    (here / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for data, told in (("long.jsonl", True), ("bert.jsonl", False)):
        main(["advise", *words, "--rank", "1", "--data", str(here / data)])
        said = capsys.readouterr().err
        assert (
            f"2 of 5 texts in {str(here / data)!r} are longer than 12 tokens, and cut to that length." in said
        ) == told
        assert ("cut to that" in said) == told


def test_a_tokenizer_of_another_model_is_told(folders, tmp_path, capsys) -> None:
    for part in ("base", "tuned"):
        shutil.copytree(folders["gpt2"] / part, tmp_path / part)
        path = tmp_path / part / "tokenizer.json"
        path.write_text(path.read_text().replace('"w3": 5', '"w3": 50'))
    words = [str(tmp_path / part) for part in ("base", "tuned")]
    with pytest.raises(SystemExit, match="2"):
        main(["advise", *words, "--rank", "1", "--data", str(folders["here"] / "gpt2.txt")])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "has a tokenizer with a token 50, and a model of 20: save the model's own" in said


def test_images_in_folders(folders, capsys) -> None:
    here = folders["here"]
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8,
            patch_size=4, num_labels=2,
        )
    )  # fmt: skip
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    for part, each in (("base", changed(model, 0.5)), ("tuned", model)):
        each.save_pretrained(here / "pictures" / part)
        processor.save_pretrained(here / "pictures" / part)
    generator = torch.Generator().manual_seed(0)
    for name in ("cat", "dog"):
        (here / "images" / name).mkdir(parents=True)
        for number in range(6):
            pixels = torch.randint(256, (8, 8, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(here / "images" / name / f"{number}.png")
    words = [
        "truncate",
        here / "pictures/base",
        here / "pictures/tuned",
        "--data",
        here / "images",
        "--groups",
        "all,q,kq+vo",
    ]
    found = answer(capsys, *words, "--out", here / "curves")
    assert {curve["group"] for curve in found["curves"]} == {"all", "q", "KQ and VO"}
    assert {path.name for path in (here / "curves").iterdir()} == {
        f"truncation.{kind}" for kind in ("json", "csv", "png", "svg")
    }
    again = answer(capsys, *words, "--out", here / "curves")
    assert again["curves"] == found["curves"]
    fewer = [word if word != "all,q,kq+vo" else "q" for word in words]
    assert "all" not in {
        curve["group"] for curve in answer(capsys, *fewer, "--out", here / "curves")["curves"]
    }
    kept = json.loads((here / "curves/truncation.json").read_text())
    assert sorted(map(str, kept["curves"])) == sorted(map(str, found["curves"]))
    main([*map(str, words), "--plain"])
    assert not re.search("rank +parameters", capsys.readouterr().out)
    main([*map(str, words), "--plain", "--all"])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.index("rank parameters kept") < printed.index("Functional rank")
    assert f"that of the whole base is {found['base']['loss']:.4g}" in printed
    with pytest.raises(SystemExit):
        main([*map(str, words), "--out", str(here / "curves"), "--ranks", "1"])
    assert "was measured with ranks" in capsys.readouterr().err
    tuned = load_model(here / "pictures/tuned")
    changed(tuned).save_pretrained(here / "pictures/tuned")
    with pytest.raises(SystemExit):
        main([*map(str, words), "--out", str(here / "curves")])
    assert "was measured with weights" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*map(str, words[:-1]), "all,z"])
    said = capsys.readouterr().err
    assert "'z' is not a group" in said
    assert "moments" not in said, "it is refused before anything is measured"


def test_curves_say_whose_moments_they_were_cut_by(folders, capsys) -> None:
    here, models = folders["here"], [folders["bert"] / "base", folders["bert"] / "tuned"]
    words = [*models, "--data", here / "bert.jsonl", "--moments", here / "m.safetensors"]
    answer(capsys, "extract", *words, "--labels", "data", "--seed", 5, "--out", here / "adapter")
    found = answer(capsys, "truncate", *words, "--groups", "q", "--ranks", 1, "--out", here / "curves")
    assert (found["labels"], found["seed"]) == ("data", 5)
    answer(capsys, "truncate", *words, "--groups", "k", "--ranks", 1, "--out", here / "curves")
    with pytest.raises(SystemExit):
        main(["truncate", *map(str, words[:-2]), "--ranks", "1", "--out", str(here / "curves")])
    assert "was measured with labels 'data'" in capsys.readouterr().err


def training_loss(run: Path) -> float:
    """On the whole batches of the second epoch, by transformers' own loss."""
    settings, model = settings_of(run), load_model(last_checkpoint(run)).eval()
    task, size = task_of(settings, torch.device("cpu")), settings.batch_size
    losses = [model(**task.inputs(*batch)).loss for batch in task.batches(1, 0, size, slice(0, size))]
    return float(torch.stack(losses).mean())


def test_a_run_of_ours_brings_its_initial_weights_and_its_data(tmp_path: Path, capsys) -> None:
    settings = TrainSettings(
        data="digits", image_size=8, patch_size=2, augmentation="crop", layers=2, heads=2, hidden_size=16,
        mlp_size=16, head_size=8, epochs=2, warm_up_epochs=0.5, batch_size=100, learning_rate=3e-3,
        precision="fp32", compile="none", evaluate_every=1, log_every=4, checkpoint_every=1, measurements=2,
        spectra_epochs=(1,),
    )  # fmt: skip
    train(settings, tmp_path / "run")
    found = answer(
        capsys, "truncate", tmp_path / "run", "--groups", "all,kq", "--examples", 200, "--ranks", "2,16"
    )
    curves = {(curve["group"], curve["method"]): curve for curve in found["curves"]}
    assert set(curves) == {("all", "plain"), ("all", "weighted"), ("KQ", "plain")}
    for curve in curves.values():
        assert [point["rank"] for point in curve["points"]] == [2, 16]
        assert curve["functional_rank"] is None
        assert curve["at_most"] in (2, 16)
    assert curves["all", "plain"]["points"][-1]["gain"] == pytest.approx(1, abs=0.01)
    assert curves["KQ", "plain"]["points"][-1]["gain"] == pytest.approx(1, abs=0.01)
    assert found["trained"]["accuracy"] > 0.1
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert found["measured_on"] == "1500 training examples"
    assert found["trained"]["loss"] == pytest.approx(training_loss(tmp_path / "run"), rel=1e-4)
    assert found["trained"]["validation_loss"] == pytest.approx(steps[-1]["validation_loss"], rel=1e-4)
    again = answer(
        capsys, "truncate", tmp_path / "run", "--groups", "kq", "--ranks", 2, "--loss", "validation"
    )
    assert again["measured_on"] == "the whole validation set"
    assert again["trained"]["loss"] == pytest.approx(steps[-1]["validation_loss"], rel=1e-4)
    adapter = answer(capsys, "extract", tmp_path / "run", "--out", tmp_path / "adapter", "--gain", 0.9)
    assert adapter["measured"]["gain"] >= 0.9
    assert adapter["measured_on"] == "the whole validation set"
