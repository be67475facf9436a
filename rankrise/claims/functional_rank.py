"""Ours, on runs that `rankrise truncate` measured: what heads have learned is of low rank in what it does."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rankrise.claims.claim import Measure, at_most, by_each_choice, noted
from rankrise.claims.learned import losses
from rankrise.claims.low_rank import FAR_BELOW, OTHERWISE
from rankrise.claims.statistics import Estimate, largest
from rankrise.runs import NotRecorded, Study, TrackedRun

TRAINING, VALIDATION = "training loss", "validation loss"
SHARE = 0.99
WHY = "far below is an order of magnitude; worst seed"
CHOICES: dict[str, dict[str, Any]] = {
    **{f"a threshold of {cut:g}": {"threshold": cut} for cut in OTHERWISE},
    **{f"{100 * share:g} % of the gain": {"share": share} for share in (0.95, 0.999)},
    "the gain from the first recorded loss": {"from_first": True},
}
SCORES = {
    "validation_loss": "the validation loss",
    "accuracy": "the validation accuracy",
    "perplexity": "the perplexity",
}
"""Scores that a cut may have beside the loss, each another choice of what is to be kept."""


def functional_rank(study: Study) -> list[Measure]:
    """The least rank of every head's change that keeps 99 % of the gain, over the head size."""
    runs = truncated(study)
    scores = {
        choice: {"score": name}
        for name, choice in SCORES.items()
        if any(name in _record(run).get("trained", {}) for run in runs)
    }
    if which_loss(runs) == VALIDATION:
        scores["the training loss"] = {"score": "training_loss"}  # which no such record has
    measures: list[Measure] = []
    for product in ("KQ", "VO"):
        measures += by_each_choice(partial(_deciding, runs, product), CHOICES | scores)
        measures += _gains(runs[0], product)
    return measures


def truncated(study: Study) -> Sequence[TrackedRun]:
    """The study's main runs that were truncated."""
    return [run for run in study.main if run.truncation is not None]


def which_loss(runs: Sequence[TrackedRun]) -> str:
    """The loss by which they were cut; records that do not say are by the validation loss, as at first."""
    told = ["training" in _record(run).get("measured_on", "") for run in runs]
    return TRAINING if all(told) else VALIDATION if not any(told) else f"{TRAINING} or {VALIDATION}"


def _deciding(
    runs: Sequence[TrackedRun],
    product: str,
    threshold: float = FAR_BELOW,
    share: float = SHARE,
    score: str = "loss",
    from_first: bool = False,
) -> list[Measure]:
    name = f"rank that keeps 99 % of the gain in the {which_loss(runs)}, as a fraction of the head size"
    if (share, score, from_first) == (SHARE, "loss", False):
        found = max(_searched(run, product) / run.layers[0]["d_head"] for run in runs)
        return [at_most(name, found, threshold, WHY, part=product)]
    tried = [_tried(run, product, share, score, from_first) for run in runs]
    why = "the interval is from above the last rank that was tried and is not enough, to the first that is"
    return [at_most(name, largest(tried), threshold, why, part=product)]


def _searched(run: TrackedRun, product: str) -> float:
    """The functional rank that `rankrise truncate` searched for."""
    kept = float(_record(run).get("gain", SHARE))
    if kept != SHARE:
        raise NotRecorded(
            f"{run.name} was truncated to {100 * kept:g} % of the gain, and the claim is about "
            f"{100 * SHARE:g} %: run 'rankrise truncate' on it again without --gain."
        )
    found = _curve(run, product)["functional_rank"]
    if found is None:
        raise NotRecorded(
            f"the loss of {run.name} does not fall by what {product} learned, or the functional rank is not "
            "among the ranks that 'rankrise truncate' was asked for."
        )
    return float(found)


def _tried(run: TrackedRun, product: str, share: float, score: str, from_first: bool) -> Estimate:
    """The first of the ranks that were tried that keeps a share of what a score gains, over the head size."""
    curve, size = _curve(run, product), run.layers[0]["d_head"]
    points = sorted((point["rank"], _score(point.get("scores", {}), score)) for point in curve["points"])
    start = _first_loss(run) if from_first else _score(curve.get("initial", {}), score)
    gain = _score(_record(run).get("trained", {}), score) - start
    if not (gain > 0 if score == "accuracy" else gain < 0):
        raise NotRecorded(f"{run.name} gains nothing in {score.replace('_', ' ')} by what {product} learned.")
    below = 0
    for rank, value in points:
        if (value - start) / gain >= share:
            return Estimate(rank / size, (below + 1) / size, rank / size)
        below = rank
    raise NotRecorded(f"no rank of {run.name} that was tried keeps {100 * share:g} % of the gain.")


def _score(scores: dict[str, Any], name: str) -> float:
    if name not in scores:
        raise NotRecorded(f"the run was truncated without the {name.replace('_', ' ')}.")
    return float(scores[name])


def _record(run: TrackedRun) -> dict[str, Any]:
    """What `rankrise truncate` measured of a run, which it has measured."""
    assert run.truncation is not None
    return run.truncation


def _first_loss(run: TrackedRun) -> float:
    """The first training loss that was recorded, near that of guessing."""
    for first, _ in losses([run]):
        return float(first)
    raise NotRecorded(f"{run.name} recorded no loss.")


def _gains(run: TrackedRun, product: str) -> list[Measure]:
    """How much of the gain the first directions keep."""
    points = {point["rank"]: point["gain"] for point in _curve(run, product)["points"]}
    return [
        noted(f"share of the gain at rank {rank}", points[rank], "all heads cut alike", part=product)
        for rank in (1, 2, 4)
        if points.get(rank) is not None
    ]


def _curve(run: TrackedRun, product: str) -> dict[str, Any]:
    for curve in _record(run)["curves"]:
        if curve["group"] == product and curve["method"] == "plain":
            return dict(curve)
    raise NotRecorded(f"{run.name} was truncated without {product}: run 'rankrise truncate' on it again.")
