"""Small losses and tensors that the tests of the theory share."""

import torch


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(seed, size):
    return torch.linalg.qr(gaussian(seed, size, size)).Q


def quadratic(target):
    """`|a - target|^2 / 2`: coordinates, or singular directions, are learned one by one."""
    return lambda a: ((a - target) ** 2).sum() / 2


def leaving_loss(a):
    """Coordinate 2 looks best alone, is in the way once 0 and 1 are there, and returns negative."""
    inputs = torch.stack([double(1.0, 0.0, 0.8), double(0.0, 1.0, 0.8), double(0.0, 0.0, 0.6)])
    return ((inputs @ a - double(1.0, 0.9, -0.3)) ** 2).sum() / 2


def double_well(a):
    """From 0 the flow stops in the first well, although a deeper one lies behind."""
    return (-2 * a + 1.5 * a**2 - 0.05 * a**5).sum() + 0.004 * (a**6).sum()
