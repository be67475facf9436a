"""Attention with diagonal weights and random teachers: a head (Eq. 1) and a transformer (Example 3.2)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks import data


class AttentionEntry(NamedTuple):
    """Layer, head, "KQ" for an entry of w_K * w_Q or "VO" for one of w_V * w_O, and which, all from 0."""

    layer: int
    head: int
    kind: Literal["KQ", "VO"]
    entry: int


class DiagonalAttention:
    """What a head and a transformer share: data, and the order of their coordinates (Example 3.2)."""

    inputs: Tensor
    targets: Tensor
    objective: Objective
    heads: int

    def loss_of(self, outputs: Tensor) -> Tensor:
        """The loss of other outputs (samples, tokens, d) on the same data, such as those of full weights."""
        return data.mean_loss(outputs, self.targets, self.objective)

    def place(self, coordinate: int) -> AttentionEntry:
        """Which entry a coordinate of `a = [w_K * w_Q, w_V * w_O]`, over layers and heads, is."""
        block, entry = divmod(coordinate, self.inputs.shape[-1])
        position, kind = divmod(block, 2)
        layer, head = divmod(position, self.heads)
        return AttentionEntry(layer, head, "VO" if kind else "KQ", entry)

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "VO 7"."""
        place = self.place(coordinate)
        return f"{place.kind} {place.entry}"


@dataclass(eq=False)
class DiagonalHead(DiagonalAttention):
    """The loss of `softmax(K diag(a_KQ) K^T) X diag(a_VO)` as a function of `a = [a_KQ, a_VO]` (m + n,).

    `keys` K are (samples, tokens, m), `inputs` X and `targets` (samples, tokens, n), in float64. K is X in
    Eq. 1, whose 1/sqrt(d) we leave out. A zero coordinate drops out with its column; `constant` is the loss
    of outputs left out. The `a` of `teacher` (p,) set the targets.
    """

    keys: Tensor
    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    teacher: Tensor | None = None
    constant: float = 0.0
    heads = 1

    @property
    def size(self) -> int:
        """The number of coordinates, p."""
        return self.keys.shape[-1] + self.inputs.shape[-1]

    def __call__(self, a: Tensor) -> Tensor:
        """The loss at `a`, twice differentiable by autograd."""
        return self.loss_of(_attend(self.keys, self.inputs, a)) + self.constant

    @torch.no_grad()
    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (m + n,) at `a`.

        The samples pass in chunks that stay in a core's cache. Scores are symmetric, so a softmax over rows
        gives the transposed weights; with the inputs in both layouts no product reads a transposed factor.
        """
        samples, tokens, split = self.keys.shape
        dimension = self.inputs.shape[-1]
        key_query, value_output = a[:split], a[split:].unsqueeze(1).expand(dimension, tokens).contiguous()
        length = _chunk_length(self.inputs, 250_000)
        wide_memory = a.new_empty(length, tokens, split)
        tall_memory = a.new_empty(2, length, dimension, tokens)
        square_memory = a.new_empty(2, length, tokens, tokens)
        total = a.new_zeros(())
        gradient_key_query = a.new_zeros(tokens, split)
        gradient_value_output = a.new_zeros(dimension, tokens)
        chunks = (tensor.split(length) for tensor in (self.keys, self.inputs, *self._transposed))
        for keys, values, keys_t, values_t, targets_t in zip(*chunks, strict=True):
            wide = wide_memory[: len(keys)]
            mixed, outputs = tall_memory[:, : len(keys)]
            scores, weights = square_memory[:, : len(keys)]

            torch.bmm(torch.mul(keys, key_query, out=wide), keys_t, out=scores)
            torch.softmax(scores, 1, out=weights)
            torch.bmm(values_t, weights, out=mixed)
            torch.mul(mixed, value_output, out=outputs)
            loss, slope = _loss_and_slope(outputs, targets_t, self.objective, dim=1)
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
        split, length = self.keys.shape[-1], _chunk_length(self.inputs, 40_000)
        hessian = a.new_zeros(len(a), len(a))
        chunks = (tensor.split(length) for tensor in (self.keys, self.inputs, self.targets))
        for keys, values, targets in zip(*chunks, strict=True):
            _add_hessian(hessian, keys, values, targets, self.objective, a)
        hessian[split:, :split] = hessian[:split, split:].T
        return hessian / len(self.inputs)

    def curvature(self, a: Tensor) -> Tensor:
        """The Hessian (m + n, m + n) to about six digits, from float32: enough for Newton's method."""
        return self._single_precision.hessian(a.float()).double()

    def restricted(self, support: Tensor) -> "DiagonalHead | None":
        """The loss of the coordinates `support` (k,) alone, at their price; None if outputs are mixed."""
        if self.objective != "squared":
            return None
        split = self.keys.shape[-1]
        kept = support[support >= split] - split
        missed = self.targets.clone()
        missed[..., kept] = 0
        return DiagonalHead(
            self.keys[..., support[support < split]].contiguous(),
            self.inputs[..., kept].contiguous(),
            self.targets[..., kept].contiguous(),
            constant=self.constant + float(missed.square().sum()) / (2 * len(self.targets)),
        )

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        keys_t = self.keys.mT.contiguous()
        values_t = keys_t if self.inputs is self.keys else self.inputs.mT.contiguous()
        return keys_t, values_t, self.targets.mT.contiguous()

    @cached_property
    def _single_precision(self) -> "DiagonalHead":
        return DiagonalHead(self.keys.float(), self.inputs.float(), self.targets.float(), self.objective)


