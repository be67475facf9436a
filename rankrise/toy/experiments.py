"""Each piece of a run, computed and written: what a worker does."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from rankrise import predict
from rankrise.foundations.files import write_json
from rankrise.predict.types import Perturbation
from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.runs import PerturbedCurve, ToyRun
from rankrise.runs.toy.curves import ACTIVE
from rankrise.runs.toy.pieces import Piece
from rankrise.runs.toy.write import (
    write_descent,
    write_flow,
    write_full,
    write_perturbations,
    write_stages,
)
from rankrise.toy.descent import gradient_descent
from rankrise.toy.full import train_full_weights
from rankrise.toy.network import initialisation_of, network_of

Report = Callable[[float], None]
"""Called with the fraction of the piece that is done, from 0 to 1."""

CURVE_POINTS = 64
"""Of each perturbed curve, which are kept in single precision: there are two for each perturbation."""


def compute(folder: Path, settings: ToySettings, piece: Piece, report: Report) -> None:
    """Compute one piece and write its file, on one thread: a seed gives the same numbers on any workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _COMPUTE[piece.kind](ToyRun(folder, settings, {}), piece, report)
    finally:
        torch.set_num_threads(threads)


def _stages(run: ToyRun, piece: Piece, report: Report) -> None:
    network = network_of(run.settings, piece.seed)
    stages = predict.greedy(
        network,
        until=run.settings.until,
        progress=lambda found: report(min(1.0, found / network.size)),
    )
    coordinates = range(network.size)
    labels, places = map(network.label, coordinates), map(network.place, coordinates)
    write_stages(run.folder, piece.seed, [*labels], [*places], stages)


def _flow(run: ToyRun, piece: Piece, report: Report) -> None:
    settings = run.settings
    flow = predict.gradient_flow(
        network_of(settings, piece.seed),
        *initialisation_of(settings, piece.seed),
        log10_alpha=log10_of(piece.alpha),
        until=settings.until,
        tolerance=settings.tolerance,
        progress=lambda time: report(time / settings.until),
    )
    write_flow(run.folder, piece, flow, settings.tolerance)


def _descent(run: ToyRun, piece: Piece, report: Report) -> None:
    settings = run.settings
    descent = gradient_descent(
        network_of(settings, piece.seed),
        *initialisation_of(settings, piece.seed),
        log10_alpha=log10_of(piece.alpha),
        step=piece.step or settings.step,
        until=settings.until,
        progress=report,
    )
    write_descent(run.folder, piece, descent)


def _full(run: ToyRun, piece: Piece, report: Report) -> None:
    settings = run.settings
    full = train_full_weights(
        network_of(settings, piece.seed),
        log10_of(settings.full_scale),
        settings.step,
        settings.full_until,
        seed=piece.seed + 2_000_000,
        progress=report,
    )
    write_full(run.folder, piece, full)


def _strict_minima(run: ToyRun, piece: Piece, report: Report) -> None:
    """Noise at random times: training should return to the plateau."""
    flow = run.flow(piece.seed, run.settings.smallest_alpha)
    source = torch.Generator().manual_seed(piece.seed)
    parts = torch.rand(run.settings.perturbed_times, generator=source, dtype=torch.float64)
    times = sorted((parts * float(flow.times[-1])).tolist())
    _perturb_and_follow(run, piece, report, flow, times, run.settings.strict_minima_std, source)


def _noise_robustness(run: ToyRun, piece: Piece, report: Report) -> None:
    """Less noise where a coordinate has just crossed the threshold: training should keep to its path."""
    flow = run.flow(piece.seed, run.settings.smallest_alpha)
    source = torch.Generator().manual_seed(piece.seed)
    crossings = flow.crossings(run.settings.threshold)
    times = [crossing.time for crossing in crossings if crossing.upward and crossing.time > 0]
    _perturb_and_follow(run, piece, report, flow, times, run.settings.noise_robustness_std, source)


def _perturb_and_follow(
    run: ToyRun,
    piece: Piece,
    report: Report,
    flow: predict.Flow,
    times: list[float],
    std: float,
    source: torch.Generator,
) -> None:
    settings, network = run.settings, network_of(run.settings, piece.seed)
    seeds = torch.randint(2**31, (len(times),), generator=source).tolist()
    curves: list[PerturbedCurve] = []
    for time, seed in zip(times, seeds, strict=True):
        perturbation = predict.perturb(
            network, flow, time, std, settings.threshold, settings.duration, seed, settings.tolerance
        )
        curves.append(_curve(perturbation))
        report(len(curves) / len(times))
    write_perturbations(
        run.folder, piece, curves, std=std, threshold=settings.threshold, duration=settings.duration
    )


def _curve(perturbation: Perturbation) -> PerturbedCurve:
    """Both flows at the same times, closer together at first, where the perturbed one moves fastest."""
    original, perturbed = perturbation.original, perturbation.perturbed
    last = min(float(original.times[-1]), float(perturbed.times[-1]))
    times = last * torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64).square()
    return PerturbedCurve(perturbation.time, times, original.at(times).float(), perturbed.at(times).float())


def _assumptions(run: ToyRun, piece: Piece, report: Report) -> None:
    network = network_of(run.settings, piece.seed)
    stages = run.stages(piece.seed)
    if len(stages):
        noise = run.settings.noise_robustness_std
        checked = predict.check_assumptions(network, stages, noise=noise, seed=piece.seed).to_dict()
    else:
        checked = {"nothing to check": stages.message}
    write_json(run.folder / piece.file, checked)


def _comparison(run: ToyRun, piece: Piece, report: Report) -> None:
    stages = run.stages(piece.seed)
    comparisons = {}
    for alpha in run.settings.alphas if len(stages) else ():
        comparison = predict.compare(stages, run.flow(piece.seed, alpha), ACTIVE)
        comparisons[alpha] = asdict(comparison) | {
            "largest_time_error": comparison.largest_time_error,
            "largest_point_error": comparison.largest_point_error,
            "support_grows_by_at_most_one": comparison.support_grows_by_at_most_one,
        }
    write_json(run.folder / piece.file, comparisons)


_COMPUTE: dict[str, Callable[[ToyRun, Piece, Report], None]] = {
    "stages": _stages,
    "flow": _flow,
    "descent": _descent,
    "full": _full,
    "strict-minima": _strict_minima,
    "noise-robustness": _noise_robustness,
    "assumptions": _assumptions,
    "comparison": _comparison,
}
