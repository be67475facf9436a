"""Tiny models of the kinds that adapters are made for, a change of them, and a language of 18 words."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

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


MOE = {**SMALL, "num_key_value_heads": 1, "vocab_size": 20, "head_dim": 8, "tie_word_embeddings": False}


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**MOE, num_local_experts=4))


def qwen3() -> Any:
    sizes = {**MOE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, mlp_only_layers=[1]))


def qwen2() -> Any:
    sizes = {**MOE, "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 8}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes, num_experts_per_tok=2))


def gpt_oss() -> Any:
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**MOE, num_local_experts=4, num_experts_per_tok=2)
    )


def resnet() -> Any:
    sizes = {"embedding_size": 6, "hidden_sizes": [6, 10], "depths": [2, 1], "layer_type": "bottleneck"}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=3))


class UNet(nn.Module):
    """Every kind of convolution, an embedding, and a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, 1, 1))
        self.time = nn.Embedding(5, 6)
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.middle = nn.Sequential(
            nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 3, padding="same")
        )
        self.wide = nn.Conv2d(6, 6, 3, dilation=2, padding=2)
        self.grouped = nn.Conv2d(6, 6, 3, groups=3, padding=1)
        self.line = nn.Conv1d(6, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x) * self.scale + self.time(torch.tensor([2]))[:, :, None, None]
        x = self.grouped(self.wide(self.middle(x)))
        return self.up(self.line(x.flatten(2)).unflatten(2, x.shape[2:]))


PLAIN: dict[str, Callable[[], Any]] = {"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit, "neox": neox}
SPARSE: dict[str, Callable[[], Any]] = {
    "mixtral": mixtral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gpt_oss": gpt_oss,
}
MODELS: dict[str, Callable[[], Any]] = {**PLAIN, **SPARSE, "resnet": resnet, "unet": UNet}


def inputs(model: Any, examples: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, UNet):
        return {"x": torch.randn(examples, 3, 16, 16, generator=generator)}
    if model.config.model_type == "resnet":
        return {"pixel_values": torch.randn(examples, 3, 32, 32, generator=generator, dtype=model.dtype)}
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
