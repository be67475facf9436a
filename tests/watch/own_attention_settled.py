"""Attention modules of one's own that cannot be read, or are read wrongly, and whose message holds the very
family that settles them."""

import torch
from own_attention import HEADS, INSIDE, SIZE, WIDTH, Separate, attend, blocks, cut, linear, weight
from own_attention_odd import Square, TurnedLinear
from torch import nn
from torch.nn import functional


class OfTurnedLayers(Square):
    """Every layer keeps its weight as (in, out), and all sizes fit as `nn.Linear` has them too."""

    def tie(self):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, TurnedLinear(WIDTH, WIDTH, bias=False))

    def heads(self):
        query, key, value, output = (layer.weight.detach().double() for layer in self.children())
        return [*(blocks(one, 2) for one in (query, key, value)), blocks(output.T, 2)]


class OfWrappedTurnedLayers(OfTurnedLayers):
    """Each with dropout after it."""

    def tie(self):
        super().tie()
        for name, layer in list(self.named_children()):
            setattr(self, name, nn.Sequential(layer, nn.Dropout(0.1)))

    def heads(self):
        query, key, value, output = (layer[0].weight.detach().double() for layer in self.children())
        return [*(blocks(one, 2) for one in (query, key, value)), blocks(output.T, 2)]


class OwnConv(nn.Module):
    """Transformers' `Conv1D`, written again."""

    def __init__(self, takes, gives):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(takes, gives) / 3), nn.Parameter(torch.zeros(gives))

    def forward(self, x):
        return x @ self.weight + self.bias


class OfOwnConvAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_head, self.c_attn, self.c_proj = HEADS, OwnConv(WIDTH, 3 * INSIDE), OwnConv(INSIDE, WIDTH)

    def forward(self, x):
        return self.c_proj(attend(*map(cut, self.c_attn(x).chunk(3, -1))))

    def heads(self):
        fused, output = (layer.weight.detach().double() for layer in (self.c_attn, self.c_proj))
        return [*map(blocks, fused.chunk(3, -1)), blocks(output.T)]


class QueryAndKeyInOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads_here, self.to_qk = HEADS, linear(WIDTH, 2 * INSIDE)
        self.to_v, self.to_out = linear(WIDTH, INSIDE), linear(INSIDE, WIDTH)

    def forward(self, x):
        return self.to_out(attend(*map(cut, (*self.to_qk(x).chunk(2, -1), self.to_v(x)))))

    def heads(self):
        query, key = weight(self.to_qk).chunk(2, -1)
        return [*map(blocks, (query, key, weight(self.to_v))), blocks(weight(self.to_out).T)]


class OneForQueryAndKey(QueryAndKeyInOne):
    """As in Reformer."""

    def __init__(self):
        super().__init__()
        self.to_qk = linear(WIDTH, INSIDE)

    def forward(self, x):
        return self.to_out(attend(*map(cut, (self.to_qk(x), self.to_qk(x), self.to_v(x)))))

    def heads(self):
        both = blocks(weight(self.to_qk))
        return [both, both, blocks(weight(self.to_v)), blocks(weight(self.to_out).T)]


