"""What an adapter does to the loss: measured in the model itself, whose weights are put back afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import shown
from rankrise.use._adapter import Adapter, Measured
from rankrise.use._allocate import budget, one_rank, ranks_within
from rankrise.use._budget import Budget
from rankrise.use._gain import refuse_no_gain
from rankrise.use._models import load_model
from rankrise.use._weights import Pair, Source
from rankrise.watch._heads import unwrap

Evaluate = Callable[[Any], float | Mapping[str, float]]
"""The loss of a model; or several scores by name, of which "loss" is one."""


class Bench:
    """A model in which cuts of its own change are tried."""

    def __init__(self, both: Pair, tuned: Source, evaluate: Evaluate) -> None:
        self.model = unwrap(tuned) if isinstance(tuned, nn.Module) else load_model(both.tuned.name)
        self._both, self._evaluate = replace(both, base=both.base.held()), evaluate
        self._parameters: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        self._parameters |= dict(self.model.named_buffers())

    def scores(self) -> dict[str, float]:
        """What `evaluate` gives for the model as it is."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                found = self._evaluate(self.model)
        finally:
            self.model.train(training)
        given = found if isinstance(found, Mapping) else {"loss": found}
        scores = {str(name): _number(name, value) for name, value in given.items()}
        if "loss" not in scores:
            said = ", ".join(scores) or "no score"
            raise RankriseError(f"evaluate gave {said}: it has to give a loss among its scores.")
        if scores["loss"] != scores["loss"]:
            raise RankriseError("evaluate gave a loss that is not a number: check the data and the model.")
        return scores

    def scores_with(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """The scores with these tensors in the model, by name."""
        with self._holding(tensors):
            return self.scores()

    def of_base(self) -> dict[str, float]:
        """Scores of the base model; what is new in the tuned model stays."""
        changes = {name: self._both.base.read(name) for name in self._both.others}
        for matrix in self._both.matrices:
            changes[f"{matrix.name}.weight"] = self._both.base.read(f"{matrix.name}.weight")
        return self.scores_with({name: tensor for name, tensor in changes.items() if tensor is not None})

    def of(self, adapter: Adapter) -> dict[str, float]:
        """Scores of the base with the adapter; what is new in the tuned model stays, as a head of another
        size."""
        return self.scores_with(self._weights(adapter))

    def _weights(self, adapter: Adapter) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for matrix in adapter.matrices:
            before, _ = self._both.read(matrix)
            left, right = adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
            device = self._parameters[f"{matrix.name}.weight"].device
            weight = before.to(device).float() + (left.to(device) @ right.to(device)).float()
            found[f"{matrix.name}.weight"] = matrix.oriented(weight)
        if not adapter.rest.kept:
            for name in adapter.rest.changed:
                stored = self._both.base.read(name)
                if stored is not None and stored.shape == self._parameters[name].shape:
                    found[name] = stored
        return found

    @contextmanager
    def _holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """These tensors in the model, and afterwards its own again."""
        kept = {name: self._parameters[name].detach().clone() for name in tensors}
        try:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    self._parameters[name].copy_(tensor)
            yield
        finally:
            with torch.no_grad():
                for name, tensor in kept.items():
                    self._parameters[name].copy_(tensor)


def _number(name: object, value: Any) -> float:
    """A score that `evaluate` gave: a number, or a tensor or array of one."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise RankriseError(
        f"evaluate gave {shown(value)} as the {name}: let it return a number, or a dictionary of numbers of "
        'which "loss" is one.'
    )


def measured_at(adapter: Adapter, both: Pair, tuned: Source, evaluate: Evaluate, asked: Budget) -> Adapter:
    """The adapter with its measured loss; with the least ranks that keep a gain, where one is asked."""
    bench = Bench(both, tuned, evaluate)
    base, whole = bench.of_base(), bench.scores()
    if asked.gain is not None:
        adapter = _least(adapter, bench, base["loss"], whole["loss"], asked)
    return replace(adapter, measured=Measured(base, whole, bench.of(adapter)))


def _least(adapter: Adapter, bench: Bench, base: float, whole: float, asked: Budget) -> Adapter:
    """The first that is enough: to a rank where all have the same, else to 2 % of the parameters."""
    assert asked.gain is not None
    refuse_no_gain(base, whole)
    wanted = base - asked.gain * (base - whole)
    spectra = adapter.spectra
    highest = max((len(spectrum.squares) for spectrum in spectra.values()), default=0)
    one = budget(spectra, 1)

    def at(amount: int) -> Adapter:
        return adapter.at(one_rank(spectra, amount) if asked.uniform else ranks_within(spectra, amount))

    def enough(amount: int) -> bool:
        return bench.of(at(amount))["loss"] <= wanted

    if asked.uniform:
        found = least(enough, highest)
    else:
        found = least(enough, highest * one, first=max(1, one // 4), slack=0.02)
    if found is None:
        raise RankriseError(
            f"All {highest} directions that were found keep less than {100 * asked.gain:.0f} % of the gain: "
            'pass a larger `largest`, or rest="keep" if what a low rank cannot hold was left out.'
        )
    return at(found)


def least(enough: Callable[[int], bool], most: int, first: int = 1, slack: float = 0.0) -> int | None:
    """The least number from 1 to `most` that is enough, up to a share `slack`; None if there is none.

    `first` is doubled until it is enough, then the last doubling is halved, geometrically. What is enough at
    a number need not be so at a larger one (a loss may rise with the rank): only within the last doubling
    is it taken to be.

    >>> least(lambda number: number >= 37, 1000)
    37
    >>> least(lambda number: number in (6, 7, 8) or number > 500, 1000)
    6
    """
    if most < 1:
        return None
    low, high = 0, min(first, most)
    while not enough(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(1, slack * high):
        middle = min(max(round((max(low, 1) * high) ** 0.5), low + 1), high - 1)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
