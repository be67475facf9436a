"""Numbers per head of tracked runs, and statistics of them: means with bootstrap intervals, comparisons, and
the effects of choices."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from rankrise import watch
from rankrise.runs import Choice, NotRecorded, TrackedRun

ENTROPY, ENERGY = "the entropy rank", "directions for 90 % of the energy"
STEP_1 = "a clock from step 1"
"""Another start than the end of the first epoch. The first step is the optimiser's doing (Adam's is the sign
of one batch's gradient), so its rank is that of a batch."""

END = 0.9
"""From this fraction of training on, a spectrum counts as the final one."""
EARLY = 0.01
"""The first epoch, as a fraction of training, if epochs are not known."""
FEWEST_STEPS = 8
MOMENTS = 40

RESAMPLES = 2000
TAIL = 0.05
"""Probability outside each end of an interval."""

Heads = Mapping[int, Sequence[np.ndarray]]
"""One value per head: by layer, numbered from 1, and by seed."""


@dataclass(frozen=True)
class How:
    """The choices behind a number, on four axes; each field left empty means the claim's own choice."""

    rank: str = ""
    aggregate: str = ""
    """How layers or perturbations become one number: "mean", "worst" or "median"."""
    threshold: tuple[float, ...] = ()
    """For the first numbers of a claim; the others keep their own."""
    window: str = ""
    """Which part of training counts."""


OWN = How()


def heads_of(
    runs: Sequence[TrackedRun], values: Callable[[TrackedRun], Iterable[np.ndarray]], what: str
) -> Heads:
    """One value per head of some runs, one run per seed.

    `values` gives [heads] by layer, nan for heads that do not count, such as frozen ones. Layers in which no
    head counts are left out.
    """
    by_run = [[heads[np.isfinite(heads)] for heads in values(run)] for run in runs]
    found = {layer: seeds for layer, seeds in enumerate(zip(*by_run, strict=True), 1) if any(map(len, seeds))}
    if not found:
        raise NotRecorded(
            f"no head's {what} has changed by more than rounding: it was frozen, or the run has only begun."
        )
    return found


def shared_layers(samples: Sequence[Heads]) -> list[Heads]:
    """Samples restricted to the layers that all of them have."""
    shared = set(samples[0]).intersection(*samples)
    if not shared:
        raise NotRecorded("the runs have no layer in common in which training has changed heads of each.")
    return [{layer: sample[layer] for layer in sample if layer in shared} for sample in samples]


