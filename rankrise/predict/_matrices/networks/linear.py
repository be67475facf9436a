"""The two-layer linear network, `h = V U^T x` with full matrices."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.passed import typed
from rankrise.predict._networks.checks import check_sizes
from rankrise.predict._networks.randomness import gaussian, generator


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """`L(A) = 1/(2n) sum |A^T x - y|^2` of the end-to-end matrix `A = U V^T` (d1, d2).

    `inputs` x are (n, d1), `targets` y (n, d2), in float64. With white inputs the gradients of a flow
    commute, and nothing mixes (Saxe et al. 2014); with others they do not.
    """

    inputs: Tensor
    targets: Tensor
    teacher: Tensor | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of the one product."""
        return ((self.inputs.shape[1], self.targets.shape[1]),)

    def label(self, product: int) -> str:
        """The name of a product: "A"."""
        return "A"

    def __call__(self, product: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return (self.inputs @ product - self.targets).square().sum() / (2 * len(self.inputs))

    @torch.no_grad()
    def value_and_gradient(self, product: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d1, d2)."""
        missed = self.inputs @ product - self.targets
        return missed.square().sum() / (2 * len(missed)), [self.inputs.T @ missed / len(missed)]

    def hessian(self, product: Tensor) -> Tensor:
        """The Hessian (d1 d2, d1 d2), which is the same everywhere."""
        return self._hessian

    @cached_property
    def _hessian(self) -> Tensor:
        moments = self.inputs.T @ self.inputs / len(self.inputs)
        unit = torch.eye(self.targets.shape[1], dtype=moments.dtype, device=moments.device)
        return torch.kron(moments, unit)


@typed
def linear_network(
    inputs: int = 4,
    outputs: int | None = None,
    samples: int = 200,
    seed: int = 0,
    white: bool = False,
    device: str | torch.device = "cpu",
) -> LinearNetwork:
    """A two-layer linear network on Gaussian inputs, taught by a Gaussian matrix.

    Inputs have standard deviations from 0.5 to 1.5, or, if `white`, exactly orthogonal columns of size 1.

    >>> network = linear_network(3, 2, samples=30)
    >>> network.shapes, float(network(network.teacher))
    (((3, 2),), 0.0)
    """
    outputs = inputs if outputs is None else outputs
    check_sizes(inputs=inputs, outputs=outputs, samples=samples)
    source = generator(seed)
    x = gaussian(source, samples, inputs)
    if white:
        x = torch.linalg.qr(x).Q * samples**0.5
    else:
        x = x * torch.linspace(0.5, 1.5, inputs, dtype=torch.float64)
    teacher = gaussian(source, inputs, outputs)
    return LinearNetwork(x.to(device), (x @ teacher).to(device), teacher.to(device))
