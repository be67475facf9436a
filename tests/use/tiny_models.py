"""Tiny models of the kinds that adapters are made for, and a change of all their weights."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import nn

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
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL, vocab_size=20, max_position_embeddings=12, num_labels=3)
    )


def vit() -> Any:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    )


def neox() -> Any:
    """Queries, keys and values in one matrix."""
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            **SMALL, vocab_size=20, max_position_embeddings=12, tie_word_embeddings=False
        )
    )


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