def ranks_of(run: TrackedRun, product: str, rank: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The finite steps at which a rank is known, and the ranks [steps, layers, heads]."""
    if product not in run.products:
        raise NotRecorded(f"{run.folder} has no {product}, which another run was tracked with.")
    steps = run.finite_steps
    if not len(steps):
        raise NotRecorded("a run has no measured step with finite weights yet.")
    if not rank:
        return steps, run.ranks[product]
    recorded = run.entropy_rank(product) if rank == ENTROPY else run.energy_rank(product)[..., 0]
    ranks = recorded[run.finite]
    if not np.isfinite(ranks).any():  # an older record, but its full spectra may tell
        ranks = np.full(ranks.shape, np.nan)
        for step in np.intersect1d(steps, run.finite_spectra_steps):
            for layer, values in enumerate(run.spectrum(product, int(step))):
                found = watch.effective_rank(values) if rank == ENTROPY else watch.energy_rank(values, 0.9)
                ranks[steps == step, layer, : len(values)] = found
    known = np.isfinite(ranks).any(axis=(1, 2))
    require_end(run, steps[known])
    return steps[known], ranks[known]


def require_end(run: TrackedRun, steps: np.ndarray) -> None:
    """Refuse steps of spectra of which the last is far from the end of training."""
    last, end = steps.max(initial=0), run.last_finite_step
    if not len(steps) or last < END * end:
        raise NotRecorded(f"the last full spectrum of {run.folder} is of step {last} of {end}.")


def last_ranks(run: TrackedRun, product: str, rank: str = "") -> np.ndarray:
    """The rank of the change at the end [layers, heads]; nan where the change is rounding noise."""
    ranks = ranks_of(run, product, rank)[1][-1]
    noise = run.below_noise(product)[run.finite][-1]
    return np.where((ranks > 0) & ~noise, ranks, np.nan)


def at_the_end(runs: Sequence[TrackedRun], product: str, rank: str = "") -> Heads:
    """The rank of the change at the end, of heads whose change exceeds rounding noise."""
    return heads_of(runs, lambda run: last_ranks(run, product, rank), product)


def growth(runs: Sequence[TrackedRun], product: str, how: How = OWN) -> Heads:
    """log(rank at the end / early) of each head."""

    def factors(run: TrackedRun) -> np.ndarray:
        _, ranks = _from_early_on(run, product, how)
        return np.asarray(np.log(ranks[-1] / ranks[0]))

    return heads_of(runs, factors, product)


def trends(runs: Sequence[TrackedRun], product: str, how: How = OWN) -> Heads:
    """Spearman's correlation of each head's rank with the step, at up to 40 moments spread over log(step).

    Training has its stages on such a clock; on a linear one its long end decides, where little moves.
    """

    def trend(run: TrackedRun) -> np.ndarray:
        steps, ranks = _from_early_on(run, product, how)
        moments = np.geomspace(steps[0], steps[-1], MOMENTS)
        ranks = ranks[np.unique(np.searchsorted(steps, moments).clip(max=len(steps) - 1))]
        above, tied = ranks[:, None] > ranks, ranks[:, None] == ranks
        order = above.sum(axis=1) + tied.sum(axis=1) / 2
        order -= order.mean(axis=0)
        clock = np.arange(len(ranks)) - (len(ranks) - 1) / 2
        size = np.sqrt((clock**2).sum() * (order**2).sum(axis=0))
        correlations = np.tensordot(clock, order, 1) / np.where(size > 0, size, 1.0)
        return np.where(np.isfinite(ranks[0]), correlations, np.nan)

    return heads_of(runs, trend, product)


def _from_early_on(run: TrackedRun, product: str, how: How) -> tuple[np.ndarray, np.ndarray]:
    """The steps from early on, and the ranks; nan throughout for a head that is unchanged at any of them."""
    steps, ranks = ranks_of(run, product, how.rank)
    early = 0 if how.window == STEP_1 else run.epoch_steps or EARLY * run.last_finite_step
    clear = ~np.isin(steps, run.noisy_steps) & (steps >= early)
    steps, ranks = steps[clear], ranks[clear]
    if len(ranks) < FEWEST_STEPS:
        raise NotRecorded(
            f"{run.folder} has {len(ranks)} measurements of {how.rank or 'the stable rank'} above rounding "
            f"noise since early on, and a trend takes {FEWEST_STEPS}: measure more often, or train on."
        )
    return steps, np.where((np.isfinite(ranks) & (ranks > 0)).all(axis=0), ranks, np.nan)


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 90 % interval."""

    value: float
    low: float
    high: float


def extreme(worst: Callable[..., float], several: Collection[Estimate]) -> Estimate:
    """`min` or `max` of several estimates, bound by bound."""
    return Estimate(*map(worst, zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True)
class Layers:
    """A number of each layer, `drawn` [layers, 1 + RESAMPLES]: observed, and with heads drawn again.

    With `logs` the numbers are logarithms, and estimates are of their exponentials.
    """

    numbers: tuple[int, ...]
    drawn: np.ndarray
    logs: bool = False

    def each(self) -> dict[int, Estimate]:
        """By layer."""
        return {layer: self._estimate(drawn) for layer, drawn in zip(self.numbers, self.drawn, strict=True)}

    def mean(self) -> Estimate:
        """Over layers; geometric for logarithms."""
        return self._estimate(self.drawn.mean(axis=0))

    def _estimate(self, drawn: np.ndarray) -> Estimate:
        one = Estimate(float(drawn[0]), *np.quantile(drawn[1:], [TAIL, 1 - TAIL]).tolist())
        return Estimate(*np.exp(astuple(one)).tolist()) if self.logs else one


def mapped(function: Callable[[np.ndarray], np.ndarray], heads: Heads) -> Heads:
    """A function of each value."""
    return {layer: list(map(function, seeds)) for layer, seeds in heads.items()}


def means(*samples: Heads, logs: bool = False) -> list[Layers]:
    """The mean over the heads of each layer, for samples that are drawn independently."""
    found = []
    for sample, weights in zip(samples, _redrawn(*map(_sizes, samples)), strict=True):
        values = map(np.concatenate, sample.values())
        drawn = [
            np.append(heads.mean(), weight @ heads) for heads, weight in zip(values, weights, strict=True)
        ]
        found.append(Layers(tuple(sample), np.stack(drawn), logs))
    return found


def in_order(samples: Sequence[Heads]) -> Layers:
    """The share of pairs of heads, from one layer of two samples, in which the earlier sample's is larger.

    All pairs of samples count the same.
    """
    weights, layers = _redrawn(*map(_sizes, samples)), []
    for place, layer in enumerate(samples[0]):
        heads, shares = [np.concatenate(sample[layer]) for sample in samples], []
        for first, second in combinations(range(len(samples)), 2):
            larger = heads[first][:, None] > heads[second]
            drawn = ((weights[first][place] @ larger) * weights[second][place]).sum(axis=1)
            shares.append(np.append(larger.mean(), drawn))
        layers.append(np.mean(shares, axis=0))
    return Layers(tuple(samples[0]), np.stack(layers))


def _sizes(sample: Heads) -> tuple[tuple[int, ...], ...]:
    """The number of heads by layer and seed."""
    return tuple(tuple(map(len, seeds)) for seeds in sample.values())


@lru_cache(maxsize=4)  # one claim asks for the same weights again and again
def _redrawn(*samples: tuple[tuple[int, ...], ...]) -> Sequence[Sequence[np.ndarray]]:
    """The weight of each head in each redrawing, [RESAMPLES, heads of all seeds] by sample and layer.

    Heads are drawn again within their layer and seed, with replacement; several seeds are drawn again too,
    the same for all layers.
    """
    generator, found = np.random.default_rng(0), []
    for sizes in samples:
        seeds, layers = len(sizes[0]), []
        times = generator.multinomial(seeds, [1 / seeds] * seeds, size=RESAMPLES)
        for layer in sizes:
            counts = [
                generator.multinomial(times[:, seed] * heads, [1 / heads] * heads)
                for seed, heads in enumerate(layer)
                if heads
            ]
            together = np.concatenate(counts, axis=1)
            layers.append(together / np.maximum(together.sum(axis=1, keepdims=True), 1))
        found.append(layers)
    return found


@dataclass(frozen=True)
class Effect:
    """What a choice does to the rank of a product's change, in one layer or over all (None)."""

    product: str
    layer: int | None
    growth: Estimate
    """The factor from the end of the first epoch to the end of training, geometric mean over heads."""
    final: Estimate
    """The stable rank after training, mean over heads."""
    against_base: Estimate
    """The ratio of that to the base's, geometric mean over heads."""


def effects(choice: Choice, base: Choice) -> list[Effect]:
    """The effects of a choice on each product, first over all layers, then by layer."""
    found: list[Effect] = []
    for product in base.runs[0].products:
        (factors,), ends = means(growth(choice.runs, product), logs=True), at_the_end(choice.runs, product)
        pair = shared_layers([ends, at_the_end(base.runs, product)])
        ours, theirs = means(*(mapped(np.log, heads) for heads in pair))
        # The base is compared with itself, not with another draw of its heads.
        other = theirs if choice.changes else ours
        three = (factors, *means(ends), Layers(ours.numbers, ours.drawn - other.drawn, logs=True))
        found.append(Effect(product, None, *(one.mean() for one in three)))
        each = [one.each() for one in three]
        layers = [layer for layer in each[2] if layer in each[0]]
        found += [Effect(product, layer, *(one[layer] for one in each)) for layer in layers]
    return found


def recorded(run: TrackedRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a metric is finite, and its values."""
    record = run.steps()
    values = record.get(name, np.full(len(record["step"]), np.nan))
    known = np.isfinite(values)
    return record["step"][known], values[known]


def learned(runs: Sequence[TrackedRun]) -> dict[str, float]:
    """Loss over the last 5 % of training, last validation loss and accuracy; nan where not recorded."""

    def last(run: TrackedRun, name: str, part: float) -> float:
        steps, values = recorded(run, name)
        return float(values[steps >= (1 - part) * steps[-1]].mean()) if len(steps) else np.nan

    parts = {"loss": 0.05, "validation_loss": 0.0, "accuracy": 0.0}
    return {name: float(np.mean([last(run, name, part) for run in runs])) for name, part in parts.items()}
