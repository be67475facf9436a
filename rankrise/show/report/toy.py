"""The page of toy runs: their story, and the data behind their plots."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from rankrise import predict
from rankrise.recipes.toy_settings import ToySettings, log10_of
from rankrise.runs import Descent, FullWeights, PerturbedCurve, ToyRun
from rankrise.runs.toy.pieces import Piece
from rankrise.runs.toy.run import ACTIVE, fine_times
from rankrise.show.report.arrays import curve
from rankrise.show.report.kind import Kind, many, paragraph, several

DETAILED = 8
"""Perturbations of an experiment that carry all their curves; the others carry distances only."""

STAGE_FACTS = ("time", "coordinate", "sign", "loss", "left", "tied", "runner_up")

FINDING = """Trained from a small initialisation, the weights of a transformer do not grow all at once.
Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) proved it for attention with diagonal weights:
training rests on a plateau, learns one more coordinate, rests again, so that the rank of what is learned
rises by at most one at a time. Their Algorithm 1 says which coordinate comes next, and when."""


def answers(runs: Sequence[ToyRun]) -> list[str]:
    """Per run, how many stages Algorithm 1 finds, and how near to them training comes."""
    sentences = []
    for run in runs:
        seed, *others = run.settings.seeds
        scales = run.settings.alphas
        name = f"Run {escape(run.name)}: " if len(runs) > 1 else ""
        if not run.has(Piece("stages", seed)):
            sentences.append(f"{name}<strong>Nothing has been computed yet.</strong>")
            continue
        stages = many(len(run.stages(seed)), "stage")
        which = f" for seed {seed}" if others else ""
        until = f"up to rescaled time {run.settings.until:g}{which}"
        sentence = f"{name}<strong>Algorithm 1 finds {stages} {until}.</strong>"
        if run.has(Piece("comparison", seed)):
            comparison = run.derived(seed, "comparison")
            errors = [float(comparison[scale]["largest_time_error"]) for scale in scales]
            if not math.isnan(errors[-1]):
                sentence += f" Training from <var>α</var> = {scale_html(scales[-1])} {_reaches(errors[-1])}"
                if len(scales) > 1 and not math.isnan(errors[0]):
                    sentence += f"; from <var>α</var> = {scale_html(scales[0])} it {_reaches(errors[0])}"
                sentence += "."
        sentences.append(sentence)
    return sentences


def _reaches(error: float) -> str:
    if math.isinf(error):
        return "misses at least one of them"
    percent = f"{100 * error:.2g}" if error < 0.995 else f"{100 * error:.0f}"
    return f"is off by at most {percent}\u00a0% of a stage’s time"


def scale_html(name: str) -> str:
    """A scale as people write it.

    >>> scale_html("1e-32"), scale_html("2.5e-3")
    ('10<sup>−32</sup>', '2.5·10<sup>−3</sup>')
    """
    factor, exponent = name.split("e")
    power = f"10<sup>{exponent.replace('-', '−')}</sup>"
    return power if factor == "1" else f"{escape(factor)}·{power}"


def chapters(runs: Sequence[ToyRun]) -> list[str]:
    """Per run, what was trained, and which pieces are missing."""
    paragraphs = []
    for run in runs:
        settings = run.settings
        heads = settings.layers * settings.heads
        network = f"one attention head with diagonal weights of dimension {settings.dimension}"
        if heads > 1:
            parts = f"{many(settings.layers, 'layer')} and {many(settings.heads, 'head')} per layer"
            network = f"a diagonal transformer of dimension {settings.dimension}, {parts}"
        name = f"<strong>{escape(run.name)}</strong>: " if len(runs) > 1 else ""
        seeds = f" for each of {len(settings.seeds)} seeds" if len(settings.seeds) > 1 else ""
        scales = ", ".join(map(scale_html, settings.alphas))
        done = (
            f"{name}This run trained {network}, {2 * settings.dimension * heads} coordinates in all, on "
            f"{settings.samples} samples of {settings.tokens} tokens from a random network of that form, "
            f"starting at size <var>α</var> = {scales}{seeds}."
        )
        paragraphs.append(paragraph(done))
        if run.missing:
            names = several([piece.name for piece in run.missing])
            paragraphs.append(paragraph(f"The run is not finished: {escape(names)} missing.", "warning"))
    return paragraphs


def gather(run: ToyRun) -> dict[str, Any]:
    """The data behind a run's plots; pieces that are not finished are absent."""
    seeds = [seed for seed in run.settings.seeds if run.has(Piece("stages", seed))]
    return {"name": run.name, "threshold": ACTIVE, "seeds": {str(seed): _seed(run, seed) for seed in seeds}}


