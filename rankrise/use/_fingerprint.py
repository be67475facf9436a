"""A few numbers of every linear layer, hashed: whether two models are the same, at the price of a glance."""

import hashlib

from rankrise.use._weights import Weights, linear_layers

ENTRIES = 64
"""Of each weight, evenly spaced."""


def fingerprint(weights: Weights) -> str:
    """The same for the same weights, on any device and in any dtype that holds them; tuning changes it.

    >>> import torch
    >>> from rankrise.use._weights import open_source
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    >>> before = fingerprint(open_source(model))
    >>> _ = model[0].weight.data.mul_(1.01)
    >>> len(before), fingerprint(open_source(model)) == before
    (16, False)
    """
    digest = hashlib.sha256()
    for matrix in linear_layers(weights.model):
        weight = weights.read(f"{matrix.name}.weight")
        if weight is not None:
            entries = weight.detach().flatten()[:: max(1, weight.numel() // ENTRIES)].float().cpu()
            digest.update(f"{matrix.name} {list(weight.shape)}\n".encode() + entries.numpy().tobytes())
    return digest.hexdigest()[:16]
