"""Every family: on a tiny random model, its heads give back the library's own logits and outputs.

A new family needs one row here: how many attention layers its tiny model has, how to run it, its config.
"""

import math

import pytest
import torch
import transformers
from forward_proof import compare, prove
from timm_alone import timm
from tiny_heads import tiny
from torch import nn
from torch.nn import functional as F
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from rankrise import watch

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}  # 4 heads of size 16 on 32: not 32 / 4
IMAGE = {"image_size": 16, "patch_size": 8, "num_channels": 3}
TOKENS = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MAP = torch.randn(2, 32, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
TEXT = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def text(model):
    return model(input_ids=TEXT)


def image(model):
    return model(pixel_values=PIXELS)


def both(model):
    return model(input_ids=TEXT, decoder_input_ids=TEXT[:, :4])


def speech(model):
    return model(input_features=torch.randn(2, 8, 20, dtype=torch.float64), decoder_input_ids=TEXT[:, :4])


def crossed(model):
    return model(input_ids=TEXT, encoder_hidden_states=torch.randn(2, 5, 32, dtype=torch.float64))


def audio(model):
    return model(torch.randn(2, 200, dtype=torch.float64))


def film(model):
    return model(pixel_values=torch.stack([PIXELS, PIXELS.flip(-1)], dim=1))


CROSSED = {"is_decoder": True, "add_cross_attention": True}


LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 3,
    "v_head_dim": 7,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}

