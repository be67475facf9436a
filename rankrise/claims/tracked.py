"""Claims on tracked runs: a number per head, over layers, against a threshold."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rankrise.claims import heads
from rankrise.claims.claim import Number, Statement
from rankrise.claims.heads import Estimate, Heads, How, Layers, at_the_end, mapped, means, shared_layers
from rankrise.runs import NotRecorded, Run, Study, TrackedRun, studies

SMALLEST_HEAD = 20
"""In smaller heads a tenth is below 2, and only rank one would pass."""
HARDLY = 0.5
"""Runs whose training loss stays above this fraction of its first value have hardly learned."""
JUDGE = "Pass --judge for a verdict."

FAR_BELOW = "far below is an order of magnitude"
CHANCE = "half of them would by chance; three of four is half-way to all. Pairs are of the same layer"
STEADY = "1 where it only rises, 0 without a trend; up to 40 measurements, on a log clock"
FASTER = "much faster is at least twice as fast; large is above 0.1 of the largest value"

OTHER_RANKS = {rank: How(rank=rank) for rank in (heads.ENTROPY, heads.ENERGY)}
WORST_LAYER = {"the worst layer": How(aggregate="worst")}
MEAN_LAYER = {"the mean over layers": How(aggregate="mean")}
FROM_STEP_1 = {heads.STEP_1: How(window=heads.STEP_1)}
BELOW_A_FIFTH = {"a threshold of 0.2": How(threshold=(0.2,))}
AT_CHANCE = {"a threshold at chance level": How(threshold=(0.5,))}


def shares(values: Heads) -> Heads:
    """1 for heads whose value is above 0, and 0 for the others."""
    return mapped(lambda of_seed: (of_seed > 0).astype(float), values)


def not_trained_for_it(runs: Sequence[TrackedRun]) -> str:
    """Why the claims are not about some runs, or "": what a few steps change may be of low rank."""
    for run in runs:
        if not run.recipe:
            return f"Trained without a recipe; the claim is about training from random weights. {JUDGE}"
        if run.recipe.get("data") == "regression":
            return f"The claim is about images and text, not synthetic regression. {JUDGE}"
        _, losses = heads.recorded(run, "loss")
        if len(losses) and losses[-1] > HARDLY * losses[0] > 0:
            fall = f"its training loss fell from {losses[0]:.3g} to {losses[-1]:.3g}"
            return f"{run.name} has hardly learned: {fall}. {JUDGE}"
    return ""


class OnStudy(Statement):
    """Judged by data set, on its main runs if no others are named; not at all if there are none."""

    runs: Sequence[TrackedRun]

    def __init__(self, study: Study, runs: Sequence[TrackedRun] | None = None) -> None:
        self.study, self.runs, self.data = study, study.main if runs is None else runs, study.label
        self.left_out = tuple(one.name for one in study.members if one not in self.runs)
        self.excuse = not_trained_for_it(self.runs)

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        return [found for found in map(cls, studies(opened)) if found.runs]

    def parts(self) -> Sequence[str]:
        return self.study.main[0].products


class LowRank(OnStudy):
    """The learned change of an attention product is of low rank: in every layer its stable rank stays far
    below the head size."""

    name = "low rank"
    effect = "stable rank of the change, as a fraction of the head size"
    numbers = (Number(f"{effect}, worst layer", "<= 0.1", FAR_BELOW),)
    choices = MEAN_LAYER | BELOW_A_FIFTH | OTHER_RANKS
    aggregate = "worst"

    def layers(self, product: str, how: How) -> list[Layers]:
        smallest = min(layer["d_head"] for layer in self.runs[0].layers)
        if smallest < SMALLEST_HEAD:
            raise NotRecorded(f"with heads of size {smallest} only rank one would pass: train larger heads.")
        (ranks,) = means(at_the_end(self.runs, product, how.rank))
        sizes = [self.runs[0].layers[layer - 1]["d_head"] for layer in ranks.numbers]
        return [Layers(ranks.numbers, ranks.drawn / np.array(sizes)[:, None])]


class FunctionalRank(OnStudy):
    """The learned change of an attention product is of low rank in what it does: cut to directions far fewer
    than the head size, every head's product keeps 99 % of what its change gained."""

    name = "functional rank"
    source = "the project"
    numbers = (
        Number("rank that keeps 99 % of the gain, as a fraction of the head size", "<= 0.1", FAR_BELOW),
    )
    choices = BELOW_A_FIFTH | {"95 % of the gain": How(rank="0.95")}

    def __init__(self, study: Study) -> None:
        super().__init__(study, [run for run in study.main if run.truncation])

    def parts(self) -> Sequence[str]:
        return ["KQ", "VO"]

    def decide(self, product: str, how: How) -> list[Estimate | float | None]:
        """The smallest rank of every head's change that keeps enough of the gain, of the worst seed."""
        worst = heads.extreme(max, [first_enough(run, product, how) for run in self.runs])
        return [worst.value if worst.low == worst.high else worst]


