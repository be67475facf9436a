"""Attention modules as people write them, each with its heads by its own arithmetic, in float64.

`heads` gives W_Q, W_K, W_V and W_O as lists of matrices [d_model, d_head], taken from the weights by hand.
That they are right is proved by a forward pass rebuilt from them (see `rebuilt`).
"""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

HEADS, SIZE, WIDTH = 4, 6, 10
INSIDE = HEADS * SIZE


def linear(takes, gives):
    return nn.Linear(takes, gives, bias=False)


def weight(layer):
    return layer.weight.detach().double().T


def blocks(matrix, count=HEADS):
    return list(matrix.unflatten(-1, (count, -1)).movedim(-2, 0))


def cut(tokens, count=HEADS):
    return tokens.unflatten(-1, (count, -1)).transpose(1, 2)


def attend(query, key, value):
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def rebuilt(module, x):
    """The forward pass from the heads alone."""
    result = 0
    for query, key, value, output in zip(*module.heads(), strict=True):
        logits = (x @ query) @ (x @ key).mT / query.shape[-1] ** 0.5
        result = result + torch.softmax(logits, -1) @ (x @ value) @ output.T
    return result


class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj = (linear(WIDTH, INSIDE) for _ in range(3))
        self.o_proj = linear(INSIDE, WIDTH)
        self.change()

    def change(self):
        """What makes it another module."""

    def parts(self, x):
        return [cut(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj)]

    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)))

    def heads(self):
        of_inputs = [blocks(weight(layer)) for layer in (self.q_proj, self.k_proj, self.v_proj)]
        return [*of_inputs, blocks(weight(self.o_proj).T)]


class HeadsInterleaved(Separate):
    def parts(self, x):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return [layer(x).unflatten(-1, (SIZE, HEADS)).permute(0, 3, 1, 2) for layer in layers]

    def heads(self):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        apart = [list(weight(layer).unflatten(-1, (SIZE, HEADS)).permute(2, 0, 1)) for layer in layers]
        return [*apart, blocks(weight(self.o_proj).T)]


class OutputInterleaved(Separate):
    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)).unflatten(-1, (HEADS, SIZE)).mT.flatten(2))

    def heads(self):
        output = weight(self.o_proj).T.unflatten(-1, (SIZE, HEADS)).permute(2, 0, 1)
        return [*super().heads()[:3], list(output)]


class QueryAndKeyExchanged(Separate):
    def parts(self, x):
        key, query, value = super().parts(x)
        return query, key, value

    def heads(self):
        key, query, value, output = super().heads()
        return [query, key, value, output]


class SharedByDistantHeads(Separate):
    """Head h uses key h % 2, as after `key.repeat(1, 2, 1, 1)`."""

    def change(self):
        self.n_kv_heads = 2
        self.k_proj, self.v_proj = linear(WIDTH, 2 * SIZE), linear(WIDTH, 2 * SIZE)

    def parts(self, x):
        shared = (cut(layer(x), 2).repeat(1, 2, 1, 1) for layer in (self.k_proj, self.v_proj))
        return [cut(self.q_proj(x)), *shared]

    def heads(self):
        shared = [2 * blocks(weight(layer), 2) for layer in (self.k_proj, self.v_proj)]
        return [blocks(weight(self.q_proj)), *shared, blocks(weight(self.o_proj).T)]


class KeyAndValuePerHead(nn.Module):
    order = (HEADS, 2, SIZE)

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.to_q, self.to_kv = linear(WIDTH, INSIDE), linear(WIDTH, 2 * INSIDE)
        self.to_out = linear(INSIDE, WIDTH)

    def forward(self, x):
        both = self.to_kv(x).unflatten(-1, self.order).movedim(-2, 0)
        return self.to_out(attend(cut(self.to_q(x)), *both.transpose(2, 3)))

    def heads(self):
        key, value = weight(self.to_kv).unflatten(-1, self.order).permute(2, 1, 0, 3)
        return [blocks(weight(self.to_q)), list(key), list(value), blocks(weight(self.to_out).T)]


