"""What of a module was not read, and where it stands: before what was read, or beside it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankrise.watch._families import same_projection
from rankrise.watch._trial import ROLES, Refuted, Trial


def before_and_beside(trial: Trial) -> tuple[list[str], list[str]]:
    """The names of matrices that change what queries, keys or values are made of and are not read as a part
    of that role; and of other weights that are not read and change what the module gives. Raises `Refuted`
    for a matrix that is read and changes nothing, or not what comes after it."""
    before: list[str] = []
    beside: list[str] = []
    given, result = _given(trial), trial.call()
    for part in _parts(trial):
        trial.set(part.moved)
        now = _given(trial) if part.is_matrix or part.in_a_row else given
        acts = not _alike(trial.call(), result, trial.tolerance)
        trial.set(trial.weights)
        changes = {
            place: [
                not _alike(one, other, trial.tolerance)
                for one, other in zip(now[place], several, strict=False)
            ]
            for place, several in given.items()
        }
        if part.is_matrix and part.read and not acts:
            raise Refuted(f"{part.name} is read, and changes nothing that it gives")
        for role in part.in_a_row:
            if not all(changes.get((role, "last"), ())):
                raise Refuted(f"{part.name} is read before the rest of its {role}, which it does not change")
        if any(any(calls) for (role, _), calls in changes.items() if role not in part.in_a_row):
            before.append(part.name)
        elif acts and not part.read:
            beside.append(part.name)
    return list(dict.fromkeys(before)), beside


@dataclass(frozen=True)
class _Part:
    """A parameter, or what of it is or is not the last layer of some role."""

    name: str
    moved: Tensor
    """All weights, with these moved."""
    is_matrix: bool
    read: bool
    in_a_row: set[str]
    """The roles in which it is read before their last layer."""


def _parts(trial: Trial) -> Iterator[_Part]:
    """All parameters, each at once but for those of which a part is in heads as it is."""
    of_role = {role: numbered.flatten().unique() for role, numbered in trial.numbers.items()}
    as_they_are = torch.cat(list(of_role.values()))
    before = trial.read(trial.module)
    assert before is not None
    for parameter, name in trial.parameters.items():
        start = trial.start(parameter)
        numbers = torch.arange(start + 1, start + 1 + parameter.numel())
        there = torch.isin(numbers, as_they_are)
        for some in (numbers[~there], numbers[there]):
            if not len(some):
                continue
            moved = trial.moved(some)
            trial.set(moved)
            now = trial.read(trial.module)
            trial.set(trial.weights)
            assert now is not None
            reading = {role for role in of_role if not same_projection(now, before, role)}
            as_last = {role for role in of_role if torch.isin(some, of_role[role]).any()}
            part = "a part of " if len(some) < len(numbers) else ""
            yield _Part(
                f"{part}{name.removesuffix('.weight')}",
                moved,
                parameter.ndim > 1,
                bool(reading),
                reading - as_last - {"output"},
            )


def _given(trial: Trial) -> dict[tuple[str, str], list[Tensor]]:
    """What the first and the last layer of queries, of keys and of values is given at each of its calls."""
    given: dict[tuple[str, str], list[Tensor]] = {}
    with ExitStack() as hooks:
        for role in ROLES:
            ends = {"first": next(iter(trial.layers[role]), None), "last": trial.owner(role)}
            for end, layer in ends.items():
                if isinstance(layer, nn.Module):
                    given[role, end] = []
                    hooks.enter_context(layer.register_forward_pre_hook(_keep_in(given[role, end])))
        trial.call()
    return given


def _keep_in(seen: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    return lambda layer, args: seen.append(args[0].detach().clone())


def _alike(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())