def first_enough(run: TrackedRun, product: str, how: How) -> Estimate:
    """The first rank that `rankrise truncate` tried and that keeps enough of the gain, over the head size.

    Its interval goes from above the last rank that is not enough to the first that is.
    """
    share, record, size = float(how.rank or 0.99), run.truncation or {}, run.layers[0]["d_head"]
    try:
        curve = next(one for one in record["curves"] if one["group"] == product and one["method"] == "plain")
        start = curve["initial"]["loss"]
        fall = start - record["trained"]["loss"]
        tried = sorted((point["rank"], point["scores"]["loss"]) for point in curve["points"])
    except (KeyError, StopIteration):
        raise NotRecorded(f"{run.name} was truncated without {product}.") from None
    below = 0
    for rank, now in tried if fall > 0 else ():
        if (start - now) / fall >= share:
            return Estimate(rank / size, (below + 1) / size, rank / size)
        below = rank
    raise NotRecorded(f"no rank of {run.name} that was tried keeps {100 * share:g} % of the gain.")


class RankGrows(OnStudy):
    """The rank of the change grows during training."""

    name = "rank grows"
    effect = "factor by which the stable rank grows"
    numbers = (
        Number("share of heads whose stable rank is higher at the end than early", ">= 0.75", CHANCE),
        Number("Spearman correlation of the stable rank with the step, mean over heads", ">= 0.5", STEADY),
    )
    choices = FROM_STEP_1 | WORST_LAYER | {"a threshold at chance level": How(threshold=(0.5, 0.0))}
    choices |= OTHER_RANKS

    def layers(self, product: str, how: How) -> list[Layers]:
        grown, trend = heads.growth(self.runs, product, how), heads.trends(self.runs, product, how)
        return [*means(shares(grown)), *means(trend), *means(grown, logs=True)]


