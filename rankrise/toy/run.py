"""A toy run: its pieces on several processes, each kept once it is finished, resumable at any time."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from time import sleep

import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, write_json
from rankrise.foundations.provenance import machine, now, versions
from rankrise.recipes.files import refuse_others
from rankrise.recipes.toy_settings import ToySettings, log10_of
from rankrise.record.folder import has_run, write_run
from rankrise.runs import PerturbedCurve, ToyRun, open_toy
from rankrise.runs.toy import (
    ACTIVE,
    Network,
    Piece,
    needs,
    pieces_of,
    write_flow,
    write_parts,
    write_perturbations,
    write_stages,
)
from rankrise.toy.descent import gradient_descent, train_full_weights

CURVE_POINTS = 64
"""Points of each perturbed curve; curves are kept in single precision."""


def run_toy(
    folder: str | Path,
    settings: ToySettings,
    workers: int = 1,
    command: str = "",
    progress: Callable[[int], None] | None = None,
) -> ToyRun:
    """Run every experiment that `settings` asks for into `folder`, skipping finished ones.

    `progress` is called with the number of finished pieces.

    >>> import tempfile
    >>> sizes = {"dimension": 2, "tokens": 3, "samples": 20}
    >>> settings = ToySettings(**sizes, alphas=("1e-4",), experiments=("stages", "flow"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_toy(folder, settings)
    ...     len(run.missing), run.flow(seed=0, alpha="1e-4").ending
    (0, 'reached')
    """
    folder = Path(folder)
    if has_run(folder):
        refuse_others(folder, open_toy(folder).settings.to_dict(), settings.to_dict())
    elif is_taken(folder):
        raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
    else:
        about = {"settings": settings.to_dict(), "versions": versions(), "machine": machine()}
        write_run(folder, "toy", about | {"command": command, "started": now(), "finished": None})
    run = open_toy(folder)
    waiting = run.missing
    done = len(pieces_of(settings)) - len(waiting)
    with closing(_computed(run, waiting, workers)) as finished:
        for number, _ in enumerate(finished, start=done + 1):
            if progress is not None:
                progress(number)
    if waiting:
        write_run(folder, "toy", run.info | {"finished": now()})
    return open_toy(folder)


def _computed(run: ToyRun, pieces: list[Piece], workers: int) -> Generator[None]:
    """Compute pieces, which come after those that they need, and yield as each is finished."""
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a seed gives the same numbers on any number of workers
        try:
            for piece in pieces:
                compute(run, piece)
                yield
        finally:
            torch.set_num_threads(threads)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers inherit it, and leave Ctrl-C to us
        running = [pool.submit(compute, run, piece) for piece in pieces]
        signal.signal(signal.SIGINT, before)
        yield from (future.result() for future in as_completed(running))
    except BrokenProcessPool:
        raise RankriseError(
            f"a worker process was killed, perhaps for lack of memory: {run.folder} keeps what is finished, "
            f"and the same command does the other {len(run.missing)} experiments."
        ) from None
    finally:
        for process in (pool._processes or {}).values():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """One thread, and an end when the parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()


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


def compute(run: ToyRun, piece: Piece) -> None:
    """Compute one piece and write its file, once the pieces that it needs are there."""
    folder, settings, seed = run.folder, run.settings, piece.seed
    network, start = network_of(settings, seed), initialisation_of(settings, seed)
    scale = log10_of(piece.alpha or settings.full_scale)
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
