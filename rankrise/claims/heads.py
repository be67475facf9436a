"""Numbers per head that claims on tracked runs are made of: ranks, their growth, and how much was learned."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rankrise import watch
from rankrise.claims.claim import OWN, How
from rankrise.claims.statistics import Heads, spearman
from rankrise.runs import NotRecorded, TrackedRun

ENTROPY = "the entropy rank"
ENERGY = {f"directions for {100 * share:.0f} % of the energy": share for share in TrackedRun.energy_shares}
OTHER_RANKS = {rank: How(rank=rank) for rank in (ENTROPY, *ENERGY)}
"""Ranks other than the stable one, each as another choice."""

END = 0.9
"""From this fraction of training on, a spectrum counts as the final one."""
STEP_1, WARM_UP = "step 1", "the end of the warm-up"
"""What may count as early instead of the end of the first epoch. The first step is the optimiser's doing
(Adam's is the sign of one batch's gradient), so its rank is that of a batch."""
EARLY = 0.01
"""The first epoch, as a fraction of training, if epochs are not known."""
LINEAR = "a linear clock"
FEWEST_STEPS = 8
MOMENTS = 40
LOSS_WINDOW = 0.05
"""A smoothed loss is the mean over this fraction of training before a step."""


def heads_of(
    runs: Sequence[TrackedRun], values: Callable[[TrackedRun], Iterable[np.ndarray]], what: str
) -> Heads:
    """One value per head of some runs, one run per seed.

    `values` gives [heads] by layer, nan for heads that do not count, such as frozen ones. Layers in which no
    head counts are left out.
    """
    by_run = [[heads[np.isfinite(heads)] for heads in values(run)] for run in runs]
    layers = list(zip(*by_run, strict=True))
    kept = [place for place, seeds in enumerate(layers) if any(map(len, seeds))]
    if not kept:
        raise NotRecorded(
            f"no head's {what} has changed by more than rounding: it was frozen, or the run has only begun."
        )
    return Heads(tuple(place + 1 for place in kept), [layers[place] for place in kept])


def shared_layers(samples: Sequence[Heads]) -> list[Heads]:
    """Samples restricted to the layers that all of them have."""
    shared = set(samples[0].layers).intersection(*(sample.layers for sample in samples))
    if not shared:
        raise NotRecorded("the runs have no layer in common in which training has changed heads of each.")
    return [sample.only(shared) for sample in samples]


def ranks_of(run: TrackedRun, product: str, rank: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The finite steps at which a rank is known, and the ranks [steps, layers, heads]."""
    if product not in run.products:
        raise NotRecorded(f"{run.folder} has no {product}, which another run was tracked with.")
    if not rank:
        return run.finite_steps, run.ranks[product]
    if rank == ENTROPY:
        ranks = run.entropy_rank(product)[run.finite]
    else:
        ranks = run.energy_rank(product)[run.finite][..., list(ENERGY).index(rank)]
    if not np.isfinite(ranks).any():  # an older record, but its full spectra may tell
        ranks = np.full(ranks.shape, np.nan)
        for step in np.intersect1d(run.finite_steps, run.finite_spectra_steps):
            for layer, values in enumerate(run.spectrum(product, int(step))):
                entropy = rank == ENTROPY
                found = watch.effective_rank(values) if entropy else watch.energy_rank(values, ENERGY[rank])
                ranks[run.finite_steps == step, layer, : len(values)] = found
    known = np.isfinite(ranks).any(axis=(1, 2))
    if not known.any():
        raise NotRecorded(f"{run.folder} has neither {rank} nor full spectra.")
    steps = run.finite_steps[known]
    require_end(steps, run.last_finite_step)
    return steps, ranks[known]


def last_ranks(run: TrackedRun, product: str, rank: str = "") -> np.ndarray:
    """The rank at the end, [layers, heads]."""
    if not len(run.finite_steps):
        raise NotRecorded("a run has no measured step with finite weights yet.")
    return ranks_of(run, product, rank)[1][-1]


def require_end(spectra_steps: np.ndarray, end: int) -> None:
    """Refuse spectra of which the last is far from the end of training."""
    if spectra_steps[-1] < END * end:
        last = spectra_steps[-1]
        raise NotRecorded(f"the last full spectrum is of step {last} of {end}: it says nothing of the end.")


def at_the_end(runs: Sequence[TrackedRun], product: str, rank: str = "") -> Heads:
    """The rank of the change at the end, of heads whose change exceeds rounding noise."""
    return heads_of(runs, lambda run: _above_noise(last_ranks(run, product, rank), run, product, -1), product)


