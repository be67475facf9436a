"""What turns gradients into steps: torch's AdamW and SGD, Lion, Muon, and a walk that learns nothing.

Each reads its learning rate from the device where it trains on a GPU, so that a CUDA graph of its step can be
replayed, and keeps all of its state in tensors, so that a checkpoint has it to the bit.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from rankrise.recipes.train_settings import TrainSettings

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's iteration, as its author published them."""


def optimiser_of(settings: TrainSettings, model: nn.Module, device: torch.device) -> Optimizer:
    """The optimiser of the settings. It decays the matrices and leaves biases and layer norms alone."""
    on_gpu = device.type == "cuda"
    adamw: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {}
    make: Any = {
        "adamw": partial(AdamW, **adamw),
        "sgd": partial(SGD, momentum=settings.momentum, fused=on_gpu or None),
        "lion": partial(Lion, momentum=settings.momentum),
        "muon": partial(Muon, momentum=settings.momentum, **adamw),
        "random-walk": partial(RandomWalk, **adamw),
    }[settings.optimiser]
    rate = torch.tensor(settings.learning_rate, device=device) if on_gpu else settings.learning_rate
    return make(_groups(settings, model), lr=rate)


def _groups(settings: TrainSettings, model: nn.Module) -> list[dict[str, Any]]:
    """The parameters by how they are stepped: matrices, those of the layers apart for Muon, and the rest."""
    decay = settings.weight_decay
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.ndim >= 2], "weight_decay": decay},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]
    if settings.optimiser != "muon":
        return groups
    inside = {id(one) for one in _matrices_of_layers(model)}
    whole = groups[0]["params"]
    groups[0]["params"] = [one for one in whole if id(one) not in inside]
    layers = {"params": [one for one in whole if id(one) in inside], "weight_decay": decay}
    return [layers | {"orthogonal": True}, *(group | {"orthogonal": False} for group in groups)]


def _matrices_of_layers(model: nn.Module) -> Iterator[Tensor]:
    """Every matrix inside a list of layers: neither the embeddings nor what reads the answer off."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from (one for one in module.parameters() if one.ndim == 2)


class Lion(Optimizer):
    """Steps of one size in every coordinate: signs of a mean of past gradients (Chen et al., 2023, Alg. 2).

    With momentum 0 it is sign descent.
    """

    SLOW = 0.99
    """How much of itself the kept mean keeps."""

    def __init__(self, groups: Any, lr: float | Tensor, momentum: float = 0.9) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            weights, gradients, means = _with_gradients(self, group)
            if not weights:
                continue
            rate = _on(group["lr"], weights[0].device)
            updates = torch._foreach_lerp(means, gradients, 1 - group["momentum"])
            torch._foreach_sign_(updates)
            torch._foreach_mul_(updates, -rate)
            torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            torch._foreach_add_(weights, updates)
            torch._foreach_lerp_(means, gradients, 1 - self.SLOW)


class Muon(AdamW):
    """Steps whose singular values are all alike for the groups marked "orthogonal", AdamW's for the others.

    A step is made orthogonal out of Nesterov's momentum (Jordan et al., 2024) and scaled to the usual size of
    AdamW's (Liu et al., 2025, Eq. 4), so that both share a learning rate. Matrices of one shape are stepped
    together.
    """

    def __init__(self, groups: Any, lr: float | Tensor, momentum: float = 0.95, **adamw: Any) -> None:
        super().__init__(groups, lr=lr, **adamw)
        self._momentum = momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, and use up the gradients of the orthogonal ones."""
        for group in self.param_groups:
            if group["orthogonal"]:
                self._step_orthogonally(group)
                for weight in group["params"]:
                    self.state[weight].setdefault("step", torch.zeros(()))  # AdamW expects it when loading
                    weight.grad = None  # so that AdamW passes it over
        super().step()

    def _step_orthogonally(self, group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for one in zip(*_with_gradients(self, group), strict=True):
            alike[one[0].shape].append(one)
        for shape, several in alike.items():
            weights, gradients, means = map(list, zip(*several, strict=True))
            rate = _on(group["lr"], weights[0].device)
            torch._foreach_lerp_(means, gradients, 1 - self._momentum)
            ahead = torch._foreach_lerp(gradients, means, self._momentum)
            updates = orthogonalised(torch.stack(ahead)).float() * (-0.2 * max(shape) ** 0.5 * rate)
            torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            torch._foreach_add_(weights, list(updates.unbind()))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors whose singular values all lie near 1, in bfloat16. [n, a, b]

    >>> values = torch.linalg.svdvals(orthogonalised(torch.diag(torch.tensor([1.0, 3.0, 9.0]))[None]).float())
    >>> bool(values.min() > 0.6), bool(values.max() < 1.3)
    (True, True)
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class RandomWalk(AdamW):
    """AdamW's steps with the sign of every coordinate drawn at random: the same sizes, nothing learned."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        weights = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        before = [one.clone() for one in weights]
        super().step()
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(torch.where(torch.rand_like(weight) < 0.5, weight, 2 * old - weight))


def _with_gradients(optimiser: Optimizer, group: dict[str, Any]) -> tuple[list[Tensor], ...]:
    """The weights of a group that have gradients, these, and the mean of past ones that the state keeps."""
    weights = [one for one in group["params"] if one.grad is not None]
    for one in weights:
        if "momentum_buffer" not in optimiser.state[one]:
            optimiser.state[one]["momentum_buffer"] = torch.zeros_like(one)
    return (
        weights,
        [one.grad for one in weights],
        [optimiser.state[one]["momentum_buffer"] for one in weights],
    )


def _on(rate: float | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(rate, device=device)
