"""The loss of an adapter, measured in the tuned model, and the ranks that a budget gives it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, Measured
from rankrise.use._cut import Cut
from rankrise.use._ranks import cost_of_one, highest, least, one_rank, ranks_for, ranks_within
from rankrise.use._weights import Matrix, Pair

Evaluate = Callable[[Any], float | Mapping[str, float]]
"""Gives the loss of a model, or several scores by name, one of which is "loss"."""

Scores = Mapping[str, float]


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
    """Cut every matrix to the rank that a budget buys, and measure the adapter if there is a bench."""
    if budget.gain is not None and bench is None:
        raise RankriseError("gain is a share of the fall of a loss: pass evaluate (--data) to measure it.")
    cuts: dict[str, Cut] = {}
    for place, matrix in enumerate(matrices, 1):
        made = cut(matrix)
        cuts[matrix.name] = replace(made, left=made.left.cpu(), right=made.right.cpu())
        if progress is not None:
            progress(place / len(matrices))
    adapter = Adapter(matrices=matrices, cuts=cuts, ranks=dict.fromkeys(cuts, 0), **facts)
    if budget.gain is None:
        adapter = adapter.at(ranks_for(budget, adapter.spectra, uniform))
    if bench is None:
        return adapter
    base, tuned = bench.of_base(), bench.scores()
    if budget.gain is not None:
        refuse_no_gain(base, tuned)
        wanted = base["loss"] - budget.gain * (base["loss"] - tuned["loss"])
        adapter = adapter.at(_ranks_reaching(wanted, adapter, uniform, bench))
    scores = bench.of(adapter)
    return replace(adapter, measured=Measured(base, tuned, scores, kept_gain(base, tuned, scores)))


def kept_gain(base: Scores, tuned: Scores, cut: Scores) -> float | None:
    """The share of the fall of the loss that a cut keeps; None if the loss did not fall."""
    fall = base["loss"] - tuned["loss"]
    return (base["loss"] - cut["loss"]) / fall if fall > 0 else None


def refuse_no_gain(base: Scores, tuned: Scores) -> None:
    """Refuse a tuned model whose loss is not below the base's, for there is no gain to keep."""
    if base["loss"] <= tuned["loss"]:
        raise RankriseError(
            f"The loss is {base['loss']:.4g} in the base and {tuned['loss']:.4g} in the tuned model, so no "
            "gain can be kept: are BASE and TUNED swapped, is this other data than it was tuned on, or was "
            "it tuned for too long?"
        )


def _ranks_reaching(loss: float, adapter: Adapter, uniform: bool, bench: Bench) -> dict[str, int]:
    """The least ranks with at most this loss: exact for one rank, and within 2 % of the parameters if not."""
    spectra = adapter.spectra
    ranks = one_rank if uniform else ranks_within
    one, most = cost_of_one(spectra), highest(spectra)

    def enough(amount: int) -> bool:
        return bench.of(adapter.at(ranks(spectra, amount)))["loss"] <= loss

    found = least(enough, most) if uniform else least(enough, most * one, max(1, one // 4), slack=0.02)
    if found is None:
        raise RankriseError(
            f"All {most} directions do not bring the loss down to {loss:.4g}: pass a smaller gain, or "
            'rest="keep" if the rest was left out.'
        )
    return ranks(spectra, found)
