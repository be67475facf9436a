"""Claims on the tracked runs of one data set: a number per head, over layers, against a threshold."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankrise.claims.claim import (
    How,
    Measure,
    Number,
    Statement,
    by_layer,
    noted,
    thresholds,
    values_above,
)
from rankrise.claims.heads import (
    LINEAR,
    OTHER_RANKS,
    STEP_1,
    WARM_UP,
    at_the_end,
    growth,
    heads_of,
    last_ranks,
    losses,
    require_end,
    trends,
)
from rankrise.claims.statistics import Estimate, Heads, extreme
from rankrise.runs import NotRecorded, Run, Study, TrackedRun, studies

FAR_BELOW = ("<= 0.1", "far below is an order of magnitude")
SMALLEST_HEAD = 20
"""In smaller heads a tenth is below 2, and only rank one would pass."""
HARDLY = 0.5
"""Runs whose training loss stays above this fraction of its first value have hardly learned."""
JUDGE = "Pass --judge for a verdict."
FIRST_LOSS = "the first recorded loss"
SCORES = {
    "validation_loss": "the validation loss",
    "accuracy": "the validation accuracy",
    "perplexity": "the perplexity",
}
"""Other scores than the loss that a gain may be counted in."""

WORST_LAYER = {"the worst layer": How(aggregate="smallest")}
LESS_STRICT = {"the mean over layers": How(aggregate="mean"), "the median layer": How(aggregate="median")}
NOT_SO_FAR = thresholds(0.2, 0.3)
FROM_STEP_1 = {"a clock from step 1": How(window=STEP_1)}


def at_chance(*thresholds: float) -> dict[str, How]:
    """Thresholds that chance alone would reach, as another choice."""
    return {"a threshold at chance level": How(threshold=thresholds)}


def shares(positive: Heads) -> Heads:
    """1 for heads whose value is above 0, and 0 for the others."""
    return positive.mapped(lambda values: (values > 0).astype(float))


def not_trained_for_it(runs: Sequence[TrackedRun]) -> str:
    """Why the claims are not about some runs, or "".

    They are about training by a recipe, from random weights on images or text, that has learned something:
    what a few steps change may be of low rank because it is little.
    """
    if not all(run.recipe for run in runs):
        return (
            "Trained without a recipe, so it may be a fine-tuning or an adapter; the claim is about training "
            f"from random weights. {JUDGE}"
        )
    if any(run.recipe.get("data") == "regression" for run in runs):
        return f"The claim is about images and text, not synthetic regression. {JUDGE}"
    for run in runs:
        if not run.finished and not len(losses([run])):
            return f"{run.name} is not finished and has no training loss yet. {JUDGE}"
        for first, last in losses([run]):
            if last > HARDLY * first > 0:
                fall = f"its training loss fell from {first:.3g} to {last:.3g}"
                return f"{run.name} has hardly learned: {fall}. {JUDGE}"
    return ""


class OnStudy(Statement):
    """Judged by data set, on its main runs if no others are named."""

    runs: Sequence[TrackedRun]

    def __init__(self, study: Study, runs: Sequence[TrackedRun] = ()) -> None:
        self.study, self.runs, self.data = study, runs or study.main, study.label
        self.left_out, self.excuse = study.left_out(self.runs), not_trained_for_it(self.runs)

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        return [cls(study) for study in studies(opened)]

    def parts(self) -> Sequence[str]:
        return self.study.main[0].products


class LowRank(OnStudy):
    """The learned change of an attention product is of low rank: in every layer its stable rank stays far
    below the head size.
    """

    name = "low rank"
    effect = "stable rank of the change, as a fraction of the head size"
    numbers = (Number(f"{effect}, worst layer", *FAR_BELOW),)
    choices = LESS_STRICT | NOT_SO_FAR | OTHER_RANKS

    def over_size(self, product: str, rank: str = "") -> Heads:
        heads = at_the_end(self.runs, product, rank)
        sizes = [self.runs[0].layers[layer - 1]["d_head"] for layer in heads.layers]
        divided = [[seed / size for seed in seeds] for size, seeds in zip(sizes, heads.values, strict=True)]
        return Heads(heads.layers, divided)

    def effects(self, product: str) -> list[Measure]:
        return by_layer(self.effect, self.over_size(product).by_layer(), "mean over heads")

    def decide(self, product: str, how: How) -> list[Estimate]:
        smallest = min(layer["d_head"] for layer in self.runs[0].layers)
        if smallest < SMALLEST_HEAD:
            raise NotRecorded(
                f"a tenth of the head size {smallest} is below 2, where only rank one would pass: "
                f"train heads of size {SMALLEST_HEAD} or more."
            )
        return [self.over_size(product, how.rank).over_layers(how.aggregate or "largest")]


class FunctionalRank(OnStudy):
    """The learned change of an attention product is of low rank in what it does: cut to directions far fewer
    than the head size, every head's product keeps 99 % of what its change gained.
    """

    name = "functional rank"
    source = "the project"

    def __init__(self, study: Study) -> None:
        super().__init__(study, [run for run in study.main if run.truncation])
        records = [run.truncation or {} for run in self.runs]
        on_training = {"training" in record.get("measured_on", "") for record in records}
        loss = " or ".join(["validation loss", "training loss"][one] for one in sorted(on_training)[::-1])
        name = f"rank that keeps 99 % of the gain in the {loss}, as a fraction of the head size"
        self.numbers = [Number(name, *FAR_BELOW)]
        self.choices = {
            **NOT_SO_FAR,
            **{f"{100 * share:g} % of the gain": How(rank=str(share)) for share in (0.95, 0.999)},
            f"the gain from {FIRST_LOSS}": How(window=FIRST_LOSS),
        }
        for score, text in SCORES.items():
            if any(score in record.get("trained", {}) for record in records):
                self.choices[text] = How(aggregate=score)
        if True not in on_training:
            self.choices["the training loss"] = How(aggregate="training_loss")  # which no such record has

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        return [cls(study) for study in studies(opened) if any(run.truncation for run in study.main)]

    def parts(self) -> Sequence[str]:
        return ["KQ", "VO"]

    def decide(self, product: str, how: How) -> list[Estimate | float]:
        """The smallest rank of every head's change that keeps enough of the gain, of the worst seed."""
        if how.rank or how.aggregate or how.window:
            return [extreme(max, [first_enough(run, product, how) for run in self.runs])]
        shares = []
        for run in self.runs:
            record, rank = truncated(run, product)
            if rank["functional_rank"] is None or record.get("gain", 0.99) != 0.99:
                raise NotRecorded(
                    f"{run.name} has no rank of {product} that keeps 99 % of the gain: there was no gain, or "
                    "'rankrise truncate' was asked for other ranks or another --gain."
                )
            shares.append(float(rank["functional_rank"]) / run.layers[0]["d_head"])
        return [max(shares)]

    def beside(self, product: str) -> list[Measure]:
        gains = {point["rank"]: point["gain"] for point in truncated(self.runs[0], product)[1]["points"]}
        return [
            noted(f"share of the gain at rank {rank}", gains[rank], "all heads cut alike")
            for rank in (1, 2, 4)
            if gains.get(rank) is not None
        ]


