"""PyTorch's own attention, timm, and the hand-written modules of nanoGPT, litgpt and vit-pytorch."""

import math

import pytest
import torch
from forward_proof import compare, prove
from timm_alone import timm
from torch import nn
from torch.nn import functional as F

from rankrise import watch

PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TOKENS = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MAP = torch.randn(2, 32, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
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


def test_a_layout_that_cannot_be_known_is_marked():
    (layer,) = watch.heads(alone(NanoGPT()))
    assert layer.notes == (
        "the one projection of NanoGPT is read as all queries, all keys, all values (not checked, see "
        "watch.check)",
    )
