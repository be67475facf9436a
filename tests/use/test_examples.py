"""A user's own data as batches: what is in the file, as the model is meant to take it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rankrise.commands.tuned import Measuring, base_with_data
from rankrise.use._examples import batched, read_examples
from tiny_models import SMALL, made
from tiny_words import save_tokenizer, sentences
from torch import nn

from rankrise import RankriseError, use


def examples(model: Any, path: Path, rows: list[Any], at_most: int = 100, at_once: int = 16) -> Any:
    save_tokenizer(path)
    file = path / "data.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) if row else "" for row in rows))
    return read_examples(file, model, path, at_most, at_once)


def reading(kind: str, padding: int | None) -> Any:
    """A classifier that reads from left to right, and looks at the last token that is not padding."""
    torch.manual_seed(0)
    given: dict[str, Any] = {"vocab_size": 20, "num_labels": 3, "pad_token_id": padding}
    if kind == "llama":
        return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SMALL, **given)).eval()
    given |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
    config = transformers.GPT2Config(**given, bos_token_id=None, eos_token_id=None)
    return transformers.GPT2ForSequenceClassification(config).eval()


ROWS = [
    {"text": " ".join(text.split()[: 2 + place % 6]), "label": place % 3}
    for place, text in enumerate(sentences(12))
]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_texts_are_filled_up_so_that_a_classifier_finds_their_end(kind: str, tmp_path: Path) -> None:
    model = reading(kind, padding=1)
    nn.init.normal_(model.score.weight)
    found = examples(model, tmp_path, ROWS)
    with torch.no_grad():
        alone = torch.stack([use.labelled(model, batch) for batch in batched(found, 1, model)]).mean()
        together = use.labelled(model, next(batched(found, len(found), model)))
    assert float(together) == pytest.approx(float(alone), rel=1e-5)


def test_a_classifier_without_a_padding_token_takes_one_text_at_a_time(tmp_path: Path) -> None:
    model = reading("gpt2", padding=None)
    assert len(examples(model, tmp_path, ROWS, at_once=1)) == len(ROWS)
    with pytest.raises(RankriseError, match=r"no padding token .* pad_token_id, or .* \(--batch_size 1\)"):
        examples(model, tmp_path, ROWS)


def test_the_loss_of_texts_of_any_length_is_the_mean_over_their_tokens(tmp_path: Path) -> None:
    model = made("gpt2")
    model.save_pretrained(tmp_path)
    found = examples(model, tmp_path, ROWS)
    losses: list[float] = []
    for example in found[len(found) // 2 :]:
        with torch.no_grad():
            logits = model(example["input_ids"][None]).logits[0, :-1]
        losses += nn.functional.cross_entropy(logits, example["input_ids"][1:], reduction="none").tolist()
    for size in (1, 4):
        both = base_with_data(str(tmp_path), Measuring(data=str(tmp_path / "data.jsonl"), batch_size=size))
        assert both.data is not None
        assert both.data.evaluate(model)["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_lines_end_where_json_lines_end_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    rows = [None, {"text": "w1\u2028w2\x85w3"}, None, None, {"text": "w4 w5"}, {"text": "w6 w7"}]
    found = examples(made("gpt2"), tmp_path, rows, at_most=2)
    assert [example["input_ids"].tolist() for example in found] == [[3, 4, 5], [6, 7]]
    file = tmp_path / "marked.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "data.jsonl").read_bytes().lstrip())
    assert len(read_examples(file, made("gpt2"), tmp_path, 100, 16)) == 3


def test_a_number_is_a_class_and_a_string_the_name_of_one(tmp_path: Path) -> None:
    model = made("bert")
    model.config.label2id = {"1": 0, "2": 1, "3": 2}
    rows = [{"text": "w1 w2", "label": label} for label in (0, 1, 2, "1", "2", "3")]
    assert [int(example["labels"]) for example in examples(model, tmp_path, rows)] == [0, 1, 2, 0, 1, 2]
    for label in (True, "0", 3, 1.0, None):
        with pytest.raises(RankriseError, match=f"has the label {label!r} in line 1"):
            examples(model, tmp_path, [{"text": "w1 w2", "label": label}])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": 5}, 'has 5 as the "text" in line 2, which is not a text: give one JSON string'),
        ({"text": ["w1"]}, 'has a list as the "text" in line 2, which is not a text'),
        ({"text": "\ud800"}, 'as the "text" in line 2, which is not a text'),
        ({"Text": "w1 w2"}, 'has no "text" in line 2'),
        (["w1 w2"], 'has no "text" in line 2'),
    ],
)
def test_a_text_that_is_missing_and_one_that_is_no_text_are_told_apart(tmp_path, row, told) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "w1 w2"}) + "\n" + json.dumps(row))
    with pytest.raises(RankriseError, match=told):
        read_examples(tmp_path / "data.jsonl", made("gpt2"), tmp_path, 10, 2)


@pytest.mark.parametrize("places", [-1, 0])
def test_a_model_without_an_end_of_places_takes_texts_of_any_length(tmp_path: Path, places: int) -> None:
    model: Any = made("llama")
    rows = [{"text": text} for text in sentences(4)]
    whole = examples(model, tmp_path, rows)
    model.config.max_position_embeddings = places
    again = examples(model, tmp_path, rows)
    assert [one["input_ids"].tolist() for one in again] == [one["input_ids"].tolist() for one in whole]


@pytest.mark.parametrize("file", ["data.txt", "data.jsonl"])
def test_a_tokenizer_that_lacks_a_word_of_the_data_is_named(tmp_path: Path, file: str) -> None:
    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"] = {"a": 0, "text": 1}
    path.write_text(json.dumps(described))
    rows = [{"text": text} for text in sentences(4)]
    (tmp_path / file).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(RankriseError, match=r"the tokenizer of .* fails on .*\(.*\[UNK\].*\): save"):
        read_examples(tmp_path / file, made("gpt2"), tmp_path, 10, 2)


@pytest.mark.parametrize("named", ["x", ["a"], {"a": -100}, {"a": 99}, {"a": "0"}, {"a": 0.5}, None])
def test_names_of_classes_that_the_model_does_not_have_name_none(tmp_path: Path, named: object) -> None:
    model = reading("llama", padding=1)
    model.config.label2id = named
    with pytest.raises(
        RankriseError, match=r"has the label 'a' in line 1: give a class of the model, 0 to 2"
    ):
        examples(model, tmp_path, [{"text": text, "label": "a"} for text in sentences(2)])
