"""The loss of a diagonal attention head with its derivatives in closed form.

A coordinate of a_KQ weighs one column of the inputs in the scores, one of a_VO weighs one column in the
output. Coordinates that are zero drop out with their columns, so a head of few active coordinates costs
little.

The Hessian is made of matrix products over all pairs of tokens. For token i of a sample let P be its
attention weights, g the slope of its loss in P, G the second derivative. With J = diag(P) - P P^T and q = J
g, that in its scores is J G J + diag(q) - P q^T - q P^T, or

    P_j P_j' (G_jj' - e_j - e_j') + q_j [j = j'],        e = G P - (P^T G P)/2 + g - (P^T g).

The score of a pair (i, j) is linear in a_KQ: its derivatives X_il X_jl carry this to the blocks KQ-KQ, KQ-VO.
The second derivative in the outputs is the identity for squared error, diag(r) - r r^T for cross-entropy with
likelihoods r.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import loss_and_slope, mean_loss


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


def head_hessian(keys: Tensor, values: Tensor, targets: Tensor, objective: Objective, a: Tensor) -> Tensor:
    """The Hessian (m + n, m + n) at `a` of the loss on keys (samples, tokens, m) and values (samples,
    tokens, n).
    """
    split = keys.shape[-1]
    hessian = a.new_zeros(len(a), len(a))
    length = chunk_length(values, 40_000)
    for chunk in zip(keys.split(length), values.split(length), targets.split(length), strict=True):
        _add_hessian(hessian, *chunk, objective, a)
    hessian[split:, :split] = hessian[:split, split:].T
    return hessian / len(values)


def _add_hessian(
    total: Tensor, keys: Tensor, values: Tensor, targets: Tensor, objective: Objective, a: Tensor
) -> None:
    """Add the blocks KQ-KQ, KQ-VO and VO-VO of a chunk of samples."""
    samples, tokens, split = keys.shape
    dimension, rows = values.shape[-1], samples * tokens * tokens
    key_query, value_output = a[:split], a[split:]
    values_t = values.mT.contiguous()
    weights = torch.bmm(keys * key_query, keys.mT).softmax(1).mT.contiguous()
    mixed = torch.bmm(weights, values)
    outputs = mixed * value_output
    _, slope = loss_and_slope(outputs.clone(), targets, objective, dim=-1)

    # bend: G, for each token where it differs; lean: what multiplies X_jk in the derivative of g_j in a_VO.
    if objective == "squared":
        bend = torch.bmm(values * value_output.square(), values_t).unsqueeze(1)
        lean = slope + outputs
        bent = torch.bmm(weights, bend.squeeze(1))
    else:
        likelihood = slope + targets
        scaled = values.unsqueeze(1) * (value_output.square() * likelihood).unsqueeze(2)
        pull = torch.bmm(likelihood * value_output, values_t)
        bend = torch.bmm(scaled.view(samples, tokens * tokens, dimension), values_t)
        bend = bend.view(samples, tokens, tokens, tokens) - pull.unsqueeze(-1) * pull.unsqueeze(-2)
        lean = slope + outputs * likelihood
        bent = (bend @ weights.unsqueeze(-1)).squeeze(-1)

    slope_weights = _centred(torch.bmm(slope * value_output, values_t), weights)
    level = bent - (weights * bent).sum(-1, keepdim=True) / 2 + slope_weights
    scores = (bend - level.unsqueeze(-1)).sub_(level.unsqueeze(-2))
    scores.mul_(weights.unsqueeze(-1)).mul_(weights.unsqueeze(-2))
    scores.diagonal(dim1=-2, dim2=-1).add_(weights * slope_weights)

    pairs = (keys.unsqueeze(2) * keys.unsqueeze(1)).view(rows, split)
    turned = torch.bmm(scores.view(samples, tokens * tokens, tokens), keys)
    turned = turned.view(samples, tokens, tokens, split).mul_(keys.unsqueeze(2))
    total[:split, :split].addmm_(pairs.T, turned.view(rows, split))

    crossed = (values.unsqueeze(1) - mixed.unsqueeze(2)).mul_(weights.unsqueeze(-1)).mul_(lean.unsqueeze(2))
    if objective != "squared":
        crossed -= (weights * _centred(pull, weights)).unsqueeze(-1) * (likelihood * mixed).unsqueeze(2)
    total[:split, split:].addmm_(pairs.T, crossed.view(rows, dimension))

    block = total[split:, split:]
    if objective == "squared":
        block.diagonal().add_(mixed.square().sum((0, 1)))
    else:
        block.diagonal().add_((likelihood * mixed.square()).sum((0, 1)))
        fallen = (likelihood * mixed).view(samples * tokens, dimension)
        block.addmm_(fallen.T, fallen, alpha=-1)


def chunk_length(values: Tensor, elements: int) -> int:
    """How many samples hold about that many elements, to work in a core's cache; all of them on a GPU."""
    if values.device.type != "cpu":
        return len(values)
    return min(len(values), max(1, elements // max(1, values[0].numel())))


def _centred(values: Tensor, weights: Tensor) -> Tensor:
    """Values (..., tokens) less their mean under the attention weights."""
    return values - (weights * values).sum(-1, keepdim=True)
