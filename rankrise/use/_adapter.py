"""An adapter: the change of a model cut to few directions, what it holds, and the loss that it gives."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget, For
from rankrise.use import _ranks
from rankrise.use._cut import Cut
from rankrise.use._peft import save_adapter
from rankrise.use._ranks import Spectrum, highest, kept_share
from rankrise.use._weights import Pair
from rankrise.watch._matrix import Matrix

Scores = Mapping[str, float]  # by name, one of which is "loss"
FALLING = ("loss", "perplexity")  # in the names of scores that are better when they are lower
Evaluate = Callable[[Any], float | Scores]  # gives the loss of a model, or several scores
Held = Mapping[str, float]  # by tensor, the share of the whole change that is not held


@dataclass(frozen=True)
class Measured:
    """Scores of the base, of the tuned model and of the base with the adapter; one of them is the loss."""

    base: dict[str, float]
    tuned: dict[str, float]
    adapter: dict[str, float]
    gains: dict[str, float | None]  # the share of each score's gain that the adapter keeps, see `kept_gain`
    searched: float | None = None  # the share that a search for a gain has found, on its own data
    on: str = ""  # what they were measured on, in words


@dataclass(frozen=True, eq=False)
class Rest:
    """The tensors that changed and were not cut: biases, norms, tied embeddings, a new head."""

    changed: tuple[str, ...]  # their names, in the model's order
    kept: bool = True  # whether they are part of the adapter
    tensors: dict[str, Tensor] = field(default_factory=dict)  # those that are kept
    modules: tuple[str, ...] = ()  # kept whole; other tensors are kept by themselves, as PEFT keeps biases

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


@dataclass(frozen=True, eq=False, repr=False)
class Adapter:
    """The change of each matrix cut to its rank; `save` writes it for PEFT and other programs."""

    matrices: tuple[Matrix, ...]
    cuts: dict[str, Cut]  # all directions that were found, by module name
    ranks: dict[str, int]  # how many of them are kept
    rest: Rest  # what else changed
    base: str  # the base model's folder or name on the Hub, or empty
    dtype: torch.dtype  # of the factors when saved: the tuned weights' own
    measure_change: "Callable[[Adapter], Held]"
    task: str | None  # PEFT's task type, if known
    module_names: tuple[str, ...]  # of the whole model, against which PEFT matches names
    moments: dict[str, Any] | None  # how those were measured that weight the squares; None for plain squares
    measured: Measured | None = None

    def __repr__(self) -> str:
        ranks = f"ranks up to {max(self.ranks.values())}, {self.parameters:,} parameters"
        return f"Adapter({len(self.matrices)} matrices, {ranks}, {len(self.rest.changed)} other tensors)"

    @cached_property
    def left_out(self) -> dict[str, float]:
        """The share of the whole change in each tensor that the adapter does not give back, largest first."""
        return dict(sorted(self.measure_change(self).items(), key=lambda item: -item[1]))

    @property
    def held(self) -> float:
        """The share of the square of the whole change, of all parameters, that the saved adapter gives back;
        after `shrink`, of the larger adapter's change. Reads both models again, once."""
        return 1.0 - sum(self.left_out.values())

    @cached_property
    def spectra(self) -> dict[str, Spectrum]:
        return {name: made.spectrum for name, made in self.cuts.items()}

    @property
    def kept(self) -> float:
        """The share kept of the square of the cut matrices, beyond noise; weighted by moments if used."""
        return kept_share(self.spectra, self.ranks)

    @property
    def parameters(self) -> int:
        """Numbers in the factors; what is kept whole has `rest.parameters` more."""
        return _ranks.parameters_of(self.spectra, self.ranks)

    def at(self, ranks: Mapping[str, int]) -> "Adapter":
        """The same change cut to other ranks, not measured yet."""
        return replace(self, ranks=dict(ranks), measured=None)

    def save(self, folder: str | Path, for_: For = "peft") -> Path:
        """Write a folder for one reader, or for "all"; its `rankrise.json` says who applies it rightly."""
        return save_adapter(self, Path(folder), for_)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `--json` prints it."""
        rows = []
        for matrix in self.matrices:
            name, cut, spectrum = matrix.name, self.cuts[matrix.name], self.spectra[matrix.name]
            kept, rank = kept_share({name: spectrum}, self.ranks), self.ranks[name]
            row = {"name": name, "shape": matrix.shape, "rank": rank, "kept": kept}
            rows.append({**row, "square": spectrum.total, "noise": cut.noise})
        return {
            "base": self.base,
            "held": self.held,
            "left_out": self.left_out,
            "parameters": self.parameters,
            "kept": self.kept,
            "moments": self.moments,
            "rest": self.rest.changed,
            "rest_kept": self.rest.kept,
            "rest_parameters": self.rest.parameters,
            "measured": self.measured and vars(self.measured),
            "matrices": rows,
        }


class Bench:
    """A tuned model in which cuts of its own change are tried; its weights are put back afterwards."""

    def __init__(self, both: Pair, model: nn.Module, evaluate: Evaluate) -> None:
        base = replace(both.base, load=cache(both.base.load))  # the base is read once for all cuts
        self.model, self.both, self.evaluate = model, replace(both, base=base), evaluate
        self._tensors = model.state_dict(keep_vars=True)

    @torch.no_grad()
    def scores(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The scores of the tuned model, with these tensors in place of its own."""
        tensors, training = tensors or {}, self.model.training
        own = {name: self._tensors[name].clone() for name in tensors}
        self.model.eval()
        try:
            for name, tensor in tensors.items():
                self._tensors[name].copy_(tensor)
            found = self.evaluate(self.model)
        finally:
            for name, tensor in own.items():
                self._tensors[name].copy_(tensor)
            self.model.train(training)
        given = found if isinstance(found, Mapping) else {"loss": found}
        scores = {str(name): float(value) for name, value in given.items()}
        if "loss" not in scores or scores["loss"] != scores["loss"]:
            raise RankriseError(f"evaluate gave {scores}: it must give a loss that is a number.")
        return scores

    def before(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Tensors of the base, without those that are new in the tuned model, such as a new head."""
        found = {name: self.both.before(name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def of_base(self) -> dict[str, float]:
        """The scores of the base; what is new in the tuned model stays."""
        return self.scores(self.before([*self.both.others, *(one.stored for one in self.both.matrices)]))

    def of(self, adapter: Adapter) -> dict[str, float]:
        """The scores of the base with the adapter; what is new in the tuned model stays."""
        rest = self.before(() if adapter.rest.kept else adapter.rest.changed)
        return self.scores(rest | self.cut(adapter.matrices, adapter.cuts.values(), adapter.ranks.values()))

    def cut(self, matrices: Iterable[Matrix], cuts: Iterable[Cut], ranks: Iterable[int]) -> dict[str, Tensor]:
        """The weights whose matrices have changed by these cuts alone since the base."""
        weights: dict[str, Tensor] = {}
        for matrix, cut, rank in zip(matrices, cuts, ranks, strict=True):
            if matrix.stored not in weights:  # parts of a matrix share it
                stored = self._tensors[matrix.stored].detach().float()
                weights[matrix.stored] = stored.clone(memory_format=torch.contiguous_format)
            weight = weights[matrix.stored]
            left, right = (factor.to(weight.device) for factor in cut.factors(rank))
            before = self.both.base.read(matrix.stored).to(weight)
            matrix.view(weight).copy_(matrix.view(before) + (left @ right).float())
        return weights


def fitted(
    budget: Budget,
    uniform: bool,
    bench: Bench | None,
    matrices: tuple[Matrix, ...],
    cut: Callable[[Matrix], Cut],
    progress: Callable[[float], None],
    metric: str | None,
    final: Evaluate | None,
    **facts: Any,
) -> Adapter:
    """Cut every matrix to the rank that a budget buys, and measure the adapter if there is a bench.

    A gain is one of the score `metric`; `final` measures the adapter that a search by the bench has found.
    """
    if budget.gain is not None and bench is None:
        raise RankriseError("gain is a share of the fall of a loss: pass evaluate (--data) to measure it.")
    cuts: dict[str, Cut] = {}
    for place, matrix in enumerate(matrices, 1):
        made = cut(matrix)
        cuts[matrix.name] = replace(made, left=made.left.cpu(), right=made.right.cpu())
        progress(place / len(matrices))
    adapter = Adapter(matrices=matrices, cuts=cuts, ranks=dict.fromkeys(cuts, 0), **facts)
    if budget.gain is None:
        adapter = adapter.at(_ranks.ranks_for(budget, adapter.spectra, uniform))
    if bench is None:
        return adapter
    searched = None
    if budget.gain is not None:
        adapter, searched = _reaching(budget.gain, metric or "loss", adapter, uniform, bench)
    bench.evaluate = final or bench.evaluate
    base, tuned, scores = bench.of_base(), bench.scores(), bench.of(adapter)
    gains = {name: kept_gain(base, tuned, scores, name) for name in tuned}
    return replace(adapter, measured=Measured(base, tuned, scores, gains, searched))


def kept_gain(base: Scores, tuned: Scores, cut: Scores, metric: str = "loss") -> float | None:
    """The share that a cut keeps of what training gained in a score; None if it gained nothing.

    A loss and a perplexity gain by falling, every other score by rising.
    """
    gained, kept = tuned[metric] - base[metric], cut[metric] - base[metric]
    falls = any(word in metric for word in FALLING)
    return kept / gained if (gained < 0 if falls else gained > 0) else None


def refuse_no_gain(base: Scores, tuned: Scores, metric: str = "loss") -> None:
    """Refuse a tuned model that is no better than the base, for there is no gain to keep."""
    if metric not in tuned:
        raise RankriseError(f"metric is {metric!r}, which is not measured: pass one of {', '.join(tuned)}.")
    if kept_gain(base, tuned, tuned, metric) is None:
        raise RankriseError(
            f"The {metric} is {base[metric]:.4g} in the base and {tuned[metric]:.4g} in the tuned model, so "
            "no gain can be kept: are BASE and TUNED swapped, or is this other data than it was tuned on?"
        )


def _reaching(
    gain: float, metric: str, adapter: Adapter, uniform: bool, bench: Bench
) -> tuple[Adapter, float]:
    """The least ranks that keep a gain, exact or within 2 % of the parameters, and the share they keep."""
    base, tuned = bench.of_base(), bench.scores()
    refuse_no_gain(base, tuned, metric)
    ranks = partial(_ranks.one_rank if uniform else _ranks.ranks_within, adapter.spectra)
    one, most = _ranks.cost_of_one(adapter.spectra), highest(adapter.spectra)

    @cache
    def kept(amount: int) -> float:
        return kept_gain(base, tuned, bench.of(adapter.at(ranks(amount))), metric) or 0.0

    search = (most, 1, 0.0) if uniform else (most * one, max(1, one // 4), 0.02)
    found = _ranks.least(lambda amount: kept(amount) >= gain, *search)
    if found is None:
        raise RankriseError("Even all directions keep less of it: pass less gain, or keep the rest.")
    return adapter.at(ranks(found)), kept(found)
