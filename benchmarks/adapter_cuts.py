"""Part 1 of `benchmarks/adapters.py`: for each way to cut, the parameters that keep 99 % of the gain."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from adapter_tasks import Task
from adapter_training import sample, scores, tensor_float_32
from rankrise.use._allocate import Spectrum, budget, one_rank, parameters_of, ranks_within

from rankrise import use
from rankrise.use._measure import Bench, least
from rankrise.use._weights import pair
from rankrise.use.types import Adapter

GAIN = 0.99
BUDGETS = (1, 2, 4, 8, 16, 32)
SLACK = 0.015
"""To which share of the parameters a bisection goes."""

PLAIN = "plain SVD, one rank"
SHARE = "plain SVD, share of energy per matrix"
ENERGY = "plain SVD, ranks by energy"
FISHER = "Fisher weighted, ranks by kept square"
LABELS = "weighted by the data's labels"


class Cutting:
    """The change of a tuned model's layers, ready to be cut; everything else stays the tuned model's.

    The gain is the fall of the held-out loss from those matrices' initial values to the tuned ones.
    """

    def __init__(self, task: Task, model: Any, seed: int, examples: int) -> None:
        self.task, self.model, self.seed, self._examples = task, model, seed, examples
        self.base = task.base(seed)
        both = pair(self.base, model).only(task.cut)
        self.bench = Bench(both, model, lambda each: scores(each, task.held_out))
        self.plain = self._all_directions(None)
        self.moments = self._moments(use.sampled)
        """Those of the true Fisher matrix."""
        self.fisher = self._all_directions(self.moments)
        self.initial, self.tuned = self.bench.of(self.plain), self.bench.scores()
        self.one = budget(self.plain.spectra, 1)

    @property
    def wanted(self) -> float:
        """The held-out loss at which enough of the gain is kept."""
        return self.initial["loss"] - GAIN * (self.initial["loss"] - self.tuned["loss"])

    def by_labels(self) -> Adapter:
        """The directions by moments of the gradients of the data's own labels."""
        return self._all_directions(self._moments(use.labelled))

    def _moments(self, loss: Any) -> use.Moments:
        batches = sample(self.task.train, self._examples, self.task.batch, self.seed)
        with tensor_float_32():
            return use.moments(self.model, batches, loss, only=self.task.cut)

    def _all_directions(self, moments: use.Moments | None) -> Adapter:
        """All directions of the change, on the model's device; none kept yet."""
        adapter = use.extract(self.base, self.model, keep=1.0, moments=moments, only=self.task.cut)
        device = next(self.model.parameters()).device
        cuts = {
            name: replace(cut, left=cut.left.to(device), right=cut.right.to(device))
            for name, cut in adapter.cuts.items()
        }
        return replace(adapter, cuts=cuts, ranks=dict.fromkeys(adapter.ranks, 0))


def cut_by(method: str, cutting: Cutting) -> dict[str, Any]:
    """The fewest parameters that keep the gain, and the scores at the budgets of one rank for all."""
    adapter = {FISHER: lambda: cutting.fisher, LABELS: cutting.by_labels}.get(method, lambda: cutting.plain)()
    spectra = adapter.spectra

    def within(amount: int) -> dict[str, int]:
        return ranks_within(spectra, amount)

    ranks: Callable[[int], dict[str, int]] = within
    most = parameters_of(spectra, {name: len(spectrum.squares) for name, spectrum in spectra.items()})
    if method == PLAIN:
        ranks = partial(one_rank, spectra)
        most = max(len(each.squares) for each in spectra.values())
    if method == SHARE:
        ranks, most = partial(share_of_each, spectra), 1000
    at_budget = ranks if method == PLAIN else lambda rank: within(rank * cutting.one)

    def scores_at(chosen: dict[str, int]) -> dict[str, float]:
        return cutting.bench.of(adapter.at(chosen))

    def enough(amount: int) -> bool:
        return scores_at(ranks(amount))["loss"] <= cutting.wanted

    first = max(1, cutting.one // 2) if ranks is within else 1
    amount = least(enough, most, first, SLACK) or most
    curve = {} if method == SHARE else {str(rank): scores_at(at_budget(rank)) for rank in BUDGETS}
    return row(method, parameters_of(spectra, ranks(amount)), cutting, curve)


def share_of_each(spectra: dict[str, Spectrum], permille: int) -> dict[str, int]:
    """The least rank of every matrix that keeps a share of its own square, as PEFT and kohya do."""
    ranks = {}
    for name, spectrum in spectra.items():
        kept, rank = 0.0, 0
        while rank < len(spectrum.squares) and kept < permille / 1000 * spectrum.total:
            kept += spectrum.squares[rank]
            rank += 1
        ranks[name] = rank
    return ranks


def row(method: str, parameters: int, cutting: Cutting, curve: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"method": method, "needed": parameters, "ranks": parameters / cutting.one,
            "initial": cutting.initial, "tuned": cutting.tuned, "curve": curve}  # fmt: skip
