"""Every family: on a tiny random model, its heads give back the library's own logits and outputs.

A new family needs one row in one of the tables: how it is run, its types, and what its configuration needs.
"""

import math

import pytest
import torch
import transformers
from forward_proof import compare, prove
from timm_alone import timm
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from rankrise import watch

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
TINY |= {"vocab_size": 50, "max_position_embeddings": 64, "attn_implementation": "eager"}
TINY |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TOKENS, MAP, PIXELS = drawn(2, 2, 6, 32), drawn(3, 2, 32, 3, 3), drawn(1, 2, 3, 16, 16)
TEXT = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
RUNS = {
    "text": {"input_ids": TEXT},
    "image": {"pixel_values": PIXELS},
    "both": {"input_ids": TEXT, "decoder_input_ids": TEXT[:, :4]},
    "speech": {"input_features": drawn(4, 2, 8, 20), "decoder_input_ids": TEXT[:, :4]},
    "crossed": {"input_ids": TEXT, "encoder_hidden_states": drawn(5, 2, 5, 32)},
    "audio": {"input_values": drawn(6, 2, 200)},
    "film": {"pixel_values": torch.stack([PIXELS, PIXELS.flip(-1)], dim=1)},
}
LAYERS = {"both": 3, "speech": 3, "crossed": 2}
"""Attention layers in the tiny model, where they are not one."""
TRANSFORMERS = []


def families(run, names, **needs):
    """Model types with one configuration; the text after a comma tells two of one type apart."""
    TRANSFORMERS.extend((name.strip(), run, needs) for name in names.split(";"))