def diagonal_head(
    dimension: int = 50,
    tokens: int = 10,
    samples: int = 1000,
    seed: int = 0,
    objective: Objective = "squared",
) -> DiagonalHead:
    """The paper's toy: Gaussian tokens, and targets from a head whose weights are standard Gaussian too.

    >>> network = diagonal_head(dimension=3, tokens=4, samples=5)
    >>> network.size, network.label(4), float(network(network.teacher))
    (6, 'VO 1', 0.0)
    """
    source = torch.Generator().manual_seed(seed)
    inputs = data.gaussian(source, samples, tokens, dimension)
    teacher = data.gaussian(source, 2 * dimension) * data.gaussian(source, 2 * dimension)
    targets = data.targets_of(_attend(inputs, inputs, teacher), objective)
    return DiagonalHead(inputs, inputs, targets, objective, teacher)


@dataclass(frozen=True, eq=False)
class DiagonalTransformer(DiagonalAttention):
    """The loss of a diagonal transformer, as a function of `a = [w_K * w_Q, w_V * w_O]` over its heads.

    From Z_0 = X, layer l adds the outputs of its heads (Eq. 1) and then `gelu(Z W_A^l) (W_B^l)^T`, of fixed
    weights. `inputs` and `targets` are (samples, tokens, d), `feed_in` (W_A) and `feed_out` (W_B) are
    (layers, d, width), all in float64; the `a` of `teacher` (p,) set the targets.
    """

    inputs: Tensor
    targets: Tensor
    feed_in: Tensor
    feed_out: Tensor
    heads: int
    objective: Objective = "squared"
    teacher: Tensor | None = None

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.feed_in)

    @property
    def size(self) -> int:
        """The number of coordinates, p = 2dHL."""
        return 2 * self.inputs.shape[-1] * self.heads * self.layers

    def __call__(self, a: Tensor) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        return self.loss_of(self.outputs(a))

    def outputs(self, a: Tensor) -> Tensor:
        """Z_L of Example 3.2, the shape of `inputs`."""
        state, (samples, tokens, dimension) = self.inputs, self.inputs.shape
        layers = a.reshape(self.layers, self.heads, 2, -1)
        for heads, inward, outward in zip(layers, self.feed_in, self.feed_out, strict=True):
            # The heads of a sample share its tokens, so that a product takes all of them at once. Scores are
            # symmetric: a softmax over rows gives the transposed weights, and is the faster one.
            key_query, value_output = heads.unbind(1)
            scaled = (state.unsqueeze(1) * key_query.unsqueeze(1)).view(samples, -1, dimension)
            weights = (scaled @ state.mT).view(samples, -1, tokens, tokens).softmax(2)
            mixed = (weights.mT.reshape(samples, -1, tokens) @ state).view(samples, -1, tokens, dimension)
            state = state + torch.einsum("shtd,hd->std", mixed, value_output)
            state = state + torch.nn.functional.gelu(state @ inward) @ outward.mT
        return state

    def value_and_gradient(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (p,) at `a`, by autograd."""
        gradient, value = torch.func.grad_and_value(self)(a)
        return value, gradient

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "layer 2 head 1 KQ 3": layers and heads count from 1 in names."""
        place = self.place(coordinate)
        return f"layer {place.layer + 1} head {place.head + 1} {super().label(coordinate)}"


def diagonal_transformer(
    dimension: int = 8,
    layers: int = 2,
    heads: int = 2,
    tokens: int = 10,
    samples: int = 200,
    seed: int = 0,
    objective: Objective = "squared",
) -> DiagonalTransformer:
    """A diagonal transformer on Gaussian tokens, with targets from one whose attention weights are random.

    The feed-forward layers are as wide as the tokens and have Gaussian weights. Their outputs are divided by
    `sqrt(layers)`, and the teacher, a product of Gaussians, by `sqrt(layers * heads)`: the state would
    explode with depth otherwise.

    >>> network = diagonal_transformer(dimension=3, layers=2, heads=2, tokens=4, samples=5)
    >>> network.size, network.label(15), float(network(network.teacher))
    (24, 'layer 2 head 1 VO 0', 0.0)
    """
    source = torch.Generator().manual_seed(seed)
    size = 2 * dimension * heads * layers
    inputs = data.gaussian(source, samples, tokens, dimension)
    feed_in = data.gaussian(source, layers, dimension, dimension) / dimension**0.5
    feed_out = data.gaussian(source, layers, dimension, dimension) / (dimension * layers) ** 0.5
    teacher = data.gaussian(source, size) * data.gaussian(source, size) / (layers * heads) ** 0.5
    network = DiagonalTransformer(inputs, inputs, feed_in, feed_out, heads, objective, teacher)
    return replace(network, targets=data.targets_of(network.outputs(teacher), objective))


def _attend(keys: Tensor, values: Tensor, a: Tensor) -> Tensor:
    """The output of the head (Eq. 1), the shape of `values`."""
    key_query, value_output = a[: keys.shape[-1]], a[keys.shape[-1] :]
    return ((keys * key_query) @ keys.mT).softmax(-1) @ values * value_output


def _loss_and_slope(
    outputs: Tensor, targets: Tensor, objective: Objective, dim: int
) -> tuple[Tensor, Tensor]:
    """The loss summed over the samples, and its derivative in the outputs, written over them along `dim`."""
    if objective == "squared":
        slope = outputs.sub_(targets)
        return torch.dot(slope.flatten(), slope.flatten()) / 2, slope
    log_likelihood = outputs.log_softmax(dim)
    loss = -torch.dot(log_likelihood.flatten(), targets.flatten())
    return loss, log_likelihood.exp_().sub_(targets)


def _add_hessian(
    total: Tensor, keys: Tensor, values: Tensor, targets: Tensor, objective: Objective, a: Tensor
) -> None:
    """Add the blocks KQ-KQ, KQ-VO and VO-VO of a chunk of samples.

    It is made of matrix products over all pairs of tokens. For token i of a sample let P be its attention
    weights, g the slope of its loss in P, G the second derivative. With J = diag(P) - P P^T and q = J g, that
    in its scores is J G J + diag(q) - P q^T - q P^T, or

        P_j P_j' (G_jj' - e_j - e_j') + q_j [j = j'],        e = G P - (P^T G P)/2 + g - (P^T g).

    The score of a pair (i, j) is linear in a_KQ: its derivatives X_il X_jl carry this to the blocks KQ-KQ and
    KQ-VO. The second derivative in the outputs is the identity for squared error, diag(r) - r r^T for
    cross-entropy with likelihoods r.
    """
    samples, tokens, split = keys.shape
    dimension, rows = values.shape[-1], samples * tokens * tokens
    key_query, value_output = a[:split], a[split:]
    squared = objective == "squared"
    values_t = values.mT.contiguous()
    weights = torch.bmm(keys * key_query, keys.mT).softmax(1).mT.contiguous()
    mixed = torch.bmm(weights, values)
    outputs = mixed * value_output
    _, slope = _loss_and_slope(outputs.clone(), targets, objective, dim=-1)

    # scale: r, or 1; bend: G, per token where they differ; lean: the factor of X_jk in dg_j / da_VO.
    scale = torch.ones_like(outputs[:, :1]) if squared else slope + targets
    scaled = values.unsqueeze(1) * (value_output.square() * scale).unsqueeze(2)
    bend = torch.bmm(scaled.flatten(1, 2), values_t).view(samples, -1, tokens, tokens)
    if not squared:
        pull = torch.bmm(scale * value_output, values_t)
        bend -= pull.unsqueeze(-1) * pull.unsqueeze(-2)
    lean = slope + outputs * scale
    bent = torch.bmm(weights, bend[:, 0]) if squared else (weights.unsqueeze(2) @ bend).squeeze(2)

    slope_weights = data.centred(torch.bmm(slope * value_output, values_t), weights)
    level = bent - (weights * bent).sum(-1, keepdim=True) / 2 + slope_weights
    scores = (bend - level.unsqueeze(-1)).sub_(level.unsqueeze(-2))
    scores.mul_(weights.unsqueeze(-1)).mul_(weights.unsqueeze(-2))
    scores.diagonal(dim1=-2, dim2=-1).add_(weights * slope_weights)

    pairs = (keys.unsqueeze(2) * keys.unsqueeze(1)).view(rows, split)
    turned = torch.bmm(scores.view(samples, tokens * tokens, tokens), keys)
    turned = turned.view(samples, tokens, tokens, split).mul_(keys.unsqueeze(2))
    total[:split, :split].addmm_(pairs.T, turned.view(rows, split))

    crossed = (values.unsqueeze(1) - mixed.unsqueeze(2)).mul_(weights.unsqueeze(-1)).mul_(lean.unsqueeze(2))
    if not squared:
        crossed -= (weights * data.centred(pull, weights)).unsqueeze(-1) * (scale * mixed).unsqueeze(2)
    total[:split, split:].addmm_(pairs.T, crossed.view(rows, dimension))

    block = total[split:, split:]
    block.diagonal().add_((scale * mixed.square()).sum((0, 1)))
    if not squared:
        fallen = (scale * mixed).view(samples * tokens, dimension)
        block.addmm_(fallen.T, fallen, alpha=-1)


def _chunk_length(values: Tensor, elements: int) -> int:
    """How many samples hold about that many elements, to work in a core's cache."""
    return min(len(values), max(1, elements // max(1, values[0].numel())))
