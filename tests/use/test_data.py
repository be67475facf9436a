"""A user's own data as batches: what is in the file, as the model is meant to take it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tiny_models import SMALL, made, save_tokenizer, sentences, vit
from torch import nn

from rankrise import RankriseError, use
from rankrise.recipes.use_settings import Measuring
from rankrise.use.data import batched, read_data, read_examples


def examples(model: Any, path: Path, rows: list[Any], at_most: int = 100) -> Any:
    save_tokenizer(path)
    file = path / "data.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) if row else "" for row in rows))
    return read_examples(file, model, path, at_most)


ROWS = [
    {"text": " ".join(text.split()[: 2 + place % 6]), "label": place % 3}
    for place, text in enumerate(sentences(12))
]


def test_texts_are_padded_so_that_a_classifier_finds_their_end(tmp_path: Path) -> None:
    """It reads from left to right, and looks at the last token that is not padding."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, vocab_size=20, num_labels=3, pad_token_id=1)
    model = transformers.LlamaForSequenceClassification(config).eval()
    nn.init.normal_(model.score.weight)
    found = examples(model, tmp_path, ROWS)
    with torch.no_grad():
        alone = torch.stack([use.labelled(model, batch) for batch in batched(found, 1, model)]).mean()
        together = use.labelled(model, next(batched(found, len(found), model)))
    assert float(together) == pytest.approx(float(alone), rel=1e-5)


def test_the_loss_of_texts_of_any_length_is_the_mean_over_their_tokens(tmp_path: Path) -> None:
    model = made("gpt2")
    found = examples(model, tmp_path, ROWS)
    losses: list[float] = []
    for example in found[1::2]:
        with torch.no_grad():
            logits = model(example["input_ids"][None]).logits[0, :-1]
        losses += nn.functional.cross_entropy(logits, example["input_ids"][1:], reduction="none").tolist()
    data = read_data(model, tmp_path, Measuring(data=str(tmp_path / "data.jsonl"), batch_size=4))
    assert data.evaluate(model)["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert data.evaluate(model)["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert data.measured_on == f"6 held-out examples of {tmp_path / 'data.jsonl'} (seed 0)"


def test_a_running_text_is_cut_into_blocks_and_long_texts_to_the_models_length(tmp_path: Path) -> None:
    model = made("gpt2")  # of 12 tokens at most
    save_tokenizer(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences(4)))
    blocks = read_examples(tmp_path / "text.txt", model, tmp_path, 100)
    assert sorted(len(block["input_ids"]) for block in blocks) == [8, 12, 12]
    rows = [{"text": "w1 " * 13}, None, {"text": "w1 " * 12}]
    found = examples(model, tmp_path, rows)
    assert [len(example["input_ids"]) for example in found] == [12, 12]


def test_a_sorted_file_is_shuffled_and_every_part_has_examples_of_its_own(tmp_path: Path) -> None:
    model = made("bert")
    texts = [f"w{place} w{other}" for place in range(6) for other in range(6)]
    rows = [{"text": text, "label": place // 12} for place, text in enumerate(texts)]
    assert {int(one["labels"]) for one in examples(model, tmp_path, rows)[::3]} == {0, 1, 2}
    (tmp_path / "more.jsonl").write_text("\n".join(map(json.dumps, rows[:5])))
    seen: list[tuple[int, ...]] = []

    def record(module: Any, args: Any, given: Any) -> None:
        seen.extend(tuple(row[:2].tolist()) for row in given["input_ids"])

    model.register_forward_pre_hook(record, with_kwargs=True)
    for others, sizes in (({}, [12, 12, 12]), ({"held_out": str(tmp_path / "more.jsonl")}, [18, 18, 5])):
        asked = Measuring(data=str(tmp_path / "data.jsonl"), **others)
        data = read_data(model, tmp_path, asked, searching=True)
        parts = [[tuple(row[:2].tolist()) for batch in data.batches() for row in batch["input_ids"]]]
        for evaluate in (data.evaluate, data.final):
            seen.clear()
            assert set(evaluate(model)) == {"loss", "accuracy"}
            parts.append([*seen])
        assert [len(part) for part in parts] == sizes
        assert len(set(parts[0] + parts[1])) == sizes[0] + sizes[1]
    assert data.measured_on.startswith("5 held-out examples of " + str(tmp_path / "more.jsonl"))


@pytest.mark.parametrize("searching", [False, True])
def test_every_part_of_an_image_folder_has_every_class(searching: bool, tmp_path: Path) -> None:
    model, generator = vit(channels=3).eval(), np.random.default_rng(0)
    transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    for name in ("cat", "dog", "owl"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    data = read_data(model, tmp_path, Measuring(data=str(tmp_path / "images")), searching=searching)
    assert {int(label) for batch in data.batches() for label in batch["labels"]} == {0, 1, 2}
    with torch.no_grad():  # it says class 1 whatever it sees
        model.classifier.bias.copy_(torch.tensor([0.0, 99.0, 0.0]))
    assert 0 < data.evaluate(model)["accuracy"] < 1
    assert data.final is None or 0 < data.final(model)["accuracy"] < 1


def test_a_number_is_a_class_and_a_string_the_name_of_one(tmp_path: Path) -> None:
    model = made("bert")
    model.config.label2id = {"1": 0, "2": 1, "3": 2}
    rows = [{"text": "w1 w2", "label": label} for label in (0, 1, 2, "1", "2", "3")]
    assert sorted(int(example["labels"]) for example in examples(model, tmp_path, rows)) == [0, 0, 1, 1, 2, 2]
    for label in ("0", 3, None):
        with pytest.raises(RankriseError, match=r"line 1 of .*label"):
            examples(model, tmp_path, [{"text": "w1 w2", "label": label}])


@pytest.mark.parametrize(
    ("name", "file", "content", "named"),
    [
        ("gpt2", "a.jsonl", '{"text": "w1 w2"}\nw2', "line 2"),
        ("gpt2", "a.jsonl", '{"text": "w1 w2"}', "holds 1 example"),
        ("bert", "a.txt", "w1 w2 w3", "label"),
        ("vit", "a.jsonl", '{"text": "w1 w2"}', "folder"),
    ],
)
def test_mistakes_are_named(name: str, file: str, content: str, named: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(RankriseError, match=named):
        read_examples(tmp_path / file, made(name), tmp_path, 10)
