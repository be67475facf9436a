"""A copy of an attention module, called again and again with the signs of some of its weights changed."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.watch._families import Read
from rankrise.watch._twin import (
    Unprovable,
    cast,
    numbered_heads,
    numbers,
    plain_copy,
    shared_columns,
    untie,
    with_token_changed,
)

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
"""What may differ where nothing should, as a share of the largest entry; a change is five times that."""
HALF_TOLERANCE = 2e-2
LONGER = "no token of the batch looks at another one: pass a batch of longer samples"
ROLES = ("query", "key", "value")


class Refuted(Exception):
    """What the module does that the layout says it does not."""


@dataclass
class Trial:
    """A copy of the module, what it is called with, and where in its parameters each head's weights lie.

    The copy gets random weights and random tokens, so that a trained, zero or tiny module is as good as any.
    """

    module: nn.Module
    args: Sequence[Any]
    kwargs: dict[str, Any]
    read: Read
    dtype: torch.dtype | None
    untied: bool = True
    """Whether a weight that has several names gets one of its own for each."""
    blocks: nn.Module | None = field(init=False)
    """The output projection, if it is seen to be called."""

    def __post_init__(self) -> None:
        if any(isinstance(parameter, DTensor) for parameter in self.module.parameters()):
            raise Unprovable("its weights are sharded: check the model before it is sharded")
        self.module = plain_copy(self.module, self.dtype)
        if self.untied:
            untie(self.module)
        self.parameters = {parameter: name for name, parameter in self.module.named_parameters()}
        attention = numbered_heads(self.module, list(self.parameters), self.read)
        if attention.output.last is not None:
            raise Unprovable("its output projection is several layers in a row")
        count = sum(parameter.numel() for parameter in self.parameters)
        self.heads, self.groups = attention.query.blocks, attention.key.blocks
        self.group = attention.group_of_head
        self.layers = {role: getattr(attention, role).layers for role in (*ROLES, "output")}
        self.numbers = {role: numbers(getattr(attention, role), count) for role in ROLES}
        output = numbers(attention.output, count)[0]
        self.numbers["output"] = output[:-1].unflatten(0, (self.heads, -1))
        self._with_bias = {role: (self.numbers[role][:, 0], self.numbers[role][:, -1]) for role in ROLES}
        self._with_bias["output"] = output[:1], output[-1:]
        """Of each column, the numbers of its first weight and of its bias."""
        self.shared = shared_columns(self.numbers["key"])
        """Which columns of a key all heads have in common."""
        self.tied = torch.equal(self.numbers["query"], self.numbers["key"])
        """Whether queries and keys are one and the same, and change their signs together."""
        self.repeated = self._repeated()
        """Which of its weights are read more than once, in words; "" if none is."""
        self.places = self._all_places()
        self.weights = self._random_weights()
        self.set(self.weights)
        self.widths = {attention.query.weight.shape[1], attention.key.weight.shape[1]}
        self.args, self.kwargs = cast((tuple(self.args), self.kwargs), self.dtype, self.widths)
        owners = self.owners("output")
        self.blocks = owners[0] if len(owners) == 1 else None
        self._seen: Tensor | None = None
        with ExitStack() as hooks:
            self._watch_output(hooks)
            self.result = self.call()
            """What the module gave in the last run."""
        if self._seen is None:
            self.blocks = None

    def _repeated(self) -> str:
        key = self.numbers["key"]
        own, common = key[..., ~self.shared].flatten(), key[0][:, self.shared].flatten()
        places = {**self.numbers, "key": torch.cat([own, common])}
        places = {role: numbered[numbered > 0] for role, numbered in places.items()}
        for role, some in places.items():
            if len(some.unique()) < len(some):
                return f"its {role} has the same weights several times"
        for one, other in itertools.combinations(places, 2):
            alike = self.tied and (one, other) == ("query", "key")
            if not alike and torch.isin(places[one], places[other]).any():
                return f"its {one} and its {other} have the same weights"
        return ""

    def _all_places(self) -> dict[str, list[Tensor]]:
        """The numbers of the weights of each block, by role; of a key those of its own columns, and beside
        them those that all share; of a query all, and those that meet a key's own columns."""
        query, key = self.numbers["query"], self.numbers["key"]
        blocks = {
            "query": query,
            "query_own": query[..., ~self.shared],
            "key": key[..., ~self.shared],
            "key_shared": key[:1, :, self.shared],
            "value": self.numbers["value"],
            "output": self.numbers["output"],
        }
        return {role: [block[block > 0] for block in several] for role, several in blocks.items()}

    def run(self, **signs: Tensor) -> Tensor:
        """What goes into the output projection [..., heads, d_head], or what the module gives, with the
        weights of heads times these, by role."""
        weights = self.weights.clone()
        for role, ones in signs.items():
            for place, sign in zip(self.places[role], ones.tolist(), strict=True):
                weights[place.to(weights.device) - 1] *= sign
        return self.run_with(weights)

    def run_with(self, weights: Tensor, token: tuple[str, int] | None = None) -> Tensor:
        """The same with other weights altogether, and with the sign of one role changed at one token."""
        with ExitStack() as hooks:
            self.set(weights)
            hooks.callback(self.set, self.weights)
            if token is not None:
                hooks.callback(self._flip_token(*token).remove)
            self._watch_output(hooks)
            self.result = self.call()
        if self.blocks is None:
            return self.result
        assert self._seen is not None
        inputs = self._inputs()
        if self._seen.shape[-1] != len(inputs):
            given = self._seen.shape[-1]
            raise Refuted(f"its output projection is given {given} dimensions, not {len(inputs)}")
        return self._seen[..., inputs].unflatten(-1, (self.heads, -1))

    def call(self) -> Tensor:
        """What the module gives."""
        self._seen = None
        args, kwargs = copy.deepcopy((self.args, self.kwargs))  # a cache among them must not grow
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
        return result

    def set(self, weights: Tensor) -> None:
        """Give the parameters these values, one after the other."""
        start = 0
        for parameter in self.parameters:
            part = weights[start : start + parameter.numel()]
            parameter.data = part.view(parameter.shape).to(parameter.dtype)
            start += parameter.numel()

    def moved(self, numbers: Tensor) -> Tensor:
        """All weights, with those of these numbers drawn at random around where they are."""
        generator = torch.Generator().manual_seed(3)
        moved, places = self.weights.clone(), numbers.to(self.weights.device) - 1
        moved[places] += torch.randn(len(places), generator=generator).to(moved)
        return moved

    def start(self, parameter: Tensor) -> int:
        """How many weights come before this parameter's."""
        return sum(
            one.numel() for one in itertools.takewhile(lambda one: one is not parameter, self.parameters)
        )

    def same(self, found: Tensor, expected: Tensor, otherwise: str) -> None:
        if not self.alike(found, expected):
            raise Refuted(otherwise)

    def alike(self, found: Tensor, expected: Tensor) -> bool:
        return bool(self._size(found - expected).max() <= self.tolerance * self._size(expected).max())

    def only(self, found: Tensor, base: Tensor, signs: Tensor, otherwise: str) -> None:
        """Only the heads with a changed sign may have changed, and have."""
        change, least = self._size(found - base), self.tolerance * self._size(base).max()
        if (change <= least).all():
            raise Unprovable(LONGER)
        kept = signs.to(change.device) > 0
        if (change[kept] > least).any() or (change[~kept] <= 5 * least).any():
            raise Refuted(otherwise)

    def differs(self, found: Tensor, base: Tensor) -> bool:
        return bool(self._size(found - base).max() > 5 * self.tolerance * self._size(base).max())

    def touched(self, found: Tensor, base: Tensor) -> int:
        """How many rows changed."""
        change = (found - base).abs().flatten(-2).flatten(0, -2).amax(-1)
        return int((change > self.tolerance * base.abs().max()).sum())

    def reached(self, weights: Tensor) -> int:
        """How many rows of what the module gives one feature of one token acts on, with these weights."""
        given, most = (self.args, self.kwargs), 0
        self.set(weights)
        before = self.call()
        for place in (0.0, 0.5, 1.0):
            self.args, self.kwargs = with_token_changed(given, place, self.widths)
            change = (self.call() - before).abs().flatten(0, -2).amax(-1)
            most = max(most, int((change > self.tolerance * before.abs().max()).sum()))
        self.args, self.kwargs = given
        self.set(self.weights)
        return most

    def rows(self, role: str) -> int | None:
        """How many tokens that projection is given, if it is a layer that is called."""
        owner = self.owner(role)
        if owner is None or isinstance(owner, (nn.Conv1d, nn.Conv2d)):
            return None
        given: list[int] = []
        with owner.register_forward_hook(lambda _, args, result: given.append(result[..., 0].numel())):
            self.call()
        return given[0] if given else None

    def owner(self, role: str) -> nn.Module | None:
        """The layer whose weight the first of these is in."""
        found = self.numbers[role]
        return next(iter(self._owners(found[found > 0][:1])), None)

    def owners(self, role: str) -> list[nn.Module]:
        """The layers whose weights these are."""
        return self._owners(self.numbers[role])

    def _owners(self, found: Tensor) -> list[nn.Module]:
        return [
            module
            for module in self.module.modules()
            if (weight := module._parameters.get("weight")) is not None
            and ((found > self.start(weight)) & (found <= self.start(weight) + weight.numel())).any()
        ]

    def is_turned(self, role: str) -> bool:
        """Whether its weight is read as (in, out): its inputs then lie apart."""
        block = self.numbers[role][0]
        if role == "output":
            return int(block[0, 1] - block[0, 0]) == 1
        return int(block[1, 0] - block[0, 0]) != 1

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.weights.dtype, HALF_TOLERANCE)

    def _size(self, difference: Tensor) -> Tensor:
        """The largest entry of each head, or of all."""
        size = difference.abs()
        return size.amax()[None] if self.blocks is None else size.amax(-1).flatten(0, -2).amax(0)

    def _watch_output(self, hooks: ExitStack) -> None:
        def see(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            convolves = isinstance(module, (nn.Conv1d, nn.Conv2d))
            self._seen = args[0].movedim(1, -1) if convolves else args[0]

        if self.blocks is not None:
            hooks.callback(self.blocks.register_forward_pre_hook(see).remove)

    def _inputs(self) -> Tensor:
        """Which inputs of the output projection each head's are, one head after the other."""
        assert self.blocks is not None
        weight: Tensor = self.blocks.weight  # type: ignore[assignment]
        inside = self.numbers["output"][..., 0].flatten() - self.start(weight) - 1
        return inside // weight.shape[1] if self.is_turned("output") else inside % weight.shape[1]

    def _flip_token(self, role: str, row: int) -> Any:
        owner = self.owner(role)
        assert owner is not None
        columns = self._columns(owner, role)

        def flip(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> Tensor:
            rows = result.flatten(0, -2).clone()
            rows[row, columns] *= -1
            return rows.view_as(result)

        return owner.register_forward_hook(flip)

    def _columns(self, owner: nn.Module, role: str) -> Tensor:
        """Which outputs of a layer the blocks of this role are."""
        weight: Tensor = owner.weight  # type: ignore[assignment]
        inside = self.numbers[role][:, 0].flatten() - self.start(weight) - 1
        inside = inside[(inside >= 0) & (inside < weight.numel())]
        return inside % weight.shape[1] if self.is_turned(role) else inside // weight.shape[1]

    def reads_bias_of(self, role: str, layer: nn.Linear) -> bool:
        """Whether each column that is read of this layer's weight is read with the layer's own bias."""
        first, bias = (numbered.flatten() for numbered in self._with_bias[role])
        inside = first - self.start(layer.weight) - 1
        there = (inside >= 0) & (inside < layer.weight.numel())
        if layer.bias is None:
            return True
        width = layer.weight.shape[1]
        columns = inside[there] % width if self.is_turned(role) else inside[there] // width
        return torch.equal(bias[there], self.start(layer.bias) + 1 + columns)

    def _random_weights(self) -> Tensor:
        """All matrices are drawn anew, those of heads in a size that keeps queries and keys near 1, and all
        biases, which often begin as zeros; not those of norms."""
        device = next(iter(self.parameters)).device
        weights = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        generator = torch.Generator().manual_seed(0)
        norms = [part for part in self.module.modules() if "norm" in type(part).__name__.lower()]
        of_norms = {parameter for norm in norms for parameter in norm.parameters()}
        for parameter, name in self.parameters.items():
            if parameter.ndim > 1 or (name.endswith("bias") and parameter not in of_norms):
                size = (parameter.numel() / len(parameter)) ** -0.5
                drawn = size * torch.randn(parameter.numel(), generator=generator)
                start = self.start(parameter)
                weights[start : start + parameter.numel()] = drawn.to(weights)
        for role, numbered in self.numbers.items():
            rows = numbered.shape[-1] if role == "output" else numbered.shape[1] - 1
            places = numbered[numbered > 0]
            drawn = rows**-0.5 * torch.randn(places.shape, generator=generator)
            weights[places.to(device) - 1] = drawn.to(weights)
        return weights
