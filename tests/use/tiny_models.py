"""Tiny models of the kinds that adapters are made for, a change of them, and a language of 18 words."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

WORDS = [f"w{number}" for number in range(18)]

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def llama(**others: Any) -> Any:
    given = {**SMALL, "num_key_value_heads": 1, "vocab_size": 20, "tie_word_embeddings": False, **others}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**given))


def gpt2() -> Any:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12, "vocab_size": 20}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    )


def bert() -> Any:
    config = transformers.BertConfig(**SMALL, vocab_size=20, max_position_embeddings=12, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def vit(channels: int = 1) -> Any:
    sizes = {**SMALL, "image_size": 8, "patch_size": 4, "num_channels": channels, "num_labels": 3}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def neox() -> Any:
    """Queries, keys and values in one matrix."""
    sizes = {**SMALL, "vocab_size": 20, "max_position_embeddings": 12, "tie_word_embeddings": False}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes))


MODELS: dict[str, Callable[[], Any]] = {"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit, "neox": neox}


def inputs(model: Any, examples: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if model.config.model_type == "vit":
        return {"pixel_values": torch.randn(examples, 1, 8, 8, generator=generator, dtype=model.dtype)}
    return {"input_ids": torch.randint(20, (examples, 6), generator=generator)}


def made(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype).eval()


def changed(model: nn.Module, size: float = 0.05, seed: int = 1) -> Any:
    """A copy whose every parameter has moved by random numbers."""
    torch.manual_seed(seed)
    tuned = deepcopy(model)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(size * torch.randn_like(parameter, dtype=torch.float32).to(parameter.dtype))
    return tuned


def imitation(tuned: Any) -> Callable[[Any], dict[str, float]]:
    """A loss that is least at the tuned model: cross-entropy against its own predictions."""
    batch = inputs(tuned, 8)
    with torch.no_grad():
        target = tuned(**batch).logits.softmax(-1)

    def evaluate(model: Any) -> dict[str, float]:
        logits = model(**batch).logits
        agreed = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        return {"loss": float(-(logits.log_softmax(-1) * target).sum(-1).mean()), "agreement": float(agreed)}

    return evaluate


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