# family: attention layers in the tiny model, its inputs, what its configuration needs
TRANSFORMERS = {
    "gpt2": (1, text, {}),
    "gpt2 crossed": (2, crossed, CROSSED),
    "gpt2 by layer": (3, text, {"num_hidden_layers": 3, "scale_attn_by_inverse_layer_idx": True}),
    "openai-gpt": (1, text, {}),
    "imagegpt": (1, text, {"hidden_size": 64}),  # heads of size 16: some versions cut the root to an integer
    "gpt_neo": (1, text, {"attention_types": [[["global"], 1]], "num_layers": 1, "num_heads": 4}),
    "gptj": (1, text, {"rotary_dim": 4}),
    "codegen": (1, text, {"rotary_dim": 4}),
    "gpt_neox": (1, text, {}),
    "gpt_neox_japanese": (1, text, {"intermediate_multiple_size": 1}),
    "gpt_bigcode": (1, text, {"multi_query": True}),
    "gpt_bigcode heads": (1, text, {"multi_query": False}),
    "bloom": (1, text, {}),
    "falcon": (1, text, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon one key": (1, text, {"new_decoder_architecture": False, "multi_query": True}),
    "falcon heads": (1, text, {"new_decoder_architecture": False, "multi_query": False}),
    "mpt": (1, text, {"d_model": 32, "n_heads": 4, "n_layers": 1}),
    "opt": (1, text, {"ffn_dim": 32, "word_embed_proj_dim": 32}),
    "persimmon": (1, text, {}),
    "llama": (1, text, GROUPED),
    "mistral": (1, text, GROUPED),
    "deepseek_v2": (1, text, LATENT),
    "deepseek_v3": (1, text, LATENT | {"attention_bias": True}),
    "deepseek_v3 whole queries": (1, text, LATENT | {"q_lora_rank": None}),
    "minicpm3": (1, text, LATENT),
    "qwen2": (1, text, {"num_key_value_heads": 2}),
    "qwen3": (1, text, GROUPED),
    "gemma": (1, text, GROUPED),
    "gemma2": (1, text, GROUPED | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 10}),
    "gemma3_text": (1, text, GROUPED),
    "olmo": (1, text, {"num_key_value_heads": 2}),
    "olmo2": (1, text, {"num_key_value_heads": 2}),
    "cohere": (1, text, {"num_key_value_heads": 2}),
    "granite": (1, text, {"num_key_value_heads": 2, "attention_multiplier": 0.3}),
    "phi": (1, text, {"num_key_value_heads": 2}),
    "phi3": (1, text, {"num_key_value_heads": 2}),
    "stablelm": (1, text, {"num_key_value_heads": 2}),
    "starcoder2": (1, text, {"num_key_value_heads": 2}),
    "glm": (1, text, GROUPED),
    "gpt_oss": (
        1,
        text,
        GROUPED
        | {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "experts_implementation": "eager",
            "layer_types": ["full_attention"],
        },
    ),
    "bert": (1, text, {}),
    "bert crossed": (2, crossed, CROSSED),
    "roberta": (1, text, {}),
    "electra": (1, text, {"embedding_size": 32}),
    "albert": (1, text, {"embedding_size": 32}),
    "distilbert": (1, text, {"dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 32}),
    "modernbert": (1, text, {}),
    "xlm": (1, text, {"emb_dim": 32, "n_layers": 1, "n_heads": 4}),
    "esm": (1, text, {"position_embedding_type": "rotary", "mask_token_id": 3}),
    "mobilebert": (1, text, {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "deberta-v2": (1, text, {}),
    "t5": (3, both, {"d_model": 32, "d_kv": 16, "num_layers": 1, "num_heads": 4, "d_ff": 32}),
    "bart": (
        3,
        both,
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
        },
    ),
    "whisper": (
        3,
        speech,
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "decoder_start_token_id": 3,
        },
    ),
    "qwen3_next": (
        1,
        text,
        GROUPED
        | {"layer_types": ["full_attention"], "num_experts": 0, "mlp_only_layers": [0], "use_cache": False},
    ),
    "ctrl": (1, text, {"n_embd": 32, "dff": 32, "n_layer": 1, "n_head": 4}),
    "wav2vec2": (
        1,
        audio,
        {
            "conv_dim": [8, 8],
            "conv_stride": [5, 4],
            "conv_kernel": [10, 8],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
    "videomae": (1, film, IMAGE | {"num_frames": 2, "tubelet_size": 2}),
    "vit": (1, image, IMAGE),
    "deit": (1, image, IMAGE),
    "dinov2": (1, image, IMAGE),
    "dinov3_vit": (1, image, IMAGE),
    "beit": (1, image, IMAGE),
    "clip_vision_model": (1, image, IMAGE),
    "internvl_vision": (1, image, IMAGE | {"image_size": [16, 16], "patch_size": [8, 8]}),
    "siglip_vision_model": (1, image, IMAGE | {"vision_use_head": False}),
    "swin": (
        2,
        image,
        IMAGE
        | {
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "segformer": (
        1,
        image,
        {
            "depths": [1],
            "hidden_sizes": [32],
            "num_attention_heads": [4],
            "num_encoder_blocks": 1,
            "sr_ratios": [1],
        },
    ),
}


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_transformers(family):
    expected, run, needs = TRANSFORMERS[family]
    wants = {name: value for name, value in (TINY | needs).items() if value is not ...}
    if family.split()[0] not in CONFIG_MAPPING:
        pytest.skip("this version of transformers does not have it")
    if family == "mpt" and transformers.__version__.startswith("4."):
        pytest.skip("its mask does not take float64 there")
    config = AutoConfig.for_model(family.split()[0], **wants)
    prove(AutoModel.from_config(config), run, expected)


VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 4, "num_classes": 3}


def alone(module):
    return nn.ModuleDict({"attention": module})


def called_with(*args):
    return lambda model: model["attention"](*args)


def timm_model(name, **needs):
    return lambda: (timm.create_model(name, **needs), lambda model: model(PIXELS))


def timm_module(path, *args, given=(TOKENS,), **needs):
    library, _, kind = path.rpartition(".")
    return lambda: (alone(getattr(getattr(timm.models, library), kind)(*args, **needs)), called_with(*given))


TIMM = {
    "vit": timm_model("vit_tiny_patch16_224", **VIT),
    "vit qk norm": timm_model("vit_tiny_patch16_224", **VIT, qk_norm=True),
    "beit": timm_model("beit_base_patch16_224", **VIT),
    "eva fused": timm_model("eva02_tiny_patch14_224", **VIT, qkv_fused=True),
    "eva split": timm_model("eva02_tiny_patch14_224", **VIT, qkv_fused=False),
    "swin": timm_model(
        "swin_tiny_patch4_window7_224",
        img_size=16,
        patch_size=2,
        window_size=4,
        embed_dim=16,
        depths=(1,),
        num_heads=(4,),
        num_classes=3,
    ),
    "swin of another width": timm_module(
        "swin_transformer.WindowAttention", 32, 4, head_dim=16, window_size=2, given=(TOKENS[:, :4],)
    ),
    "cait class": timm_module("cait.ClassAttn", 32, 4),
    "pvt": timm_module("pvt_v2.Attention", 32, 4, given=(TOKENS, (2, 3))),
    "twins": timm_module("twins.GlobalSubSampleAttn", 32, 4, given=(TOKENS, (2, 3))),
    "crossvit": timm_module("crossvit.CrossAttention", 32, 4),
    "volo class": timm_module("volo.ClassAttention", 32, num_heads=4),
    "coatnet": timm_module("maxxvit.Attention2d", 32, dim_head=8, given=(MAP,)),
    "maxvit": timm_module("maxxvit.AttentionCl", 32, dim_head=8),
    "coatnet heads last": timm_module("maxxvit.Attention2d", 32, dim_head=8, head_first=False, given=(MAP,)),
    "tiny_vit": timm_module("tiny_vit.Attention", 32, 8, num_heads=4, attn_ratio=2, resolution=(2, 3)),
    "efficientformer": timm_module(
        "efficientformer.Attention", 32, 8, num_heads=4, attn_ratio=2, resolution=(2, 3)
    ),
    "visformer": timm_module("visformer.Attention", 32, num_heads=4, given=(MAP,)),
}


@pytest.mark.parametrize("family", TIMM)
def test_timm(family):
    model, run = TIMM[family]()
    prove(model, run, expected=1)


@pytest.mark.parametrize("needs", [{}, {"bias": False}, {"kdim": 24, "vdim": 20}])
def test_torch_multihead_attention(needs):
    module = nn.MultiheadAttention(32, 4, batch_first=True, **needs).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    (layer,) = watch.heads(alone(module))
    keys, values = (torch.randn(2, 5, needs.get(dim, 32), dtype=torch.float64) for dim in ("kdim", "vdim"))
    output, weights = module(TOKENS, keys, values, average_attn_weights=False)
    with torch.no_grad():
        compare(layer, (TOKENS, keys, values), weights.log(), weights, output)


class NanoGPT(nn.Module):
    """karpathy/nanoGPT, model.py: `c_attn` and `c_proj` as in GPT-2, but linear layers."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.n_head, self.n_embd = 4, 32
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


def apply_rope(x, cos, sin):
    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), dim=-1) * sin


class LitGPT(nn.Module):
    """Lightning-AI/litgpt, model.py: grouped queries one after the other, rotary positions, maybe norms."""

    class config:
        n_head, n_query_groups, head_size, n_embd = 4, 2, 8, 32

    def __init__(self, norm_qk=False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(32, (4 + 2 * 2) * 8), nn.Linear(32, 32)
        self.norm_q = nn.RMSNorm(8) if norm_qk else None
        self.norm_k = nn.RMSNorm(8) if norm_qk else None

    def forward(self, x, cos, sin):
        B, T, _ = x.size()
        q, k, v = self.qkv(x).split((32, 16, 16), dim=-1)
        q, k, v = (part.view(B, T, -1, 8).transpose(1, 2) for part in (q, k, v))
        if self.norm_q is not None:
            q, k = self.norm_q(q), self.norm_k(k)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        weights = torch.softmax(q @ k.mT / math.sqrt(8), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, T, 32))


class VitPytorch(nn.Module):
    """lucidrains/vit-pytorch, vit.py: heads of their own size, no biases, the output in a Sequential."""

    def __init__(self):
        super().__init__()
        self.heads, self.scale = 4, 16**-0.5
        self.norm, self.attend = nn.LayerNorm(32), nn.Softmax(dim=-1)
        self.to_qkv = nn.Linear(32, 3 * 4 * 16, bias=False)
        self.to_out = nn.Sequential(nn.Linear(4 * 16, 32), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        )
        out = self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class SplitAttention(nn.Module):
    """lucidrains' and diffusers' other form: `to_q` and a fused `to_kv`."""

    def __init__(self):
        super().__init__()
        self.heads = 4
        self.to_q = nn.Linear(32, 32, bias=False)
        self.to_kv = nn.Linear(24, 64)
        self.to_out = nn.Linear(32, 32)

    def forward(self, x, context):
        q, k, v = (
            t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (self.to_q(x), *self.to_kv(context).chunk(2, -1))
        )
        weights = (q @ k.mT * 8**-0.5).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


ANGLES = torch.arange(6.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03] * 2)
HAND_WRITTEN = {
    "nanogpt": (NanoGPT, (TOKENS,)),
    "litgpt": (LitGPT, (TOKENS, ANGLES.cos(), ANGLES.sin())),
    "litgpt norms": (lambda: LitGPT(norm_qk=True), (TOKENS, ANGLES.cos(), ANGLES.sin())),
    "vit-pytorch": (VitPytorch, (TOKENS,)),
    "to_q to_kv": (SplitAttention, (TOKENS, TOKENS[..., :24])),
}


@pytest.mark.parametrize("family", HAND_WRITTEN)
def test_hand_written(family):
    kind, given = HAND_WRITTEN[family]
    prove(alone(kind()), called_with(*given), expected=1)


def test_xlnet():
    model = AutoModel.from_config(
        AutoConfig.for_model("xlnet", d_model=24, n_layer=1, n_head=4, d_inner=8, vocab_size=9)
    )
    (layer,) = watch.heads(model)
    attention, tokens = model.layer[0].rel_attn, torch.randn(5, 24)
    for part in "qkv":
        weight = {"q": layer.query, "k": layer.key, "v": layer.value}[part]
        # As in XLNetRelativeAttention.forward.
        expected = torch.einsum("ih,hnd->nid", tokens, getattr(attention, part))
        torch.testing.assert_close(tokens @ weight, expected)
    mixed = torch.randn(5, 4, 6)
    expected = torch.einsum("ind,hnd->ih", mixed, attention.o)
    torch.testing.assert_close(torch.einsum("ind,nhd->ih", mixed, layer.output), expected)


# Notes on what acts between the products and the logits


@pytest.mark.parametrize(
    ("family", "needs", "marks"),
    [
        ("bert", {}, []),
        ("gpt2", {"n_embd": 24}, []),
        ("llama", {}, ["rotary"]),
        ("qwen3", {}, ["rotary", "normalised"]),
        (
            "swinv2",
            {"embed_dim": 24, "depths": [1], "num_attention_heads": ..., "num_heads": [4], "head_dim": ...},
            ["normalised"],
        ),
        ("longformer", {"attention_window": [2, 2]}, ["self.query_global, self.key_global"]),
        (
            "deberta-v2",
            {"relative_attention": True, "pos_att_type": ["c2p"], "share_att_key": False},
            ["pos_key_proj"],
        ),
        ("gpt_oss", {"num_local_experts": 2}, ["rotary", "sinks"]),
    ],
)
def test_what_stands_between_product_and_logits_is_marked(family, needs, marks):
    notes = watch.heads(tiny(family, **needs))[0].notes
    assert len(notes) == len(marks)
    assert all(mark in note for mark, note in zip(marks, notes, strict=True))
