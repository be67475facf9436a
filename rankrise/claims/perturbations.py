"""Claim 2: strict minima and noise robustness hold along the toy run (Appendix C)."""

from rankrise.claims.claim import Measure, Undecided, at_least, at_most, told
from rankrise.toy import PerturbedCurve, Run

RETURNED = 0.1
"""The part of the largest distance that may remain: noise forgotten leaves nothing, another minimum all."""

ACTIVE_WEIGHT = 1e-8


def strict_minima(run: Run) -> list[Measure]:
    """Noise at random times dies out, and the Hessian at every plateau's point is positive definite."""
    margin_why = "a strict minimum means a positive definite Hessian in u on the support (Assumption 4.3)"
    return _measures(run, "strict-minima", "strict_minima", "smallest eigenvalue of a Hessian", margin_why)


def noise_robustness(run: Run) -> list[Measure]:
    """Noise at the times when a coordinate becomes active does not change where the stage leads."""
    margin_why = (
        "stage B, started with noise, must end nearer to the stage's point than it started (Assumption 4.4)"
    )
    return _measures(run, "noise-robustness", "noise_robustness", "least part of noise removed", margin_why)


def remaining(curve: PerturbedCurve) -> float | None:
    """What is left of a perturbation: the nearest the two come in the second half, over the farthest.

    Nearest, because both go through stages at slightly different moments, and within a stage are apart for a
    while. None where no weight was large enough to be perturbed.
    """
    distances = (curve.perturbed - curve.original).abs().amax(1)
    farthest = float(distances.max())
    if farthest <= ACTIVE_WEIGHT:
        return None
    return float(distances[curve.times >= curve.times[-1] / 2].min()) / farthest


def _measures(run: Run, kind: str, assumption: str, margin_name: str, margin_why: str) -> list[Measure]:
    left: list[float] = []
    skipped = 0
    margins: list[float] = []
    for seed in run.settings.seeds:
        for curve in run.perturbations(seed, kind):
            part = remaining(curve)
            if part is None:
                skipped += 1
            else:
                left.append(part)
        checked = run.derived(seed, "assumptions")
        if assumption in checked:
            margins.append(float(checked[assumption]["margin"]))
    if not left:
        raise Undecided("at no time of the run was there a weight large enough to perturb")
    return [
        at_most(
            "largest part of a perturbation that remains",
            max(left),
            RETURNED,
            "noise that dies out leaves next to nothing; a network that went elsewhere keeps its distance",
        ),
        at_least(margin_name, min(margins) if margins else None, 1e-9, margin_why),
        told("median part that remains", sorted(left)[len(left) // 2], "over all perturbations"),
        told(
            "perturbations",
            float(len(left)),
            f"{skipped} more had nothing to perturb" if skipped else "all had weights to perturb",
        ),
    ]
