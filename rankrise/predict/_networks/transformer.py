"""A transformer with diagonal attention weights (Example 3.2), taught by a random one."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks import data
from rankrise.predict._networks.head import DiagonalAttention


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
