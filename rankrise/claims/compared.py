"""Claims that compare settings, such as scales and data sets, and the effects of single choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from rankrise.claims.claim import OWN, How, Measure, at_least, by_each_choice, noted
from rankrise.claims.heads import (
    OTHER_RANKS,
    STEP_1,
    at_equal_loss,
    at_the_end,
    growth,
    losses,
    shared_layers,
)
from rankrise.claims.statistics import Estimate, Heads, contrast, in_order, in_order_in_every_layer, smallest
from rankrise.runs import Choice, NotRecorded, Study, TrackedRun

PAIRS_IN_ORDER = 0.75
CHANCE = {"a threshold at chance level": How(threshold=(0.5,))}
WORST_LAYER = {"the worst layer": How(aggregate="worst")}


def falls_with_scale(study: Study) -> list[Measure]:
    """Whether the smaller of two initialisation scales has the lower rank, over all pairs of heads."""
    power = "power of the scale with which the stable rank grows"
    equal_loss = "equal training losses"
    choices = {equal_loss: How(window=equal_loss), **WORST_LAYER, **CHANCE, **OTHER_RANKS}
    if len(study.scales) < 2:
        raise NotRecorded("there is one initialisation scale: pass runs that differ only in it.")
    every = [run for runs in study.scales.values() for run in runs]

    def ends(product: str, how: How = OWN) -> list[Heads]:
        """The heads of each scale, largest scale first."""
        if how.window:
            return shared_layers([at_equal_loss(runs, every, product) for runs in study.scales.values()])
        return shared_layers([at_the_end(runs, product, how.rank) for runs in study.scales.values()])

    def slope(samples: list[Heads]) -> tuple[dict[int, Estimate], Estimate]:
        """The slope of log(rank) over log(scale), by layer and on average."""
        logs = np.log(list(study.scales))
        weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
        return contrast([heads.mapped(np.log) for heads in samples], weights)

    def deciding(product: str, how: How) -> list[Measure]:
        samples, worst = ends(product, how), how.aggregate == "worst"
        slopes, mean = slope(samples)
        return [
            at_least(
                "share of pairs of heads in the same layer in which the smaller scale has the lower rank",
                (in_order_in_every_layer if worst else in_order)(samples),
                (how.threshold or (PAIRS_IN_ORDER,))[0],
                "half of them would by chance; three of four is half-way to all",
                part=product,
            ),
            at_least(
                f"{power}, mean over layers",
                smallest(slopes.values()) if worst else mean,
                0.0,
                "above 0, the rank falls with the scale; the slope of log(stable rank) over log(scale)",
                part=product,
            ),
        ]

    measures: list[Measure] = []
    for product in study.main[0].products:
        samples = ends(product)
        measures += [noted(power, one, part=product, layer=layer) for layer, one in slope(samples)[0].items()]
        measures += by_each_choice(partial(deciding, product), choices)
        neighbours = {
            f"{larger:g} and {smaller:g}": in_order(pair)
            for (larger, smaller), pair in zip(pairwise(study.scales), pairwise(samples), strict=True)
        }
        least = min(neighbours, key=lambda scales: neighbours[scales].value)
        measures.append(
            noted(
                "share of such pairs for the two neighbouring scales where it is lowest",
                neighbours[least],
                f"between {least}: an average may hide a step without an order",
                part=product,
            )
        )
    return measures + _losses_by_scale(study)


def _losses_by_scale(study: Study) -> list[Measure]:
    """The training losses of the scales: a network that learned less had less cause to grow in rank."""
    known = {scale: losses(runs)[:, 1] for scale, runs in study.scales.items()}
    reached = {scale: float(ends.mean()) for scale, ends in known.items() if len(ends)}
    if len(reached) < len(study.scales):
        return []
    each = ", ".join(f"{loss:.3g} at {scale:g}" for scale, loss in reached.items())
    largest = max(reached.values()) / max(min(reached.values()), np.finfo(float).tiny)
    why = f"{each}; what has learned less may be of lower rank for that"
    return [noted("largest training loss of a scale, over the smallest", largest, why)]


def higher_on_cifar100(studies: Sequence[Study]) -> list[Measure]:
    """CIFAR-100 against CIFAR-10, over pairs of heads in the same layer of the same model, trained alike."""
    ratio = "stable rank on CIFAR-100 over that on CIFAR-10"
    easy, hard = (study.main for study in studies)
    alike = [
        (runs[0].layers[0]["d_head"], len(runs[0].layers), runs[0].recipe.get("epochs"))
        for runs in (easy, hard)
    ]
    if alike[0] != alike[1]:
        raise NotRecorded(
            "the two data sets were trained with other layers, heads or epochs: train them alike."
        )

    def ends(product: str, rank: str = "") -> list[Heads]:
        return shared_layers([at_the_end(runs, product, rank) for runs in (hard, easy)])

    def deciding(product: str, how: How) -> list[Measure]:
        order = in_order_in_every_layer if how.aggregate else in_order
        return [
            at_least(
                "share of pairs of heads in the same layer in which CIFAR-100 has the higher rank",
                order(ends(product, how.rank)),
                (how.threshold or (PAIRS_IN_ORDER,))[0],
                "half of them would by chance; three of four is half-way to all",
                part=product,
            )
        ]

    measures: list[Measure] = []
    for product in easy[0].products:
        layers, whole = contrast([heads.mapped(np.log) for heads in ends(product)], [1, -1])
        for layer, one in layers.items():
            why = "geometric mean over heads"
            measures.append(noted(ratio, one.mapped(np.exp), why, part=product, layer=layer))
        measures += by_each_choice(partial(deciding, product), WORST_LAYER | CHANCE | OTHER_RANKS)
        measures.append(noted(f"{ratio}, geometric mean over heads", whole.mapped(np.exp), part=product))
    return measures


def grows_more_on_imagenet(studies: Sequence[Study]) -> list[Measure]:
    """By how much the stable rank grows on ImageNet, or a part of it, against CIFAR-10."""
    factor = "factor by which the stable rank grows"
    small, large = (study.main for study in studies)

    def deciding(product: str, how: How) -> list[Measure]:
        _, ratio = contrast([growth(runs, product, how) for runs in (large, small)], [1, -1])
        return [
            at_least(
                f"{factor} on ImageNet, over that on CIFAR-10",
                ratio.mapped(np.exp),
                1.0,
                "from the end of the first epoch to the end of training, geometric means over heads; the "
                "networks and their training differ as well as the data",
                part=product,
            )
        ]

    measures: list[Measure] = []
    for product in small[0].products:
        choices = {"a clock from step 1": How(window=STEP_1), **OTHER_RANKS}
        measures += by_each_choice(partial(deciding, product), choices)
        for study in studies:
            grown = growth(study.main, product).mean().mapped(np.exp)
            measures.append(noted(f"{factor} on {study.label}", grown, part=product))
    return measures


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
        factors = growth(choice.runs, product)
        ends, usual = at_the_end(choice.runs, product), at_the_end(base.runs, product)
        both = shared_layers([ends.mapped(np.log), usual.mapped(np.log)])
        by_layer, together = contrast(both, (1.0, -1.0))
        if not choice.changes:  # the base against itself, not against another draw of its heads
            together = Estimate(0.0, 0.0, 0.0)
            by_layer = dict.fromkeys(by_layer, together)
        found.append(
            Effect(product, None, factors.mean().mapped(np.exp), ends.mean(), together.mapped(np.exp))
        )
        grown, final = factors.by_layer(), ends.by_layer()
        found += [
            Effect(product, layer, grown[layer].mapped(np.exp), final[layer], ratio.mapped(np.exp))
            for layer, ratio in by_layer.items()
            if layer in grown
        ]
    return found


@dataclass(frozen=True)
class Learned:
    """How well runs ended, means over seeds; nan if it was not recorded."""

    loss: float
    """The training loss over the last 5 % of the steps."""
    validation_loss: float
    accuracy: float

    @property
    def score(self) -> float:
        """The number by which learning rates are compared: accuracy, else the validation loss."""
        known = [self.accuracy, -self.validation_loss, -self.loss]
        return next((one for one in known if np.isfinite(one)), -np.inf)


def learned(runs: Sequence[TrackedRun]) -> Learned:
    """The final training loss, validation loss and accuracy."""

    def mean(name: str, last_part: float) -> float:
        found = []
        for run in runs:
            recorded = run.steps()
            values = recorded.get(name, np.full(len(recorded["step"]), np.nan))
            known = np.isfinite(values)
            steps = recorded["step"][known]
            late = steps >= (1 - last_part) * steps.max(initial=0.0)
            found.append(float(values[known][late].mean()) if len(steps) else float("nan"))
        return float(np.mean(found))

    return Learned(mean("loss", 0.05), mean("validation_loss", 0.0), mean("accuracy", 0.0))
