"""The networks: transformers' ViT and GPT-2, their initial values drawn and scaled as the settings say."""

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.optional import require
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._vision_layers import forward_class_token, forward_patches, use_our_kernels

PADDING = 64  # fast kernels need aligned rows: the logits of GPT-2 have a multiple of this many columns
OFFSET = 2.0  # deviation of the read-in's bias, beside which layer norms do not hide the size of x and y


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


class InContextRegressor(nn.Module):
    """GPT-2 that reads tokens (x, y) and predicts the y of the last one (Garg et al., NeurIPS 2022)."""

    def __init__(self, transformer: Any, features: int) -> None:
        super().__init__()
        size = transformer.config.hidden_size
        self.config = transformer.config
        self.read_in = nn.Linear(features + 1, size)
        self.transformer = transformer
        self.read_out = nn.Linear(size, 1)
        nn.init.orthogonal_(self.read_in.weight, gain=(size / (features + 1)) ** 0.5)
        nn.init.normal_(self.read_in.bias, std=OFFSET)
        nn.init.normal_(self.read_out.weight, std=size**-0.5)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, pairs + 1, features + 1] -> [batch]"""
        hidden = self.transformer.drop(self.read_in(tokens) + self.transformer.wpe.weight)
        for layer in self.transformer.h:
            hidden = layer(hidden)
        return self.read_out(self.transformer.ln_f(hidden[:, -1])).squeeze(1)


def regression_model(settings: TrainSettings) -> nn.Module:
    """An `InContextRegressor` with GPT-2's initialisation, its layers scaled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        transformer = gpt2(
            settings,
            "GPT2Model",
            vocab_size=1,  # tokens come as vectors
            n_positions=settings.pairs + 1,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one operation
        )
        model = InContextRegressor(transformer, len(settings.variances))
    del model.transformer.wte
    scale_layers(model, settings.initialisation_scale, keep=("read_in.", "read_out.", "transformer.wpe."))
    if settings.dropout == 0:
        last = model.transformer.h[-1]
        last.forward = MethodType(_forward_last_token, last)
    return model


def _forward_last_token(layer: Any, hidden_states: Tensor) -> Tensor:
    """`GPT2Block.forward` for the last token, the only one that is read. [batch, n, d] -> [batch, 1, d]"""
    attention, last = layer.attn, hidden_states[:, -1:]
    query, key, value = (
        part.unflatten(-1, (-1, attention.head_dim))
        for part in attention.c_attn(layer.ln_1(hidden_states)).chunk(3, dim=-1)
    )
    weights = ((query[:, -1:] * key).sum(-1, keepdim=True) * attention.head_dim**-0.5).softmax(1)
    last = last + attention.c_proj((weights * value).sum(1, keepdim=True).flatten(2))
    return last + layer.mlp(layer.ln_2(last))


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
