"""Claim 6, the reproduction's: VO's change has the higher rank, and so has that of the harder data set."""

from collections.abc import Sequence

import numpy as np

from rankrise.claims.claim import Measure, at_least, told
from rankrise.claims.heads import at_the_end, judged_at
from rankrise.claims.scales import in_order
from rankrise.claims.statistics import mean_bounds
from rankrise.runs import NotRecorded, Study

MOST = 0.75
COMPARED = ("cifar10", "cifar100")
"""The easier data set and the harder one, as `Study.family` has them."""


def vo_exceeds_kq(study: Study) -> list[Measure]:
    """The two changes of the same head at the end of training, pair by pair."""
    if study.main[0].products != ("KQ", "VO"):
        raise NotRecorded(f"only {', '.join(study.main[0].products)} was tracked: both products are needed")
    at_the_end(study.main, "KQ")
    ends = {name: np.stack([one.ranks[name][-1] for one in study.main]) for name in ("KQ", "VO")}
    both = (ends["KQ"] > 0) & (ends["VO"] > 0)
    ratios = np.log(ends["VO"], where=both, out=np.full(both.shape, np.nan))
    ratios -= np.log(ends["KQ"], where=both, out=np.full(both.shape, np.nan))
    layers = [one[np.isfinite(one)].mean() for one in ratios.swapaxes(0, 1) if np.isfinite(one).any()]
    return [
        at_least(
            "part of the heads in which VO has the higher rank",
            float((ratios[both] > 0).mean()),
            MOST,
            "consistently higher, as it was put: three heads of four; half of them would by chance",
        ),
        at_least(
            "log(stable rank of VO / that of KQ), mean over heads (lower bound)",
            mean_bounds(ratios[both])[0],
            0.0,
            "lower 95 % bound; a head's own two changes are compared, so that layers weigh alike",
        ),
        told(
            "layers in which VO exceeds KQ on average",
            float(sum(mean > 0 for mean in layers)),
            f"of {len(layers)} layers",
        ),
        *judged_at(study),
    ]


def on_cifar(studies: Sequence[Study]) -> list[Study]:
    """Those on CIFAR: of other data `harder_data` has nothing to say."""
    return [study for study in studies if study.family in COMPARED]


def harder_data(studies: Sequence[Study]) -> list[Measure]:
    """CIFAR-100 against CIFAR-10: heads of the same layer of the same model, trained alike."""
    found = {study.family: study for study in studies}
    if not found.keys() >= set(COMPARED):
        raise NotRecorded("it takes a run on CIFAR-10 and one on CIFAR-100: pass both")
    easy, hard = (found[family].main for family in COMPARED)
    alike = [
        (one.layers[0]["d_head"], len(one.layers), one.recipe.get("epochs")) for one in (easy[0], hard[0])
    ]
    if alike[0] != alike[1]:
        raise NotRecorded(
            "the two data sets were trained with other layers, heads or epochs: train them alike"
        )
    measures: list[Measure] = []
    for product in easy[0].products:
        lower, higher = (at_the_end(members, product) for members in (easy, hard))
        orders = [in_order(pair) for pair in zip(higher, lower, strict=True)]
        means = [h.mean() / e.mean() for h, e in zip(higher, lower, strict=True)]
        factor = float(np.exp(np.mean(np.log(means))))
        measures += [
            at_least(
                f"pairs of heads of a layer in which CIFAR-100 has the higher rank, {product}",
                float(np.mean(orders)),
                MOST,
                "half of them would by chance; three of four is half-way to all",
            ),
            told(
                f"layers in which CIFAR-100's mean rank of {product} is higher",
                float(sum(ratio > 1 for ratio in means)),
                f"of {len(means)} layers; {factor:.2f} times as high, geometric mean",
            ),
        ]
    return measures
