"""Claim 2: strict minima and noise robustness hold along the toy run (Appendix C)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from rankrise.claims.claim import Measure, at_least, at_most, by_each_choice, noted
from rankrise.runs import NotRecorded, PerturbedCurve, ToyRun

RETURNED = 0.1
"""What may remain, as a fraction: noise forgotten leaves nothing, another minimum all."""

PARTS = {
    "of the kick": "the kick is how far the noise put them apart: above 1, that has grown",
    "of the largest separation": "the farthest they ever were apart: in between, the noise may have grown",
}
"""What is divided by what."""

ACTIVE_WEIGHT = 1e-8


def _median(shares: Sequence[float]) -> float:
    """The middle one of shares that are in order."""
    return shares[len(shares) // 2]


CHOICES: dict[str, dict[str, Any]] = {
    "the median perturbation": {"of": _median},
    **{f"a threshold of {cut:g}": {"threshold": cut} for cut in (0.01, 0.5)},
}


def strict_minima(run: ToyRun) -> list[Measure]:
    """Noise at random times dies out, and the Hessian at every plateau's point is positive definite."""
    margin_why = "a strict minimum means a positive definite Hessian in u on the support (Assumption 4.3)"
    smallest = "smallest eigenvalue of the Hessian at a plateau"
    return _measures(run, "strict-minima", "strict_minima", smallest, margin_why)


def noise_robustness(run: ToyRun) -> list[Measure]:
    """Noise at the times when a coordinate becomes active does not change where the stage leads."""
    margin_why = (
        "stage B, started with noise, must end nearer to the stage's point than it started (Assumption 4.4)"
    )
    removed = "smallest share of the noise that stage B removes"
    return _measures(run, "noise-robustness", "noise_robustness", removed, margin_why)


def remaining(curve: PerturbedCurve) -> tuple[float, float] | None:
    """How far apart the two paths end, over the kick itself, and over the farthest apart they ever were.

    Paths, not moments: noise also delays or hastens the stages, so the end of either is compared with the
    other's whole path, and the nearer of the two counts. None where no weight was large enough to perturb.
    """
    apart = (curve.perturbed - curve.original).abs().amax(1)
    if float(apart.max()) <= ACTIVE_WEIGHT:
        return None
    ends = ((curve.perturbed[-1], curve.original), (curve.original[-1], curve.perturbed))
    left = min(distance_to_path(point, path) for point, path in ends)
    return left / max(float(apart[0]), ACTIVE_WEIGHT), left / float(apart.max())


def distance_to_path(point: Tensor, path: Tensor) -> float:
    """The distance, largest over coordinates, from a point [p] to the nearest place on a path [n, p].

    >>> import torch
    >>> distance_to_path(torch.tensor([0.5, 0.1]), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    0.1...
    """
    point, path = point.double(), path.double()
    start, along = path[:-1], path.diff(dim=0)
    share = ((point - start) * along).sum(1) / along.square().sum(1).clamp_min(1e-300)
    nearest = start + share.clamp(0, 1)[:, None] * along
    return float((point - nearest).abs().amax(1).min())


def _measures(run: ToyRun, kind: str, assumption: str, margin_name: str, margin_why: str) -> list[Measure]:
    curves = [curve for seed in run.settings.seeds for curve in run.perturbations(seed, kind)]
    left = [parts for parts in map(remaining, curves) if parts is not None]
    if not left:
        raise NotRecorded("at no time of the run was there a weight large enough to perturb.")
    checked = [run.derived(seed, "assumptions") for seed in run.settings.seeds]
    margins = [float(one[assumption]["margin"]) for one in checked if assumption in one]
    skipped = len(curves) - len(left)
    measures: list[Measure] = []
    for (part, meaning), shares in zip(PARTS.items(), zip(*left, strict=True), strict=True):
        over = sum(share > RETURNED for share in shares)
        name = f"distance between the two paths at the end, as a fraction {part}"
        deciding = partial(_returned, f"{name}, largest", sorted(shares), meaning, part)
        measures += [
            *by_each_choice(deciding, CHOICES),
            noted(f"{name}, median", _median(sorted(shares)), "over all perturbations", part=part),
            noted(
                f"perturbations with more than {RETURNED:g}",
                float(over),
                f"of {len(shares)}",
                part=part,
            ),
        ]
    return [
        *measures,
        at_least(margin_name, min(margins) if margins else None, 1e-9, margin_why),
        noted(
            "perturbations",
            float(len(left)),
            f"{skipped} more had nothing to perturb" if skipped else "all had weights to perturb",
        ),
    ]


def _returned(
    name: str,
    shares: Sequence[float],
    meaning: str,
    part: str,
    of: Callable[[Sequence[float]], float] = max,
    threshold: float = RETURNED,
) -> list[Measure]:
    return [at_most(name, of(shares), threshold, meaning, part=part)]