class ShapedInSequential(nn.Module):
    """Each projection cuts its heads itself."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.to_q, self.to_k, self.to_v = (
            nn.Sequential(linear(WIDTH, INSIDE), nn.Unflatten(-1, (HEADS, SIZE))) for _ in range(3)
        )
        self.to_out = nn.Sequential(nn.Flatten(2), linear(INSIDE, WIDTH))

    def forward(self, x):
        query, key, value = (layer(x).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v))
        return self.to_out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2))

    def heads(self):
        inputs = (blocks(weight(layer[0])) for layer in (self.to_q, self.to_k, self.to_v))
        return [*inputs, blocks(weight(self.to_out[1]).T)]


class SharedKeyAndValueInOne(nn.Module):
    """Two keys and values for four heads, in one layer."""

    def __init__(self):
        super().__init__()
        self.n_heads, self.n_kv_heads = HEADS, 2
        self.wq, self.wkv, self.wo = linear(WIDTH, INSIDE), linear(WIDTH, 4 * SIZE), linear(INSIDE, WIDTH)

    def forward(self, x):
        shared = (cut(one, 2).repeat_interleave(2, 1) for one in self.wkv(x).chunk(2, -1))
        return self.wo(attend(cut(self.wq(x)), *shared))

    def heads(self):
        both = (blocks(part, 2) for part in weight(self.wkv).chunk(2, -1))
        key, value = ([one, one, other, other] for one, other in both)
        return [blocks(weight(self.wq)), key, value, blocks(weight(self.wo).T)]


class SharedKeyAndValueFirst(nn.Module):
    """One layer, in it a key and a value for all heads, and then their queries."""

    groups = 1

    def __init__(self):
        super().__init__()
        self.n_heads, self.n_kv_heads = HEADS, self.groups
        self.qkv, self.proj = linear(WIDTH, INSIDE + 2 * self.groups * SIZE), linear(INSIDE, WIDTH)

    def apart(self, columns):
        per = HEADS // self.groups
        *shared, query = columns.unflatten(-1, (self.groups, -1)).split([SIZE, SIZE, per * SIZE], -1)
        return [
            query.flatten(-2).unflatten(-1, (HEADS, SIZE)),
            *(one.repeat_interleave(per, -2) for one in shared),
        ]

    def forward(self, x):
        return self.proj(attend(*(one.transpose(1, 2) for one in self.apart(self.qkv(x)))))

    def heads(self):
        inputs = (list(one.movedim(-2, 0)) for one in self.apart(weight(self.qkv)))
        return [*inputs, blocks(weight(self.proj).T)]


class SharedKeyAndValueFirstInGroups(SharedKeyAndValueFirst):
    groups = 2


class OnlyTheSizeOfHeads(nn.Module):
    """It does not say how many there are."""

    def __init__(self):
        super().__init__()
        self.head_dim, self.in_proj, self.out_proj = SIZE, linear(WIDTH, 3 * INSIDE), linear(INSIDE, WIDTH)

    def forward(self, x):
        return self.out_proj(attend(*map(cut, self.in_proj(x).chunk(3, -1))))

    def heads(self):
        return [*map(blocks, weight(self.in_proj).chunk(3, -1)), blocks(weight(self.out_proj).T)]


class WiderValuesInOne(nn.Module):
    key_size = 2

    def __init__(self):
        super().__init__()
        self.n_heads, self.widths = HEADS, [HEADS * self.key_size, HEADS * self.key_size, INSIDE]
        self.qkv, self.proj = linear(WIDTH, sum(self.widths)), linear(INSIDE, WIDTH)

    def forward(self, x):
        return self.proj(attend(*map(cut, self.qkv(x).split(self.widths, -1))))

    def heads(self):
        return [*map(blocks, weight(self.qkv).split(self.widths, -1)), blocks(weight(self.proj).T)]


class OneParameterAttention(nn.Module):
    """[3, heads, d_model, d_head]."""

    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.w_qkv = nn.Parameter(torch.randn(3, HEADS, WIDTH, SIZE) / 3)
        self.w_o = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 3)

    def forward(self, x):
        return attend(*torch.einsum("btd,nhds->nbhts", x, self.w_qkv)) @ self.w_o.flatten(0, 1)

    def heads(self):
        return [*map(list, self.w_qkv.detach().double()), list(self.w_o.detach().double().mT)]


class FusedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = linear(WIDTH, 3 * SIZE)

    def forward(self, x):
        return functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


class ListOfFusedHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.proj = nn.ModuleList(FusedHead() for _ in range(HEADS)), linear(INSIDE, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.each], -1))

    def heads(self):
        parts = [weight(head.qkv).chunk(3, -1) for head in self.each]
        return [*map(list, zip(*parts, strict=True)), blocks(weight(self.proj).T)]


class WholeHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(WIDTH, SIZE) for _ in range(3))
        self.o = linear(SIZE, WIDTH)

    def forward(self, x):
        return self.o(functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class SumOfHeads(nn.Module):
    """Each head has its own output projection."""

    def __init__(self):
        super().__init__()
        self.each = nn.ModuleList(WholeHead() for _ in range(HEADS))

    def forward(self, x):
        return sum(head(x) for head in self.each)

    def heads(self):
        inputs = [[weight(getattr(head, role)) for head in self.each] for role in "qkv"]
        return [*inputs, [weight(head.o).T for head in self.each]]


class ListOfLayersAttention(nn.Module):
    """Queries, keys, values and output in one list, as in the Annotated Transformer."""

    def __init__(self):
        super().__init__()
        self.h, self.linears = 2, nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        return self.linears[-1](attend(*(cut(layer(x), self.h) for layer in self.linears[:3])))

    def heads(self):
        inputs = [blocks(weight(layer), self.h) for layer in self.linears[:3]]
        return [*inputs, blocks(weight(self.linears[3]).T, self.h)]


SETTLED = [
    OfTurnedLayers,
    OfWrappedTurnedLayers,
    OfOwnConvAttention,
    QueryAndKeyInOne,
    OneForQueryAndKey,
    ShapedInSequential,
    SharedKeyAndValueInOne,
    OnlyTheSizeOfHeads,
    WiderValuesInOne,
    OneParameterAttention,
    ListOfFusedHeads,
    SumOfHeads,
    ListOfLayersAttention,
]


class OwnLoraOfSquare(Square):
    """No family reads it, though the sizes of its other layers would fit one."""

    def tie(self):
        self.q_proj = _WithFactors(WIDTH, WIDTH, bias=False)


class _WithFactors(nn.Linear):
    def __init__(self, *sizes, bias):
        super().__init__(*sizes, bias=bias)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.T @ self.lora_B.T


class WithoutOutput(Separate):
    def change(self):
        del self.o_proj
        self.forward = lambda x: attend(*self.parts(x))
