"""Attention modules of one's own that are compressed under other names, or whose heads are no products of
weights, or that have more in their path than their projections."""

import torch
from own_attention import HEADS, INSIDE, SIZE, WIDTH, Separate, attend, blocks, cut, linear, weight
from torch import nn
from torch.nn import functional

LATENT, TURNED = 5, 2


class RenamedLatent(nn.Module):
    """DeepSeek's attention with names of its inference code: queries and keys have a part that is turned by
    positions, and that part of the key is shared."""

    compressed_queries = False

    def __init__(self):
        super().__init__()
        self.n_heads, self.own = HEADS, SIZE + 1
        if self.compressed_queries:
            self.wq_a, self.q_norm = linear(WIDTH, 7), nn.RMSNorm(7)
            self.wq_b = linear(7, HEADS * (self.own + TURNED))
            nn.init.uniform_(self.q_norm.weight, 0.5, 2.0)
        else:
            self.wq = linear(WIDTH, HEADS * (self.own + TURNED))
        self.wkv_a, self.kv_norm = linear(WIDTH, LATENT + TURNED), nn.RMSNorm(LATENT)
        self.wkv_b, self.wo = linear(LATENT, HEADS * (self.own + SIZE)), linear(INSIDE, WIDTH)
        nn.init.uniform_(self.kv_norm.weight, 0.5, 2.0)

    def forward(self, x):
        query = cut(self.wq_b(self.q_norm(self.wq_a(x))) if self.compressed_queries else self.wq(x))
        latent, shared = self.wkv_a(x).split([LATENT, TURNED], -1)
        key, value = cut(self.wkv_b(self.kv_norm(latent))).split([self.own, SIZE], -1)
        shared = shared[:, None].expand(-1, HEADS, -1, -1)
        query = torch.cat([query[..., : self.own], self.turn(query[..., self.own :])], -1)
        return self.wo(attend(query, torch.cat([key, self.turn(shared)], -1), value))

    @staticmethod
    def turn(pairs):
        angle = torch.arange(pairs.shape[-2]).to(pairs)
        one, two = pairs.unbind(-1)
        return torch.stack([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)

    def heads(self):
        if self.compressed_queries:
            query = (weight(self.wq_a) * self.q_norm.weight.detach().double()) @ weight(self.wq_b)
        else:
            query = weight(self.wq)
        down, shared = weight(self.wkv_a).split([LATENT, TURNED], -1)
        up = (down * self.kv_norm.weight.detach().double()) @ weight(self.wkv_b)
        pairs = [block.split([self.own, SIZE], -1) for block in blocks(up)]
        keys = [torch.cat([key, shared], -1) for key, _ in pairs]
        return [blocks(query), keys, [value for _, value in pairs], blocks(weight(self.wo).T)]


class RenamedLatentOfQueriesToo(RenamedLatent):
    compressed_queries = True


class NormedLatent(Separate):
    """Keys and values come up from one latent, each by a layer of its own, after a norm."""

    def change(self):
        self.squeeze, self.middle_norm = linear(WIDTH, LATENT), nn.RMSNorm(LATENT)
        self.k_proj = self.v_proj = None
        self.k_up, self.v_up = linear(LATENT, INSIDE), linear(LATENT, INSIDE)
        nn.init.uniform_(self.middle_norm.weight, 0.5, 2.0)

    def parts(self, x):
        latent = self.middle_norm(self.squeeze(x))
        return [cut(self.q_proj(x)), cut(self.k_up(latent)), cut(self.v_up(latent))]

    def heads(self):
        down = weight(self.squeeze) * self.middle_norm.weight.detach().double()
        up = [blocks(down @ weight(layer)) for layer in (self.k_up, self.v_up)]
        return [blocks(weight(self.q_proj)), *up, blocks(weight(self.o_proj).T)]


# Read wrongly if it were read at all


class LoraLinear(nn.Linear):
    """As in loralib: a linear layer with two factors beside its weight."""

    def __init__(self):
        super().__init__(WIDTH, INSIDE, bias=False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(INSIDE, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.T @ self.lora_B.T


class AroundLinear(nn.Module):
    """As in litgpt: a layer around a linear one, with two factors."""

    def __init__(self):
        super().__init__()
        self.linear = linear(WIDTH, INSIDE)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(INSIDE, 2))

    def forward(self, x):
        return self.linear(x) + x @ self.lora_A.T @ self.lora_B.T


AroundLinear.__name__ = "LoRALinear"


class OwnLora(Separate):
    def change(self):
        self.q_proj = LoraLinear()


class OwnLoraAround(Separate):
    def change(self):
        self.q_proj = AroundLinear()


class WithActivation(Separate):
    def change(self):
        self.q_proj = nn.Sequential(self.q_proj, nn.GELU())


class SignLinear(nn.Linear):
    """As in bit nets: the weight that is kept is not the one that is used."""

    def forward(self, x):
        return functional.linear(x, self.weight.sign())


class OfSigns(Separate):
    def change(self):
        self.q_proj = SignLinear(WIDTH, INSIDE, bias=False)


class TurnedLinear(nn.Linear):
    """Its weight is (in, out)."""

    def forward(self, x):
        return x @ self.weight


class OfTurned(Separate):
    """The sizes fit as `nn.Linear` has them too, for inputs of another width."""

    def change(self):
        self.n_heads = 2
        self.q_proj, self.k_proj = (TurnedLinear(INSIDE, WIDTH, bias=False) for _ in range(2))

    def parts(self, x):
        return [cut(layer(x), 2) for layer in (self.q_proj, self.k_proj, self.v_proj)]


class WithUnusedMatrix(Separate):
    def change(self):
        self.q_down = linear(WIDTH, WIDTH)


class HeadsOfSeveralSizes(Separate):
    sizes = (2, 4, 6, 12)

    def forward(self, x):
        inputs = (layer(x).split(self.sizes, -1) for layer in (self.q_proj, self.k_proj, self.v_proj))
        mixed = [functional.scaled_dot_product_attention(*one) for one in zip(*inputs, strict=True)]
        return self.o_proj(torch.cat(mixed, -1))


class Square(Separate):
    """All sizes are the same, so that any weight could be any other."""

    def change(self):
        self.n_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(WIDTH, WIDTH) for _ in range(4))
        self.tie()

    def tie(self):
        """Which of them are one."""

    def parts(self, x):
        return [cut(layer(x), 2) for layer in (self.q_proj, self.k_proj, self.v_proj)]

    def heads(self):
        of_inputs = [blocks(weight(layer), 2) for layer in (self.q_proj, self.k_proj, self.v_proj)]
        return [*of_inputs, blocks(weight(self.o_proj).T, 2)]


class OutputIsValue(Square):
    def tie(self):
        self.o_proj = self.v_proj


class OutputHasWeightOfQuery(Square):
    def tie(self):
        self.o_proj.weight = self.q_proj.weight


class TiedWithoutKeys(Square):
    """The one weight of queries and keys makes queries alone."""

    def tie(self):
        self.k_proj, self.rotary = self.q_proj, True

    def parts(self, x):
        return [cut(self.q_proj(x), 2), cut(x, 2), cut(self.v_proj(x), 2)]


class QueryInBothRoles(Square):
    def parts(self, x):
        return [cut(self.q_proj(x), 2), cut(self.q_proj(x), 2), cut(self.v_proj(x), 2)]


class OutputComesFirst(Square):
    def forward(self, x):
        return super().forward(self.o_proj(x))


class OutputSkipped(Square):
    def forward(self, x):
        mixed = attend(*self.parts(x))
        return self.o_proj(mixed) + mixed


class QueryComesLast(Square):
    """As a bare weight, so that no call of a layer is seen."""

    def forward(self, x):
        return super().forward(x) @ self.q_proj.weight


class TokensBesideQueries(Square):
    def parts(self, x):
        query, key, value = super().parts(x)
        return query + cut(x, 2), key, value


class UsedTwice(Square):
    def parts(self, x):
        return [cut(tokens, 2) for tokens in (self.q_proj(self.q_proj(x)), self.k_proj(x), self.v_proj(x))]


class TalkingHeads(Separate):
    def change(self):
        self.mix = linear(HEADS, HEADS)

    def forward(self, x):
        query, key, value = self.parts(x)
        logits = self.mix((query @ key.mT).movedim(1, -1)).movedim(-1, 1)
        return self.o_proj((torch.softmax(logits, -1) @ value).transpose(1, 2).flatten(2))


class WithoutSoftmax(Separate):
    def forward(self, x):
        query, key, value = self.parts(x)
        query, key = functional.elu(query) + 1, functional.elu(key) + 1
        mixed = query @ (key.mT @ value) / (query @ key.sum(2)[..., None])
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


# Read rightly, and not all there is


class Difference(Separate):
    """Each head is the difference of two maps, of the two halves of its queries and keys."""

    def forward(self, x):
        query, key, value = self.parts(x)
        one, two = (
            torch.softmax(first @ second.mT, -1)
            for first, second in zip(query.chunk(2, -1), key.chunk(2, -1), strict=True)
        )
        return self.o_proj(((one - two / 2) @ value).transpose(1, 2).flatten(2))


class UnnamedNorm(Separate):
    """Queries and keys of length 1, by a function that no name tells of."""

    def parts(self, x):
        query, key, value = super().parts(x)
        return functional.normalize(query, dim=-1), functional.normalize(key, dim=-1), value


class Gated(Separate):
    def change(self):
        self.gate = linear(WIDTH, INSIDE)

    def forward(self, x):
        return self.o_proj(attend(*self.parts(x)) * self.gate(x).sigmoid())


class NormFirst(Separate):
    def change(self):
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return super().forward(self.norm(x))


class ConvolutionFirst(Separate):
    def change(self):
        self.mixer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return super().forward(self.mixer(x.mT).mT)


class WithSink(Separate):
    """Each head may look at nothing, by a logit that is learned."""

    def change(self):
        self.sink = nn.Parameter(torch.randn(HEADS, 1, 1))

    def forward(self, x):
        query, key, value = self.parts(x)
        logits = torch.cat([query @ key.mT, self.sink.expand(len(x), -1, x.shape[1], -1)], -1)
        mixed = torch.softmax(logits, -1)[..., :-1] @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))
