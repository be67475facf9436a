"""Matrices inside a model's stored tensors, and how PEFT stores the factors of their changes."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rankrise.watch._linear import is_conv1d


@dataclass(frozen=True)
class Matrix:
    """A matrix [out, in], or those of all experts [experts, out, in], inside a stored tensor."""

    name: str  # of the module, or of the parameter that holds the experts
    out: int
    into: int  # for a convolution, input channels times places of the kernel
    transposed: bool = False  # stored as [in, out]: GPT-2's Conv1D, embeddings, GPT-OSS's experts
    kernel: tuple[int, ...] = ()  # of a convolution
    experts: int = 0  # in one parameter, where PEFT has one rank for all of them
    embedding: bool = False
    first: int = 0  # the first output, above 0 for keys and values in one matrix with the queries

    @property
    def stored(self) -> str:
        return self.name if self.experts else f"{self.name}.weight"

    @property
    def parts(self) -> tuple[str, ...]:
        """A name for each matrix [out, in]."""
        return tuple(f"{self.name}.{place}" for place in range(self.experts)) or (self.name,)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.experts, self.out, self.into) if self.experts else (self.out, self.into)

    def view(self, tensor: Tensor) -> Tensor:
        """The matrix inside the stored tensor."""
        tensor = tensor.flatten(1) if self.kernel else tensor
        return (tensor.mT if self.transposed else tensor)[..., self.first : self.first + self.out, :]

    def to_peft(self, left: Tensor, right: Tensor, module: str) -> dict[str, Tensor]:
        """The factors B [out, r] and A [r, in] by name and shape as PEFT stores them for a module."""
        if self.embedding:
            return {f"{module}.lora_embedding_A": right, f"{module}.lora_embedding_B": left}
        if self.kernel:
            right, left = right.unflatten(1, (-1, *self.kernel)), left[(..., *[None] * len(self.kernel))]
        elif self.experts:
            right, left = right.flatten(0, 1), left.permute(1, 2, 0).flatten(1)
        return {f"{module}.lora_A.weight": right, f"{module}.lora_B.weight": left}

    @classmethod
    def from_peft(
        cls, left: Tensor, right: Tensor, experts: int = 0, **facts: Any
    ) -> tuple["Matrix", Tensor, Tensor]:
        """A matrix and its factors B and A from the tensors that `to_peft` gives."""
        kernel = tuple(right.shape[2:])
        if kernel:
            left, right = left.flatten(1), right.flatten(1)
        elif experts:
            left, right = left.unflatten(1, (-1, experts)).permute(2, 0, 1), right.unflatten(0, (experts, -1))
        facts |= {"out": left.shape[-2], "into": right.shape[-1], "kernel": kernel, "experts": experts}
        return cls(**facts), left, right


def matrices(model: nn.Module) -> list[Matrix]:
    """The matrices that PEFT can change by factors, if their tensor is not tied to another module's.

    PEFT does not merge factors into grouped convolutions, and applies those of dilated or specially padded
    ones wrongly before merging. Of tied embeddings it changes one before merging, and both afterwards.
    """
    own = {name: dict(module.named_parameters(recurse=False)) for name, module in model.named_modules()}
    owners = Counter(id(parameter) for some in own.values() for parameter in some.values())
    found: list[Matrix] = []
    for name, module in model.named_modules():
        parameters = {leaf: one for leaf, one in own[name].items() if owners[id(one)] == 1}
        weight, kind, swapped = parameters.get("weight"), type(module), is_conv1d(module)
        if weight is not None and (swapped or kind is nn.Linear):
            out, into = weight.shape[::-1] if swapped else weight.shape
            found.append(Matrix(name, out, into, swapped))
        elif weight is not None and kind is nn.Embedding:
            found.append(Matrix(name, weight.shape[1], len(weight), True, embedding=True))
        elif weight is not None and isinstance(module, nn.Conv1d | nn.Conv2d):
            if _is_plain(module):
                found.append(Matrix(name, len(weight), weight[0].numel(), kernel=module.kernel_size))
        elif name and not kind.__module__.startswith("torch."):
            fused = [leaf for leaf, one in parameters.items() if one.ndim == 3 and min(one.shape) > 1]
            if fused and not any(child.state_dict() for child in module.children()):
                swapped = bool(getattr(module, "is_transposed", False))  # as PEFT asks
                for leaf in fused:
                    count, *sizes = parameters[leaf].shape
                    out, into = reversed(sizes) if swapped else sizes
                    found.append(Matrix(f"{name}.{leaf}", out, into, swapped, experts=count))
    return found


def _is_plain(module: nn.Conv1d | nn.Conv2d) -> bool:
    ungrouped = module.groups == 1 and module.padding_mode == "zeros"
    dilated = any(d > 1 < k for d, k in zip(module.dilation, module.kernel_size, strict=True))
    return type(module) in (nn.Conv1d, nn.Conv2d) and ungrouped and not dilated
