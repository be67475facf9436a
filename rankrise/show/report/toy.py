"""The page of toy runs: their story, and the data behind their plots."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import torch

from rankrise import predict
from rankrise.recipes.toy_settings import log10_of
from rankrise.runs import Descent, PerturbedCurve, ToyRun
from rankrise.runs.toy import ACTIVE, Piece
from rankrise.show.report.pieces import curve, many, paragraph

NAME, LINK, HEADING = "toy", "The toy", "Stages of learning"
SCRIPTS = ("run.js", "stages.js", "experiments.js", "main.js")
FINDING = """Trained from a small initialisation, the weights of a transformer do not grow all at once.
Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) proved it for attention with diagonal weights:
training rests on a plateau, learns one more coordinate, rests again, so that the rank of what is learned
rises by at most one at a time. Their Algorithm 1 says which coordinate comes next, and when."""


def story(runs: Sequence[ToyRun]) -> tuple[list[str], list[str], list[str]]:
    """What the page is about; per run, how many stages Algorithm 1 finds, and how near training comes to
    them; then what was trained, and which pieces are missing."""
    answers, chapters = [], []
    for run in runs:
        name, settings, seed = escape(run.name), run.settings, run.settings.seeds[0]
        sentence = "Nothing has been computed yet."
        if run.has(Piece("stages", seed)):
            stages = many(len(run.stages(seed)), "stage")
            sentence = f"Algorithm 1 finds {stages} up to rescaled time {settings.until:g}."
        sentence = f"{name}: <strong>{sentence}</strong>"
        if run.has(Piece("comparison", seed)):
            scale = settings.alphas[-1]
            error = 100 * float(run.derived(seed, "comparison")[scale]["largest_time_error"])
            near = "misses a stage" if math.isinf(error) else f"is off by at most {error:.2g} % of its time"
            sentence += f" Training from <var>α</var> = {scale} {near}." if error == error else ""
        answers.append(sentence)
        heads = f"{many(settings.layers, 'layer')} of {many(settings.heads, 'head')}"
        done = (
            f"{name} trained a diagonal network of dimension {settings.dimension}, {heads}, on "
            f"{settings.samples} samples of {settings.tokens} tokens from a random network of that form, "
            f"starting at size <var>α</var> = {', '.join(settings.alphas)}."
        )
        chapters.append(paragraph(done))
        if run.missing:
            missing = f"not finished: {len(run.missing)} pieces missing, such as {run.missing[0].name}."
            chapters.append(paragraph(f"{name} is {escape(missing)}", "warning"))
    return [f"toy run {run.name}" for run in runs], answers, chapters


def payload(runs: Sequence[ToyRun]) -> dict[str, Any]:
    """The data behind the plots; pieces that are not finished are absent."""
    found = []
    for run in runs:
        seeds = [seed for seed in run.settings.seeds if run.has(Piece("stages", seed))]
        data = {str(seed): _seed(run, seed) for seed in seeds}
        found.append({"name": run.name, "threshold": ACTIVE, "seeds": data})
    return {"runs": found}


def _seed(run: ToyRun, seed: int) -> dict[str, Any]:
    settings, stages, places = run.settings, run.stages(seed), run.places(seed)
    flows = {alpha: run.flow(seed, alpha) for alpha in settings.alphas if run.has(Piece("flow", seed, alpha))}
    last = 1.02 * (stages[-1].time if len(stages) else 1.0)
    short = [f"L{place.layer + 1}H{place.head + 1} {place.kind} {place.entry}" for place in places]
    return {
        "labels": run.labels(seed),
        "short": run.labels(seed) if settings.layers == settings.heads == 1 else short,
        "kinds": [place.kind for place in places],
        "initial_loss": stages.initial_loss,
        "message": stages.message,
        "until": max((float(flow.times[-1]) for flow in flows.values()), default=last),
        "stages": [
            {name: getattr(stage, name) for name in ("time", "coordinate", "sign", "loss", "runner_up")}
            | {"point": [[index, float(stage.point[index])] for index in stage.support]}
            for stage in stages
        ],
        "flows": [_flow(flow, alpha) for alpha, flow in flows.items()],
        "descents": [
            _descent(run.descent(seed, alpha, step), alpha)
            for alpha in settings.alphas
            for step in (None, *settings.other_steps)
            if run.has(Piece("descent", seed, alpha, step))
        ],
        "perturbations": {
            kind: {"std": std, "experiments": list(map(_perturbation, run.perturbations(seed, kind)))}
            for kind, std in (
                ("strict-minima", settings.strict_minima_std),
                ("noise-robustness", settings.noise_robustness_std),
            )
            if run.has(Piece(kind, seed))
        },
        "full": _full(run, seed) if run.has(Piece("full", seed)) else None,
    }


def _flow(flow: predict.Flow, alpha: str) -> dict[str, Any]:
    start, step = flow.times[:-1, None], flow.times.diff()[:, None]
    # The solver's steps are so long that lines between them would show.
    fine = torch.cat([(start + step * torch.arange(4) / 4).flatten(), flow.times[-1:]])
    losses = np.interp(fine.numpy(), flow.times.numpy(), flow.losses.numpy())
    switches: list[list[float]] = [[] for _ in range(flow.values.shape[1])]
    for crossing in flow.crossings(ACTIVE):
        switches[crossing.product].append(crossing.time)
    return _path(alpha, fine.numpy(), flow.at(fine).numpy(), losses, switches)


def _descent(descent: Descent, alpha: str) -> dict[str, Any]:
    times, values = descent.times.numpy(), descent.values.numpy()
    switches = []  # only the first time is exact
    for column, first in zip(values.T, descent.activation_times.tolist(), strict=True):
        active = np.abs(column) >= ACTIVE
        found = times[np.flatnonzero(np.diff(active, prepend=False))].tolist()
        switches.append([first, *found[1:]] if math.isfinite(first) else found)
    return _path(alpha, times, values, descent.losses.numpy(), switches) | {"step": descent.step}


def _path(
    alpha: str, times: np.ndarray, values: np.ndarray, losses: np.ndarray, switches: list[list[float]]
) -> dict[str, Any]:
    """A flow or descent; `switches` are the times at which a coordinate becomes active, inactive, ..."""
    loss = curve(times, losses, logarithmic=True)
    return {
        "log10_alpha": log10_of(alpha),
        "switches": switches,
        "loss": loss,
        "curves": _columns(times, values),
    }


def _columns(times: np.ndarray, values: np.ndarray) -> list[dict[str, Any]]:
    """The columns of `values` (n, c) as curves of one plot."""
    return [curve(times, column, float(np.ptp(values))) for column in values.T]


def _full(run: ToyRun, seed: int) -> dict[str, Any]:
    full = run.full(seed)
    times = full.times.numpy()
    to_training_time = -full.log10_scale * math.log(10)  # the prediction is in rescaled time
    products = {
        "KQ": (full.singular_values_kq, full.predicted_kq),
        "VO": (full.singular_values_vo, full.predicted_vo),
    }
    return {
        "loss": curve(times, full.losses.numpy(), logarithmic=True),
        "curves": {name: _columns(times, values.numpy()) for name, (values, _) in products.items()},
        "predicted": {name: (to_training_time * ranks).tolist() for name, (_, ranks) in products.items()},
        "dimension": run.settings.dimension,
        "scale": run.settings.full_scale,
        "step": full.step,
    }


def _perturbation(one: PerturbedCurve) -> dict[str, Any]:
    """How far a perturbed path is from the original."""
    distance = (one.perturbed - one.original).abs().amax(1).numpy()
    return {"start": one.start, "distance": curve(one.times.numpy(), distance, logarithmic=True)}
