"""Small losses, tensors and a plain flow that the tests of the theory share."""

import math

import numpy
import torch
from scipy.integrate import solve_ivp


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


def plain_products(network, starts, log10_alpha, times):
    """The products at rescaled times by scipy's DOP853 in (U, V): plain weights, plain autograd."""
    unit = -log10_alpha * math.log(10)
    tensors = [tensor for pair in zip(*starts, strict=True) for tensor in pair]
    sizes, shapes = [tensor.numel() for tensor in tensors], [tensor.shape for tensor in tensors]

    def weights(y):
        parts = torch.from_numpy(y).split(sizes)
        flat = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def rate(_, y):
        pairs = weights(y)
        products = [(u @ v.T).requires_grad_() for u, v in pairs]
        slopes = torch.autograd.grad(network(*products), products)
        moved = [part for (u, v), g in zip(pairs, slopes, strict=True) for part in (-g @ v, -g.T @ u)]
        return unit * torch.cat([part.flatten() for part in moved]).numpy()

    start = 10.0**log10_alpha * torch.cat([tensor.flatten() for tensor in tensors]).numpy()
    solved = solve_ivp(
        rate, (0, max(times)), start, "DOP853", t_eval=times, rtol=1e-9, atol=1e-5 * 10.0**log10_alpha
    )
    return [[u @ v.T for u, v in weights(numpy.ascontiguousarray(y))] for y in solved.y.T]
