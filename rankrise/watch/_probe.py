"""Is a layout right? The module itself tells, by what it does when weights change their signs.

Attention has symmetries that name its heads. If the value of head h changes its sign, the h-th part of what
goes into the output projection does, and no other part changes. If its query changes its sign, only that part
changes; if its key does too, nothing changes. The query of one token acts on that token alone, its key on
others. A layout for which all of this holds is the one that the module uses. No mask, position (rotary or
added), softmax, gate or kernel has to be rebuilt for it, and signs are exact in any floating type.

What it does not see is the order of dimensions within a head, which is taken to be one for query and key.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.watch._families import Attention, Read
from rankrise.watch._projection import Projection
from rankrise.watch._twin import Unprovable, cast, numbered_heads, places, plain_copy

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
"""What may differ where nothing should, as a share of the largest entry; a change is five times that."""
HALF_TOLERANCE = 2e-2
LONGER = "no token of the batch looks at another one: pass a batch of longer samples"


class Refuted(Exception):
    """What the module does that the layout says it does not."""


def probe(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], read: Read) -> None:
    """Try whether `read(module)` is the layout by which `module(*args, **kwargs)` works, on a copy of it.

    The copy gets random weights and random tokens, so that a trained, zero or tiny module is as good as any.
    Raises `Refuted` or `Unprovable`.
    """
    try:
        trial, base = _begun(module, args, kwargs, read, torch.float64)
    except Unprovable:
        raise
    except Exception:  # some kernels take no float64
        try:
            trial, base = _begun(module, args, kwargs, read, None)
        except Exception as error:
            raise Unprovable(f"a copy of it does not run by itself ({_sentence(error)})") from error
    if trial.blocks is None:
        _probe_whole(trial, base)
    else:
        _probe_blocks(trial, base)
        _probe_tokens(trial, base)


def _begun(
    module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], read: Read, dtype: torch.dtype | None
) -> tuple["_Trial", Tensor]:
    trial = _Trial(module, args, kwargs, read, dtype)
    return trial, trial.run()


def _probe_blocks(trial: "_Trial", base: Tensor) -> None:
    """Head by head, at the input of the output projection: [..., heads, d_head]."""
    heads, group = trial.heads, trial.group
    for signs in _patterns(trial.groups):
        own = torch.tensor([signs[group[head]] for head in range(heads)], dtype=base.dtype)
        turned = base * own.to(base.device)[:, None]
        trial.same(trial.run(value=signs), turned, "the values of heads go to other heads' outputs")
        trial.same(trial.run(query=own, key=signs), base, "queries and keys are not paired in that way")
        trial.only(trial.run(key=signs), base, own, "keys belong to other heads, or are not keys")
    for signs in _patterns(heads):
        trial.only(trial.run(query=signs), base, signs, "queries belong to other heads, or are not queries")


def _probe_whole(trial: "_Trial", base: Tensor) -> None:
    """By the module's output alone, where its output projection is not a module that is called."""
    group = trial.group
    for signs in _patterns(trial.groups):
        own = torch.tensor([signs[one] for one in group])
        trial.same(trial.run(value=signs, output=own), base, "values and outputs are not paired in that way")
        trial.same(trial.run(query=own, key=signs), base, "queries and keys are not paired in that way")
        for found in (trial.run(value=signs), trial.run(key=signs), trial.run(query=own)):
            if not trial.differs(found, base):
                raise Unprovable(LONGER)


