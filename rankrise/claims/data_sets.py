"""Claims that compare data sets: the paper's on ImageNet, and the reproduction's on CIFAR-100."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_least, by_each_choice, noted
from rankrise.claims.growth import FIRST_EPOCH, STEP_1, growth
from rankrise.claims.heads import at_the_end, of_shared_layers
from rankrise.claims.ranks import OTHERS, STABLE
from rankrise.claims.statistics import Estimate, Heads, contrast, in_order, in_order_in_every_layer
from rankrise.runs import NotRecorded, Study

MOST = 0.75
FACTOR = "factor by which the stable rank grows"
RATIO = "stable rank on CIFAR-100 over that on CIFAR-10"
ON_CIFAR100: dict[str, dict[str, Any]] = {
    "the worst layer": {"order": in_order_in_every_layer},
    "a threshold at chance level": {"most": 0.5},
    **{kind: {"kind": kind} for kind in OTHERS},
}
ON_IMAGENET: dict[str, dict[str, Any]] = {
    "a clock from step 1": {"since": STEP_1},
    **{kind: {"kind": kind} for kind in OTHERS},
}
"""Other choices."""


def higher_on_cifar100(studies: Sequence[Study]) -> list[Measure]:
    """CIFAR-100 against CIFAR-10: heads of the same layer of the same model, trained alike."""
    easy, hard = (study.main for study in studies)
    alike = [
        (run.layers[0]["d_head"], len(run.layers), run.recipe.get("epochs")) for run in (easy[0], hard[0])
    ]
    if alike[0] != alike[1]:
        raise NotRecorded(
            "the two data sets were trained with other layers, heads or epochs: train them alike."
        )
    measures: list[Measure] = []
    for product in easy[0].products:
        ends = of_shared_layers([at_the_end(runs, product).mapped(np.log) for runs in (hard, easy)])
        layers, whole = contrast(ends, [1, -1])
        measures += [
            noted(RATIO, one.mapped(np.exp), "geometric mean over heads", part=product, layer=layer)
            for layer, one in layers.items()
        ]
        measures += [
            *by_each_choice(partial(_higher, studies, product), ON_CIFAR100),
            noted(f"{RATIO}, geometric mean over heads", whole.mapped(np.exp), "", part=product),
        ]
    return measures


def _higher(
    studies: Sequence[Study],
    product: str,
    kind: str = STABLE,
    order: Callable[[Sequence[Heads]], Estimate] = in_order,
    most: float = MOST,
) -> list[Measure]:
    lower, higher = of_shared_layers([at_the_end(study.main, product, kind) for study in studies])
    return [
        at_least(
            "share of pairs of heads in the same layer in which CIFAR-100 has the higher rank",
            order([higher, lower]),
            most,
            "half of them would by chance; three of four is half-way to all",
            part=product,
        )
    ]


def grows_more_on_imagenet(studies: Sequence[Study]) -> list[Measure]:
    """By how much the stable rank grows on ImageNet, or a part of it, against CIFAR-10."""
    measures: list[Measure] = []
    for product in studies[0].main[0].products:
        measures += [
            *by_each_choice(partial(_grows_more, studies, product), ON_IMAGENET),
            *(
                noted(
                    f"{FACTOR} on {study.label}",
                    growth(study.main, product)[0].mean().mapped(np.exp),
                    "",
                    part=product,
                )
                for study in studies
            ),
        ]
    return measures


def _grows_more(
    studies: Sequence[Study], product: str, kind: str = STABLE, since: str = FIRST_EPOCH
) -> list[Measure]:
    small, large = (growth(study.main, product, since, kind)[0] for study in studies)
    _, ratio = contrast([large, small], [1, -1])
    return [
        at_least(
            f"{FACTOR} on ImageNet, over that on CIFAR-10",
            ratio.mapped(np.exp),
            1.0,
            "from the end of the first epoch to the end of training, geometric means over heads; the "
            "networks and their training differ as well as the data",
            part=product,
        )
    ]
