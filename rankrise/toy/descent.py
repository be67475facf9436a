"""Plain gradient descent, as the paper trained its toy models: on diagonal weights or full matrices."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rankrise import predict
from rankrise.predict.types import DiagonalHead, FullHead
from rankrise.runs import Descent, FullWeights
from rankrise.runs.toy import ACTIVE, Network

POINTS, FULL_POINTS = 400, 500
LARGEST = 1e100
"""Losses and values beyond this have diverged."""
LARGE, FEW = 12, 3
"""For a full head above `LARGE` dimensions we predict the first `FEW` stages only: each takes long."""


def gradient_descent(
    network: Network, u0: Tensor, v0: Tensor, log10_alpha: float, step: float, until: float
) -> Descent:
    """Train from `alpha * (u0, v0)` with a fixed step to rescaled time `until`.

    As Euler's method on the flow it is late, by a part `step*g/2`.
    """

    def change(weights: Tensor) -> tuple[Tensor, Tensor]:
        u, v = weights
        loss, gradient = network.value_and_gradient(u * v)
        return loss, torch.stack([step * v * gradient, step * u * gradient])

    unit = -log10_alpha * math.log(10)
    steps = math.ceil(until * unit / step)
    active = torch.full_like(u0, math.inf)
    kept: list[tuple[float, Tensor, Tensor]] = []
    for number, loss, (u, v) in _descend(10**log10_alpha * torch.stack([u0, v0]), change, steps):
        values, time = u * v, number * step / unit
        active[(values.abs() >= ACTIVE) & active.isinf()] = time
        if number % math.ceil(steps / POINTS) == 0 or number == steps:
            kept.append((time, values, loss))
    times, curves, losses = zip(*kept, strict=True)
    rescaled = torch.tensor(times, dtype=torch.float64)
    message = _message(number == steps, until, step)
    return Descent(rescaled, torch.stack(curves), torch.stack(losses), active, step, log10_alpha, message)


def train_full_weights(
    network: Network, log10_scale: float, step: float, until: float, seed: int = 0
) -> FullWeights:
    """Gradient descent on four d x d matrices per head, from Gaussian entries of std `10**log10_scale`.

    Data and teacher are the diagonal network's. A single head's stages are predicted too, up to `until`.
    """

    def change(weights: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights.requires_grad_()
        loss = full_loss(network, weights)
        return loss.detach(), step * torch.autograd.grad(loss, weights)[0]

    dimension = network.inputs.shape[-1]
    layers, heads = (1, 1) if isinstance(network, DiagonalHead) else (network.layers, network.heads)
    source = torch.Generator().manual_seed(seed)
    start = torch.randn((4, layers, heads, dimension, dimension), generator=source, dtype=torch.float64)
    steps = math.ceil(until * -log10_scale * math.log(10) / step)
    kept: list[tuple[float, Tensor, Tensor, Tensor]] = []
    for number, loss, weights in _descend(10**log10_scale * start, change, steps):
        if number % math.ceil(steps / FULL_POINTS) == 0 or number == steps:
            products = (torch.linalg.svdvals(product).flatten() for product in _products(weights))
            kept.append((number * step, loss, *products))
    times, losses, key_queries, value_outputs = zip(*kept, strict=True)
    return FullWeights(
        torch.tensor(times, dtype=torch.float64),
        torch.stack(losses),
        torch.stack(key_queries),
        torch.stack(value_outputs),
        log10_scale,
        step,
        _message(number == steps, until, step),
        *(_predicted(network, until) if isinstance(network, DiagonalHead) else ()),
    )


def _descend(
    weights: Tensor, change: Callable[[Tensor], tuple[Tensor, Tensor]], steps: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number, the loss and the weights of each step, until they diverge."""
    for number in range(steps + 1):
        loss, less = change(weights)
        if not (loss < LARGEST and weights.detach().square().sum() < LARGEST):
            return
        yield number, loss, weights.detach()
        weights = weights.detach() - less


def _message(whole: bool, until: float, step: float) -> str:
    return f"Trained to rescaled time {until:g}." if whole else f"Diverged: take a step below {step:g}."


def _predicted(network: DiagonalHead, until: float) -> list[Tensor]:
    """The times at which each product of a full head reaches rank 1, 2 and so on."""
    head = FullHead(network.inputs, network.targets, network.objective)
    most = FEW if network.inputs.shape[-1] > LARGE else 10_000
    stages, found = predict.greedy(head, until=until, max_stages=most), []
    for product in range(2):
        ranks = {stage.rank: stage.time for stage in reversed(stages) if stage.product == product}
        found.append(torch.tensor([ranks[rank] for rank in sorted(ranks)], dtype=torch.float64))
    return found


def full_loss(network: Network, weights: Tensor) -> Tensor:
    """The loss of `network`'s data under full weights (4, layers, heads, d, d): W_K, W_Q, W_V, W_O."""
    key_query, value_output = _products(weights)
    state = network.inputs
    if isinstance(network, DiagonalHead):
        return network.loss_of(_attend(state, key_query[0, 0], value_output[0, 0]))
    for layer, (inward, outward) in enumerate(zip(network.feed_in, network.feed_out, strict=True)):
        pairs = zip(key_query[layer], value_output[layer], strict=True)
        state = state + sum(_attend(state, *pair) for pair in pairs)
        state = state + torch.nn.functional.gelu(state @ inward) @ outward.mT
    return network.loss_of(state)


def _attend(state: Tensor, key_query: Tensor, value_output: Tensor) -> Tensor:
    """softmax(X W_K W_Q^T X^T) X W_V W_O^T, Eq. 1."""
    return (state @ key_query @ state.mT).softmax(-1) @ (state @ value_output)


def _products(weights: Tensor) -> tuple[Tensor, Tensor]:
    keys, queries, values, outputs = weights
    return keys @ queries.mT, values @ outputs.mT
