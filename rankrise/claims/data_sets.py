"""Claims that compare data sets: the paper's on ImageNet, and the reproduction's on CIFAR-100."""

from collections.abc import Sequence

import numpy as np

from rankrise.claims.claim import Measure, at_least, noted
from rankrise.claims.growth import growth
from rankrise.claims.heads import at_the_end
from rankrise.claims.statistics import contrast, in_order
from rankrise.runs import NotRecorded, Study

MOST = 0.75


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
        lower, higher = (at_the_end(runs, product) for runs in (easy, hard))
        layers, whole = contrast([higher.mapped(np.log), lower.mapped(np.log)], [1, -1])
        name = "stable rank on CIFAR-100 over that on CIFAR-10"
        measures += [
            noted(name, one.mapped(np.exp), "geometric mean over heads", part=product, layer=layer)
            for layer, one in layers.items()
        ]
        measures += [
            at_least(
                "share of pairs of heads in the same layer in which CIFAR-100 has the higher rank",
                in_order([higher, lower]),
                MOST,
                "half of them would by chance; three of four is half-way to all",
                part=product,
            ),
            noted(f"{name}, geometric mean over heads", whole.mapped(np.exp), "", part=product),
        ]
    return measures


def grows_more_on_imagenet(studies: Sequence[Study]) -> list[Measure]:
    """By how much the stable rank grows on ImageNet, or a part of it, against CIFAR-10."""
    factor = "factor by which the stable rank grows"
    measures: list[Measure] = []
    for product in studies[0].main[0].products:
        small, large = (growth(study.main, product)[0] for study in studies)
        _, ratio = contrast([large, small], [1, -1])
        measures += [
            at_least(
                f"{factor} on ImageNet, over that on CIFAR-10",
                ratio.mapped(np.exp),
                1.0,
                "from the end of the first epoch to the end of training, geometric means over heads; the "
                "networks and their training differ as well as the data",
                part=product,
            ),
            *(
                noted(f"{factor} on {study.label}", heads.mean().mapped(np.exp), "", part=product)
                for study, heads in zip(studies, (small, large), strict=True)
            ),
        ]
    return measures
