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
from rankrise.predict._networks.attention import diagonal_head


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
        weights, means = _attend(self.inputs, key_query)
        outputs = means @ value_output
        slope = self._slope(outputs)
        scores = weights * data.centred((slope @ value_output.T) @ self.inputs.mT, weights)
        gradients = [_outer(self.inputs, scores @ self.inputs), _outer(means, slope)]
        return data.mean_loss(outputs, self.targets, self.objective), gradients

    @torch.no_grad()
    def hessian(self, key_query: Tensor, value_output: Tensor) -> Tensor:
        """The exact Hessian (2 d^2, 2 d^2) in all entries, row by row and product by product."""
        weights, means = _attend(self.inputs, key_query)
        outputs = means @ value_output
        slope = self._slope(outputs)
        # The covariance of the tokens per token (r, d, d), and the third cumulant along its slope.
        centred = self.inputs[:, None] - means[:, :, None]
        along = torch.einsum("ntbi,nti->ntb", centred, slope @ value_output.T)
        covariance, third = (
            torch.einsum("ntb,ntbi,ntbj->ntij", part, centred, centred).flatten(0, 1)
            for part in (weights, weights * along)
        )
        x, slope, mean = (part.flatten(0, 1) for part in (self.inputs, slope, means))
        metric, reach = self._metric(outputs).flatten(0, 1), covariance @ value_output
        blocks = (
            torch.einsum("ri,rk,rjl->ijkl", x, x, reach @ metric @ reach.mT + third),
            torch.einsum("ri,rk,rjl->ijkl", x, mean, reach @ metric)
            + torch.einsum("ri,rl,rjk->ijkl", x, slope, covariance),
            torch.einsum("ri,rk,rjl->ijkl", mean, mean, metric),
        )
        size = x.shape[1] ** 2
        scores, mixed, last = (block.reshape(size, size) for block in blocks)
        return torch.cat([torch.cat([scores, mixed], 1), torch.cat([mixed.T, last], 1)])

    @torch.no_grad()
    def hessian_product(self, key_query: Tensor, value_output: Tensor) -> Callable[..., list[Tensor]]:
        """A function from directions (m, d, d) per product to the exact Hessian times each of them."""
        x = self.inputs
        weights, means = _attend(x, key_query)
        outputs = means @ value_output
        slope = self._slope(outputs)
        pushed = data.centred((slope @ value_output.T) @ x.mT, weights)

        @torch.no_grad()
        def product(to_key_query: Tensor, to_value_output: Tensor) -> list[Tensor]:
            to_weights = weights * data.centred(_times(x, to_key_query) @ x.mT, weights)
            to_means = to_weights @ x
            to_slope = to_means @ value_output + _times(means, to_value_output)
            if self.objective != "squared":
                to_slope = outputs.softmax(-1) * data.centred(to_slope, outputs.softmax(-1))
            to_slope /= len(x)
            to_pushed = (to_slope @ value_output.T + _times(slope, to_value_output.mT)) @ x.mT
            to_scores = to_weights * pushed
            to_scores += weights * (data.centred(to_pushed, weights) - to_scores.sum(-1, keepdim=True))
            last = _outer(to_means, slope) + _outer(means, to_slope)
            return [_outer(x, to_scores @ x), last]

        return product

    def _slope(self, outputs: Tensor) -> Tensor:
        """The derivative of the loss in the outputs (n, t, d)."""
        if self.objective != "squared":
            outputs = outputs.softmax(-1)
        return (outputs - self.targets) / len(outputs)

    def _metric(self, outputs: Tensor) -> Tensor:
        """The second derivative of the loss in the outputs, (n, t, d, d)."""
        if self.objective == "squared":
            unit = torch.eye(outputs.shape[-1], dtype=outputs.dtype)
            return (unit / len(outputs)).expand(*outputs.shape, -1)
        likelihood = outputs.softmax(-1)
        return (torch.diag_embed(likelihood) - likelihood[..., None] * likelihood[:, :, None]) / len(outputs)


def full_head(
    dimension: int = 6,
    tokens: int = 10,
    samples: int = 200,
    seed: int = 0,
    objective: Objective = "squared",
    teacher: Literal["diagonal", "full"] = "diagonal",
) -> FullHead:
    """A head with full weights on Gaussian tokens; the paper's toy has dimension 50 and 1000 samples.

    With the `"diagonal"` teacher it has the data and the targets of `diagonal_head` with the same seed; the
    `"full"` one has Gaussian matrices, and products that are about as large.

    >>> network = full_head(dimension=3, tokens=4, samples=5)
    >>> network.shapes, network.label(1), float(network(*network.teacher))
    (((3, 3), (3, 3)), 'VO', 0.0)
    """
    if teacher == "diagonal":
        diagonal = diagonal_head(dimension, tokens, samples, seed, objective)
        assert diagonal.teacher is not None
        first, second = map(torch.diag, diagonal.teacher.chunk(2))
        return FullHead(diagonal.inputs, diagonal.targets, objective, (first, second))
    source = torch.Generator().manual_seed(seed)
    inputs = data.gaussian(source, samples, tokens, dimension)
    key, query, value, output = (data.gaussian(source, dimension, dimension) for _ in range(4))
    key_query, value_output = key @ query.T / dimension, value @ output.T / dimension
    targets = data.targets_of(_attend(inputs, key_query)[1] @ value_output, objective)
    products = key_query, value_output
    return FullHead(inputs, targets, objective, products)


def _attend(inputs: Tensor, key_query: Tensor) -> tuple[Tensor, Tensor]:
    """The attention weights (n, t, t), and the means (n, t, d) of the tokens under them."""
    weights = (inputs @ key_query @ inputs.mT).softmax(-1)
    return weights, weights @ inputs


def _times(tokens: Tensor, matrices: Tensor) -> Tensor:
    """Tokens (n, t, d) times each of some matrices (m, d, d)."""
    return (tokens.flatten(0, 1) @ matrices).unflatten(1, tokens.shape[:2])


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """The sum over all tokens of outer products, (..., d, d)."""
    return left.flatten(-3, -2).mT @ right.flatten(-3, -2)
