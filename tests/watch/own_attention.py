"""Attention modules as people write them. `family` is how a user teaches rankrise to read one."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

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


class HeadsInterleaved(Separate):
    def parts(self, x):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return [one(x).unflatten(-1, (SIZE, HEADS)).permute(0, 3, 1, 2) for one in layers]

    def family(self):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return Attention(*(linear(one).cut(HEADS, interleaved=True) for one in layers), linear(self.o_proj))


class OutputInterleaved(Separate):
    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)).unflatten(-1, (HEADS, SIZE)).mT.flatten(2))

    def family(self):
        plain = super().family()
        return Attention(plain.query, plain.key, plain.value, linear(self.o_proj).from_interleaved(HEADS))


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


class KeyAndValuePerHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.to_q, self.to_kv = layer(WIDTH, INSIDE), layer(WIDTH, 2 * INSIDE)
        self.to_out = layer(INSIDE, WIDTH)

    def forward(self, x):
        both = self.to_kv(x).unflatten(-1, (HEADS, 2, SIZE)).movedim(-2, 0)
        return self.to_out(attend(cut(self.to_q(x)), *both.transpose(2, 3)))

    def family(self):
        key, value = linear(self.to_kv).cut(HEADS).split(2)
        return Attention(linear(self.to_q).cut(HEADS), key, value, linear(self.to_out))


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
        parts = viewed.movedim([2 + self.axes.index(axis) for axis in "3h"], [0, 2])
        return self.proj(attend(*parts))

    def family(self):
        whole, dealt = linear(self.qkv), {"interleaved": True}
        read = {
            "3hd": lambda: [part.cut(HEADS) for part in whole.split(3)],
            "3dh": lambda: [part.cut(HEADS, **dealt) for part in whole.split(3)],
            "h3d": lambda: whole.cut(HEADS).split(3),
            "hd3": lambda: whole.cut(HEADS).split(3, **dealt),
            "d3h": lambda: whole.cut(HEADS, **dealt).split(3, **dealt),
            "dh3": lambda: [part.cut(HEADS, **dealt) for part in whole.split(3, **dealt)],
        }
        return Attention(*read[self.axes](), linear(self.proj))


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

    def family(self):
        return Attention(*linear(self.in_proj_weight).cut(2).split(3), linear(self.out_proj))


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


class Pruned(Separate):
    """The weight that a hook keeps as an attribute is the one of the last forward pass."""

    def change(self):
        prune.l1_unstructured(self.q_proj, "weight", 0.5)
        with torch.no_grad():
            self.q_proj.weight_orig.mul_(torch.randn(INSIDE, WIDTH))


class Tied(Separate):
    def change(self):
        self.k_proj = self.q_proj


class InARow(Separate):
    """Two layers and dropout, multiplied."""

    def change(self):
        self.q_proj = nn.Sequential(layer(WIDTH, 3), nn.Dropout(0.1), layer(3, INSIDE))


class TurnedLinear(nn.Linear):
    """Its weight is (in, out)."""

    def forward(self, x):
        return x @ self.weight


class OfTurnedLayers(Separate):
    """All sizes fit as `nn.Linear` has them too."""

    def change(self):
        self.n_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            TurnedLinear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def parts(self, x):
        return [cut(one(x), 2) for one in (self.q_proj, self.k_proj, self.v_proj)]

    def family(self):
        *inputs, output = (linear(one.weight.T) for one in self.children())
        return Attention(*(one.cut(2) for one in inputs), output)


class FromLatent(Separate):
    """Keys and values come up from one latent; a norm with weights may stand between."""

    normed = False

    def change(self):
        self.kv_down, self.middle_norm = layer(WIDTH, LATENT), nn.RMSNorm(LATENT) if self.normed else None
        self.k_proj, self.v_proj = layer(LATENT, INSIDE), layer(LATENT, INSIDE)

    def parts(self, x):
        latent = self.kv_down(x)
        latent = self.middle_norm(latent) if self.normed else latent
        return [cut(self.q_proj(x)), cut(self.k_proj(latent)), cut(self.v_proj(latent))]

    def family(self):
        scale = self.middle_norm.weight if self.normed else None
        key, value = (
            linear(self.kv_down).then(linear(one), scale).cut(HEADS) for one in (self.k_proj, self.v_proj)
        )
        return Attention(linear(self.q_proj).cut(HEADS), key, value, linear(self.o_proj))


class FromNormedLatent(FromLatent):
    """Its products are those without the norm's division."""

    normed = True


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
    *(Separate, HeadsInterleaved, OutputInterleaved, QueryAndKeyExchanged, SharedByDistantHeads),
    *(KeyAndValuePerHead, *FUSED, OwnMultihead, EinsumAttention, ListOfHeads, Parametrised, Pruned, Tied),
    *(InARow, OfTurnedLayers, FromLatent, SharedKeyPart),
]

# Heads that are no products of weights


class SignLinear(nn.Linear):
    """The weight that is kept is not the one that is used, as in bit nets."""

    def forward(self, x):
        return functional.linear(x, self.weight.sign())


class OfSigns(Separate):
    def change(self):
        self.q_proj = SignLinear(WIDTH, INSIDE, bias=False)


class HeadsOfSeveralSizes(Separate):
    def forward(self, x):
        inputs = (one(x).split((2, 4, 6, 12), -1) for one in (self.q_proj, self.k_proj, self.v_proj))
        mixed = [functional.scaled_dot_product_attention(*one) for one in zip(*inputs, strict=True)]
        return self.o_proj(torch.cat(mixed, -1))


class TalkingHeads(Separate):
    def change(self):
        self.mix = layer(HEADS, HEADS)

    def forward(self, x):
        query, key, value = self.parts(x)
        logits = self.mix((query @ key.mT).movedim(1, -1)).movedim(-1, 1)
        return self.o_proj((torch.softmax(logits, -1) @ value).transpose(1, 2).flatten(2))


class OutputSkipped(Separate):
    def forward(self, x):
        mixed = attend(*self.parts(x))
        return self.o_proj(mixed) + mixed[..., :WIDTH]


class QueryForBoth(Separate):
    """The layer called key is not used."""

    def parts(self, x):
        query, _, value = super().parts(x)
        return query, query, value


REFUTED = [OfSigns, HeadsOfSeveralSizes, TalkingHeads, OutputSkipped, QueryForBoth]

# Read rightly, and not all there is


class Difference(Separate):
    """Each head is the difference of two maps, of the two halves of its queries and keys."""

    def forward(self, x):
        query, key, value = self.parts(x)
        halves = zip(query.chunk(2, -1), key.chunk(2, -1), strict=True)
        one, two = (torch.softmax(first @ second.mT, -1) for first, second in halves)
        return self.o_proj(((one - two / 2) @ value).transpose(1, 2).flatten(2))


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


class NormFirst(Separate):
    def change(self):
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return super().forward(self.norm(x))


class WithSink(Separate):
    """Each head may look at nothing, by a logit that is learned."""

    def change(self):
        self.sink = nn.Parameter(torch.randn(HEADS, 1, 1))

    def forward(self, x):
        query, key, value = self.parts(x)
        logits = torch.cat([query @ key.mT, self.sink.expand(len(x), -1, x.shape[1], -1)], -1)
        mixed = torch.softmax(logits, -1)[..., :-1] @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class ConvolutionFirst(Separate):
    def change(self):
        self.mixer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return super().forward(self.mixer(x.mT).mT)


LIMITED = {
    Difference: "plain product",
    UnnamedNorm: "plain product",
    Gated: "gate",
    NormFirst: "norm",
    WithSink: "sink",
}