def truncated(run: TrackedRun, product: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of `rankrise truncate`, and its curve of loss and gain against the rank of a product."""
    record = run.truncation or {}
    for curve in record.get("curves", []):
        if curve["group"] == product and curve["method"] == "plain":
            return record, curve
    raise NotRecorded(f"{run.name} was truncated without {product}: run 'rankrise truncate' on it again.")


def first_enough(run: TrackedRun, product: str, how: How) -> Estimate:
    """The first of the tried ranks that keeps enough of what a score gains, over the head size.

    Its interval goes from above the last rank that is not enough to the first that is.
    """
    score, share = how.aggregate or "loss", float(how.rank or 0.99)
    (record, curve), size = truncated(run, product), run.layers[0]["d_head"]
    try:
        start = float(losses([run])[0, 0]) if how.window else curve["initial"][score]
        gain = record["trained"][score] - start
        tried = sorted((point["rank"], point["scores"][score]) for point in curve["points"])
    except (KeyError, IndexError):
        raise NotRecorded(f"{run.name} was truncated without the {score.replace('_', ' ')}.") from None
    below = 0
    for rank, now in tried if (gain > 0 if score == "accuracy" else gain < 0) else ():
        if (now - start) / gain >= share:
            return Estimate(rank / size, (below + 1) / size, rank / size)
        below = rank
    raise NotRecorded(f"no rank of {run.name} that was tried keeps {100 * share:g} % of the gain.")


class RankGrows(OnStudy):
    """The rank of the change grows during training."""

    name = "rank grows"
    effect = "factor by which the stable rank grows"
    numbers = (
        Number(
            "share of heads whose stable rank is higher at the end than early",
            ">= 0.75",
            "three of four; half of them would by chance. Early is the end of the first epoch (1 % of "
            "training where epochs are not known)",
        ),
        Number(
            "how steadily the stable rank rises (Spearman correlation with the step), mean over heads",
            ">= 0.5",
            "1 where it only rises, 0 without a trend; up to 40 measurements, on a log clock",
        ),
    )

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        warmed_up = all(run.warm_up_steps for run in self.runs)
        clocks = {LINEAR: How(window=LINEAR), **FROM_STEP_1}
        clocks |= {f"a clock from {WARM_UP}": How(window=WARM_UP)} if warmed_up else {}
        self.choices = clocks | WORST_LAYER | at_chance(0.5, 0.0) | OTHER_RANKS

    def effects(self, product: str) -> list[Measure]:
        return by_layer(self.effect, growth(self.runs, product).by_layer(), of=np.exp)

    def decide(self, product: str, how: How) -> list[Estimate]:
        heads = (shares(growth(self.runs, product, how)), trends(self.runs, product, how))
        return [one.over_layers(how.aggregate or "mean") for one in heads]

    def beside(self, product: str) -> list[Measure]:
        mean = growth(self.runs, product).over_layers("mean").mapped(np.exp)
        return [noted(f"{self.effect}, geometric mean over heads", mean)]


class SpectraDecay(OnStudy):
    """The normalised spectrum of the change decays much faster than that of the initial product, in every
    layer.
    """

    name = "spectra"
    effect = "number of large singular values, of the change over that of the initial product"
    area = "area under the normalised spectrum, of the change over that of the initial product"
    numbers = (
        Number(
            f"{effect}, worst layer",
            "<= 0.5",
            "much faster is at least twice as fast; large is above 0.1 of the largest value",
        ),
        Number(
            f"{area}, worst layer",
            "<= 0.5",
            "the same for the whole spectrum; the change may have twice as many values",
        ),
    )
    choices = values_above(0.2, 0.3, 0.5) | LESS_STRICT | thresholds(1.0, numbers=2)

    def ratios(self, product: str, cut: float | None) -> Heads:
        """The change's number of large values, or without a cut its area, over the initial product's."""

        def size(values: np.ndarray) -> np.ndarray:
            if cut is not None:
                return np.asarray((values > cut * values[:, :1]).sum(-1))
            largest = values[:, 0].astype(float)
            return np.divide(values.sum(-1), largest, out=np.zeros_like(largest), where=largest > 0)

        def of(run: TrackedRun) -> list[np.ndarray]:
            initial, steps = run.spectrum(product), run.finite_spectra_steps
            if not len(steps):
                raise NotRecorded(f"{run.folder} has no full spectra yet.")
            require_end(steps, run.last_step)
            pairs = zip(initial, run.spectrum(product, int(steps[-1])), strict=True)
            return [np.where(after[:, 0] > 0, size(after) / size(before), np.nan) for before, after in pairs]

        return heads_of(self.runs, of, product)

    def effects(self, product: str) -> list[Measure]:
        return by_layer(self.effect, self.ratios(product, 0.1).by_layer(), "above 0.1 of the largest")

    def decide(self, product: str, how: How) -> list[Estimate]:
        heads = (self.ratios(product, float(how.rank or 0.1)), self.ratios(product, None))
        return [one.over_layers(how.aggregate or "largest") for one in heads]


class Products(OnStudy):
    """What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, keys
    times queries.
    """

    name = "products"
    source = "the reproduction"
    effect = "stable rank of VO over that of KQ"
    numbers = (
        Number(
            "share of heads in which VO has the higher stable rank",
            ">= 0.75",
            "consistently higher, as it was put: three heads of four; half of them would by chance",
        ),
        Number(f"{effect}, geometric mean over heads", ">= 1.0", "a head's own two changes are compared"),
    )
    choices = WORST_LAYER | at_chance(0.5, 1.0) | OTHER_RANKS

    def parts(self) -> Sequence[str]:
        return [""]

    def log_ratios(self, rank: str = "") -> Heads:
        """log(VO / KQ) of each head."""
        tracked = self.runs[0].products
        if set(tracked) != {"KQ", "VO"}:
            raise NotRecorded(f"only {', '.join(tracked)} was tracked: both products are needed.")

        def of(run: TrackedRun) -> list[np.ndarray]:
            both = np.stack([last_ranks(run, product, rank) for product in ("VO", "KQ")])
            logs = np.log(both, where=both > 0, out=np.full(both.shape, np.nan))
            return list(logs[0] - logs[1])

        return heads_of(self.runs, of, "KQ and VO")

    def effects(self, part: str) -> list[Measure]:
        return by_layer(self.effect, self.log_ratios().by_layer(), "geometric mean over heads", np.exp)

    def decide(self, part: str, how: How) -> list[Estimate]:
        ratios, aggregate = self.log_ratios(how.rank), how.aggregate or "mean"
        return [shares(ratios).over_layers(aggregate), ratios.over_layers(aggregate).mapped(np.exp)]
