"""Attention heads with full weight matrices, taught by random heads; their derivatives in closed form.

A token x attends with `z = A_KQ^T x`: its weights are the softmax of `z . x_b` over the tokens b, and its
output is `A_VO^T m(z)`, m being the mean of the tokens under these weights. The derivatives of m in z are the
covariance and the third cumulant of the tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks import data
from rankrise.predict._networks.head import diagonal_head

Teacher = Literal["diagonal", "full"]


@dataclass(frozen=True, eq=False)
class FullHead:
    """The loss of softmax attention heads, as a function of `W_K W_Q^T, W_V W_O^T` per head.

    The heads compute `sum softmax(X W_K W_Q^T X^T) X W_V W_O^T` (Eq. 1 with full weights, without 1/sqrt(d)).
    `inputs` and `targets` are (samples, tokens, d) in float64; the products of `teacher` set the targets.
    """

    inputs: Tensor
    targets: Tensor
    heads: int = 1
    objective: Objective = "squared"
    teacher: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        data.check_sizes(heads=self.heads)
        data.check_data(self.inputs, self.targets, self.objective)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(d, d) for both products of each head."""
        dimension = self.inputs.shape[-1]
        return ((dimension, dimension),) * (2 * self.heads)

    def label(self, product: int) -> str:
        """The name of a product: "KQ" or "VO", with the head's number, from 1, where there are several."""
        if not 0 <= product < 2 * self.heads:
            raise RankriseError(f"product {product} does not exist: pass one from 0 to {2 * self.heads - 1}.")
        kind = "VO" if product % 2 else "KQ"
        return kind if self.heads == 1 else f"head {product // 2 + 1} {kind}"

    def __call__(self, *products: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return data.mean_loss(_outputs(_attended(self.inputs, products)), self.targets, self.objective)

    @torch.no_grad()
    def value_and_gradient(self, *products: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d, d) per product."""
        here = _Derivatives(self, products)
        return here.value, here.gradients()

    @torch.no_grad()
    def hessian(self, *products: Tensor) -> Tensor:
        """The exact Hessian in all entries, row by row and product by product."""
        return _Derivatives(self, products).hessian()

    @torch.no_grad()
    def hessian_product(self, *products: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from one direction (d, d) per product to one result per product."""
        return _Derivatives(self, products).hessian_product


def full_head(
    dimension: int = 6,
    tokens: int = 10,
    samples: int = 200,
    seed: int = 0,
    heads: int = 1,
    objective: Objective = "squared",
    teacher: Teacher = "diagonal",
    device: str | torch.device = "cpu",
) -> FullHead:
    """Heads with full weights on Gaussian tokens; the paper's toy has dimension 50 and 1000 samples.

    With the `"diagonal"` teacher a single head has the data and the targets of `diagonal_head` with the
    same seed, so that both learn the same function. The `"full"` one has Gaussian matrices, scaled so that
    its products are about as large.

    >>> network = full_head(dimension=3, tokens=4, samples=5)
    >>> network.shapes, network.label(1), float(network(*network.teacher))
    (((3, 3), (3, 3)), 'VO', 0.0)
    """
    data.check_sizes(dimension=dimension, tokens=tokens, samples=samples, heads=heads)
    data.check_choice("teacher", teacher, get_args(Teacher))
    if teacher == "diagonal" and heads == 1:
        diagonal = diagonal_head(dimension, tokens, samples, seed, objective, device)
        assert diagonal.teacher is not None
        products = tuple(map(torch.diag, diagonal.teacher.chunk(2)))
        return FullHead(diagonal.inputs, diagonal.targets, heads, objective, products)
    source = torch.Generator().manual_seed(seed)
    inputs = data.gaussian(source, samples, tokens, dimension)
    drawn = []
    for _ in range(2 * heads):
        if teacher == "diagonal":
            product = torch.diag(data.gaussian(source, dimension) * data.gaussian(source, dimension))
        else:
            first, second = (data.gaussian(source, dimension, dimension) for _ in range(2))
            product = first @ second.T / dimension
        drawn.append(product / heads**0.5)
    targets = data.targets_of(_outputs(_attended(inputs, drawn)), objective)
    products = tuple(product.to(device) for product in drawn)
    return FullHead(inputs.to(device), targets.to(device), heads, objective, products)


class _Head(NamedTuple):
    """One head at its products: attention `weights` (n, t, t), `means` m (n, t, d), and `value_output`."""

    value_output: Tensor
    weights: Tensor
    means: Tensor


def _attended(inputs: Tensor, products: Sequence[Tensor]) -> list[_Head]:
    """The heads on inputs (n, t, d) at products `KQ, VO` per head."""
    heads = []
    for key_query, value_output in zip(products[::2], products[1::2], strict=True):
        weights = (inputs @ key_query @ inputs.mT).softmax(-1)
        heads.append(_Head(value_output, weights, weights @ inputs))
    return heads


def _outputs(heads: Sequence[_Head]) -> Tensor:
    """The summed outputs (n, t, d)."""
    outputs = [head.means @ head.value_output for head in heads]
    return sum(outputs[1:], outputs[0])


class _Derivatives:
    """The loss of a network at some products, and its derivatives there."""

    def __init__(self, network: FullHead, products: Sequence[Tensor]) -> None:
        self.inputs, self.objective = network.inputs, network.objective
        self.heads = _attended(network.inputs, products)
        outputs, targets = _outputs(self.heads), network.targets
        self.value = data.mean_loss(outputs, targets, network.objective)
        if network.objective == "squared":
            self.slope = (outputs - targets) / len(outputs)
        else:
            self.likelihood = outputs.softmax(-1)
            self.slope = (targets.sum(-1, keepdim=True) * self.likelihood - targets) / len(outputs)

    def gradients(self) -> list[Tensor]:
        """The gradient (d, d) per product."""
        found = []
        for head in self.heads:
            pushed = (self.slope @ head.value_output.T) @ self.inputs.mT
            scores = head.weights * data.centred(pushed, head.weights)
            found += [_outer(self.inputs, scores @ self.inputs), _outer(head.means, self.slope)]
        return found

    def hessian_product(self, *directions: Tensor) -> list[Tensor]:
        """The Hessian times a direction (d, d) per product."""
        inputs, outputs = self.inputs, torch.zeros_like(self.inputs)
        moved = []
        for head, key_query, value_output in zip(self.heads, directions[::2], directions[1::2], strict=True):
            weights = head.weights * data.centred(inputs @ key_query @ inputs.mT, head.weights)
            means = weights @ inputs
            outputs = outputs + means @ head.value_output + head.means @ value_output
            moved.append(_Head(value_output, weights, means))
        slope = self._metric(outputs)
        found = []
        for head, move in zip(self.heads, moved, strict=True):
            pushed = (self.slope @ head.value_output.T) @ inputs.mT
            changed = (slope @ head.value_output.T + self.slope @ move.value_output.T) @ inputs.mT
            drift = (move.weights * pushed + head.weights * changed).sum(-1, keepdim=True)
            scores = move.weights * data.centred(pushed, head.weights) + head.weights * (changed - drift)
            found += [
                _outer(inputs, scores @ inputs),
                _outer(move.means, self.slope) + _outer(head.means, slope),
            ]
        return found

    def hessian(self) -> Tensor:
        """The whole Hessian: (2 h d^2, 2 h d^2), rows of a product's entries after another."""
        dimension = self.inputs.shape[-1]
        x, slope = self.inputs.flatten(0, 1), self.slope.flatten(0, 1)
        metric = self._metric(torch.eye(dimension, dtype=x.dtype, device=x.device))
        metric = metric.expand(*self.inputs.shape, dimension).flatten(0, 1)
        means = [head.means.flatten(0, 1) for head in self.heads]
        # The covariance of the tokens per token (r, d, d), and the third cumulant along its slope.
        covariances, thirds = list[Tensor](), list[Tensor]()
        for head in self.heads:
            centred = self.inputs[:, None] - head.means[:, :, None]
            along = torch.einsum("ntbi,nti->ntb", centred, self.slope @ head.value_output.T)
            for weights, found in ((head.weights, covariances), (head.weights * along, thirds)):
                found.append(torch.einsum("ntb,ntbi,ntbj->ntij", weights, centred, centred).flatten(0, 1))
        reach = [c @ head.value_output for c, head in zip(covariances, self.heads, strict=True)]
        squares = _pairs(x, x)
        rows = []
        for h in range(len(self.heads)):
            above, below = [], []
            for g in range(len(self.heads)):
                scores = reach[h] @ metric @ reach[g].mT
                mixed = _moments(_pairs(x, means[g]), reach[h] @ metric).permute(0, 2, 1, 3)
                other = _moments(_pairs(x, means[h]), reach[g] @ metric).permute(1, 3, 0, 2)
                if h == g:
                    scores = scores + thirds[h]
                    mixed = mixed + _moments(_pairs(x, slope), covariances[h]).permute(0, 2, 3, 1)
                    other = mixed.permute(2, 3, 0, 1)
                both = _moments(_pairs(means[h], means[g]), metric).permute(0, 2, 1, 3)
                above += [_moments(squares, scores).permute(0, 2, 1, 3), mixed]
                below += [other, both]
            rows += [
                torch.cat([block.reshape(dimension**2, -1) for block in line], 1) for line in (above, below)
            ]
        return torch.cat(rows)

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


def _pairs(one: Tensor, other: Tensor) -> Tensor:
    """Products of the entries of two vectors per row: (r, i, k)."""
    return one[:, :, None] * other[:, None]


def _moments(one: Tensor, other: Tensor) -> Tensor:
    """The sum over rows of products of two matrices' entries, (i, k, j, l) of (r, i, k) and (r, j, l)."""
    return (one.flatten(1).T @ other.flatten(1)).view(*one.shape[1:], *other.shape[1:])
