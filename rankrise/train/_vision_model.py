"""The vision transformer of transformers, its initial values drawn and scaled as the settings say."""

from typing import Any

import torch
from torch import nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._model import attend_without_mask, scale_layers
from rankrise.train._vision_layers import project_by_product, read_class_token_only, use_our_kernels

TOKEN_MAPPER = ("vit.embeddings.",)
"""Patch projection, class token and position embeddings, which are never scaled."""


def vision_transformer(settings: TrainSettings, channels: int, classes: int) -> nn.Module:
    """A `ViTForImageClassification`, which reads the class off the class token, without a pooler."""
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
        qkv_bias=settings.qkv_bias,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = transformers.ViTForImageClassification(configuration)
        if settings.initialisation != "normal":
            redraw_projections(model, settings.initialisation)
    scale_layers(model, settings.initialisation_scale, keep=TOKEN_MAPPER)
    attend_without_mask(model.vit.layers)
    project_by_product(model)
    if settings.dropout == 0:
        read_class_token_only(model)
    if settings.attention == "short" and our_kernels_serve(settings):
        use_our_kernels(model)
    network: nn.Module = model
    return network


@torch.no_grad()
def redraw_projections(model: nn.Module, initialisation: str) -> None:
    """Draw the linear layers anew, the patch projection included, as "linear" or "truncated-normal".

    Class token and position embeddings keep the library's values, of standard deviation 0.02.

    >>> layer = nn.Sequential(nn.Linear(400, 100))
    >>> redraw_projections(layer, "truncated-normal")
    >>> bool(layer[0].weight.abs().max() <= 0.04), layer[0].bias.abs().sum().item()
    (True, 0.0)
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.reset_parameters()
            if initialisation == "truncated-normal":
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def our_kernels_serve(settings: TrainSettings) -> bool:
    """Whether our kernels take these sizes; they compute in bfloat16, without dropout."""
    patches = (settings.image_size // settings.patch_size) ** 2
    sizes_fit = patches in (16, 64) and settings.head_size in (16, 32, 64, 128)
    return sizes_fit and settings.precision == "bf16" and settings.dropout == 0