def _seed(run: ToyRun, seed: int) -> dict[str, Any]:
    settings, stages, places = run.settings, run.stages(seed), run.places(seed)
    flows = [
        (alpha, run.flow(seed, alpha)) for alpha in settings.alphas if run.has(Piece("flow", seed, alpha))
    ]
    ends = [float(flow.times[-1]) for _, flow in flows]
    noise = {"strict-minima": settings.strict_minima_std, "noise-robustness": settings.noise_robustness_std}
    return {
        "labels": run.labels(seed),
        "short": run.labels(seed)
        if settings.layers == settings.heads == 1
        else [f"L{place.layer + 1}H{place.head + 1} {place.kind} {place.entry}" for place in places],
        "kinds": [place.kind for place in places],
        "initial_loss": stages.initial_loss,
        "message": stages.message,
        "until": max(ends) if ends else 1.02 * (stages[-1].time if len(stages) else 1.0),
        "stages": [
            {name: getattr(stage, name) for name in STAGE_FACTS}
            | {"point": [[index, float(stage.point[index])] for index in stage.support]}
            for stage in stages
        ],
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


def _flow(flow: predict.Flow, alpha: str) -> dict[str, Any]:
    fine = fine_times(flow)  # the solver's steps are so long that lines between them would show
    times = fine.numpy()
    switches: list[list[float]] = [[] for _ in range(flow.values.shape[1])]
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
    switches = []  # when each coordinate becomes active, inactive, and so on; only the first time is exact
    for column, first in zip(values.T, descent.activation_times.tolist(), strict=True):
        active = np.abs(column) >= ACTIVE
        found = times[np.flatnonzero(np.diff(active, prepend=False))].tolist()
        switches.append([first, *found[1:]] if math.isfinite(first) else found)
    return {
        "log10_alpha": log10_of(alpha),
        "curves": _columns(times, values),
        "loss": curve(times, descent.losses.numpy(), logarithmic=True),
        "switches": switches,
        "step": descent.step,
        "message": descent.message,
    }


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


def _perturbations(experiments: list[PerturbedCurve]) -> list[dict[str, Any]]:
    """The distance of each experiment from the original, and all its curves for some."""
    detailed = np.linspace(0, len(experiments) - 1, min(DETAILED, len(experiments))).round().astype(int)
    gathered = []
    for number, one in enumerate(experiments):
        times, both = (
            one.times.numpy(),
            {"original": one.original.numpy(), "perturbed": one.perturbed.numpy()},
        )
        distance = np.abs(both["perturbed"] - both["original"]).max(axis=1)
        gathered.append({"start": one.start, "distance": curve(times, distance, logarithmic=True)})
        if number in detailed:
            height = max(float(np.ptp(values)) for values in both.values())
            seen = np.abs(np.concatenate([*both.values()])).max(axis=0) >= ACTIVE
            for name, values in both.items():
                shown = np.flatnonzero(seen).tolist()
                gathered[-1][name] = {str(at): curve(times, values[:, at], height) for at in shown}
    return gathered


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
    scripts=("run.js", "stages.js", "experiments.js", "main.js"),
    subjects=lambda runs: [f"toy run {run.name}" for run in runs],
    answers=answers,
    chapters=chapters,
    settings=lambda run: run.settings.to_dict(),
    payload=lambda runs: {"runs": [gather(run) for run in runs]},
)
