"""The loss of a diagonal attention head with its derivatives in closed form, for all of its coordinates or
for some.

A coordinate of a_KQ weighs one column of the inputs in the scores, one of a_VO weighs one column in the
output. Coordinates that are zero drop out with their columns, so a head of few active coordinates costs
little.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.predict._networks.head_hessian import chunk_length, head_hessian
from rankrise.predict._networks.objectives import Objective, loss_and_slope, mean_loss


@dataclass(frozen=True, eq=False)
class HeadLoss:
    """The loss of `softmax(K diag(a_KQ) K^T) V diag(a_VO)` as a function of `a = [a_KQ, a_VO]` (m + n,).

    `keys` K are (samples, tokens, m), `values` V and `targets` (samples, tokens, n); `constant` is the loss
    of the outputs left out.
    """

    keys: Tensor
    values: Tensor
    targets: Tensor
    objective: Objective
    constant: float = 0.0

    def __call__(self, a: Tensor) -> Tensor:
        """The loss at `a`, twice differentiable by autograd."""
        key_query, value_output = a[: self.keys.shape[-1]], a[self.keys.shape[-1] :]
        weights = ((self.keys * key_query) @ self.keys.mT).softmax(-1)
        return mean_loss(weights @ self.values * value_output, self.targets, self.objective) + self.constant

    @torch.no_grad()
    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (m + n,) at `a`.

        The samples pass in chunks that stay in a core's cache. Scores are symmetric, so a softmax over rows
        gives the transposed weights; with the inputs in both layouts no product reads a transposed factor.
        """
        samples, tokens, split = self.keys.shape
        dimension = self.values.shape[-1]
        key_query, value_output = a[:split], a[split:].unsqueeze(1).expand(dimension, tokens).contiguous()
        length = chunk_length(self.values, 250_000)
        wide_memory = a.new_empty(length, tokens, split)
        tall_memory = a.new_empty(2, length, dimension, tokens)
        square_memory = a.new_empty(2, length, tokens, tokens)
        total = a.new_zeros(())
        gradient_key_query = a.new_zeros(tokens, split)
        gradient_value_output = a.new_zeros(dimension, tokens)
        chunks = (tensor.split(length) for tensor in (self.keys, self.values, *self._transposed))
        for keys, values, keys_t, values_t, targets_t in zip(*chunks, strict=True):
            wide = wide_memory[: len(keys)]
            mixed, outputs = tall_memory[:, : len(keys)]
            scores, weights = square_memory[:, : len(keys)]

            torch.bmm(torch.mul(keys, key_query, out=wide), keys_t, out=scores)
            torch.softmax(scores, 1, out=weights)
            torch.bmm(values_t, weights, out=mixed)
            torch.mul(mixed, value_output, out=outputs)
            loss, slope = loss_and_slope(outputs, targets_t, self.objective, dim=1)
            total += loss
            gradient_value_output += mixed.mul_(slope).sum(0)

            slope_scores = torch.bmm(values, slope.mul_(value_output), out=scores).mul_(weights)
            slope_scores -= weights.mul_(slope_scores.sum(1, keepdim=True))
            gradient_key_query += torch.bmm(slope_scores, keys, out=wide).mul_(keys).sum(0)
        gradient = torch.cat([gradient_key_query.sum(0), gradient_value_output.sum(1)])
        return total / samples + self.constant, gradient / samples

    @torch.no_grad()
    def hessian(self, a: Tensor) -> Tensor:
        """The exact Hessian (m + n, m + n) at `a`."""
        return head_hessian(self.keys, self.values, self.targets, self.objective, a)

    @torch.no_grad()
    def curvature(self, a: Tensor) -> Tensor:
        """The Hessian computed in float32: about six digits of it, enough for a Newton iteration."""
        return head_hessian(*self._single_precision, self.objective, a.float()).double()

    def restricted(self, support: Tensor) -> "HeadLoss | None":
        """The loss of some coordinates (k,), the others being zero; None for an objective that mixes the
        outputs.
        """
        if self.objective != "squared":
            return None
        split = self.keys.shape[-1]
        kept, dropped = support[support >= split] - split, torch.ones(self.values.shape[-1], dtype=torch.bool)
        dropped[kept.cpu()] = False
        missed = self.targets[..., dropped.to(self.targets.device)]
        constant = self.constant + float(missed.square().sum()) / (2 * len(self.targets))
        keys = self.keys[..., support[support < split]].contiguous()
        return HeadLoss(
            keys,
            self.values[..., kept].contiguous(),
            self.targets[..., kept].contiguous(),
            "squared",
            constant,
        )

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        keys_t = self.keys.mT.contiguous()
        values_t = keys_t if self.values is self.keys else self.values.mT.contiguous()
        return keys_t, values_t, self.targets.mT.contiguous()

    @cached_property
    def _single_precision(self) -> tuple[Tensor, Tensor, Tensor]:
        keys = self.keys.float()
        return keys, keys if self.values is self.keys else self.values.float(), self.targets.float()
