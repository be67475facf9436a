"""A GPT-2 small enough to train in a second, texts for it, and a tokenizer made out of one of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from tiny_training import TINY
from tokenizers import ByteLevelBPETokenizer

from rankrise.train import TrainSettings
from rankrise.train._data.made_text import made_text
from rankrise.train._task import task_of

TINY_TEXT = replace(
    TINY,
    data="text",
    data_name="stories",
    tokenizer="pairs",
    sequence_length=32,
    head_size=8,
    batch_size=20,
    epochs=1,
    warm_up_epochs=0.25,
    evaluate_every=0.5,
    checkpoint_every=0.3,
)
"""19 steps; checkpoints at 6, 11, 17 and 19."""


def stories_of(part: str, lines: int = 150) -> str:
    """The first stories of a part of the made text."""
    text = made_text()[("train", "valid").index(part)]
    return "".join(text.read().splitlines(keepends=True)[:lines])


def write_stories(data: Path) -> Path:
    """A text folder `stories` and a tokenizer `pairs` of 300 tokens in a data folder."""
    (data / "stories").mkdir(parents=True)
    (data / "pairs").mkdir()
    for part in ("train", "valid"):
        (data / "stories" / f"stories.{part}.txt").write_text(stories_of(part))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(
        [str(data / "stories" / "stories.train.txt")],
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.save_model(str(data / "pairs"))
    return data


class HubRows(SimpleNamespace):
    """A split as Hugging Face's datasets give it: columns, features and a fingerprint."""

    def __getitem__(self, column: str) -> list[str]:
        return self.columns[column]


def hub_of(**columns: dict[str, list[str]]) -> SimpleNamespace:
    """Stands in for the module `datasets`: any name has these columns by split; `asked` lists the names."""
    asked: list[tuple[str | None, ...]] = []

    def load_dataset(*names: str | None) -> dict[str, HubRows]:
        asked.append(names)
        return {
            split: HubRows(columns=found, features=list(found), _fingerprint=split)
            for split, found in columns.items()
        }

    return SimpleNamespace(load_dataset=load_dataset, asked=asked)


def write_for(settings: TrainSettings, data: Path) -> int:
    """What a recipe of text looks for in its data folder; the number of training examples it finds there."""
    write_stories(data)
    (data / "pairs").rename(data / "gpt2")
    if settings.data == "text":
        (data / "stories").rename(data / settings.data_name)
    for name in settings.also_validate:
        (data / name).mkdir()
        (data / name / "valid.tokens").write_text(" A well @-@ known text , of few words . \n")
    return task_of(replace(settings, data_folder=str(data)), torch.device("cpu")).examples
