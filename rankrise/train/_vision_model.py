"""The network for images: transformers' vision transformer, its initial values scaled as the paper does."""

from typing import Any

import torch
from torch import nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._model import attend_without_mask, scale_layers
from rankrise.train._vision_layers import project_by_product, read_class_token_only, use_our_kernels

TOKEN_MAPPER = ("vit.embeddings.",)
"""What turns an image into tokens, never scaled: patch projection, class token, position embeddings."""


def vision_transformer(settings: TrainSettings, channels: int, classes: int) -> nn.Module:
    """A `ViTForImageClassification` with the library's initialisation, its layers scaled.

    The library draws weights, class token and position embeddings from a normal distribution of standard
    deviation 0.02 (the latter two truncated at 2, which never acts); biases are 0. It reads the class off the
    class token, after a last layer norm, without a pooler.
    """
    transformers = require("transformers", extra="train", purpose="training")
    configuration = transformers.ViTConfig(
        image_size=settings.image_size,
        patch_size=settings.patch_size,
        num_channels=channels,
        num_labels=classes,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.mlp_size,
        head_dim=settings.head_size,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = transformers.ViTForImageClassification(configuration)
    scale_layers(model, settings.initialisation_scale, keep=TOKEN_MAPPER)
    attend_without_mask(model.vit.layers)
    project_by_product(model)
    read_class_token_only(model)
    if settings.attention == "short" and our_kernels_serve(settings):
        use_our_kernels(model)
    network: nn.Module = model
    return network


def our_kernels_serve(settings: TrainSettings) -> bool:
    """Whether they take these sizes, in bfloat16."""
    patches = (settings.image_size // settings.patch_size) ** 2
    sizes_fit = patches in (16, 64) and settings.head_size in (16, 32, 64, 128)
    return sizes_fit and settings.precision == "bf16"
