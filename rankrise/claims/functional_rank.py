"""Ours, on runs that `rankrise truncate` measured: what heads have learned is of low rank in what it does."""

from collections.abc import Sequence
from typing import Any

from rankrise.claims.claim import Measure, at_most, noted
from rankrise.claims.low_rank import FAR_BELOW, OTHERWISE
from rankrise.runs import NotRecorded, Study, TrackedRun

NAME = "rank that keeps 99 % of the gain, as a fraction of the head size"


def functional_rank(study: Study) -> list[Measure]:
    """The least rank of every head's change that keeps 99 % of the gain, over the head size."""
    measures: list[Measure] = []
    for product in ("KQ", "VO"):
        ranks = [_functional(run, product) / run.layers[0]["d_head"] for run in truncated(study)]
        most = max(ranks)
        measures += [
            at_most(NAME, most, FAR_BELOW, "far below is an order of magnitude; worst seed", part=product),
            *(
                at_most(NAME, most, cut, "", part=product, choice=f"a threshold of {cut:g}")
                for cut in OTHERWISE
            ),
            *_gains(truncated(study)[0], product),
        ]
    return measures


def truncated(study: Study) -> Sequence[TrackedRun]:
    """The study's main runs that were truncated."""
    return [run for run in study.main if run.truncation is not None]


def _functional(run: TrackedRun, product: str) -> float:
    found = _curve(run, product)["functional_rank"]
    if found is None:
        raise NotRecorded(
            f"the loss of {run.name} does not fall by what {product} learned, or the functional rank is not "
            "among the ranks that 'rankrise truncate' was asked for."
        )
    return float(found)


def _gains(run: TrackedRun, product: str) -> list[Measure]:
    """How much of the gain the first directions keep."""
    points = {point["rank"]: point["gain"] for point in _curve(run, product)["points"]}
    return [
        noted(f"share of the gain at rank {rank}", points[rank], "all heads cut alike", part=product)
        for rank in (1, 2, 4)
        if points.get(rank) is not None
    ]


def _curve(run: TrackedRun, product: str) -> dict[str, Any]:
    for curve in (run.truncation or {}).get("curves", ()):
        if curve["group"] == product and curve["method"] == "plain":
            return dict(curve)
    raise NotRecorded(f"{run.name} was truncated without {product}: run 'rankrise truncate' on it again.")
