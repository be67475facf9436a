"""Each piece of a run, computed and written."""

from dataclasses import asdict
from pathlib import Path
from time import sleep

import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.files import write_json
from rankrise.recipes.toy_settings import ToySettings, log10_of
from rankrise.runs import PerturbedCurve, ToyRun
from rankrise.runs.toy import (
    ACTIVE,
    Network,
    Piece,
    needs,
    write_flow,
    write_parts,
    write_perturbations,
    write_stages,
)
from rankrise.toy.descent import gradient_descent, train_full_weights

CURVE_POINTS = 64
"""Points of each perturbed curve; curves are kept in single precision."""


def network_of(settings: ToySettings, seed: int) -> Network:
    """The diagonal network on its data: the head of Eq. 1, or a transformer for more layers or heads."""
    dimension, tokens, samples = settings.dimension, settings.tokens, settings.samples
    if settings.layers == settings.heads == 1:
        return predict.diagonal_head(dimension, tokens, samples, seed, settings.objective)
    layers, heads = settings.layers, settings.heads
    return predict.diagonal_transformer(
        dimension, layers, heads, tokens, samples, seed=seed, objective=settings.objective
    )


def initialisation_of(settings: ToySettings, seed: int) -> tuple[Tensor, Tensor]:
    """Gaussian `u0` and `v0` (p,), the same for every scale: theta(0) = alpha * theta_0."""
    size = 2 * settings.dimension * settings.layers * settings.heads
    # Not the seed of the data: the teacher would be drawn from the same numbers.
    return predict.random_start(size, seed=seed + 1_000_000)


def compute(folder: Path, settings: ToySettings, piece: Piece) -> None:
    """Compute one piece and write its file, once the pieces that it needs are there."""
    run, network, seed = ToyRun(folder, settings, {}), network_of(settings, piece.seed), piece.seed
    start, scale = initialisation_of(settings, seed), log10_of(piece.alpha or settings.full_scale)
    while not all(map(run.has, needs(piece, settings))):
        sleep(0.05)
    match piece.kind:
        case "stages":
            write_stages(folder, piece, predict.greedy(network, until=settings.until), network)
        case "flow":
            flow = predict.gradient_flow(network, *start, scale, settings.until, settings.tolerance)
            write_flow(folder, piece, flow)
        case "descent":
            step = piece.step or settings.step
            write_parts(folder, piece, vars(gradient_descent(network, *start, scale, step, settings.until)))
        case "full":
            full = train_full_weights(network, scale, settings.step, settings.full_until, seed + 2_000_000)
            write_parts(folder, piece, vars(full))
        case "strict-minima" | "noise-robustness":
            write_perturbations(folder, piece, _perturbed(run, piece, network))
        case "assumptions":
            stages = run.stages(seed)
            checked: dict[str, object] = {"nothing to check": stages.message}
            if stages:
                noise = settings.noise_robustness_std
                checked = predict.check_assumptions(network, stages, noise=noise, seed=seed).to_dict()
            write_json(folder / piece.file, checked)
        case "comparison":
            stages = run.stages(seed)
            rows = {}
            for alpha in settings.alphas if stages else ():
                found = predict.compare(stages, run.flow(seed, alpha), ACTIVE)
                rows[alpha] = asdict(found) | {"largest_time_error": found.largest_time_error}
            write_json(folder / piece.file, rows)


def _perturbed(run: ToyRun, piece: Piece, network: Network) -> list[PerturbedCurve]:
    """Add noise at random times, or less noise whenever a coordinate has just crossed the threshold."""
    settings, flow = run.settings, run.flow(piece.seed, run.settings.alphas[-1])
    source = torch.Generator().manual_seed(piece.seed)
    if piece.kind == "strict-minima":
        std = settings.strict_minima_std
        parts = torch.rand(settings.perturbed_times, generator=source, dtype=torch.float64)
        times = sorted((parts * float(flow.times[-1])).tolist())
    else:
        std = settings.noise_robustness_std
        crossings = flow.crossings(settings.threshold)
        times = [crossing.time for crossing in crossings if crossing.upward and crossing.time > 0]
    seeds = torch.randint(2**31, (len(times),), generator=source).tolist()
    curves = []
    for time, seed in zip(times, seeds, strict=True):
        original, perturbed = predict.perturb(
            network, flow, time, std, settings.threshold, settings.duration, seed, settings.tolerance
        )
        last = min(float(original.times[-1]), float(perturbed.times[-1]))
        # Closer together at first, where the perturbed flow moves fastest.
        at = last * torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64).square()
        curves.append(PerturbedCurve(time, at, original.at(at).float(), perturbed.at(at).float()))
    return curves
