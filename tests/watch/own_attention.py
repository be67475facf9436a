"""Attention modules as people write them. `family` is how a user teaches rankrise to read one."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from rankrise.watch import Attention, linear

HEADS, SIZE, WIDTH, LATENT = 4, 6, 10, 5
INSIDE = HEADS * SIZE


def layer(takes, gives):
    return nn.Linear(takes, gives, bias=False)


def cut(tokens, count=HEADS):
    return tokens.unflatten(-1, (count, -1)).transpose(1, 2)


def attend(query, key, value):
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj = (layer(WIDTH, INSIDE) for _ in range(3))
        self.o_proj = layer(INSIDE, WIDTH)
        self.change()

    def change(self):
        """What makes it another module."""

    def parts(self, x):
        return [cut(one(x)) for one in (self.q_proj, self.k_proj, self.v_proj)]

    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)))

    def family(self):
        inputs = (linear(one).cut(HEADS) for one in (self.q_proj, self.k_proj, self.v_proj))
        return Attention(*inputs, linear(self.o_proj))


class QueryAndKeyExchanged(Separate):
    def parts(self, x):
        key, query, value = super().parts(x)
        return query, key, value

    def family(self):
        plain = super().family()
        return Attention(plain.key, plain.query, plain.value, plain.output)


class SharedByDistantHeads(Separate):
    """Head h uses key h % 2, as after `key.repeat(1, 2, 1, 1)`."""

    def change(self):
        self.n_kv_heads = 2
        self.k_proj, self.v_proj = layer(WIDTH, 2 * SIZE), layer(WIDTH, 2 * SIZE)

    def parts(self, x):
        shared = (cut(one(x), 2).repeat(1, 2, 1, 1) for one in (self.k_proj, self.v_proj))
        return [cut(self.q_proj(x)), *shared]

    def family(self):
        key, value = (linear(one).cut(2) for one in (self.k_proj, self.v_proj))
        query = linear(self.q_proj).cut(HEADS)
        return Attention(query, key, value, linear(self.o_proj), group=(0, 1, 0, 1))


class Fused(nn.Module):
    """One projection of queries (0), keys (1) and values (2): `axes` is how its width is viewed."""

    axes = "3hd"

    def __init__(self, **changed):
        super().__init__()
        self.n_heads, self.qkv, self.proj = HEADS, layer(WIDTH, 3 * INSIDE), layer(INSIDE, WIDTH)
        vars(self).update(changed)

    def forward(self, x):
        sizes = {"3": 3, "h": HEADS, "d": SIZE}
        viewed = self.qkv(x).unflatten(-1, [sizes[axis] for axis in self.axes])
        return self.proj(attend(*viewed.movedim([2 + self.axes.index(axis) for axis in "3h"], [0, 2])))

    def family(self):
        if self.axes == "3hd":
            return Attention(*(part.cut(HEADS) for part in linear(self.qkv).split(3)), linear(self.proj))
        return Attention(*linear(self.qkv).cut(HEADS).split(3), linear(self.proj))


class FusedByHead(Fused):
    axes = "h3d"


class EinsumAttention(nn.Module):
    """Bare parameters [heads, d_model, d_head]."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(HEADS, WIDTH, SIZE) / 3) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 3)

    def forward(self, x):
        inputs = (torch.einsum("btd,hds->bhts", x, one) for one in (self.W_Q, self.W_K, self.W_V))
        return attend(*inputs) @ self.W_O.flatten(0, 1)

    def family(self):
        inputs = (linear(one.mT.flatten(0, 1)).cut(HEADS) for one in (self.W_Q, self.W_K, self.W_V))
        return Attention(*inputs, linear(self.W_O.flatten(0, 1).T))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (layer(WIDTH, SIZE) for _ in range(3))

    def forward(self, x):
        return functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


class ListOfHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.proj = nn.ModuleList(Head() for _ in range(HEADS)), layer(INSIDE, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.each], -1))

    def family(self):
        weights = ([getattr(head, role).weight for head in self.each] for role in ("query", "key", "value"))
        return Attention(*(linear(torch.cat(one)).cut(HEADS) for one in weights), linear(self.proj))


class Parametrised(Separate):
    def change(self):
        parametrizations.weight_norm(self.q_proj)
        parametrizations.orthogonal(self.k_proj)


class FromLatent(Separate):
    """Keys and values come up from one latent."""

    def change(self):
        self.kv_down = layer(WIDTH, LATENT)
        self.k_proj, self.v_proj = layer(LATENT, INSIDE), layer(LATENT, INSIDE)

    def parts(self, x):
        latent = self.kv_down(x)
        return [cut(self.q_proj(x)), cut(self.k_proj(latent)), cut(self.v_proj(latent))]

    def family(self):
        down = linear(self.kv_down)
        key, value = (down.then(linear(one)).cut(HEADS) for one in (self.k_proj, self.v_proj))
        return Attention(linear(self.q_proj).cut(HEADS), key, value, linear(self.o_proj))


class SharedKeyPart(Separate):
    """A part of the key is one for all heads, as in multi-head latent attention."""

    def change(self):
        self.q_proj, self.k_rest = layer(WIDTH, HEADS * (SIZE + 2)), layer(WIDTH, 2)

    def parts(self, x):
        query, key, value = super().parts(x)
        rest = self.k_rest(x)[:, None].expand(-1, HEADS, -1, -1)
        return query, torch.cat([key, rest], -1), value

    def family(self):
        plain = super().family()
        return Attention(plain.query, plain.key.with_shared(linear(self.k_rest)), plain.value, plain.output)


PLAIN = [
    *(Separate, QueryAndKeyExchanged, SharedByDistantHeads, Fused, FusedByHead, EinsumAttention, ListOfHeads),
    *(Parametrised, FromLatent, SharedKeyPart),
]
UNPROVED = (Parametrised, FromLatent, SharedKeyPart)
"""Read rightly by their family, and with heads computed from several weights, which cannot be tried apart."""

# Heads that are no products of weights


class SignLinear(nn.Linear):
    """The weight that is kept is not the one that is used, as in bit nets."""

    def forward(self, x):
        return functional.linear(x, self.weight.sign())


class OfSigns(Separate):
    def change(self):
        self.q_proj = SignLinear(WIDTH, INSIDE, bias=False)


class UnnamedNorm(Separate):
    """Queries and keys of length 1, by a function that no name shows."""

    def parts(self, x):
        query, key, value = super().parts(x)
        return functional.normalize(query, dim=-1), functional.normalize(key, dim=-1), value


class Gated(Separate):
    def change(self):
        self.gate = layer(WIDTH, INSIDE)

    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)) * self.gate(x).sigmoid())
