"""Two checkpoints of one model side by side, read one tensor at a time, and the matrices that can be cut."""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.record.folder import CONFIG
from rankrise.watch._change import refuse_quantised
from rankrise.watch._checkpoint import offline, open_weights
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import ADAPTER_CONFIG
from rankrise.watch._matrix import Matrix, matrices

Source = nn.Module | str | Path  # a model, a checkpoint folder, or a name on the Hugging Face Hub
Only = Callable[[str], bool] | str | Sequence[str]  # of names: a function, or patterns such as "*.mlp.*"


@dataclass(frozen=True, eq=False)
class Weights:
    """A model's structure, with its tensors read by name."""

    model: nn.Module
    load: Callable[[str], Tensor | None]
    shape: Callable[[str], tuple[int, ...] | None]
    origin: str  # the folder or Hub name, or empty

    @cached_property
    def first_names(self) -> dict[str, str]:
        """The first of the names of each parameter and persistent buffer, by all of them."""
        firsts = {id(parameter): name for name, parameter in self.model.named_parameters()}
        stored = self.model.state_dict(keep_vars=True)
        return {name: firsts.get(id(tensor), name) for name, tensor in stored.items()}

    def read(self, name: str) -> Tensor:
        found = self.load(name)
        if found is None:
            raise RankriseError(f"{self.origin or 'A model'} has no tensor for {name}: restore it.")
        if found.is_floating_point() or name.endswith(".weight"):  # buffers may hold integers
            refuse_quantised(found, name)
        return found


@dataclass(frozen=True, eq=False)
class Pair:
    """A base and a tuned model: the matrices to cut, and the names of all other tensors."""

    base: Weights
    tuned: Weights
    matrices: tuple[Matrix, ...]
    others: tuple[str, ...]

    def read(self, matrix: Matrix) -> tuple[Tensor, Tensor]:
        """The matrix before and after, each in its own dtype, on the device of the latter or a GPU."""
        after = on_gpu(self.tuned.read(matrix.stored))
        return matrix.view(self.base.read(matrix.stored).to(after.device)), matrix.view(after)

    def before(self, name: str) -> Tensor | None:
        """A tensor of the base; None if it is new in the tuned model, such as a head of another size."""
        return self.base.read(name) if self.base.shape(name) == self.tuned.shape(name) else None

    def changed(self) -> Iterator[tuple[str, Tensor | None, Tensor]]:
        """The other tensors that changed by more than rounding to the coarser dtype, before and after."""
        for name in self.others:
            before, after = self.before(name), self.tuned.read(name)
            coarser = after.dtype
            if before is not None and before.is_floating_point() and after.is_floating_point():
                coarser = max((before.dtype, after.dtype), key=lambda dtype: torch.finfo(dtype).eps)
            if before is None or not torch.equal(before.to(after.device, coarser), after.to(coarser)):
                yield name, before, after


def accepts(only: Only, name: str) -> bool:
    """Whether a matrix of that name is asked for."""
    patterns = () if callable(only) else [only] if isinstance(only, str) else only
    return only(name) if callable(only) else any(fnmatchcase(name, one) for one in patterns)


def pair(base: Source, tuned: Source, only: Only = "*") -> Pair:
    """Put two checkpoints of one model side by side, to cut the matrices that `only` accepts by name."""
    after = open_source(tuned)
    before = open_source(base, like=after.origin)

    def is_new_head(matrix: Matrix) -> bool:
        """Whether a layer outside the repeated ones is missing or has other outputs in the base."""
        found = before.shape(matrix.stored) or (0, matrix.into)
        out, *into = found[::-1] if matrix.transposed and found[0] else found
        repeated = re.search(r"(^|\.)\d+\.", matrix.name)
        return not repeated and out != matrix.out and math.prod(into) == matrix.into

    every = matrices(after.model)
    new, stored = {one.name for one in every if is_new_head(one)}, {one.stored for one in every}
    names, state = dict.fromkeys(after.first_names.values()), after.model.state_dict()
    for name in names:
        found, wanted = before.shape(name), tuple(state[name].shape)
        in_new_head = name.rpartition(".")[0] in new
        if found != wanted and not in_new_head and (found is not None or name in stored):
            raise RankriseError(
                f"{name} is {list(wanted)} in the tuned model and {list(found or ())} in the base: the two "
                "have different architectures or vocabularies."
            )
    chosen = tuple(one for one in every if one.name not in new and accepts(only, one.name))
    if not chosen:
        raise RankriseError("The models have no matrix in common that `only` accepts.")
    cut = {matrix.stored for matrix in chosen}
    return Pair(before, after, chosen, tuple(name for name in names if name not in cut))


def open_source(source: Source, like: str = "") -> Weights:
    """Open a model or a checkpoint, the latter by the config in the folder `like` if there is one."""
    if isinstance(source, nn.Module):
        model: Any = unwrap(source)
        tensors = model.state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        origin = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
        return Weights(model, tensors.get, shapes.get, origin)
    architecture = Path(like) if like and Path(like, CONFIG).is_file() else None
    opened = open_weights(source, architecture)
    return Weights(opened.model, lambda name: opened.read(name).get(name), opened.shape, str(source))


def load_model(source: str | Path) -> nn.Module:
    """Load a transformers checkpoint with its weights, on the GPU if there is one."""
    transformers = require("transformers", extra="transformers", purpose="Loading the model of a checkpoint")
    opened: Any = open_weights(source)
    empty, folder = opened.model, opened.checkpoint.folder
    if (folder / ADAPTER_CONFIG).exists():  # transformers would load the base that it names
        raise RankriseError(f"{str(source)!r} holds both a model and {ADAPTER_CONFIG}: remove one of them.")
    transformers.utils.logging.disable_progress_bar()  # it would break ours
    with offline():
        model, about = type(empty).from_pretrained(
            folder, config=empty.config, local_files_only=True, output_loading_info=True
        )
    if about["missing_keys"]:  # transformers initialises them at random
        raise RankriseError(f"{str(source)!r} has no tensor for {min(about['missing_keys'])}: restore it.")
    found: nn.Module = model.to("cuda") if torch.cuda.is_available() else model
    return found


def on_gpu(tensor: Tensor) -> Tensor:
    """A tensor on the GPU if there is one, where cutting is many times faster."""
    return tensor.cuda() if torch.cuda.is_available() and tensor.device.type == "cpu" else tensor


def is_causal(model: Any) -> bool:
    """Whether a model predicts each next token."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def fingerprint(model: Source) -> str:
    """A hash of 64 evenly spaced entries of each linear layer: the same on any device and dtype."""
    weights = open_source(model)
    digest, every = hashlib.sha256(), matrices(weights.model)
    linear = [one for one in every if not (one.kernel or one.experts or one.embedding)]
    for matrix in linear or every:
        weight = weights.load(matrix.stored)
        if weight is not None:  # a base may lack a head
            entries = weight.detach().flatten()[:: max(1, weight.numel() // 64)].float().cpu()
            digest.update(f"{matrix.name} {list(weight.shape)}\n".encode() + entries.numpy().tobytes())
    return digest.hexdigest()[:16]
