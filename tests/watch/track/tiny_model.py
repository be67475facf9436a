"""A tiny model and its training, for every test of the tracker."""

import torch
from torch import nn

from rankrise import watch


class Tiny(nn.Module):
    """Two attention layers of two heads, dropout, an embedding and a classifier."""

    def __init__(self, width=8, heads=2, depth=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 11)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def tiny(seed=0, **sizes):
    torch.manual_seed(seed)
    return Tiny(**sizes)


def batch(step, device="cpu"):
    """The data of a step, whatever came before it."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, 11, (4, 6), generator=generator).to(device)


def loss_of(model, step):
    tokens = batch(step, next(model.parameters()).device)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def products(model):
    """KQ and VO of every layer and head [layers, heads, d, d], formed in full and in float64."""
    layers = list(watch.heads(model))
    query, key, value, output = (
        torch.stack([getattr(layer, role) for layer in layers]).double()
        for role in ("query", "key", "value", "output")
    )
    return {"KQ": key @ query.mT, "VO": value @ output.mT}


def train(model, steps, optimizer=None, after=lambda step, loss: None):
    """Train for those steps; `after(step, loss)` is called after each. Returns the losses."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in steps:
        loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(step, loss)
    return losses
