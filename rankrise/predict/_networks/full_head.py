"""Attention heads with full weight matrices, taught by random heads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import (
    check_choice,
    check_sizes,
    gaussian,
    generator,
    mean_loss,
    take_data,
    targets_of,
)
from rankrise.predict._networks.full_head_derivatives import HeadsAt
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
        check_sizes(heads=self.heads)
        take_data(self, "samples, tokens, d")

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
        return mean_loss(attend_full(self.inputs, products), self.targets, self.objective)

    @torch.no_grad()
    def value_and_gradient(self, *products: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d, d) per product, in closed form."""
        here = HeadsAt(self.inputs, self.targets, self.objective, products)
        return here.value, here.gradients()

    @torch.no_grad()
    def hessian(self, *products: Tensor) -> Tensor:
        """The exact Hessian in all entries, row by row and product by product."""
        return HeadsAt(self.inputs, self.targets, self.objective, products).hessian()

    @torch.no_grad()
    def hessian_product(self, *products: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from one direction (d, d) per product to one result per product."""
        return HeadsAt(self.inputs, self.targets, self.objective, products).hessian_product


def attend_full(inputs: Tensor, products: tuple[Tensor, ...]) -> Tensor:
    """The summed outputs of heads, the shape of `inputs` (samples, tokens, d)."""
    outputs = torch.zeros_like(inputs)
    for key_query, value_output in zip(products[::2], products[1::2], strict=True):
        weights = (inputs @ key_query @ inputs.mT).softmax(-1)
        outputs = outputs + weights @ inputs @ value_output
    return outputs


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
    check_sizes(dimension=dimension, tokens=tokens, samples=samples, heads=heads)
    check_choice("objective", objective, get_args(Objective))
    check_choice("teacher", teacher, get_args(Teacher))
    if teacher == "diagonal" and heads == 1:
        diagonal = diagonal_head(dimension, tokens, samples, seed, objective)
        assert diagonal.teacher is not None
        products = tuple(map(torch.diag, diagonal.teacher.chunk(2)))
        return _on(device, diagonal.inputs, diagonal.targets, heads, objective, products)
    source = generator(seed)
    inputs = gaussian(source, samples, tokens, dimension)
    drawn = []
    for _ in range(2 * heads):
        if teacher == "diagonal":
            product = torch.diag(gaussian(source, dimension) * gaussian(source, dimension))
        else:
            product = gaussian(source, dimension, dimension) @ gaussian(source, dimension, dimension).T
            product = product / dimension
        drawn.append(product / heads**0.5)
    products = tuple(drawn)
    targets = targets_of(attend_full(inputs, products), objective)
    return _on(device, inputs, targets, heads, objective, products)


def _on(
    device: str | torch.device,
    inputs: Tensor,
    targets: Tensor,
    heads: int,
    objective: Objective,
    teacher: tuple[Tensor, ...],
) -> FullHead:
    moved = tuple(product.to(device) for product in teacher)
    return FullHead(inputs.to(device), targets.to(device), heads, objective, moved)