families("text", "gpt2; openai-gpt; gpt_neox; bloom; persimmon; bert; roberta; modernbert; deberta-v2")
families("text", "llama; mistral; qwen3; gemma; gemma3_text; glm", num_key_value_heads=2, head_dim=16)
families("text", "qwen2; olmo; olmo2; cohere; phi; phi3; stablelm; starcoder2", num_key_value_heads=2)
families("text", "gemma2", num_key_value_heads=2, attn_logit_softcapping=None, query_pre_attn_scalar=10)
families("text", "granite", num_key_value_heads=2, attention_multiplier=0.3)
families("text", "electra; albert", embedding_size=32)
families("text", "gptj; codegen", rotary_dim=4)
families("text", "imagegpt", hidden_size=64)  # heads of size 16: some versions cut the root to an integer
families("text", "gpt_neo", attention_types=[[["global"], 1]], num_layers=1, num_heads=4)
families("text", "gpt_neox_japanese", intermediate_multiple_size=1)
families("text", "gpt_bigcode, one key", multi_query=True)
families("text", "gpt_bigcode, a key per head", multi_query=False)
families("text", "falcon", new_decoder_architecture=True, num_kv_heads=2)
families("text", "falcon, one key", new_decoder_architecture=False, multi_query=True)
families("text", "falcon, a key per head", new_decoder_architecture=False, multi_query=False)
families("text", "mpt", d_model=32, n_heads=4, n_layers=1)
families("text", "opt", ffn_dim=32, word_embed_proj_dim=32)
families("text", "distilbert", dim=32, n_heads=4, n_layers=1, hidden_dim=32)
families("text", "xlm", emb_dim=32, n_layers=1, n_heads=4)
families("text", "ctrl", n_embd=32, dff=32, n_layer=1, n_head=4)
families("text", "esm", position_embedding_type="rotary", mask_token_id=3)
families("text", "mobilebert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32)
FULL = {"layer_types": ["full_attention"], "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
families("text", "gpt_oss", **FULL, **EXPERTS)
families("text", "qwen3_next", num_experts=0, mlp_only_layers=[0], use_cache=False, **FULL)
LATENT = {"kv_lora_rank": 5, "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 7}
LATENT |= {"num_key_value_heads": 4, "first_k_dense_replace": 1}
families("text", "deepseek_v2; minicpm3", q_lora_rank=6, **LATENT)
families("text", "deepseek_v3", q_lora_rank=6, attention_bias=True, **LATENT)
families("text", "deepseek_v3, whole queries", q_lora_rank=None, **LATENT)
families("crossed", "gpt2, crossed; bert, crossed", is_decoder=True, add_cross_attention=True)
families("both", "t5", d_model=32, d_kv=16, num_layers=1, num_heads=4, d_ff=32)
CODER = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
CODER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
families("both", "bart", **CODER)
families("speech", "whisper", num_mel_bins=8, max_source_positions=10, decoder_start_token_id=3, **CODER)
CONVOLUTIONS = {"conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
CONVOLUTIONS |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4}
families("audio", "wav2vec2", num_conv_pos_embedding_groups=2, **CONVOLUTIONS)
IMAGE = {"image_size": 16, "patch_size": 8, "num_channels": 3}
families("image", "vit; deit; dinov2; dinov3_vit; beit; clip_vision_model", **IMAGE)
families("image", "internvl_vision", **IMAGE | {"image_size": [16, 16], "patch_size": [8, 8]})
families("image", "siglip_vision_model", vision_use_head=False, **IMAGE)
families("film", "videomae", num_frames=2, tubelet_size=2, **IMAGE)
ONE = {"depths": [1], "num_attention_heads": [4]}
families("image", "swin", num_heads=[4], embed_dim=16, window_size=4, **ONE | IMAGE | {"patch_size": 2})
families("image", "segformer", hidden_sizes=[32], num_encoder_blocks=1, sr_ratios=[1], **ONE)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "run", "needs"), TRANSFORMERS, ids=[row[0] for row in TRANSFORMERS])
def test_transformers(family, run, needs):
    kind = family.split(",")[0]
    if kind not in CONFIG_MAPPING:
        pytest.skip("this version of transformers does not have it")
    if kind == "mpt" and transformers.__version__.startswith("4."):
        pytest.skip("its mask does not take float64 there")
    model = AutoModel.from_config(AutoConfig.for_model(kind, **TINY | needs))
    prove(model, lambda model: model(**RUNS[run]), LAYERS.get(run, 1))


def test_the_scale_by_layer_of_gpt2():
    needs = TINY | {"num_hidden_layers": 3, "scale_attn_by_inverse_layer_idx": True}
    config = AutoConfig.for_model("gpt2", **needs)
    prove(AutoModel.from_config(config), lambda model: model(**RUNS["text"]), 3)


def timm_model(name, **needs):
    return lambda: (timm.create_model(name, **needs), lambda model: model(PIXELS))


def alone(module):
    return nn.ModuleDict({"attention": module})


def called_with(*args):
    return lambda model: model["attention"](*args)


def timm_module(path, *args, given=(TOKENS,), **needs):
    library, _, kind = path.rpartition(".")
    return lambda: (alone(getattr(getattr(timm.models, library), kind)(*args, **needs)), called_with(*given))


VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 4, "num_classes": 3}
SWIN = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1,), "num_heads": (4,)}
RATIO = {"num_heads": 4, "attn_ratio": 2, "resolution": (2, 3)}
TIMM = {
    "vit": timm_model("vit_tiny_patch16_224", **VIT),
    "vit qk norm": timm_model("vit_tiny_patch16_224", **VIT, qk_norm=True),
    "beit": timm_model("beit_base_patch16_224", **VIT),
    "eva fused": timm_model("eva02_tiny_patch14_224", **VIT, qkv_fused=True),
    "eva split": timm_model("eva02_tiny_patch14_224", **VIT, qkv_fused=False),
    "swin": timm_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=3),
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
    "tiny_vit": timm_module("tiny_vit.Attention", 32, 8, **RATIO),
    "efficientformer": timm_module("efficientformer.Attention", 32, 8, **RATIO),
    "visformer": timm_module("visformer.Attention", 32, num_heads=4, given=(MAP,)),
}


@pytest.mark.parametrize("needs", [{}, {"bias": False}, {"kdim": 24, "vdim": 20}])
def test_torch_multihead_attention(needs):
    module = nn.MultiheadAttention(32, 4, batch_first=True, **needs).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    (layer,) = watch.heads(alone(module))
    keys, values = (drawn(7, 2, 5, needs.get(dim, 32)) for dim in ("kdim", "vdim"))
    output, weights = module(TOKENS, keys, values, average_attn_weights=False)
    with torch.no_grad():
        compare(layer, (TOKENS, keys, values), weights.log(), weights, output)


