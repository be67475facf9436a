"""What of a module was not read, and where it stands: before what was read, or beside it."""

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from rankrise.watch._families import same_projection
from rankrise.watch._trial import ROLES, Refuted, Trial


def before_and_beside(trial: Trial) -> tuple[list[str], list[str]]:
    """The names of matrices that change what the first layer of queries, keys or values is given and are not
    read as a part of that role; and of other weights that are not read and change what the module gives.
    Raises `Refuted` for a matrix that is read and changes nothing."""
    before: list[str] = []
    beside: list[str] = []
    given, result = _given(trial, trial.weights), trial.call()
    for name, moved, is_matrix, reading in _further(trial):
        now = _given(trial, moved) if is_matrix else given
        changed = {role for role in given if not _alike(now[role], given[role], trial.tolerance)}
        acts = not _alike(_result(trial, moved), result, trial.tolerance)
        if changed - reading:
            before.append(name)
        elif acts and not reading:
            beside.append(name)
        elif reading and is_matrix and not acts:
            raise Refuted(f"{name} is read, and changes nothing that it gives")
    return before, beside


def _further(trial: Trial) -> Iterator[tuple[str, Tensor, bool, set[str]]]:
    """Each parameter, or part of one, that is not in heads as it is: its name, all weights with that one
    moved, whether it is a matrix, and the roles whose reading depends on it."""
    last = torch.cat([numbered.flatten() for numbered in trial.numbers.values()]).unique()
    as_it_is = trial.read(trial.module)
    assert as_it_is is not None
    for parameter, name in trial.parameters.items():
        start = trial.start(parameter)
        places = torch.arange(start, start + parameter.numel())
        rest = places[~torch.isin(places + 1, last)]
        if not len(rest):
            continue
        moved = _moved(trial.weights, rest)
        trial.set(moved)
        now = trial.read(trial.module)
        trial.set(trial.weights)
        assert now is not None
        reading = {role for role in (*ROLES, "output") if not same_projection(now, as_it_is, role)}
        part = "a part of " if len(rest) < len(places) else ""
        yield f"{part}{name.removesuffix('.weight')}", moved, parameter.ndim > 1, reading


def _moved(weights: Tensor, places: Tensor) -> Tensor:
    """All weights, with these drawn at random around where they are."""
    generator = torch.Generator().manual_seed(3)
    moved, places = weights.clone(), places.to(weights.device)
    moved[places] += torch.randn(len(places), generator=generator).to(weights)
    return moved


def _result(trial: Trial, weights: Tensor) -> Tensor:
    """What the module gives with these weights."""
    trial.set(weights)
    result = trial.call()
    trial.set(trial.weights)
    return result


def _given(trial: Trial, weights: Tensor) -> dict[str, Tensor]:
    """What the first layer of queries, of keys and of values is given, where it is a layer that is called."""
    given: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        trial.set(weights)
        hooks.callback(trial.set, trial.weights)
        for role in ROLES:
            first = next(iter(trial.layers[role]), None)
            if isinstance(first, nn.Module):

                def see(layer: nn.Module, args: tuple[Tensor, ...], role: str = role) -> None:
                    given.setdefault(role, args[0].detach().clone())

                hooks.enter_context(first.register_forward_pre_hook(see))
        trial.call()
    return given


def _alike(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())
