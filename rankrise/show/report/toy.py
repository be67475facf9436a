"""The page of toy runs: their story, and the data behind their plots."""

import math
from html import escape
from typing import Any

import numpy as np

from rankrise import predict
from rankrise.predict.types import Stage
from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.runs import Descent, FullWeights, PerturbedCurve, ToyRun
from rankrise.runs.toy.curves import ACTIVE, fine_times
from rankrise.runs.toy.pieces import Piece
from rankrise.show.report.arrays import curve
from rankrise.show.report.kind import Chapter, Kind

DETAILED = 8
"""Perturbations of an experiment that carry all their curves; the others carry distances only."""
PIECES_NAMED = 4

FINDING = """Trained from a small initialisation, the weights of a transformer do not grow all at once.
Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) proved it for attention with diagonal weights:
training rests on a plateau, learns one more coordinate, rests again, so that the rank of what is learned
rises by at most one at a time. Their Algorithm 1 says which coordinate comes next, and when."""


def chapter(run: ToyRun, named: bool) -> Chapter:
    """The sentences about a run, with its name if there are several."""
    name = escape(run.name)
    answer = (
        f"{f'Run {name}: ' if named else ''}<strong>{_stages_sentence(run)}</strong> {_error_sentence(run)}"
    )
    done = f"{f'<strong>{name}</strong>: ' if named else ''}{_done_sentence(run)}"
    return Chapter(answer.strip(), done, _missing_sentences(run))


def _stages_sentence(run: ToyRun) -> str:
    seed, *others = run.settings.seeds
    if not run.has(Piece("stages", seed)):
        return "Nothing has been computed yet."
    count = len(run.stages(seed))
    found = (
        "1 stage" if count == 1 else f"{count} stages, one coordinate after another," if count else "0 stages"
    )
    which = f" for seed {seed}" if others else ""
    return f"Algorithm 1 finds {found} up to rescaled time {run.settings.until:g}{which}."


def _error_sentence(run: ToyRun) -> str:
    """The largest error of a stage time at the smallest and the largest scale."""
    seed, scales = run.settings.seeds[0], run.settings.alphas
    if not run.has(Piece("comparison", seed)):
        return ""
    comparison = run.derived(seed, "comparison")
    largest, smallest = (float(comparison[scale]["largest_time_error"]) for scale in (scales[0], scales[-1]))
    if math.isnan(largest) or math.isnan(smallest):
        return ""
    sentence = f"Training from <var>α</var> = {scale_html(scales[-1])} {_reaches(smallest)}"
    if len(scales) > 1:
        sentence += f"; from <var>α</var> = {scale_html(scales[0])} it {_reaches(largest)}"
    return f"{sentence}."


def _reaches(error: float) -> str:
    if math.isinf(error):
        return "misses at least one of them"
    percent = f"{100 * error:.2g}" if error < 0.995 else f"{100 * error:.0f}"
    if error >= 0.5:
        return f"is off by up to {percent}\u00a0% of a stage’s time"
    return f"comes to each within {percent}\u00a0% of its time"


def scale_html(name: str) -> str:
    """A scale as people write it.

    >>> scale_html("1e-32"), scale_html("2.5e-3")
    ('10<sup>−32</sup>', '2.5·10<sup>−3</sup>')
    """
    factor, exponent = name.split("e")
    power = f"10<sup>{exponent.replace('-', '−')}</sup>"
    return power if factor == "1" else f"{escape(factor)}·{power}"


def _done_sentence(run: ToyRun) -> str:
    settings = run.settings
    heads = settings.layers * settings.heads
    if heads == 1:
        network = f"one attention head with diagonal weights of dimension {settings.dimension}"
    else:
        layers = f"{settings.layers} layer{'s' * (settings.layers > 1)}"
        per_layer = f"{settings.heads} head{'s' * (settings.heads > 1)} per layer"
        network = f"a diagonal transformer of dimension {settings.dimension}, {layers} and {per_layer}"
    data = f"{settings.samples} samples of {settings.tokens} tokens"
    seeds = f" for each of {len(settings.seeds)} seeds" if len(settings.seeds) > 1 else ""
    return (
        f"This run trained {network}, {2 * settings.dimension * heads} coordinates in all, on {data} taught "
        "by a random network of that form, from weights of size <var>α</var> = "
        f"{', '.join(map(scale_html, settings.alphas))}{seeds}."
    )


def _missing_sentences(run: ToyRun) -> list[str]:
    names = [escape(piece.name) for piece in run.missing]
    if not names:
        return []
    more = f" and {len(names) - PIECES_NAMED} more" if len(names) > PIECES_NAMED else ""
    listed = f"{', '.join(names[:PIECES_NAMED])}{more} {'is' if len(names) == 1 else 'are'}"
    return [f"The run is not finished: {listed} missing, and absent below."]


def gather(run: ToyRun) -> dict[str, Any]:
    """The data behind a run's plots; pieces that are not finished are absent."""
    seeds = [seed for seed in run.settings.seeds if run.has(Piece("stages", seed))]
    return {"name": run.name, "threshold": ACTIVE, "seeds": {str(seed): _seed(run, seed) for seed in seeds}}


