"""Plain gradient descent on the weights (u, v), as the paper trained its toy models."""

import math

import torch
from torch import Tensor

from rankrise.predict.types import DiagonalHead, DiagonalTransformer
from rankrise.runs.toy.curves import ACTIVE, Descent

Network = DiagonalHead | DiagonalTransformer

POINTS = 400
LARGEST = 1e100
"""Losses and values beyond this have diverged."""


def gradient_descent(
    network: Network, u0: Tensor, v0: Tensor, log10_alpha: float, step: float, until: float
) -> Descent:
    """Train from `alpha * (u0, v0)` with a fixed step to rescaled time `until`.

    It is Euler's method on the flow. On a plateau a weight grows by `1 + step*g` per step where the flow
    grows it by `exp(step*g)`, so that each stage comes late by a part `step*g/2`, which halves with the step.

    >>> from rankrise import predict
    >>> network = predict.diagonal_head(dimension=2, tokens=3, samples=20)
    >>> u0, v0 = predict.random_start(network)
    >>> descent = gradient_descent(network, u0, v0, log10_alpha=-2, step=0.02, until=1.0)
    >>> bool(descent.losses[-1] < descent.losses[0]), len(descent.times)
    (True, 232)
    """
    unit = -log10_alpha * math.log(10)
    steps = math.ceil(until * unit / step)
    every = math.ceil(steps / POINTS)
    u, v = 10**log10_alpha * u0, 10**log10_alpha * v0
    active = torch.full_like(u0, math.inf)
    kept: list[tuple[float, Tensor, Tensor]] = []
    message = f"Trained to rescaled time {until:g}."
    for number in range(steps + 1):
        a = u * v
        loss, gradient = network.value_and_gradient(a)
        time = number * step / unit
        if not (loss < LARGEST and a.abs().amax() < LARGEST):
            message = f"Stopped at step {number}: the loss is {loss.item()}; take a step below {step:g}."
            break
        active[(a.abs() >= ACTIVE) & active.isinf()] = time
        if number % every == 0 or number == steps:
            kept.append((time, a, loss))
        u, v = u - step * v * gradient, v - step * u * gradient
    times, values, losses = zip(*kept, strict=True)
    return Descent(
        torch.tensor(times, dtype=torch.float64),
        torch.stack(values),
        torch.stack(losses),
        active,
        step,
        log10_alpha,
        message,
    )
