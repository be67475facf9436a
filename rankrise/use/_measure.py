"""The loss of an adapter, measured in the tuned model, and the ranks that a budget gives it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, Measured, no_gain
from rankrise.use._cut import Cut
from rankrise.use._ranks import cost_of_one, highest, least, one_rank, ranks_for, ranks_within
from rankrise.use._weights import Matrix, Pair

Evaluate = Callable[[Any], float | Mapping[str, float]]
"""Gives the loss of a model, or several scores by name, one of which is "loss"."""


class Bench:
    """A tuned model in which cuts of its own change are tried; its weights are put back afterwards."""

    def __init__(self, both: Pair, model: nn.Module, evaluate: Evaluate) -> None:
        base = replace(both.base, load=cache(both.base.load))  # the base is read once for all cuts
        self.model, self.both, self._evaluate = model, replace(both, base=base), evaluate
        self._tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self._tensors |= dict(model.named_buffers())

    @torch.no_grad()
    def scores(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The scores of the tuned model, with these tensors in place of its own."""
        tensors, training = tensors or {}, self.model.training
        own = {name: self._tensors[name].clone() for name in tensors}
        self.model.eval()
        try:
            for name, tensor in tensors.items():
                self._tensors[name].copy_(tensor)
            found = self._evaluate(self.model)
        finally:
            for name, tensor in own.items():
                self._tensors[name].copy_(tensor)
            self.model.train(training)
        given = found if isinstance(found, Mapping) else {"loss": found}
        scores = {str(name): float(value) for name, value in given.items()}
        if "loss" not in scores or scores["loss"] != scores["loss"]:
            raise RankriseError(f"evaluate gave {scores}: it must give a loss that is a number.")
        return scores

    def of_base(self) -> dict[str, float]:
        """The scores of the base; what is new in the tuned model stays, such as a head of another size."""
        names = [*self.both.others, *(matrix.stored for matrix in self.both.matrices)]
        found = {name: self.both.before(name) for name in names}
        return self.scores({name: tensor for name, tensor in found.items() if tensor is not None})

    def of(self, adapter: Adapter) -> dict[str, float]:
        """The scores of the base with the adapter; what is new in the tuned model stays."""
        tensors: dict[str, Tensor] = {}
        for matrix in adapter.matrices:
            device = self._tensors[matrix.stored].device
            weight = self.both.base.read(matrix.stored).to(device, torch.float32, copy=True)
            left, right = adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
            matrix.view(weight).add_((left.to(device) @ right.to(device)).float())
            tensors[matrix.stored] = weight
        for name in () if adapter.rest.kept else adapter.rest.changed:
            if (before := self.both.before(name)) is not None:
                tensors[name] = before
        return self.scores(tensors)


def fitted(
    budget: Budget,
    uniform: bool,
    bench: Bench | None,
    matrices: tuple[Matrix, ...],
    cut: Callable[[Matrix], Cut],
    progress: Callable[[float], None] | None,
    **facts: Any,
) -> Adapter:
    """Cut every matrix to the rank that a budget buys, and measure the adapter if there is a bench.

    The ranks that keep a gain are the least where all matrices have one rank, and within 2 % of the
    parameters otherwise.
    """
    if budget.gain is not None and bench is None:
        raise RankriseError("gain is a share of the fall of a loss: pass evaluate, a function of the model.")
    cuts: dict[str, Cut] = {}
    for place, matrix in enumerate(matrices):
        cuts[matrix.name] = cut(matrix).to("cpu")
        if progress is not None:
            progress((place + 1) / len(matrices))
    adapter = Adapter(matrices=matrices, cuts=cuts, ranks=dict.fromkeys(cuts, 0), **facts)
    spectra = adapter.spectra
    if budget.gain is None:
        adapter = adapter.at(ranks_for(budget, spectra, uniform))
    if bench is None:
        return adapter
    base, tuned = bench.of_base(), bench.scores()
    if budget.gain is not None:
        if nothing := no_gain(base, tuned):
            raise RankriseError(nothing)
        wanted = base["loss"] - budget.gain * (base["loss"] - tuned["loss"])
        most, one, ranks = highest(spectra), cost_of_one(spectra), one_rank if uniform else ranks_within

        def enough(amount: int) -> bool:
            return bench.of(adapter.at(ranks(spectra, amount)))["loss"] <= wanted

        if uniform:
            found = least(enough, most)
        else:
            found = least(enough, most * one, first=max(1, one // 4), slack=0.02)
        if found is None:
            raise RankriseError(
                f"All {most} directions that were found keep less than {budget.gain:.0%} of the gain: pass a "
                'larger `largest`, or rest="keep" if the rest was left out.'
            )
        adapter = adapter.at(ranks(spectra, found))
    return replace(adapter, measured=Measured(base, tuned, bench.of(adapter)))