def _seed(run: ToyRun, seed: int) -> dict[str, Any]:
    settings, stages = run.settings, run.stages(seed)
    flows = [
        (alpha, run.flow(seed, alpha)) for alpha in settings.alphas if run.has(Piece("flow", seed, alpha))
    ]
    ends = [float(flow.times[-1]) for _, flow in flows]
    noise = {"strict-minima": settings.strict_minima_std, "noise-robustness": settings.noise_robustness_std}
    return {
        "labels": run.labels(seed),
        "short": _short_labels(run, seed),
        "kinds": [place.kind for place in run.places(seed)],
        "initial_loss": stages.initial_loss,
        "message": stages.message,
        "until": max(ends) if ends else 1.02 * (stages[-1].time if len(stages) else 1.0),
        "stages": [_stage(stage) for stage in stages],
        "flows": [_flow(flow, alpha) for alpha, flow in flows],
        "descents": [
            _descent(run.descent(seed, alpha, step), alpha)
            for alpha in settings.alphas
            for step in (None, *settings.other_steps)
            if run.has(Piece("descent", seed, alpha, step))
        ],
        "perturbations": {
            kind: {
                "std": std,
                "threshold": settings.threshold,
                "experiments": _perturbations(run.perturbations(seed, kind)),
            }
            for kind, std in noise.items()
            if run.has(Piece(kind, seed))  # type: ignore[arg-type]
        },
        "full": _full(run.full(seed), settings) if run.has(Piece("full", seed)) else None,
    }


def _short_labels(run: ToyRun, seed: int) -> list[str]:
    """Labels that fit beside a plot: layer and head as L2H1 if there are several."""
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
        "runner_up": stage.runner_up,
        "point": [[index, float(stage.point[index])] for index in stage.support],
    }


def _flow(flow: predict.Flow, alpha: str) -> dict[str, Any]:
    fine = fine_times(flow)  # the solver's steps are so long that lines between them would show
    times = fine.numpy()
    switches: list[list[float]] = [[] for _ in range(flow.places.shape[1])]
    for crossing in flow.crossings(ACTIVE):
        switches[crossing.coordinate].append(crossing.time)
    return {
        "log10_alpha": log10_of(alpha),
        "curves": _columns(times, flow.at(fine).numpy()),
        "loss": curve(times, np.interp(times, flow.times.numpy(), flow.losses.numpy()), logarithmic=True),
        "switches": switches,
        "message": flow.message,
    }


def _descent(descent: Descent, alpha: str) -> dict[str, Any]:
    times, values = descent.times.numpy(), descent.values.numpy()
    columns = zip(values.T, descent.activation_times.tolist(), strict=True)
    return {
        "log10_alpha": log10_of(alpha),
        "curves": _columns(times, values),
        "loss": curve(times, descent.losses.numpy(), logarithmic=True),
        "switches": [_switches(times, column, first) for column, first in columns],
        "step": descent.step,
        "message": descent.message,
    }


def _switches(times: np.ndarray, values: np.ndarray, first: float) -> list[float]:
    """When a coordinate becomes active, inactive, and so on; only the first time is exact."""
    active = np.abs(values) >= ACTIVE
    found = times[np.flatnonzero(np.diff(active, prepend=False))].tolist()
    return [first, *found[1:]] if math.isfinite(first) else found


def _columns(times: np.ndarray, values: np.ndarray) -> list[dict[str, Any]]:
    """The columns of `values` (n, c) as curves of one plot."""
    return [curve(times, column, float(np.ptp(values))) for column in values.T]


def _full(full: FullWeights, settings: ToySettings) -> dict[str, Any]:
    times = full.times.numpy()
    to_training_time = -full.log10_scale * math.log(10)  # the prediction is in rescaled time
    return {
        "loss": curve(times, full.losses.numpy(), logarithmic=True),
        "curves": {
            "KQ": _columns(times, full.singular_values_kq.numpy()),
            "VO": _columns(times, full.singular_values_vo.numpy()),
        },
        "predicted": {
            "KQ": (to_training_time * full.predicted_kq).tolist(),
            "VO": (to_training_time * full.predicted_vo).tolist(),
        },
        "dimension": settings.dimension,
        "scale": settings.full_scale,
        "step": full.step,
        "message": full.message,
    }


def _perturbations(curves: list[PerturbedCurve]) -> list[dict[str, Any]]:
    detailed = set(np.linspace(0, len(curves) - 1, min(DETAILED, len(curves))).round().astype(int).tolist())
    return [_perturbation(one, number in detailed) for number, one in enumerate(curves)]


def _perturbation(one: PerturbedCurve, detailed: bool) -> dict[str, Any]:
    times, both = one.times.numpy(), {"original": one.original.numpy(), "perturbed": one.perturbed.numpy()}
    distance = np.abs(both["perturbed"] - both["original"]).max(axis=1)
    gathered = {"start": one.start, "distance": curve(times, distance, logarithmic=True)}
    if not detailed:
        return gathered
    height = max(float(np.ptp(values)) for values in both.values())
    seen = np.flatnonzero(np.abs(np.concatenate([*both.values()])).max(axis=0) >= ACTIVE).tolist()
    return gathered | {
        name: {str(index): curve(times, values[:, index], height) for index in seen}
        for name, values in both.items()
    }


TOY = Kind(
    name="toy",
    run="toy run",
    link="The toy",
    heading="Stages of learning",
    finding=FINDING,
    sections={
        "stages": "Stages",
        "convergence": "Smaller α",
        "descent": "Descent",
        "full": "Full weights",
        "perturbations": "Perturbations",
    },
    scripts=("run.js", "plots.js", "stages.js", "experiments.js", "main.js"),
    subjects=lambda runs: [f"toy run {run.name}" for run in runs],
    chapters=lambda runs: [chapter(run, named=len(runs) > 1) for run in runs],
    settings=lambda run: run.settings.to_dict(),
    payload=lambda runs: {"runs": [gather(run) for run in runs]},
)