def _probe_tokens(trial: "_Trial", base: Tensor) -> None:
    """The query of a token acts on one row of the output, its key on several: else the two are exchanged."""
    queries, keys = trial.rows("query"), trial.rows("key")
    if queries is None or keys is None:
        return
    if queries != keys:  # a class token's query, or one sequence that looks at another
        if queries != base[..., 0, 0].numel():
            raise Refuted("there are as many outputs as keys, not as queries")
        return
    touched = {
        role: max(trial.touched(trial.run(token=(role, row)), base) for row in {0, keys // 2, keys - 1})
        for role in ("query", "key")
    }
    if touched["query"] > 1:
        raise Refuted("the query of one token changes what other tokens get, as a key does")
    if touched["key"] < 2:
        raise Unprovable(LONGER)


def _patterns(count: int) -> Iterator[Tensor]:
    """Signs [count] that tell any two apart: one by the bits of its number, and all changed together."""
    numbers = torch.arange(count)
    yield -torch.ones(count)
    for bit in range((count - 1).bit_length()):
        yield 1.0 - 2.0 * ((numbers >> bit) & 1)


@dataclass
class _Trial:
    """A copy of the module, what it is called with, and where in its parameters each head's weights lie."""

    module: nn.Module
    args: Sequence[Any]
    kwargs: dict[str, Any]
    read: Read
    dtype: torch.dtype | None
    blocks: nn.Module | None = field(init=False)
    """The output projection, if it is seen to be called."""

    def __post_init__(self) -> None:
        if any(isinstance(parameter, DTensor) for parameter in self.module.parameters()):
            raise Unprovable("its weights are sharded: check the model before it is sharded")
        self.module = plain_copy(self.module, self.dtype)
        self._parameters = list(dict.fromkeys(self.module.parameters()))
        numbered = numbered_heads(self.module, self._parameters, self.read)
        count = sum(parameter.numel() for parameter in self._parameters)
        roles = ("query", "key", "value", "output")
        self.places = {role: places(getattr(numbered, role), count) for role in roles}
        self.heads, self.groups = numbered.query.blocks, numbered.key.blocks
        self.group = [head // (self.heads // self.groups) for head in range(self.heads)]
        self._first = {
            role: getattr(numbered, role).weight[:, 0].flatten().long() for role in ("query", "key")
        }
        output = numbered.output.weight[0].unflatten(0, (self.heads, -1))
        self.places["output"] = [place.flatten().long() for place in output]
        self._randomise(numbered)
        self._turn([])
        widths = {numbered.query.weight.shape[1], numbered.key.weight.shape[1]}
        self.args, self.kwargs = cast((tuple(self.args), self.kwargs), self.dtype, widths)
        self.blocks = self._owner("output")
        self._seen: Tensor | None = None
        with ExitStack() as hooks:
            self._watch_output(hooks)
            self._call()
        if self._seen is None:
            self.blocks = None

    def run(self, token: tuple[str, int] | None = None, **signs: Tensor) -> Tensor:
        """What goes into the output projection [..., heads, d_head], or what the module gives, with the
        signs of heads changed, or of one role at one token."""
        turned = [
            place - 1
            for role, ones in signs.items()
            for place, sign in zip(self.places[role], ones.tolist(), strict=True)
            if sign < 0
        ]
        with ExitStack() as hooks:
            self._turn(turned)
            hooks.callback(self._turn, turned)
            if token is not None:
                hooks.callback(self._flip_token(*token).remove)
            self._watch_output(hooks)
            result = self._call()
        if self.blocks is None:
            return result
        assert self._seen is not None
        return self._seen.unflatten(-1, (self.heads, -1))

    def same(self, found: Tensor, expected: Tensor, otherwise: str) -> None:
        if self._size(found - expected).max() > self._tolerance * self._size(expected).max():
            raise Refuted(otherwise)

    def only(self, found: Tensor, base: Tensor, signs: Tensor, otherwise: str) -> None:
        """Only the heads with a changed sign may have changed, and have."""
        change, least = self._size(found - base), self._tolerance * self._size(base).max()
        if (change <= least).all():
            raise Unprovable(LONGER)
        kept = signs.to(change.device) > 0
        if (change[kept] > least).any() or (change[~kept] <= 5 * least).any():
            raise Refuted(otherwise)

    def differs(self, found: Tensor, base: Tensor) -> bool:
        return bool(self._size(found - base).max() > 5 * self._tolerance * self._size(base).max())

    def touched(self, found: Tensor, base: Tensor) -> int:
        """How many rows changed."""
        change = (found - base).abs().flatten(-2).flatten(0, -2).amax(-1)
        return int((change > self._tolerance * base.abs().max()).sum())

    def rows(self, role: str) -> int | None:
        """How many tokens that projection is given, if it is a layer that is called."""
        owner = self._owner(role)
        if owner is None or isinstance(owner, (nn.Conv1d, nn.Conv2d)):
            return None
        given: list[int] = []
        with owner.register_forward_hook(lambda _, args, result: given.append(result[..., 0].numel())):
            self._call()
        return given[0] if given else None

    def _size(self, difference: Tensor) -> Tensor:
        """The largest entry of each head, or of all."""
        size = difference.abs()
        return size.amax()[None] if self.blocks is None else size.amax(-1).flatten(0, -2).amax(0)

    @property
    def _tolerance(self) -> float:
        return TOLERANCE.get(self._weights.dtype, HALF_TOLERANCE)

    def _call(self) -> Tensor:
        self._seen = None
        args, kwargs = copy.deepcopy((self.args, self.kwargs))  # a cache among them must not grow
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        while not isinstance(result, Tensor):
            result = result[0]
        return result

    def _watch_output(self, hooks: ExitStack) -> None:
        def see(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            convolves = isinstance(module, (nn.Conv1d, nn.Conv2d))
            self._seen = args[0].movedim(1, -1) if convolves else args[0]

        if self.blocks is not None:
            hooks.callback(self.blocks.register_forward_pre_hook(see).remove)

    def _flip_token(self, role: str, row: int) -> Any:
        owner = self._owner(role)
        assert owner is not None
        columns = self._columns(owner, self._first[role])

        def flip(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> Tensor:
            rows = result.flatten(0, -2).clone()
            rows[row, columns] *= -1
            return rows.view_as(result)

        return owner.register_forward_hook(flip)

    def _columns(self, owner: nn.Module, places: Tensor) -> Tensor:
        """Which outputs of a layer these entries of its weight make: rows of (out, in), columns of Conv1D."""
        weight: Tensor = owner.weight  # type: ignore[assignment]
        inside = places - self._start(weight) - 1
        inside = inside[(inside >= 0) & (inside < weight.numel())]
        return inside // weight.shape[1] if isinstance(owner, nn.Linear) else inside % weight.shape[1]

    def _owner(self, role: str) -> nn.Module | None:
        """The one layer whose weight these are."""
        first = int(self.places[role][0][0])
        for module in self.module.modules():
            weight = module._parameters.get("weight")
            if weight is not None and self._start(weight) < first <= self._start(weight) + weight.numel():
                return module
        return None

    def _start(self, parameter: Tensor) -> int:
        before = itertools.takewhile(lambda one: one is not parameter, self._parameters)
        return sum(one.numel() for one in before)

    def _randomise(self, numbered: Attention) -> None:
        """Weights of projections are drawn anew, in a size that keeps queries and keys near 1."""
        device = self._parameters[0].device
        weights = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        generator = torch.Generator().manual_seed(0)
        for role in ("query", "key", "value", "output"):
            projection: Projection = getattr(numbered, role)
            size = projection.weight.shape[1] ** -0.5
            for numbers in (projection.weight, projection.bias):
                if numbers is not None:
                    places = numbers.flatten().long()
                    drawn = size * torch.randn(places.shape, generator=generator)
                    weights[places[places > 0].to(device) - 1] = drawn[places > 0].to(weights)
        self._weights = weights

    def _turn(self, places: list[Tensor]) -> None:
        """Change the signs of these weights; once more changes them back."""
        for place in places:
            self._weights[place] *= -1
        start = 0
        for parameter in self._parameters:
            part = self._weights[start : start + parameter.numel()]
            parameter.data = part.view(parameter.shape).to(parameter.dtype)
            start += parameter.numel()


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
