"""A run as the page carries it: its curves thinned, its numbers plain, everything else left out."""

import math
from typing import Any

import numpy as np

from rankrise import predict
from rankrise.predict.types import Stage
from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.runs import Descent, FullWeights, PerturbedCurve, ToyRun
from rankrise.runs.toy.curves import ACTIVE, fine_times
from rankrise.runs.toy.pieces import Piece
from rankrise.show.report.thin import significant_list, thinned

DETAILED = 8
"""How many perturbations of an experiment carry all their curves; the others carry distances only."""


def gather(run: ToyRun) -> dict[str, Any]:
    """Everything the page's plots need of a run, as JSON has it; pieces that are not finished are absent."""
    return {
        "name": run.name,
        "threshold": ACTIVE,
        "seeds": {
            str(seed): _seed(run, seed) for seed in run.settings.seeds if run.has(Piece("stages", seed))
        },
    }


def _seed(run: ToyRun, seed: int) -> dict[str, Any]:
    stages = run.stages(seed)
    gathered: dict[str, Any] = {
        "labels": run.labels(seed),
        "short": _short_labels(run, seed),
        "kinds": [place.kind for place in run.places(seed)],
        "initial_loss": stages.initial_loss,
        "message": stages.message,
        "stages": [_stage(stage) for stage in stages],
        "flows": [
            _flow(run.flow(seed, alpha), alpha)
            for alpha in run.settings.alphas
            if run.has(Piece("flow", seed, alpha))
        ],
        "descents": [
            _descent(run.descent(seed, alpha, step), alpha)
            for alpha in run.settings.alphas
            for step in (None, *run.settings.other_steps)
            if run.has(Piece("descent", seed, alpha, step))
        ],
        "perturbations": {
            kind: _perturbations(run.perturbations(seed, kind), std, run.settings.threshold)
            for kind, std in (
                ("strict-minima", run.settings.strict_minima_std),
                ("noise-robustness", run.settings.noise_robustness_std),
            )
            if run.has(Piece(kind, seed))  # type: ignore[arg-type]
        },
    }
    if run.has(Piece("full", seed)):
        gathered["full"] = _full(run.full(seed), run.settings)
    return gathered


def _short_labels(run: ToyRun, seed: int) -> list[str]:
    """Labels that fit beside a plot: layer and head as L2H1, where there are several."""
    if run.settings.layers == run.settings.heads == 1:
        return run.labels(seed)
    places = run.places(seed)
    return [f"L{place.layer + 1}H{place.head + 1} {place.kind} {place.entry}" for place in places]


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "time": stage.time,
        "coordinate": stage.coordinate,
        "sign": stage.sign,
        "loss": stage.loss,
        "left": stage.left,
        "tied": stage.tied,
        "runner_up": _finite(stage.runner_up),
        "point": [[index, float(stage.point[index])] for index in stage.support],
    }


def _flow(flow: predict.Flow, alpha: str) -> dict[str, Any]:
    # The solver's steps are so long that lines between them would show.
    fine, times = fine_times(flow), flow.times
    switches: list[list[float]] = [[] for _ in range(flow.places.shape[1])]
    for crossing in flow.crossings(ACTIVE):
        switches[crossing.coordinate].append(crossing.time)
    return _curves(fine.numpy(), flow.at(fine).numpy(), switches) | {
        "log10_alpha": log10_of(alpha),
        "loss": _loss(fine.numpy(), np.interp(fine.numpy(), times.numpy(), flow.losses.numpy())),
        "activation": [_finite(time) for time in flow.activation_times(ACTIVE).tolist()],
        "message": flow.message,
    }


def _descent(descent: Descent, alpha: str) -> dict[str, Any]:
    times, values = descent.times.numpy(), descent.values.numpy()
    first = [_finite(time) for time in descent.activation_times.tolist()]
    return _curves(
        times, values, [_switches(times, *column) for column in zip(values.T, first, strict=True)]
    ) | {
        "log10_alpha": log10_of(alpha),
        "loss": _loss(times, descent.losses.numpy()),
        "activation": first,
        "step": descent.step,
        "message": descent.message,
    }


def _switches(times: np.ndarray, values: np.ndarray, first: float | None) -> list[float]:
    """When a coordinate becomes active, is so no more, and so on; only the first time is exact."""
    active = np.abs(values) >= ACTIVE
    found = [float(times[index + 1]) for index in np.flatnonzero(active[1:] != active[:-1])]
    if active[0]:
        found.insert(0, float(times[0]))
    return found if first is None else [first, *found[1:]]


def _curves(times: np.ndarray, values: np.ndarray, switches: list[list[float]]) -> dict[str, Any]:
    return {
        "times": significant_list(times),
        "curves": _columns(times, values),
        "switches": [significant_list(one) for one in switches],
    }


def _columns(times: np.ndarray, values: np.ndarray) -> list[list[float]]:
    """The columns of `values` (n, c) as curves of one plot."""
    height = float(np.ptp(values)) or 1.0
    return [thinned(times, column, height) for column in values.T]


def _loss(times: np.ndarray, losses: np.ndarray) -> list[float]:
    return thinned(times, losses, float(np.ptp(losses)) or 1.0, logarithmic=True)


def _full(full: FullWeights, settings: ToySettings) -> dict[str, Any]:
    times = full.times.numpy()
    return {
        "times": significant_list(times),
        "loss": _loss(times, full.losses.numpy()),
        "kq": _columns(times, full.singular_values_kq.numpy()),
        "vo": _columns(times, full.singular_values_vo.numpy()),
        "dimension": settings.dimension,
        "scale": settings.full_scale,
        "step": full.step,
        "message": full.message,
        # Training time, as the page's axis has it; the prediction is in rescaled time.
        "predicted": {
            kind: [time * -full.log10_scale * math.log(10) for time in times.tolist()]
            for kind, times in (("KQ", full.predicted_kq), ("VO", full.predicted_vo))
        },
    }


def _perturbations(curves: list[PerturbedCurve], std: float, threshold: float) -> dict[str, Any]:
    detailed = set(np.linspace(0, len(curves) - 1, min(DETAILED, len(curves))).round().astype(int).tolist())
    return {
        "std": std,
        "threshold": threshold,
        "experiments": [_perturbation(curve, number in detailed) for number, curve in enumerate(curves)],
    }


def _perturbation(curve: PerturbedCurve, detailed: bool) -> dict[str, Any]:
    times, original, perturbed = curve.times.numpy(), curve.original.numpy(), curve.perturbed.numpy()
    distance = np.abs(perturbed - original).max(axis=1)
    gathered: dict[str, Any] = {
        "start": curve.start,
        "times": significant_list(times),
        "distance": thinned(times, distance, float(distance.max()) or 1.0, logarithmic=True),
    }
    if detailed:
        height = max(float(np.ptp(original)), float(np.ptp(perturbed))) or 1.0
        seen = np.flatnonzero(np.abs(np.concatenate([original, perturbed])).max(axis=0) >= ACTIVE).tolist()
        for name, values in (("original", original), ("perturbed", perturbed)):
            gathered[name] = {str(index): thinned(times, values[:, index], height) for index in seen}
    return gathered


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
