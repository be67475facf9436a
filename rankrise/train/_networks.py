"""The networks: transformers' ViT and GPT-2, drawn as the settings say; the ViT's layers, computed faster."""

from collections.abc import Iterable, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings

PADDING = 64  # fast kernels need aligned rows: the logits of GPT-2 have a multiple of this many columns


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
    scale_layers(model, settings.initialisation_scale, keep=("vit.embeddings.",))
    attend_without_mask(model.vit.layers)
    patches, last = model.vit.embeddings.patch_embeddings, model.vit.layers[-1]
    patches.forward = MethodType(forward_patches, patches)
    if settings.dropout == 0:
        last.forward = MethodType(forward_class_token, last)
        tokens = (settings.image_size // settings.patch_size) ** 2
        sizes_fit = tokens in (16, 64) and settings.head_size in (16, 32, 64, 128)
        if settings.attention == "short" and settings.precision == "bf16" and sizes_fit:
            use_our_kernels(model)
    return model


@torch.no_grad()
def redraw_projections(model: nn.Module, initialisation: str) -> None:
    """Draw the linear layers anew, the patch projection included, as "linear" or "truncated-normal"."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.reset_parameters()
            if initialisation == "truncated-normal":
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def language_model(settings: TrainSettings, vocabulary: int) -> nn.Module:
    """A `GPT2LMHeadModel`, its layers scaled; its logits have meaningless columns beyond the vocabulary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        sizes = {"vocab_size": vocabulary, "n_positions": settings.sequence_length}
        model = gpt2(settings, "GPT2LMHeadModel", **sizes)
    scale_layers(model, settings.initialisation_scale, keep=("transformer.wte.", "transformer.wpe."))
    attend_without_mask(model.transformer.h)
    model.lm_head.forward = MethodType(_forward_padded, model.lm_head)
    return model


def gpt2(settings: TrainSettings, kind: str, **own: Any) -> Any:
    """transformers' GPT-2 of that class, in the settings' sizes, drawn."""
    transformers = require("transformers", extra="train", purpose="training")
    configuration = transformers.GPT2Config(
        n_layer=settings.layers,
        n_head=settings.heads,
        n_embd=settings.hidden_size,
        n_inner=settings.mlp_size,
        resid_pdrop=settings.dropout,
        embd_pdrop=settings.dropout,
        attn_pdrop=settings.dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
        **own,
    )
    return getattr(transformers, kind)(configuration)


def _forward_padded(output: Any, hidden_states: Tensor) -> Tensor:
    """The output projection with rows of zeros up to a multiple of `PADDING`. [..., padded vocabulary]"""
    weight = nn.functional.pad(output.weight, (0, 0, 0, -len(output.weight) % PADDING))
    return nn.functional.linear(hidden_states, weight)


@torch.no_grad()
def scale_layers(model: nn.Module, scale: float, keep: tuple[str, ...]) -> None:
    """Multiply initial values by `scale`, but not of layer norms, of names in `keep`, or tied to those."""
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    kept = {id(parameter) for norm in norms for parameter in norm.parameters()}
    kept |= {id(parameter) for name, parameter in model.named_parameters() if name.startswith(keep)}
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.mul_(scale)


def attend_without_mask(layers: Iterable[nn.Module]) -> None:
    """Drop the attention mask that some versions make: no fused kernel takes it, and none here needs it."""
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0],))


class Unsummed(NamedTuple):
    """The residual stream and a branch that the next layer norm's kernel adds to it. [batch, tokens, d]"""

    stream: Tensor
    branch: Tensor
    bias: Tensor
    """The bias in `branch`, which gets its gradient in that kernel. [d]"""


def forward_patches(patches: Any, pixel_values: Tensor, **_: Any) -> Tensor:
    """`ViTPatchEmbeddings.forward` by a matrix product. [batch, channels, h, w] -> [batch, patches, d]"""
    weight, bias = patches.projection.weight, patches.projection.bias
    height, width = weight.shape[2:]
    grid = pixel_values.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    rows = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return nn.functional.linear(rows, weight.flatten(1), bias)


