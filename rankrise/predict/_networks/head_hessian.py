"""The Hessian of a diagonal attention head's loss, in closed form: matrix products over all pairs of tokens.

For token i of a sample let P be its attention weights, g the slope of its loss in P, G the second derivative.
With J = diag(P) - P P^T and q = J g, that in its scores is J G J + diag(q) - P q^T - q P^T, or

    P_j P_j' (G_jj' - e_j - e_j') + q_j [j = j'],        e = G P - (P^T G P)/2 + g - (P^T g).

The score of a pair (i, j) is linear in a_KQ: its derivatives X_il X_jl carry this to the blocks KQ-KQ, KQ-VO.
The second derivative in the outputs is the identity for squared error, diag(r) - r r^T for cross-entropy with
likelihoods r.
"""

import torch
from torch import Tensor

from rankrise.predict._networks.objectives import Objective, loss_and_slope


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
