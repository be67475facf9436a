"""The loss of full attention heads at a point, with its first and second derivatives in closed form.

A token x attends with `z = A_KQ^T x`: its weights are the softmax of `z . x_b` over the tokens b, and its
output is `A_VO^T m(z)`, m being the mean of the tokens under these weights. The derivatives of m in z are the
covariance and the third cumulant of the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import mean_loss


@dataclass(frozen=True, eq=False)
class _Head:
    """One head at its products: attention `weights` (n, t, t), `means` m (n, t, d), and `value_output`."""

    value_output: Tensor
    weights: Tensor
    means: Tensor


class HeadsAt:
    """Heads on their data (n, t, d) at given products, `KQ, VO` per head."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, objective: Objective, products: Sequence[Tensor]
    ) -> None:
        self.inputs, self.objective = inputs, objective
        self.heads = []
        outputs = torch.zeros_like(inputs)
        for key_query, value_output in zip(products[::2], products[1::2], strict=True):
            weights = (inputs @ key_query @ inputs.mT).softmax(-1)
            self.heads.append(_Head(value_output, weights, weights @ inputs))
            outputs = outputs + self.heads[-1].means @ value_output
        self.value = mean_loss(outputs, targets, objective)
        if objective == "squared":
            self.slope = (outputs - targets) / len(inputs)
        else:
            self.likelihood = outputs.softmax(-1)
            mass = targets.sum(-1, keepdim=True)
            self.slope = (mass * self.likelihood - targets) / len(inputs)

    def gradients(self) -> list[Tensor]:
        """The gradient (d, d) per product."""
        found = []
        for head in self.heads:
            pushed = (self.slope @ head.value_output.T) @ self.inputs.mT
            scores = head.weights * (pushed - (head.weights * pushed).sum(-1, keepdim=True))
            found += [self._outer(self.inputs, scores @ self.inputs), self._outer(head.means, self.slope)]
        return found

    def hessian_product(self, *directions: Tensor) -> list[Tensor]:
        """The Hessian times a direction (d, d) per product."""
        inputs, outputs = self.inputs, torch.zeros_like(self.inputs)
        moved = []
        for head, key_query, value_output in zip(self.heads, directions[::2], directions[1::2], strict=True):
            scores = inputs @ key_query @ inputs.mT
            weights = head.weights * (scores - (head.weights * scores).sum(-1, keepdim=True))
            means = weights @ inputs
            outputs = outputs + means @ head.value_output + head.means @ value_output
            moved.append((weights, means))
        slope = self._metric(outputs)
        found = []
        for head, (weights, means), value_output in zip(self.heads, moved, directions[1::2], strict=True):
            pushed = (self.slope @ head.value_output.T) @ inputs.mT
            changed = (slope @ head.value_output.T + self.slope @ value_output.T) @ inputs.mT
            centred = pushed - (head.weights * pushed).sum(-1, keepdim=True)
            drift = (weights * pushed + head.weights * changed).sum(-1, keepdim=True)
            scores = weights * centred + head.weights * (changed - drift)
            found += [
                self._outer(inputs, scores @ inputs),
                self._outer(means, self.slope) + self._outer(head.means, slope),
            ]
        return found

    def hessian(self) -> Tensor:
        """The whole Hessian: (2 h d^2, 2 h d^2), rows of a product's entries after another."""
        dimension = self.inputs.shape[-1]
        x, slope = self.inputs.flatten(0, 1), self.slope.flatten(0, 1)
        metric = self._metric(torch.eye(dimension, dtype=x.dtype, device=x.device))
        metric = metric.expand(*self.inputs.shape, dimension).flatten(0, 1)
        means = [head.means.flatten(0, 1) for head in self.heads]
        covariances, thirds = zip(*map(self._cumulants, self.heads), strict=True)
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

    def _cumulants(self, head: _Head) -> tuple[Tensor, Tensor]:
        """The covariance of the tokens per token (r, d, d), and the third cumulant along its slope."""
        centred = self.inputs[:, None] - head.means[:, :, None]
        along = torch.einsum("ntbi,nti->ntb", centred, self.slope @ head.value_output.T)
        covariance = torch.einsum("ntb,ntbi,ntbj->ntij", head.weights, centred, centred)
        third = torch.einsum("ntb,ntbi,ntbj->ntij", head.weights * along, centred, centred)
        return covariance.flatten(0, 1), third.flatten(0, 1)

    def _metric(self, outputs: Tensor) -> Tensor:
        """The second derivative of the loss in the outputs, times a change of them (..., t, d)."""
        if self.objective == "squared":
            return outputs / len(self.inputs)
        likelihood = self.likelihood
        if outputs.ndim == 2:
            likelihood = likelihood[:, :, None]
        weighted = likelihood * outputs
        return (weighted - likelihood * weighted.sum(-1, keepdim=True)) / len(self.inputs)

    @staticmethod
    def _outer(left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).T @ right.flatten(0, 1)


def _pairs(one: Tensor, other: Tensor) -> Tensor:
    """Products of the entries of two vectors per row: (r, i, k)."""
    return one[:, :, None] * other[:, None]


def _moments(one: Tensor, other: Tensor) -> Tensor:
    """The sum over rows of products of two matrices' entries, (i, k, j, l) of (r, i, k) and (r, j, l)."""
    return (one.flatten(1).T @ other.flatten(1)).view(*one.shape[1:], *other.shape[1:])
