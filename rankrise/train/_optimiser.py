"""Optimisers: torch's AdamW and SGD, Muon, and a random walk that learns nothing."""

from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from rankrise.recipes.train_settings import TrainSettings

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the iteration's coefficients, as Muon's author published them


def optimiser_of(settings: TrainSettings, model: nn.Module, device: torch.device) -> Optimizer:
    """The optimiser of the settings, with weight decay on matrices only."""
    on_gpu = device.type == "cuda"
    adamw: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {}
    make: Any = {
        "adamw": partial(AdamW, **adamw),
        "sgd": partial(SGD, momentum=settings.momentum, fused=on_gpu or None),
        "muon": partial(Muon, momentum=settings.momentum, **adamw),
        "random-walk": partial(RandomWalk, **adamw),
    }[settings.optimiser]
    # From the device, so that a CUDA graph can replay the step.
    rate = torch.tensor(settings.learning_rate, device=device) if on_gpu else settings.learning_rate
    inside: set[int] = set()
    if settings.optimiser == "muon":
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        inside = {id(one) for layers in lists for one in layers.parameters() if one.ndim == 2}
    kinds: dict[str, list[Tensor]] = {"layer": [], "matrix": [], "vector": []}
    for one in model.parameters():
        kinds["layer" if id(one) in inside else "matrix" if one.ndim >= 2 else "vector"].append(one)
    groups = [
        {
            "params": weights,
            "weight_decay": 0.0 if kind == "vector" else settings.weight_decay,
            "orthogonal": kind == "layer",
        }
        for kind, weights in kinds.items()
        if weights
    ]
    return make(groups, lr=rate)


class Muon(AdamW):
    """Orthogonal steps (Jordan et al., 2024) of AdamW's usual size (Liu et al., 2025, Eq. 4) for the groups
    marked so, AdamW's for the others. torch's own has no CUDA graph, and steps one matrix at a time.
    """

    def __init__(self, groups: Any, lr: float | Tensor, momentum: float = 0.95, **adamw: Any) -> None:
        super().__init__(groups, lr=lr, **adamw)
        self._momentum = momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if group["orthogonal"]:
                self._step_orthogonally(group)
                for weight in group["params"]:
                    self.state[weight].setdefault("step", torch.zeros(()))  # AdamW expects it when loading
                    weight.grad = None  # so that AdamW skips it
        super().step()

    def _step_orthogonally(self, group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                alike[weight.shape].append(weight)
        for shape, weights in alike.items():
            for one in weights:
                if "momentum_buffer" not in self.state[one]:
                    self.state[one]["momentum_buffer"] = torch.zeros_like(one)
            gradients: Any = [one.grad for one in weights]
            means = [self.state[one]["momentum_buffer"] for one in weights]
            rate = torch.as_tensor(group["lr"], device=weights[0].device)
            torch._foreach_lerp_(means, gradients, 1 - self._momentum)
            ahead = torch._foreach_lerp(gradients, means, self._momentum)
            updates = orthogonalised(torch.stack(ahead)).float() * (-0.2 * max(shape) ** 0.5 * rate)
            torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            torch._foreach_add_(weights, list(updates.unbind()))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Bring all singular values near 1, by Newton-Schulz iterations in bfloat16. [n, a, b]"""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class RandomWalk(AdamW):
    """AdamW's steps with random signs: the same sizes, nothing learned."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        weights = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        before = [one.clone() for one in weights]
        super().step()
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(torch.where(torch.rand_like(weight) < 0.5, weight, 2 * old - weight))
