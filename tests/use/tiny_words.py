"""A language of 18 words: its tokenizer, and sentences in it."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{number}" for number in range(18)]


def save_tokenizer(folder: Path) -> None:
    vocabulary = {"[UNK]": 0, "[PAD]": 1} | {word: place + 2 for place, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    )
    fast.save_pretrained(folder)


def sentences(count: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    return [
        " ".join(WORDS[place] for place in torch.randint(18, (8,), generator=generator)) for _ in range(count)
    ]
