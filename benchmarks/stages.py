"""Ways to find stages, on the same curves: false alarms on curves without stages, stages of toy runs matched.

    python benchmarks/stages.py [--curves 300]

Needs `ruptures`. Curves without stages are those of tests/watch/stages/smooth_curves.py, from a seed on that
no setting was chosen by; toy runs are the one of results/toy-paper and a small one, at every scale.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import ruptures
import torch
from rankrise.watch._stages.shape import Windows

from rankrise import predict, runs, watch
from rankrise.show.progress import bar
from rankrise.watch._stages.noise import binned
from rankrise.watch._stages.steps import FINEST, LEAST

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "watch" / "stages"))
from agreement import Passage, agreement, passages  # noqa: E402
from smooth_curves import smooth_curve  # noqa: E402

HELD_OUT = 1000
Finder = Callable[[np.ndarray, np.ndarray, str], list[float]]


def ours(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    return [step.time for step in watch.find_steps(times, curve, direction=direction)]  # type: ignore[arg-type]


def mean_shifts(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    """PELT (Killick et al. 2012), pieces of constant mean: every large shift in the direction."""
    times, values, variances = prepared(times, curve, direction)
    scaled = values / np.sqrt(np.median(variances))
    ends = ruptures.Pelt("l2", min_size=1, jump=1).fit(scaled).predict(pen=3 * np.log(len(scaled)))
    means = [piece.mean() for piece in np.split(values, ends[:-1])]
    return [times[end] for end, rise in zip(ends[:-1], np.diff(means), strict=True) if rise >= LEAST]


def joined_lines(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    """PELT, joined straight pieces in log time; steps of them by our definition."""
    times, values, variances = prepared(times, curve, direction)
    if len(times) > 150:  # it costs a second otherwise
        kept = np.linspace(0, len(times) - 1, 150).astype(int)
        times, values, variances = times[kept], values[kept], variances[kept]
    scaled = values / np.sqrt(np.median(variances))
    ends = ruptures.Pelt("clinear", min_size=2, jump=1).fit(scaled).predict(pen=5 * np.log(len(scaled)))
    knots = [0, *(end - 1 for end in ends)]
    fitted = np.interp(np.log(times), np.log(times[knots]), values[knots])
    windows = Windows(times, variances, LEAST).steps(np.maximum.accumulate(fitted))
    return [float(np.sqrt(times[first] * times[last])) for first, last in windows]


def sigmoids(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    """A cubic in log time and logistic steps, added one by one while that lowers BIC by 10 or more."""
    times, values, variances = prepared(times, curve, direction)
    place, weight = np.log(times), 1 / np.sqrt(variances)
    middles = np.union1d(np.linspace(place[0], place[-1], 80), np.log(np.linspace(times[0], times[-1], 80)))[
        3:-3
    ]
    choices = [(middle, width) for middle in middles for width in (0.005, 0.02, 0.05, 0.1)]
    logistic = [1 / (1 + np.exp(-np.clip((place - middle) / width, -50, 50))) for middle, width in choices]
    steps = weight[:, None] * np.stack(logistic, 1)
    columns = [weight * ((place - place.mean()) / place.std()) ** power for power in range(4)]
    found: list[float] = []
    while len(found) < 20:
        basis = np.linalg.qr(np.stack(columns, 1))[0]
        left, rest = (x - basis @ (basis.T @ x) for x in (weight * values, steps))
        sizes = np.maximum((rest**2).sum(0), 1e-6 * (steps**2).sum(0))
        gains = np.maximum(rest.T @ left, 0) ** 2 / sizes
        best = int(gains.argmax())
        if gains[best] < 3 * np.log(len(times)) + 10:
            break
        columns.append(steps[:, best])
        found.append(float(np.exp(choices[best][0])))
    return found


def prepared(
    times: np.ndarray, curve: np.ndarray, direction: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bins and variances that ours has, of the logarithm, with rises for steps."""
    places, values, variances = binned(np.asarray(times, float), np.log(curve))
    return places, values if direction == "up" else -values, variances + FINEST**2


def toy_curves() -> Iterator[tuple[str, list[Passage], list[bool], np.ndarray, np.ndarray]]:
    """Name, passages, which of them show in the loss, times and losses of every flow."""
    run = runs.open_toy(ROOT / "results" / "toy-paper")
    network = predict.diagonal_head(dimension=8, tokens=10, samples=200, seed=0)
    u0, v0 = predict.random_start(16, seed=0)
    small = predict.greedy(network, network.size, until=2.5)
    for alpha in run.settings.alphas:
        flow = predict.gradient_flow(network, u0, v0, log10_alpha=float(np.log10(float(alpha))), until=2.5)
        for name, stages, one in (("d = 8", small, flow), ("d = 50", run.stages(0), run.flow(0, alpha))):
            end = float(one.times[-1])
            times = np.linspace(0, end, 4001)[1:]
            reached = [stage for stage in stages if stage.time <= end]
            points = torch.stack([torch.zeros_like(reached[0].point), *(stage.point for stage in reached)])
            levels = np.log([stages.initial_loss, *(stage.loss for stage in reached)])
            ways = passages(points.numpy(), times, one.at(torch.from_numpy(times)).numpy())
            shows = [bool(levels[way.first - 1] - levels[way.last] >= LEAST) for way in ways]
            losses = np.exp(np.interp(times, one.times.numpy(), one.losses.log().numpy()))
            yield f"{name}, {alpha}", ways, shows, times, losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", type=int, default=300, help="curves without stages")
    curves = parser.parse_args().curves
    finders: dict[str, Finder] = {
        "ours": ours,
        "PELT, joined lines": joined_lines,
        "PELT, mean shifts": mean_shifts,
        "cubic and sigmoids, BIC": sigmoids,
    }
    toys = list(toy_curves())
    for name, finder in finders.items():
        began, alarms = time.process_time(), 0
        with bar(name, total=curves) as move_to:
            for number in range(curves):
                _, steps, values, direction = smooth_curve(HELD_OUT + number)
                alarms += bool(finder(steps, values, direction))
                move_to(number + 1)
        seconds = (time.process_time() - began) / curves
        print(
            f"{name}: {alarms} of {curves} smooth curves alarm ({alarms / curves:.1%}), {seconds:.3f} s each"
        )
        for noise in (0.0, 0.02, 0.1):
            counts = []
            for _, ways, shows, times, losses in toys:
                noisy = losses * np.exp(noise * np.random.default_rng(0).standard_normal(len(times)))
                counts.append(agreement(ways, finder(times, noisy, "down"), shows))
            matched, missed, false = (
                sum(getattr(c, part) for c in counts) for part in ("matched", "missed", "false")
            )
            print(
                f"    toy losses, noise {noise:g}: {matched} matched, {missed} missed, {false} false",
                flush=True,
            )
            if finder is ours and noise == 0:
                for (label, *_), count in zip(toys, counts, strict=True):
                    print(f"        {label}: {count.matched} matched, {count.missed} missed")


if __name__ == "__main__":
    main()
