"""The transformer with diagonal attention weights (Example 3.2), taught by a random one of the same form."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import (
    ByAutograd,
    check_choice,
    check_data,
    check_sizes,
    gaussian,
    generator,
    mean_loss,
    targets_of,
)
from rankrise.predict._networks.head import AttentionEntry, attention_entry

Activation = Literal["gelu", "silu", "softplus", "tanh"]
"""The activations on offer, all twice differentiable, as Definition 3.1 asks."""


@dataclass(frozen=True, eq=False)
class DiagonalTransformer(ByAutograd):
    """The loss of a diagonal transformer, as a function of `a = [w_K * w_Q, w_V * w_O]` over its heads.

    From Z_0 = X, layer l adds the outputs of its heads (Eq. 1) and then `activation(Z W_A^l) (W_B^l)^T`, of
    fixed weights. `inputs` and `targets` are (samples, tokens, d), `feed_in` (W_A) and `feed_out` (W_B) are
    (layers, d, width), all in float64; the `a` of `teacher` (p,) set the targets.
    """

    inputs: Tensor
    targets: Tensor
    feed_in: Tensor
    feed_out: Tensor
    heads: int
    activation: Activation = "gelu"
    objective: Objective = "squared"
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        check_sizes(heads=self.heads)
        check_choice("activation", self.activation, get_args(Activation))
        check_data(self.inputs, self.targets, self.objective)

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
        layers = a.reshape(self.layers, self.heads, 2, -1)
        outputs = transform(self.inputs, layers, self.feed_in, self.feed_out, self.activation)
        return self.loss_of(outputs)

    def loss_of(self, outputs: Tensor) -> Tensor:
        """The loss of other outputs (samples, tokens, d) on the same data, such as those of full weights."""
        return mean_loss(outputs, self.targets, self.objective)

    def place(self, coordinate: int) -> AttentionEntry:
        """Which entry a coordinate of `a` is: (layer, head, "KQ" or "VO", entry)."""
        return attention_entry(coordinate, self.layers, self.heads, self.inputs.shape[-1])

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "layer 2 head 1 KQ 3": layers and heads count from 1 in names."""
        place = self.place(coordinate)
        return f"layer {place.layer + 1} head {place.head + 1} {place.kind} {place.entry}"


def transform(
    inputs: Tensor, layers: Tensor, feed_in: Tensor, feed_out: Tensor, activation: Activation
) -> Tensor:
    """Z_L of Example 3.2, the shape of `inputs`, from `a` as (layers, heads, 2, d)."""
    activate = getattr(torch.nn.functional, activation)
    state = inputs
    for heads, inward, outward in zip(layers, feed_in, feed_out, strict=True):
        state = state + attend_heads(state, heads)
        state = state + activate(state @ inward) @ outward.mT
    return state


def attend_heads(state: Tensor, heads: Tensor) -> Tensor:
    """The summed outputs of heads (heads, 2, d), each `[a_KQ, a_VO]`, on a state (samples, tokens, d).

    The heads of a sample share its tokens, so that a product takes all of them at once. Scores are symmetric:
    a softmax over rows gives the transposed weights, and is the faster one.
    """
    samples, tokens, dimension = state.shape
    key_query, value_output = heads.unbind(1)
    scaled = (state.unsqueeze(1) * key_query.unsqueeze(1)).view(samples, -1, dimension)
    weights = (scaled @ state.mT).view(samples, -1, tokens, tokens).softmax(2)
    mixed = weights.mT.reshape(samples, -1, tokens) @ state
    return torch.einsum("shtd,hd->std", mixed.view(samples, -1, tokens, dimension), value_output)


def diagonal_transformer(
    dimension: int = 8,
    layers: int = 2,
    heads: int = 2,
    tokens: int = 10,
    samples: int = 200,
    seed: int = 0,
    objective: Objective = "squared",
    activation: Activation = "gelu",
    width: int | None = None,
    device: str | torch.device = "cpu",
) -> DiagonalTransformer:
    """A diagonal transformer on Gaussian tokens, with targets from one whose attention weights are random.

    The feed-forward layers have `width` hidden units (by default the dimension) and Gaussian weights. Their
    outputs are divided by `sqrt(layers)`, and the teacher, a product of Gaussians, by `sqrt(layers * heads)`:
    the state would explode with depth otherwise.

    >>> network = diagonal_transformer(dimension=3, layers=2, heads=2, tokens=4, samples=5)
    >>> network.size, network.label(15), float(network(network.teacher))
    (24, 'layer 2 head 1 VO 0', 0.0)
    """
    width = dimension if width is None else width
    check_sizes(dimension=dimension, layers=layers, heads=heads, tokens=tokens, samples=samples, width=width)
    check_choice("objective", objective, get_args(Objective))
    check_choice("activation", activation, get_args(Activation))
    source = generator(seed)
    size = 2 * dimension * heads * layers
    inputs = gaussian(source, samples, tokens, dimension)
    feed_in = gaussian(source, layers, dimension, width) / dimension**0.5
    feed_out = gaussian(source, layers, dimension, width) / (width * layers) ** 0.5
    teacher = gaussian(source, size) * gaussian(source, size) / (layers * heads) ** 0.5
    outputs = transform(inputs, teacher.view(layers, heads, 2, dimension), feed_in, feed_out, activation)
    return DiagonalTransformer(
        inputs=inputs.to(device),
        targets=targets_of(outputs, objective).to(device),
        feed_in=feed_in.to(device),
        feed_out=feed_out.to(device),
        heads=heads,
        activation=activation,
        objective=objective,
        teacher=teacher.to(device),
    )