def attend(q, k, v):
    mixed = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v
    return mixed.transpose(1, 2).flatten(2)


def cut(parts, size):
    return [part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts]


class NanoGPT(nn.Module):
    """karpathy/nanoGPT, model.py: `c_attn` and `c_proj` as in GPT-2, but linear layers."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.n_head, self.n_embd = 4, 32

    def forward(self, x):
        return self.c_proj(attend(*cut(self.c_attn(x).split(self.n_embd, dim=2), 8)))


class LitGPT(nn.Module):
    """Lightning-AI/litgpt, model.py: grouped queries one after the other, rotary positions, maybe norms."""

    class config:
        n_head, n_query_groups, head_size, n_embd = 4, 2, 8, 32

    def __init__(self, norm_qk=False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(32, (4 + 2 * 2) * 8), nn.Linear(32, 32)
        self.norm_q, self.norm_k = (nn.RMSNorm(8) if norm_qk else None for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = cut(self.qkv(x).split((32, 16, 16), dim=-1), 8)
        if self.norm_q is not None:
            q, k = self.norm_q(q), self.norm_k(k)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        return self.proj(attend(q, *(part.repeat_interleave(2, dim=1) for part in (k, v))))


def apply_rope(x, cos, sin):
    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), dim=-1) * sin


class VitPytorch(nn.Module):
    """lucidrains/vit-pytorch, vit.py: heads of their own size, no biases, the output in a Sequential."""

    def __init__(self):
        super().__init__()
        self.heads, self.scale, self.norm = 4, 16**-0.5, nn.LayerNorm(32)
        self.to_qkv = nn.Linear(32, 3 * 4 * 16, bias=False)
        self.to_out = nn.Sequential(nn.Linear(4 * 16, 32), nn.Dropout(0.1))

    def forward(self, x):
        return self.to_out(attend(*cut(self.to_qkv(self.norm(x)).chunk(3, dim=-1), 16)))


class SplitAttention(nn.Module):
    """lucidrains' and diffusers' other form: `to_q` and a fused `to_kv`."""

    def __init__(self):
        super().__init__()
        self.heads = 4
        self.to_q, self.to_kv = nn.Linear(32, 32, bias=False), nn.Linear(24, 64)
        self.to_out = nn.Linear(32, 32)

    def forward(self, x, context):
        return self.to_out(attend(*cut((self.to_q(x), *self.to_kv(context).chunk(2, -1)), 8)))


ANGLES = torch.arange(6.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03] * 2)
HAND_WRITTEN = {
    "nanogpt": lambda: (alone(NanoGPT()), called_with(TOKENS)),
    "litgpt": lambda: (alone(LitGPT()), called_with(TOKENS, ANGLES.cos(), ANGLES.sin())),
    "litgpt norms": lambda: (alone(LitGPT(norm_qk=True)), called_with(TOKENS, ANGLES.cos(), ANGLES.sin())),
    "vit-pytorch": lambda: (alone(VitPytorch()), called_with(TOKENS)),
    "to_q to_kv": lambda: (alone(SplitAttention()), called_with(TOKENS, TOKENS[..., :24])),
}


@pytest.mark.parametrize("family", TIMM | HAND_WRITTEN)
def test_timm_and_what_people_copy_from_each_other(family):
    model, run = (TIMM | HAND_WRITTEN)[family]()
    prove(model, run, expected=1)


def test_xlnet():
    """Its einsums, as in XLNetRelativeAttention.forward."""
    config = AutoConfig.for_model("xlnet", d_model=24, n_layer=1, n_head=4, d_inner=8, vocab_size=9)
    model = AutoModel.from_config(config)
    (layer,) = watch.heads(model)
    attention, tokens, mixed = model.layer[0].rel_attn, torch.randn(5, 24), torch.randn(5, 4, 6)
    for part, weight in {"q": layer.query, "k": layer.key, "v": layer.value}.items():
        expected = torch.einsum("ih,hnd->nid", tokens, getattr(attention, part))
        torch.testing.assert_close(tokens @ weight, expected)
    expected = torch.einsum("ind,hnd->ih", mixed, attention.o)
    torch.testing.assert_close(torch.einsum("ind,nhd->ih", mixed, layer.output), expected)