class ValueBeforeKey(KeyAndValuePerHead):
    def forward(self, x):
        value, key = self.to_kv(x).chunk(2, -1)
        return self.to_out(attend(cut(self.to_q(x)), cut(key), cut(value)))

    def heads(self):
        value, key = weight(self.to_kv).chunk(2, -1)
        return [blocks(weight(self.to_q)), blocks(key), blocks(value), blocks(weight(self.to_out).T)]


class Fused(nn.Module):
    """One projection of queries (0), keys (1) and values (2): `axes` is how its width is viewed."""

    axes = "3hd"

    def __init__(self):
        super().__init__()
        self.n_heads, self.qkv, self.proj = HEADS, linear(WIDTH, 3 * INSIDE), linear(INSIDE, WIDTH)

    def apart(self, columns):
        """[..., width] as [3, heads, ..., size]."""
        sizes = {"3": 3, "h": HEADS, "d": SIZE}
        viewed = columns.unflatten(-1, [sizes[axis] for axis in self.axes])
        first = viewed.ndim - 3
        return viewed.movedim([first + self.axes.index(axis) for axis in "3h"], [0, 1])

    def forward(self, x):
        return self.proj(attend(*self.apart(self.qkv(x)).transpose(1, 2)))

    def heads(self):
        return [*map(list, self.apart(weight(self.qkv))), blocks(weight(self.proj).T)]


FUSED = [
    type(f"Fused_{axes}", (Fused,), {"axes": axes}) for axes in ("3hd", "3dh", "h3d", "hd3", "d3h", "dh3")
]


class OwnMultihead(nn.MultiheadAttention):
    """A subclass of torch's with a forward pass of its own, head by head."""

    def __init__(self):
        super().__init__(WIDTH, 2, bias=False, batch_first=True)

    def forward(self, x):
        fused = functional.linear(x, self.in_proj_weight).unflatten(-1, (2, 3, -1))
        return self.out_proj(attend(*fused.permute(3, 0, 2, 1, 4)))

    def heads(self):
        fused = self.in_proj_weight.detach().double().T.unflatten(-1, (2, 3, -1)).permute(2, 1, 0, 3)
        return [*map(list, fused), blocks(weight(self.out_proj).T, 2)]


class EinsumAttention(nn.Module):
    """Bare parameters [heads, d_model, d_head]; XLNet's have the same names and another order."""

    names = ("q", "k", "v", "o")

    def __init__(self):
        super().__init__()
        for name in self.names[:3]:
            setattr(self, name, nn.Parameter(torch.randn(HEADS, WIDTH, SIZE) / 3))
        setattr(self, self.names[3], nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 3))

    def forward(self, x):
        *inputs, output = (getattr(self, name) for name in self.names)
        mixed = attend(*(torch.einsum("btd,hds->bhts", x, one) for one in inputs))
        return mixed @ output.flatten(0, 1)

    def heads(self):
        *inputs, output = (getattr(self, name).detach().double() for name in self.names)
        return [*map(list, inputs), list(output.mT)]


class LensAttention(EinsumAttention):
    names = ("W_Q", "W_K", "W_V", "W_O")


class BareAttention(nn.Module):
    """`x @ self.wq`: (in, out), the other way round than `nn.Linear`."""

    def __init__(self):
        super().__init__()
        self.heads_here = HEADS
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(WIDTH, INSIDE) / 3) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(INSIDE, WIDTH) / 3)

    def forward(self, x):
        return attend(*(cut(x @ one) for one in (self.wq, self.wk, self.wv))) @ self.wo

    def heads(self):
        inputs = [blocks(one.detach().double()) for one in (self.wq, self.wk, self.wv)]
        return [*inputs, blocks(self.wo.detach().double().T)]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (linear(WIDTH, SIZE) for _ in range(3))

    def forward(self, x):
        return functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


class ListOfHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.proj = nn.ModuleList(Head() for _ in range(HEADS)), linear(INSIDE, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.each], -1))

    def heads(self):
        inputs = [[weight(getattr(head, role)) for head in self.each] for role in ("query", "key", "value")]
        return [*inputs, blocks(weight(self.proj).T)]


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.ModuleList(linear(WIDTH, SIZE) for _ in range(HEADS)) for _ in range(3))
        self.out = linear(INSIDE, WIDTH)

    def forward(self, x):
        inputs = (torch.stack([layer(x) for layer in several], 1) for several in (self.q, self.k, self.v))
        return self.out(attend(*inputs))

    def heads(self):
        return [
            *([weight(one) for one in several] for several in (self.q, self.k, self.v)),
            blocks(weight(self.out).T),
        ]


# Weights that are computed from others


class WeightNorm(Separate):
    def change(self):
        parametrizations.weight_norm(self.q_proj)
        parametrizations.orthogonal(self.k_proj)


class OldWeightNorm(Separate):
    """The weight that is kept as an attribute is the one of the last forward pass."""

    def change(self):
        nn.utils.weight_norm(self.q_proj)
        with torch.no_grad():
            self.q_proj.weight_v.add_(torch.randn(INSIDE, WIDTH))

    def heads(self):
        whole, scale = self.q_proj.weight_v.detach().double(), self.q_proj.weight_g.detach().double()
        return [blocks((scale * whole / whole.norm(dim=1, keepdim=True)).T), *super().heads()[1:]]


class Pruned(Separate):
    def change(self):
        prune.l1_unstructured(self.q_proj, "weight", 0.5)
        with torch.no_grad():
            self.q_proj.weight_orig.mul_(torch.randn(INSIDE, WIDTH))

    def heads(self):
        whole = (self.q_proj.weight_orig * self.q_proj.weight_mask).detach().double()
        return [blocks(whole.T), *super().heads()[1:]]


class Tied(Separate):
    def change(self):
        self.k_proj = self.q_proj


class TiedWeight(Separate):
    def change(self):
        self.k_proj.weight = self.q_proj.weight


class KeysAreValues(Separate):
    def change(self):
        self.v_proj = self.k_proj


class OneForAll(Separate):
    def change(self):
        self.k_proj = self.v_proj = self.q_proj


class LowRank(Separate):
    def change(self):
        self.q_proj = nn.Sequential(linear(WIDTH, 3), nn.Dropout(0.1), linear(3, INSIDE))

    def heads(self):
        plain = copy.copy(self)
        plain._modules = self._modules | {"q_proj": self.k_proj}
        return [blocks(weight(self.q_proj[0]) @ weight(self.q_proj[2])), *Separate.heads(plain)[1:]]


class WithDropout(Separate):
    def change(self):
        self.q_proj = nn.Sequential(self.q_proj, nn.Dropout(0.1))
        self.o_proj = nn.Sequential(self.o_proj, nn.Dropout(0.1))

    def heads(self):
        plain = copy.copy(self)
        plain._modules = self._modules | {"q_proj": self.q_proj[0], "o_proj": self.o_proj[0]}
        return Separate.heads(plain)


class WithNorm(Separate):
    """The product is the one without the norms."""

    def change(self):
        self.q_proj = nn.Sequential(self.q_proj, nn.LayerNorm(INSIDE))
        self.k_proj = nn.Sequential(self.k_proj, nn.LayerNorm(INSIDE))

    def heads(self):
        plain = copy.copy(self)
        plain._modules = self._modules | {"q_proj": self.q_proj[0], "k_proj": self.k_proj[0]}
        return Separate.heads(plain)


# Compressed (latent) attention, under names of one's own


class KeysFromLatent(Separate):
    latent = 5

    def change(self):
        self.kv_down = linear(WIDTH, self.latent)
        self.k_proj, self.v_proj = linear(self.latent, INSIDE), linear(self.latent, INSIDE)

    def parts(self, x):
        latent = self.kv_down(x)
        return [cut(self.q_proj(x)), cut(self.k_proj(latent)), cut(self.v_proj(latent))]

    def heads(self):
        down = weight(self.kv_down)
        shared = [blocks(down @ weight(layer)) for layer in (self.k_proj, self.v_proj)]
        return [blocks(weight(self.q_proj)), *shared, blocks(weight(self.o_proj).T)]


class KeysFromWideLatent(KeysFromLatent):
    """As wide as the tokens, so that no size tells."""

    latent = WIDTH