def at_equal_loss(runs: Sequence[TrackedRun], others: Sequence[TrackedRun], product: str) -> Heads:
    """The stable rank when each run's loss first fell to the highest final loss of all `others`."""
    level = max(smoothed_loss(run)[1][-1] for run in others)

    def then(run: TrackedRun) -> list[np.ndarray]:
        steps, loss = smoothed_loss(run)
        reached = np.searchsorted(run.finite_steps, steps[np.argmax(loss <= level)])
        place = min(int(reached), len(run.finite_steps) - 1)
        return _above_noise(run.ranks[product][place], run, product, place)

    return heads_of(runs, then, product)


def _above_noise(ranks: np.ndarray, run: TrackedRun, product: str, place: int) -> list[np.ndarray]:
    noise = run.below_noise(product)[run.finite][place]
    return list(np.where((ranks > 0) & ~noise, ranks, np.nan))


def growth(runs: Sequence[TrackedRun], product: str, how: How = OWN) -> Heads:
    """log(rank at the end / early) of each head."""

    def factors(run: TrackedRun) -> np.ndarray:
        _, ranks = _from_early_on(run, product, how)
        return np.asarray(np.log(ranks[-1] / ranks[0]))

    return heads_of(runs, factors, product)


def trends(runs: Sequence[TrackedRun], product: str, how: How = OWN) -> Heads:
    """Rank correlation of each head's rank with the step, at up to 40 moments spread over log(step).

    Training has its stages on such a clock; on a linear one its long end decides, where little moves.
    """

    def trend(run: TrackedRun) -> list[np.ndarray]:
        steps, ranks = _from_early_on(run, product, how)
        spaced = np.linspace if how.window == LINEAR else np.geomspace
        places = np.searchsorted(steps, spaced(steps[0], steps[-1], MOMENTS)).clip(max=len(steps) - 1)
        ranks = ranks[np.unique(places)]
        correlations = np.full(ranks.shape[1:], np.nan)
        for layer, head in zip(*np.isfinite(ranks[0]).nonzero(), strict=True):
            correlations[layer, head] = spearman(np.arange(len(ranks)), ranks[:, layer, head])
        return list(correlations)

    return heads_of(runs, trend, product)


def _from_early_on(run: TrackedRun, product: str, how: How) -> tuple[np.ndarray, np.ndarray]:
    """The steps from early on, and the ranks; nan throughout for a head that is unchanged at any of them."""
    steps, ranks = ranks_of(run, product, how.rank)
    first_epoch = run.epoch_steps or EARLY * run.last_finite_step
    early = {STEP_1: 0, WARM_UP: run.warm_up_steps}.get(how.window, first_epoch)
    clear = ~np.isin(steps, run.noisy_steps) & (steps >= early)
    steps, ranks = steps[clear], ranks[clear]
    if len(ranks) < FEWEST_STEPS:
        raise NotRecorded(
            f"{run.folder} measured {how.rank or 'the stable rank'} {len(ranks)} times above rounding noise "
            f"after {how.window or 'its first epoch'}, and a trend takes {FEWEST_STEPS}: train it further, "
            "or measure more often."
        )
    return steps, np.where((np.isfinite(ranks) & (ranks > 0)).all(axis=0), ranks, np.nan)


def losses(runs: Sequence[TrackedRun]) -> np.ndarray:
    """The first and the last finite training loss of each run that recorded any, [runs, 2]."""
    recorded = [run.steps().get("loss", np.empty(0)) for run in runs]
    finite = [loss[np.isfinite(loss)] for loss in recorded]
    return np.array([(loss[0], loss[-1]) for loss in finite if len(loss)]).reshape(-1, 2)


def smoothed_loss(run: TrackedRun) -> tuple[np.ndarray, np.ndarray]:
    """The steps with a training loss, and its mean over the 5 % of training before each."""
    recorded = run.steps()
    loss = recorded.get("loss", np.empty(0))
    steps, loss = recorded["step"][np.isfinite(loss)], loss[np.isfinite(loss)]
    if not len(steps) or not len(run.finite_steps):
        raise NotRecorded(f"{run.folder} has no training loss, or no measured step yet.")
    totals = np.concatenate([[0.0], np.cumsum(loss)])
    ends = np.arange(1, len(steps) + 1)
    starts = np.searchsorted(steps, steps - LOSS_WINDOW * steps[-1])
    return steps, (totals[ends] - totals[starts]) / (ends - starts)
