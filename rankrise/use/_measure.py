"""What an adapter does to the loss, measured in the tuned model, whose weights are put back afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._adapter import Adapter, Measured, no_gain
from rankrise.use._ranks import highest, least, one_rank, parameters_of, ranks_within
from rankrise.use._weights import Pair, Source, load_model
from rankrise.watch._heads import unwrap

Evaluate = Callable[[Any], float | Mapping[str, float]]
"""Gives the loss of a model, or several scores by name, one of which is "loss"."""


class Bench:
    """A tuned model in which cuts of its own change are tried."""

    def __init__(self, both: Pair, tuned: Source, evaluate: Evaluate) -> None:
        self.model = unwrap(tuned) if isinstance(tuned, nn.Module) else load_model(tuned)
        self._both, self._evaluate = replace(both, base=both.base.cached()), evaluate
        self._tensors: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        self._tensors |= dict(self.model.named_buffers())

    def scores(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The scores of the tuned model, with these tensors in place of its own."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self._holding(tensors or {}):
                found = self._evaluate(self.model)
        finally:
            self.model.train(training)
        given = found if isinstance(found, Mapping) else {"loss": found}
        scores = {str(name): float(value) for name, value in given.items()}
        if "loss" not in scores:
            raise RankriseError(f"evaluate gave {', '.join(scores) or 'nothing'}: it must also give a loss.")
        if scores["loss"] != scores["loss"]:
            raise RankriseError("evaluate gave a loss that is not a number: check the data and the model.")
        return scores

    def of_base(self) -> dict[str, float]:
        """The scores of the base; what is new in the tuned model stays, such as a head of another size."""
        names = [*self._both.others, *(matrix.stored for matrix in self._both.matrices)]
        found = {name: self._both.base.find(name) for name in names}
        return self.scores({name: tensor for name, tensor in found.items() if tensor is not None})

    def of(self, adapter: Adapter) -> dict[str, float]:
        """The scores of the base with the adapter; what is new in the tuned model stays."""
        tensors: dict[str, Tensor] = {}
        for matrix in adapter.matrices:
            before = matrix.matrix(self._both.base.read(matrix.stored))
            left, right = adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
            device = self._tensors[matrix.stored].device
            weight = before.to(device).float() + (left.to(device) @ right.to(device)).float()
            tensors[matrix.stored] = matrix.weight(weight)
        for name in () if adapter.rest.kept else adapter.rest.changed:
            stored = self._both.base.find(name)
            if stored is not None and stored.shape == self._tensors[name].shape:
                tensors[name] = stored
        return self.scores(tensors)

    @contextmanager
    def _holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        own = {name: self._tensors[name].detach().clone() for name in tensors}
        try:
            for name, tensor in tensors.items():
                self._tensors[name].copy_(tensor)
            yield
        finally:
            for name, tensor in own.items():
                self._tensors[name].copy_(tensor)


def measured(
    adapter: Adapter, both: Pair, tuned: Source, evaluate: Evaluate, gain: float | None, uniform: bool
) -> Adapter:
    """The adapter with its scores; with the least ranks that keep a gain, if one is asked for.

    The least is exact where all matrices have one rank, and within 2 % of the parameters otherwise.
    """
    bench = Bench(both, tuned, evaluate)
    base, whole = bench.of_base(), bench.scores()
    if gain is not None:
        refuse_no_gain(base, whole)
        wanted = base["loss"] - gain * (base["loss"] - whole["loss"])
        spectra = adapter.spectra
        most, one = highest(spectra), parameters_of(spectra, dict.fromkeys(spectra, 1))

        def at(amount: int) -> Adapter:
            return adapter.at(one_rank(spectra, amount) if uniform else ranks_within(spectra, amount))

        def enough(amount: int) -> bool:
            return bench.of(at(amount))["loss"] <= wanted

        if uniform:
            found = least(enough, most)
        else:
            found = least(enough, most * one, first=max(1, one // 4), slack=0.02)
        if found is None:
            raise RankriseError(
                f"All {most} directions that were found keep less than {100 * gain:.0f} % of the gain: pass "
                'a larger `largest`, or rest="keep" if the rest was left out.'
            )
        adapter = at(found)
    return replace(adapter, measured=Measured(base, whole, bench.of(adapter)))


def refuse_no_gain(base: Mapping[str, float], tuned: Mapping[str, float]) -> None:
    """Refuse to search for a share of a gain that does not exist."""
    said = no_gain(base["loss"], tuned["loss"])
    if said is not None:
        raise RankriseError(said)
