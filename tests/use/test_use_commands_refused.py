"""What extract, shrink, truncate and advise cannot do: one sentence each, and nothing is written."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_models import made
from tiny_words import save_tokenizer, sentences

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations import files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["extract", "gpt2/base", "gpt2/tuned"], "--out is missing"),
        (["extract", "gpt2/base", "--out", "a"], "is not a run"),
        (["extract", "gpt2/base", "gpt2/tuned", "--out", "gpt2"], "gpt2 exists"),
        (["extract", "a", "b", "c", "--out", "a"], "3 models are given"),
        (["advise", "gpt2/base", "gpt2/tuned", "--out", "gpt2"], "gpt2 exists: pass a new folder"),
        (["advise", "gpt2/base", "gpt2/base", "--out", "a"], "No direction of any matrix is kept"),
        (["extract", "gpt2/base", "bert/tuned", "--out", "a"], "different architectures: model_type is gpt2"),
        (["extract", "gpt2/base", "gpt2/tuned", "--out", "a", "--data", "none.txt"], "There is no data"),
        (["extract", "bert/base", "bert/tuned", "--out", "a", "--data", "gpt2.txt"], "needs labels"),
        (["extract", "gpt2/base", "gpt2/tuned", "--out", "a", "--gain", "0.9"], "pass --data"),
        (["extract", "gpt2/base", "gpt2/tuned", "--out", "a", "--moments", "m"], "pass --data"),
        (["shrink", "gpt2/base", "--out", "a"], "pass the folder of a PEFT adapter"),
        (["shrink", "gpt2/base", "--out", "a", "--base", "gpt2/base"], "pass both --base and --data"),
        (
            ["extract", "gpt2/base", "lora", "--out", "a"],
            "'lora' is a PEFT adapter, not a whole model: merge",
        ),
        (["truncate", "gpt2/base", "lora", "--data", "gpt2.txt"], "cut the adapter itself with 'rankrise sh"),
        (["truncate", "lora", "gpt2/base", "--data", "gpt2.txt"], "from_pretrained(base, 'lora').merge_and"),
        (["truncate", "gpt2/base", "gpt2/tuned"], "pass --data"),
        (["truncate", "gpt2/base", "odd", "--data", "gpt2.txt"], "has no tokenizer that can be read"),
        (
            ["truncate", "gpt2/base", "gpt2/tuned", "--data", "odd.jsonl"],
            'odd.jsonl\' has None as the "text" in line 2, which is not a text: give',
        ),
        (["truncate", "gpt2/base", "gpt2/tuned", "--data", "none.jsonl"], 'has no "text" in line 1'),
        (
            ["extract", "vit/base", "vit/tuned", "--out", "a", "--data", "bert.jsonl"],
            "is a file, and ViTForImageClassification reads images: give a folder with one folder of images",
        ),
        (["shrink", "nope", "--out", "a"], "'nope' does not exist: pass the folder of a PEFT adapter"),
        (["truncate", "gpt2/base", "gpt2/tuned", "--data", "prose.jsonl"], "is not JSON in line 2"),
        (
            ["truncate", "gpt2/base", "gpt2/tuned", "--data", "empty.jsonl"],
            "a token to predict in line 2, ''",
        ),
        (["truncate", "gpt2/base", "gpt2/tuned", "--data", "vit-digits"], "data of the recipe vit-digits"),
        (["extract", "vit/base", "vit/tuned", "--out", "a", "--data", "vit-digits"], "is out of bounds"),
        (["truncate", "bert/base", "bert/tuned", "--data", "bert.jsonl", "--gain", "2"], "gain is 2.0: pass"),
        (["truncate", "gpt2/base", "gpt2/tuned", "--data", "gpt2"], "is a folder, and GPT2LMHeadModel reads"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(words, message, folders, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folders["here"])
    Path("odd.jsonl").write_text('{"text": "w1 w2"}\n{"text": null}')
    Path("none.jsonl").write_text('{"words": "w1 w2"}')
    Path("prose.jsonl").write_text('{"text": "w1 w2"}\nw2 w3')
    Path("empty.jsonl").write_text('{"text": "w1 w2"}\n{"text": ""}')
    Path("lora").mkdir()
    Path("lora/adapter_config.json").write_text("{}")
    shutil.copytree("gpt2/tuned", "odd")
    settings = json.loads(Path("odd/tokenizer_config.json").read_text())
    Path("odd/tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": []}))
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err
    assert not Path("a").exists()


@pytest.mark.parametrize("data", [[], ["--data", "gpt2.txt"]])
def test_a_run_of_another_script_is_told_at_once(data, folders, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folders["here"])
    with watch.RankTracker(made("gpt2"), "run") as tracker:
        tracker.step(1, loss=1.0)
    with pytest.raises(SystemExit):
        main(["truncate", "run", *data])
    said = capsys.readouterr().err
    assert (
        "run is not a run of 'rankrise train', since it has no recipe: pass one, or the checkpoints" in said
    )


@pytest.mark.parametrize("there", [True, False])
def test_advice_is_written_whole_or_not_at_all(there, folders, monkeypatch, capsys) -> None:
    out = folders["here"] / "advice"
    if there:
        out.mkdir()
    words = ["advise", str(folders["gpt2"] / "base"), str(folders["gpt2"] / "tuned"), "--out", str(out)]
    before = sorted(folders["here"].rglob("*"))
    with monkeypatch.context() as full:
        full.setattr(files, "sync", _full_at("axolotl"))
        with pytest.raises(SystemExit):
            main(words)
    assert "advice" in (said := capsys.readouterr().err)
    assert "cannot be used (No space left on device): pass another path." in said
    assert sorted(folders["here"].rglob("*")) == before
    main(words)
    assert sorted(path.name for path in out.iterdir()) == ["axolotl.yaml", "lora_config.json"]


@pytest.mark.parametrize(
    "kind", ["BertForMaskedLM", "T5ForConditionalGeneration", "BertForTokenClassification"]
)
@pytest.mark.parametrize("command", ["advise", "extract", "truncate", "shrink"])
@pytest.mark.parametrize("data", ["text.txt", "lines.jsonl", "gpt2-tiny"])
def test_models_that_predict_something_else_are_told_that_no_data_helps(
    kind: str, command: str, data: str, tmp_path: Path, capsys: Any
) -> None:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    config = transformers.T5Config(**small) if kind.startswith("T5") else made("bert").config
    getattr(transformers, kind)(config).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(sentences(40)))
    rows = [{"text": text, "label": place % 2} for place, text in enumerate(sentences(20))]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = str(tmp_path / "model")
    words = [str(tmp_path / "adapter"), "--base", model] if command == "shrink" else [model, model]
    given = data if data == "gpt2-tiny" else str(tmp_path / data)
    out = [] if command == "truncate" else ["--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main([command, *words, "--data", given, *out])
    said = capsys.readouterr().err
    assert f"{kind} predicts neither each next token nor one class, and no other loss is measured" in said
    assert not (tmp_path / "out").exists()


def _full_at(name: str) -> Callable[[Path], None]:
    """A disk that is full when a file of that name is written."""

    def sync(path: Path) -> None:
        if name in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return sync
