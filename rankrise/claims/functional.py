"""The claim on functional ranks, from what `rankrise truncate` measured."""

from collections.abc import Sequence
from typing import Any

from rankrise.claims.claim import How, Measure, Number, Statement, noted
from rankrise.claims.heads import losses
from rankrise.claims.statistics import Estimate, extreme
from rankrise.claims.tracked import FAR_BELOW, NOT_SO_FAR, OnStudy
from rankrise.runs import NotRecorded, Run, Study, TrackedRun, studies

FIRST_LOSS = "the first recorded loss"
SCORES = {
    "validation_loss": "the validation loss",
    "accuracy": "the validation accuracy",
    "perplexity": "the perplexity",
}


class FunctionalRank(OnStudy):
    """The learned change of an attention product is of low rank in what it does: cut to directions far fewer
    than the head size, every head's product keeps 99 % of what its change gained.
    """

    name = "functional rank"
    source = "the project"

    def __init__(self, study: Study) -> None:
        super().__init__(study, measured(study))
        records = [of(run) for run in self.runs]
        on_training = {"training" in record.get("measured_on", "") for record in records}
        kinds = {True: "training loss", False: "validation loss"}
        loss = " or ".join(kind for training, kind in kinds.items() if training in on_training)
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
        found = studies([run for run in opened if isinstance(run, TrackedRun)])
        return [cls(study) for study in found if measured(study)]

    def parts(self) -> Sequence[str]:
        return ["KQ", "VO"]

    def decide(self, product: str, how: How) -> list[Estimate | float]:
        """The smallest rank of every head's change that keeps enough of the gain, of the worst seed."""
        if how.rank or how.aggregate or how.window:
            return [extreme(max, [first_enough(run, product, how) for run in self.runs])]
        return [max(searched(run, product) / run.layers[0]["d_head"] for run in self.runs)]

    def beside(self, product: str) -> list[Measure]:
        gains = {point["rank"]: point["gain"] for point in curve_of(self.runs[0], product)["points"]}
        return [
            noted(f"share of the gain at rank {rank}", gains[rank], "all heads cut alike")
            for rank in (1, 2, 4)
            if gains.get(rank) is not None
        ]


def measured(study: Study) -> list[TrackedRun]:
    """The study's main runs that `rankrise truncate` measured."""
    return [run for run in study.main if run.truncation is not None]


def of(run: TrackedRun) -> dict[str, Any]:
    """What `rankrise truncate` measured."""
    return run.truncation or {}


def curve_of(run: TrackedRun, product: str) -> dict[str, Any]:
    """Loss and gain against rank."""
    for curve in of(run)["curves"]:
        if curve["group"] == product and curve["method"] == "plain":
            return dict(curve)
    raise NotRecorded(f"{run.name} was truncated without {product}: run 'rankrise truncate' on it again.")


def searched(run: TrackedRun, product: str) -> float:
    """The functional rank that `rankrise truncate` searched for."""
    found = curve_of(run, product)["functional_rank"]
    if found is None or of(run).get("gain", 0.99) != 0.99:
        raise NotRecorded(
            f"{run.name} has no rank of {product} that keeps 99 % of the gain: there was no gain, or "
            "'rankrise truncate' was asked for other ranks or another --gain."
        )
    return float(found)


def first_enough(run: TrackedRun, product: str, how: How) -> Estimate:
    """The first of the tried ranks that keeps enough of what a score gains, over the head size.

    Its interval goes from above the last rank that is not enough to the first that is.
    """
    score, share = how.aggregate or "loss", float(how.rank or 0.99)
    curve, size = curve_of(run, product), run.layers[0]["d_head"]
    try:
        start = float(losses([run])[0, 0]) if how.window else curve["initial"][score]
        gain = of(run)["trained"][score] - start
        tried = sorted((point["rank"], point["scores"][score]) for point in curve["points"])
    except (KeyError, IndexError):
        raise NotRecorded(f"{run.name} was truncated without the {score.replace('_', ' ')}.") from None
    below = 0
    for rank, now in tried if (gain > 0 if score == "accuracy" else gain < 0) else ():
        if (now - start) / gain >= share:
            return Estimate(rank / size, (below + 1) / size, rank / size)
        below = rank
    raise NotRecorded(f"no rank of {run.name} that was tried keeps {100 * share:g} % of the gain.")