def forward_class_token(
    layer: Any, hidden_states: Tensor | Unsummed, attention_mask: None = None, **_: Any
) -> Tensor:
    """`ViTLayer.forward` for the class token alone, all that is read. [batch, tokens, d] -> [batch, 1, d]"""
    attention = layer.attention
    stream, normalised = _summed(hidden_states, layer.layernorm_before)
    query = attention.q_proj(normalised[:, :1])
    if isinstance(hidden_states, Unsummed) and stream.is_cuda:
        from rankrise.train._gpu.attention import class_attention

        packed, bias = _packed((attention.k_proj, attention.v_proj), normalised, attention.head_dim)
        by_head = query.unflatten(-1, (-1, attention.head_dim)).squeeze(1)
        mixed = class_attention(by_head, packed, bias, attention.scaling).unsqueeze(1)
    else:
        query, key, value = (
            projected.unflatten(-1, (-1, attention.head_dim))
            for projected in (query, attention.k_proj(normalised), attention.v_proj(normalised))
        )
        weights = ((query.to(normalised.dtype) * key).sum(-1, keepdim=True) * attention.scaling).softmax(1)
        mixed = (weights * value).sum(1, keepdim=True)
    token = stream[:, :1] + attention.o_proj(mixed.flatten(2))
    return token + layer.mlp(layer.layernorm_after(token))


def use_our_kernels(model: Any) -> None:
    """Let every layer but the last compute queries, keys and values by one product, read by our kernels."""
    if torch.cuda.is_available():
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise RankriseError(f"attention is short, which needs Triton ({error}): pass cudnn.") from error
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    for layer in model.vit.layers[:-1]:
        # The kernel takes powers of two; FSDP would take the bias away with its layer.
        if alone and model.config.hidden_size.bit_count() == 1:
            layer.forward = MethodType(_forward_layer, layer)
        else:
            layer.attention.forward = MethodType(_forward_attention, layer.attention)


def _forward_layer(layer: Any, hidden_states: Tensor | Unsummed, *_: Any, **__: Any) -> Unsummed:
    """`ViTLayer.forward`, but leave the last sum to the next layer's norm. [batch, tokens, d]"""
    attention, mlp = layer.attention, layer.mlp
    stream, normalised = _summed(hidden_states, layer.layernorm_before)
    mixed = _mixed_by_heads(attention, normalised)
    unsummed = Unsummed(stream, _bias_aside(attention.o_proj, mixed), attention.o_proj.bias)
    stream, normalised = _summed(unsummed, layer.layernorm_after)
    activation = mlp.activation_fn(mlp.fc1(normalised))
    return Unsummed(stream, _bias_aside(mlp.fc2, activation), mlp.fc2.bias)


def _summed(hidden_states: Tensor | Unsummed, norm: Any) -> tuple[Tensor, Tensor]:
    """The residual stream and its layer norm."""
    if isinstance(hidden_states, Tensor):
        return hidden_states, norm(hidden_states)
    stream, branch, bias = hidden_states
    if stream.is_cuda:
        from rankrise.train._gpu.residual_norm import residual_norm

        return residual_norm(stream, branch, bias, norm)
    stream = stream + branch
    return stream, norm(stream)


def _bias_aside(linear: Any, inputs: Tensor) -> Tensor:
    """Apply a linear layer; on a GPU our kernel computes the gradient of its bias."""
    bias = linear.bias.detach() if inputs.is_cuda else linear.bias
    return nn.functional.linear(inputs, linear.weight, bias)


def _forward_attention(attention: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """`ViTAttention.forward`. [batch, tokens, d]"""
    return attention.o_proj(_mixed_by_heads(attention, hidden_states)), None


def _mixed_by_heads(attention: Any, hidden_states: Tensor) -> Tensor:
    """Outputs of all heads, projected by one matrix product. [batch, tokens, heads * d_head]"""
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    packed, bias = _packed(parts, hidden_states, attention.head_dim)
    if hidden_states.is_cuda:
        from rankrise.train._gpu.attention import short_attention

        return short_attention(packed, bias, attention.scaling).flatten(2)
    query, key, value = packed.transpose(1, 3).unbind(2)
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
    return mixed.transpose(1, 2).flatten(2)


def _packed(parts: Sequence[Any], hidden_states: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """The tokens' projections [batch, tokens, parts, heads, d_head], and their biases (zeros for none)."""
    weight = torch.cat([part.weight for part in parts])
    missing = parts[0].bias is None
    bias = weight.new_zeros(len(weight)) if missing else torch.cat([part.bias for part in parts])
    shape = (len(parts), -1, head_size)
    held = bias.detach() if hidden_states.is_cuda else bias
    return nn.functional.linear(hidden_states, weight, held).unflatten(-1, shape), bias.unflatten(0, shape)
