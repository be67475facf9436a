"""The paper on Algorithm 1's own path: the support only grows, and no two coordinates are due at once."""

from rankrise.claims.claim import Measure, at_least, at_most, noted
from rankrise.runs import NotRecorded, ToyRun

TIE = 1e-9
"""Below this fraction of a stage's time, two coordinates cannot be told apart in time."""


def support_grows(run: ToyRun) -> list[Measure]:
    """How many coordinates leave the support again, over all stages of all seeds."""
    stages = [stage for seed in run.settings.seeds for stage in run.stages(seed)]
    if not stages:
        raise NotRecorded(
            f"Algorithm 1 has no stage before rescaled time {run.settings.until:g}: raise until."
        )
    left = sum(len(stage.left) for stage in stages)
    return [
        at_most("coordinates that fall back to zero", float(left), 0, "what was learned stays learned"),
        noted("stages of Algorithm 1", float(len(stages)), "a coordinate could have left at each of them"),
    ]


def nondegeneracy(run: ToyRun) -> list[Measure]:
    """The smallest gap in time between a stage's coordinate and the next one due, over all stages."""
    checked = [run.derived(seed, "assumptions") for seed in run.settings.seeds]
    known = [one["nondegeneracy"] for one in checked if "nondegeneracy" in one]
    if not known:
        raise NotRecorded(
            f"Algorithm 1 has no stage before rescaled time {run.settings.until:g}: raise until."
        )
    gaps = sorted(float(gap) for one in known for gap in one["margins"])
    return [
        at_least(
            "shortest time by which a stage comes before its runner-up, as a fraction of the stage's time",
            min(float(one["margin"]) for one in known),
            TIE,
            "no two coordinates are due at the same time (the theorem's nondegeneracy)",
        ),
        noted(
            "the same, median over stages",
            gaps[len(gaps) // 2],
            "the flow resolves a gap only where alpha is small enough",
        ),
    ]
