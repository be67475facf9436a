"""The network for images: transformers' vision transformer, its initial values scaled as the paper does."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.optional import require
from rankrise.train.model import attend_without_mask, scale_layers
from rankrise.train.settings import TrainSettings

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
    if settings.attention == "short" and short_attention_serves(settings):
        use_short_attention(model)
    network: nn.Module = model
    return network


def read_class_token_only(model: Any) -> None:
    """Let the last layer compute its class token alone, since the classifier reads nothing else.

    The outputs and the gradients are the library's; a third of the last layer's work is left.
    """
    layer = model.vit.layers[-1]
    layer.forward = MethodType(_forward_class_token, layer)


def _forward_class_token(layer: Any, hidden_states: Tensor, attention_mask: None = None, **_: Any) -> Tensor:
    """`ViTLayer.forward` for the first token: it looks at all of them. [batch, tokens, d] -> [batch, 1, d]"""
    attention = layer.attention
    normalised = layer.layernorm_before(hidden_states)

    def heads_of(projected: Tensor) -> Tensor:
        """[batch, tokens, heads, d_head]"""
        return projected.unflatten(-1, (-1, attention.head_dim))

    query = heads_of(attention.q_proj(normalised[:, :1])).to(normalised.dtype)
    key, value = heads_of(attention.k_proj(normalised)), heads_of(attention.v_proj(normalised))
    weights = ((query * key).sum(-1, keepdim=True) * attention.scaling).softmax(1)
    mixed = (weights * value).sum(1, keepdim=True)
    token = hidden_states[:, :1] + attention.o_proj(mixed.flatten(2))
    return token + layer.mlp(layer.layernorm_after(token))


def short_attention_serves(settings: TrainSettings) -> bool:
    """Whether the kernel takes these sizes, in bfloat16."""
    patches = (settings.image_size // settings.patch_size) ** 2
    sizes_fit = patches in (16, 64) and settings.head_size in (16, 32, 64, 128)
    return sizes_fit and settings.precision == "bf16"


def use_short_attention(model: Any) -> None:
    """Give every layer but the last one product for queries, keys and values, and a kernel that reads it."""
    if torch.cuda.is_available():
        require("rankrise.train.short_attention", extra="train", purpose="attention short")
    for layer in model.vit.layers[:-1]:
        layer.attention.forward = MethodType(_forward_packed, layer.attention)


def _forward_packed(attention: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """`ViTAttention.forward` with one matrix product in place of three. [batch, tokens, d]"""
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    shape = (3, -1, attention.head_dim)
    if hidden_states.is_cuda:
        from rankrise.train.short_attention import short_attention

        packed = nn.functional.linear(hidden_states, weight, bias.detach()).unflatten(-1, shape)
        mixed = short_attention(packed, bias.unflatten(0, shape), attention.scaling)
    else:
        packed = nn.functional.linear(hidden_states, weight, bias).unflatten(-1, shape)
        query, key, value = packed.transpose(1, 3).unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
        mixed = mixed.transpose(1, 2)
    return attention.o_proj(mixed.flatten(2)), None


def project_by_product(model: Any) -> None:
    """Make tokens of patches by a matrix product: the library's convolution without changes of layout."""
    patches = model.vit.embeddings.patch_embeddings
    patches.forward = MethodType(_forward_patches, patches)


def _forward_patches(patches: Any, pixel_values: Tensor, **_: Any) -> Tensor:
    """`ViTPatchEmbeddings.forward`. [batch, channels, height, width] -> [batch, patches, d]"""
    weight, bias = patches.projection.weight, patches.projection.bias
    height, width = weight.shape[2:]
    grid = pixel_values.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    rows = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return nn.functional.linear(rows, weight.flatten(1), bias)
