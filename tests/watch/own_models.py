"""Models of attention of one's own, what they are called with, and whether their heads are read right."""

import own_attention as own
import torch
from torch import nn


def made(kind):
    """A model of a class that nothing was said about yet."""
    torch.manual_seed(1)
    return nn.Sequential(type(kind.__name__, (kind,), {})()).eval()


def batch():
    return torch.randn(2, 5, own.WIDTH, generator=torch.Generator().manual_seed(0))


def products(layer):
    return [*(layer.key @ layer.query.mT).double(), *(layer.value @ layer.output.mT).double()]


def true_products(module):
    query, key, value, output = module.heads()
    pairs = [*zip(key, query, strict=True), *zip(value, output, strict=True)]
    return [left @ right.T for left, right in pairs]


def is_right(layer, module):
    found, true = products(layer), true_products(module)
    return len(found) == len(true) and all(
        one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        for one, other in zip(found, true, strict=True)
    )
