"""Folders of small models, and data for them."""

import json
from pathlib import Path

import pytest
from tiny_models import changed, made, save_tokenizer, sentences


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A tiny base and tuned model of three kinds, and data for each. The tuned one predicts all alike, which
    is better than the base's random guesses."""
    for name in ("gpt2", "bert", "vit"):
        tuned = made(name)
        for part, model in (("base", changed(tuned, 0.5)), ("tuned", tuned)):
            model.save_pretrained(tmp_path / name / part)
            if name != "vit":
                save_tokenizer(tmp_path / name / part)
    (tmp_path / "gpt2.txt").write_text("\n".join(sentences(40)))
    rows = [{"text": text, "label": place % 3} for place, text in enumerate(sentences(20))]
    (tmp_path / "bert.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {name: tmp_path / name for name in ("gpt2", "bert", "vit")} | {"here": tmp_path}
