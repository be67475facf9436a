"""Settings compared: claims on initialisation scales and data sets, and the effects of single choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankrise.claims.claim import OWN, How, Measure, Number, Statement, by_layer, noted
from rankrise.claims.heads import OTHER_RANKS, at_equal_loss, at_the_end, growth, shared_layers
from rankrise.claims.statistics import Estimate, Heads, contrast, extreme, in_order
from rankrise.claims.tracked import (
    FROM_STEP_1,
    WORST_LAYER,
    OnStudy,
    RankGrows,
    at_chance,
    not_trained_for_it,
)
from rankrise.runs import Choice, NotRecorded, Run, Study, TrackedRun, studies

PAIRS_WHY = "half of them would by chance; three of four is half-way to all"
EQUAL_LOSS = {"equal training losses": How(window="equal training losses")}


class InitialisationScale(OnStudy):
    """The smaller the initialisation, the lower the rank of the change after training."""

    name = "initialisation scale"
    effect = "power of the scale with which the stable rank grows"
    numbers = (
        Number(
            "share of pairs of heads in the same layer in which the smaller scale has the lower rank",
            ">= 0.75",
            PAIRS_WHY,
        ),
        Number(
            f"{effect}, mean over layers",
            ">= 0.0",
            "above 0, the rank falls with the scale; the slope of log(stable rank) over log(scale)",
        ),
    )
    choices = EQUAL_LOSS | WORST_LAYER | at_chance(0.5, 0.0) | OTHER_RANKS

    def __init__(self, study: Study) -> None:
        super().__init__(study, [run for runs in study.scales.values() for run in runs])
        self.scales = study.scales

    def ends(self, product: str, how: How = OWN) -> list[Heads]:
        """The heads of each scale, largest scale first."""
        if len(self.scales) < 2:
            raise NotRecorded("there is one initialisation scale: pass runs that differ only in it.")
        if how.window:
            return shared_layers([at_equal_loss(runs, self.runs, product) for runs in self.scales.values()])
        return shared_layers([at_the_end(runs, product, how.rank) for runs in self.scales.values()])

    def slope(self, samples: Sequence[Heads]) -> tuple[dict[int, Estimate], Estimate]:
        """The slope of log(rank) over log(scale), by layer and on average."""
        logs = np.log(list(self.scales))
        weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
        return contrast([heads.mapped(np.log) for heads in samples], weights)

    def effects(self, product: str) -> list[Measure]:
        return by_layer(self.effect, self.slope(self.ends(product))[0])

    def decide(self, product: str, how: How) -> list[Estimate]:
        samples, worst = self.ends(product, how), bool(how.aggregate)
        slopes, mean = self.slope(samples)
        return [in_order(samples, in_every_layer=worst), extreme(min, slopes.values()) if worst else mean]

    def beside(self, product: str) -> list[Measure]:
        shares = map(in_order, pairwise(self.ends(product)))
        least, (larger, smaller) = min(
            zip(shares, pairwise(self.scales), strict=True), key=lambda pair: pair[0].value
        )
        name = "share of such pairs for the two neighbouring scales where it is lowest"
        why = f"between {larger:g} and {smaller:g}: an average may hide a step without an order"
        return [noted(name, least, why)]


class OnTwoDataSets(Statement):
    """Judged on CIFAR-10 and another data set of the paper, if both were opened."""

    other: str

    def __init__(self, easy: Study, hard: Study) -> None:
        self.easy, self.hard, self.runs = easy, hard, [*easy.main, *hard.main]
        self.data = f"{easy.label} and {hard.label}"
        self.excuse = not_trained_for_it([*easy.main, *hard.main])

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        found = {study.family: study for study in studies(opened)}
        return [cls(found["cifar10"], found[cls.other])] if found.keys() >= {"cifar10", cls.other} else []

    def parts(self) -> Sequence[str]:
        return self.easy.main[0].products


class ImageNet(OnTwoDataSets):
    """The growth of rank is easier to see on ImageNet; on CIFAR-10 the rank does not grow as much."""

    name = "imagenet"
    other = "imagenet"
    numbers = (
        Number(
            f"{RankGrows.effect} on ImageNet, over that on CIFAR-10",
            ">= 1.0",
            "geometric means over heads; the networks and their training differ as well as the data",
        ),
    )
    choices = FROM_STEP_1 | OTHER_RANKS

    def decide(self, product: str, how: How) -> list[Estimate]:
        large, small = (growth(study.main, product, how) for study in (self.hard, self.easy))
        return [contrast([large, small], [1, -1])[1].mapped(np.exp)]


class DataSets(OnTwoDataSets):
    """The change has a higher stable rank on CIFAR-100 than on CIFAR-10."""

    name = "data sets"
    source = "the reproduction"
    other = "cifar100"
    effect = "stable rank on CIFAR-100 over that on CIFAR-10"
    numbers = (
        Number(
            "share of pairs of heads in the same layer in which CIFAR-100 has the higher rank",
            ">= 0.75",
            PAIRS_WHY,
        ),
    )
    choices = WORST_LAYER | at_chance(0.5) | OTHER_RANKS

    def ends(self, product: str, rank: str = "") -> list[Heads]:
        """The heads of both data sets in the same layers of the same model, trained alike."""
        hard, easy = self.hard.main, self.easy.main
        settings = {
            (runs[0].layers[0]["d_head"], len(runs[0].layers), runs[0].recipe.get("epochs"))
            for runs in (hard, easy)
        }
        if len(settings) > 1:
            raise NotRecorded(
                "the two data sets were trained with other layers, heads or epochs: train them alike."
            )
        return shared_layers([at_the_end(runs, product, rank) for runs in (hard, easy)])

    def log_ratio(self, product: str) -> tuple[dict[int, Estimate], Estimate]:
        return contrast([heads.mapped(np.log) for heads in self.ends(product)], [1, -1])

    def effects(self, product: str) -> list[Measure]:
        return by_layer(self.effect, self.log_ratio(product)[0], "geometric mean over heads", np.exp)

    def decide(self, product: str, how: How) -> list[Estimate]:
        return [in_order(self.ends(product, how.rank), in_every_layer=bool(how.aggregate))]

    def beside(self, product: str) -> list[Measure]:
        whole = self.log_ratio(product)[1].mapped(np.exp)
        return [noted(f"{self.effect}, geometric mean over heads", whole)]


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
        factors, ends = growth(choice.runs, product), at_the_end(choice.runs, product)
        pair = shared_layers([ends.mapped(np.log), at_the_end(base.runs, product).mapped(np.log)])
        ratios, ratio = contrast(pair, (1.0, -1.0))
        if not choice.changes:  # the base against itself, not against another draw of its heads
            ratio = Estimate(0.0, 0.0, 0.0)
            ratios = dict.fromkeys(ratios, ratio)
        whole = (factors.over_layers("mean"), ends.over_layers("mean"), ratio)
        grown, final = factors.by_layer(), ends.by_layer()
        layers = {layer: (grown[layer], final[layer], one) for layer, one in ratios.items() if layer in grown}
        found += [
            Effect(product, layer, growing.mapped(np.exp), end, other.mapped(np.exp))
            for layer, (growing, end, other) in [(None, whole), *layers.items()]
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
            found.append(float(values[known][late].mean()) if len(steps) else np.nan)
        return float(np.mean(found))

    return Learned(mean("loss", 0.05), mean("validation_loss", 0.0), mean("accuracy", 0.0))