class SpectraDecay(OnStudy):
    """The normalised spectrum of the change decays much faster than that of the initial product, in every
    layer."""

    name = "spectra"
    effect = "number of large singular values, of the change over that of the initial product"
    area = "area under the normalised spectrum, of the change over that of the initial product"
    numbers = (
        Number(f"{effect}, worst layer", "<= 0.5", FASTER),
        Number(f"{area}, worst layer", "<= 0.5", "the same for the whole spectrum"),
    )
    choices = {"values above 0.2 of the largest": How(rank="0.2")} | MEAN_LAYER
    choices |= {"a threshold of 1": How(threshold=(1.0, 1.0))}
    aggregate = "worst"

    def layers(self, product: str, how: How) -> list[Layers]:
        cut = float(how.rank or 0.1)

        def large(values: np.ndarray) -> np.ndarray:
            return np.asarray((values > cut * values[:, :1]).sum(-1))

        def area(values: np.ndarray) -> np.ndarray:
            return np.asarray(values.sum(-1) / np.maximum(values[:, 0], np.finfo(float).tiny))

        def ratios(run: TrackedRun, size: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
            steps = run.finite_spectra_steps
            heads.require_end(run, steps)
            pairs = zip(run.spectrum(product), run.spectrum(product, int(steps[-1])), strict=True)
            return [np.where(after[:, 0] > 0, size(after) / size(before), np.nan) for before, after in pairs]

        both = [heads.heads_of(self.runs, partial(ratios, size=size), product) for size in (large, area)]
        found = [*means(both[0]), *means(both[1])]
        return [*found, found[0]]


class Products(OnStudy):
    """What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, keys
    times queries."""

    name = "products"
    source = "the reproduction"
    effect = "stable rank of VO over that of KQ"
    numbers = (
        Number("share of heads in which VO has the higher stable rank", ">= 0.75", CHANCE),
        Number(f"{effect}, geometric mean over heads", ">= 1", "a head's own two changes are compared"),
    )
    choices = WORST_LAYER | AT_CHANCE | OTHER_RANKS

    def parts(self) -> Sequence[str]:
        return [""]

    def layers(self, part: str, how: How) -> list[Layers]:
        tracked = self.runs[0].products
        if set(tracked) != {"KQ", "VO"}:
            raise NotRecorded(f"only {', '.join(tracked)} was tracked: both products are needed.")

        def log_ratios(run: TrackedRun) -> np.ndarray:
            of_values, of_keys = (np.log(heads.last_ranks(run, name, how.rank)) for name in ("VO", "KQ"))
            return np.asarray(of_values - of_keys)

        ratios = heads.heads_of(self.runs, log_ratios, "KQ and VO")
        return [*means(shares(ratios)), *means(ratios, logs=True)]


class InitialisationScale(OnStudy):
    """The smaller the initialisation, the lower the rank of the change after training."""

    name = "initialisation scale"
    effect = "power of the scale with which the stable rank grows"
    numbers = (
        Number("share of pairs of heads in which the smaller scale's has the lower rank", ">= 0.75", CHANCE),
        Number(f"{effect}, mean over layers", ">= 0", "above 0, the rank falls with the scale"),
    )
    choices = WORST_LAYER | OTHER_RANKS

    def __init__(self, study: Study) -> None:
        super().__init__(study, [run for runs in study.scales.values() for run in runs])

    def layers(self, product: str, how: How) -> list[Layers]:
        if len(self.study.scales) < 2:
            raise NotRecorded("there is one initialisation scale: pass runs that differ only in it.")
        ends = shared_layers([at_the_end(runs, product, how.rank) for runs in self.study.scales.values()])
        logs = np.log(list(self.study.scales))
        weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
        ranks = [one.drawn for one in means(*(mapped(np.log, end) for end in ends))]
        return [heads.in_order(ends), Layers(tuple(ends[0]), np.tensordot(weights, np.stack(ranks), 1))]


class OnTwoDataSets(Statement):
    """Judged on CIFAR-10 and another data set of the paper, if both were opened."""

    runs: Sequence[TrackedRun]
    other: str

    def __init__(self, easy: Study, hard: Study) -> None:
        self.easy, self.hard, self.runs = easy.main, hard.main, [*easy.main, *hard.main]
        self.data = f"{easy.label} and {hard.label}"
        self.excuse = not_trained_for_it(self.runs)

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        found = {study.family: study for study in studies(opened)}
        return [cls(found["cifar10"], found[cls.other])] if found.keys() >= {"cifar10", cls.other} else []

    def parts(self) -> Sequence[str]:
        return self.easy[0].products


class ImageNet(OnTwoDataSets):
    """The growth of rank is easier to see on ImageNet; on CIFAR-10 the rank does not grow as much."""

    name = "imagenet"
    other = "imagenet"
    ratio = f"{RankGrows.effect} on ImageNet, over that on CIFAR-10"
    numbers = (Number(ratio, ">= 1", "geometric means over heads"),)
    choices = FROM_STEP_1 | OTHER_RANKS

    def layers(self, product: str, how: How) -> list[Layers]:
        large, small = means(*(heads.growth(runs, product, how) for runs in (self.hard, self.easy)))
        ratio = large.drawn.mean(axis=0) - small.drawn.mean(axis=0)
        return [Layers((0,), ratio[None], logs=True)]  # the networks may have different numbers of layers


class DataSets(OnTwoDataSets):
    """The change has a higher stable rank on CIFAR-100 than on CIFAR-10."""

    name = "data sets"
    source = "the reproduction"
    other = "cifar100"
    effect = "stable rank on CIFAR-100 over that on CIFAR-10"
    numbers = (Number("share of pairs of heads in which CIFAR-100's has the higher rank", ">= 0.75", CHANCE),)
    choices = WORST_LAYER | AT_CHANCE | OTHER_RANKS

    def layers(self, product: str, how: How) -> list[Layers]:
        alike = {(run.layers[0]["d_head"], len(run.layers), run.recipe.get("epochs")) for run in self.runs}
        if len(alike) > 1:
            raise NotRecorded("the two data sets were trained with other layers, heads or epochs.")
        ends = shared_layers([at_the_end(runs, product, how.rank) for runs in (self.hard, self.easy)])
        hard, easy = means(*(mapped(np.log, end) for end in ends))
        return [heads.in_order(ends), Layers(hard.numbers, hard.drawn - easy.drawn, logs=True)]
