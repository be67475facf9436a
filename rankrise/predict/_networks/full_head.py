"""An attention head with full weight matrices, taught by a random one; its derivatives in closed form.

A token x attends with `z = A_KQ^T x`: its weights are the softmax of `z . x_b` over the tokens b, and its
output is `A_VO^T m(z)`, m being the mean of the tokens under these weights. The derivatives of m in z are the
covariance and the third cumulant of the tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks import data
from rankrise.predict._networks.head import diagonal_head

Teacher = Literal["diagonal", "full"]


@dataclass(frozen=True, eq=False)
class FullHead:
    """The loss of a softmax attention head, as a function of `W_K W_Q^T` and `W_V W_O^T`.

    The head computes `softmax(X W_K W_Q^T X^T) X W_V W_O^T` (Eq. 1 with full weights, without 1/sqrt(d)).
    `inputs` and `targets` are (samples, tokens, d) in float64; the products of `teacher` set the targets.
    """

    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    teacher: tuple[Tensor, Tensor] | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(d, d) for both products."""
        dimension = self.inputs.shape[-1]
        return ((dimension, dimension),) * 2

    def label(self, product: int) -> str:
        """The name of a product."""
        return ("KQ", "VO")[product]

    def __call__(self, key_query: Tensor, value_output: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        _, means = _attend(self.inputs, key_query)
        return data.mean_loss(means @ value_output, self.targets, self.objective)

    @torch.no_grad()
    def value_and_gradient(self, key_query: Tensor, value_output: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d, d) per product."""
        here = _Derivatives(self, key_query, value_output)
        return here.value, here.gradients()

    @torch.no_grad()
    def hessian(self, key_query: Tensor, value_output: Tensor) -> Tensor:
        """The exact Hessian (2 d^2, 2 d^2) in all entries, row by row and product by product."""
        return _Derivatives(self, key_query, value_output).hessian()

    @torch.no_grad()
    def hessian_product(self, key_query: Tensor, value_output: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from one direction (d, d) per product to one result per product."""
        return _Derivatives(self, key_query, value_output).hessian_product


def full_head(
    dimension: int = 6,
    tokens: int = 10,
    samples: int = 200,
    seed: int = 0,
    objective: Objective = "squared",
    teacher: Teacher = "diagonal",
    device: str | torch.device = "cpu",
) -> FullHead:
    """A head with full weights on Gaussian tokens; the paper's toy has dimension 50 and 1000 samples.

    With the `"diagonal"` teacher it has the data and the targets of `diagonal_head` with the same seed, so
    that both learn the same function. The `"full"` one has Gaussian matrices, scaled so that its products are
    about as large.

    >>> network = full_head(dimension=3, tokens=4, samples=5)
    >>> network.shapes, network.label(1), float(network(*network.teacher))
    (((3, 3), (3, 3)), 'VO', 0.0)
    """
    if teacher == "diagonal":
        diagonal = diagonal_head(dimension, tokens, samples, seed, objective, device)
        assert diagonal.teacher is not None
        first, second = map(torch.diag, diagonal.teacher.chunk(2))
        return FullHead(diagonal.inputs, diagonal.targets, objective, (first, second))
    source = torch.Generator().manual_seed(seed)
    inputs = data.gaussian(source, samples, tokens, dimension)
    key, query, value, output = (data.gaussian(source, dimension, dimension) for _ in range(4))
    key_query, value_output = key @ query.T / dimension, value @ output.T / dimension
    targets = data.targets_of(_attend(inputs, key_query)[1] @ value_output, objective)
    products = key_query.to(device), value_output.to(device)
    return FullHead(inputs.to(device), targets.to(device), objective, products)


def _attend(inputs: Tensor, key_query: Tensor) -> tuple[Tensor, Tensor]:
    """The attention weights (n, t, t), and the means (n, t, d) of the tokens under them."""
    weights = (inputs @ key_query @ inputs.mT).softmax(-1)
    return weights, weights @ inputs


class _Derivatives:
    """The loss of a head at some products, and its derivatives there."""

    def __init__(self, network: FullHead, key_query: Tensor, value_output: Tensor) -> None:
        self.inputs, self.objective, self.value_output = network.inputs, network.objective, value_output
        self.weights, self.means = _attend(network.inputs, key_query)
        outputs, targets = self.means @ value_output, network.targets
        self.value = data.mean_loss(outputs, targets, network.objective)
        if network.objective == "squared":
            self.slope = (outputs - targets) / len(outputs)
        else:
            self.likelihood = outputs.softmax(-1)
            self.slope = (targets.sum(-1, keepdim=True) * self.likelihood - targets) / len(outputs)

    def gradients(self) -> list[Tensor]:
        """The gradient (d, d) per product."""
        pushed = (self.slope @ self.value_output.T) @ self.inputs.mT
        scores = self.weights * data.centred(pushed, self.weights)
        return [_outer(self.inputs, scores @ self.inputs), _outer(self.means, self.slope)]

    def hessian_product(self, key_query: Tensor, value_output: Tensor) -> list[Tensor]:
        """The Hessian times a direction (d, d) per product."""
        inputs, weights = self.inputs, self.weights
        moved_weights = weights * data.centred(inputs @ key_query @ inputs.mT, weights)
        moved_means = moved_weights @ inputs
        slope = self._metric(moved_means @ self.value_output + self.means @ value_output)
        pushed = (self.slope @ self.value_output.T) @ inputs.mT
        changed = (slope @ self.value_output.T + self.slope @ value_output.T) @ inputs.mT
        drift = (moved_weights * pushed + weights * changed).sum(-1, keepdim=True)
        scores = moved_weights * data.centred(pushed, weights) + weights * (changed - drift)
        of_value_output = _outer(moved_means, self.slope) + _outer(self.means, slope)
        return [_outer(inputs, scores @ inputs), of_value_output]

    def hessian(self) -> Tensor:
        """The whole Hessian: (2 d^2, 2 d^2), one product's entries after the other's."""
        dimension = self.inputs.shape[-1]
        x, slope, means = (part.flatten(0, 1) for part in (self.inputs, self.slope, self.means))
        metric = self._metric(torch.eye(dimension, dtype=x.dtype, device=x.device))
        metric = metric.expand(*self.inputs.shape, dimension).flatten(0, 1)
        # The covariance of the tokens per token (r, d, d), and the third cumulant along its slope.
        centred = self.inputs[:, None] - self.means[:, :, None]
        along = torch.einsum("ntbi,nti->ntb", centred, self.slope @ self.value_output.T)
        covariance, third = (
            torch.einsum("ntb,ntbi,ntbj->ntij", weights, centred, centred).flatten(0, 1)
            for weights in (self.weights, self.weights * along)
        )
        reach = covariance @ self.value_output
        blocks = (
            torch.einsum("ri,rk,rjl->ijkl", x, x, reach @ metric @ reach.mT + third),
            torch.einsum("ri,rk,rjl->ijkl", x, means, reach @ metric)
            + torch.einsum("ri,rl,rjk->ijkl", x, slope, covariance),
            torch.einsum("ri,rk,rjl->ijkl", means, means, metric),
        )
        scores, mixed, outputs = (block.reshape(dimension**2, dimension**2) for block in blocks)
        return torch.cat([torch.cat([scores, mixed], 1), torch.cat([mixed.T, outputs], 1)])

    def _metric(self, outputs: Tensor) -> Tensor:
        """The second derivative of the loss in the outputs, times a change of them (..., t, d)."""
        if self.objective == "squared":
            return outputs / len(self.inputs)
        likelihood = self.likelihood if outputs.ndim == 3 else self.likelihood[:, :, None]
        weighted = likelihood * outputs
        return (weighted - likelihood * weighted.sum(-1, keepdim=True)) / len(self.inputs)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """The sum over all tokens of outer products."""
    return left.flatten(0, 1).T @ right.flatten(0, 1)
