"""Two ways to find stages: false alarms on curves without stages, and stages of toy runs that are matched.

    python benchmarks/stages.py [--curves 300]

The second way needs `ruptures`. Curves without stages are those of tests/watch/stages/smooth_curves.py, from
a seed on that no setting was chosen by; toy runs are the one of results/toy-paper and a small one, at every
scale.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from rankrise import predict, runs
from rankrise.watch._stages import FINEST, LEAST, binned, find_steps

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "watch" / "stages"))
from agreement import Passage, agreement, passages  # noqa: E402
from smooth_curves import smooth_curve  # noqa: E402

HELD_OUT = 1000
Finder = Callable[[np.ndarray, np.ndarray, str], list[float]]


def ours(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    return [step.time for step in find_steps(times, curve, direction=direction) or ()]  # type: ignore[arg-type]


def mean_shifts(times: np.ndarray, curve: np.ndarray, direction: str) -> list[float]:
    """PELT (Killick et al. 2012), pieces of constant mean: every large shift in the direction."""
    import ruptures

    times, values, variances = prepared(times, curve, direction)
    scaled = values / np.sqrt(np.median(variances))
    ends = ruptures.Pelt("l2", min_size=1, jump=1).fit(scaled).predict(pen=3 * np.log(len(scaled)))
    means = [piece.mean() for piece in np.split(values, ends[:-1])]
    return [times[end] for end, rise in zip(ends[:-1], np.diff(means), strict=True) if rise >= LEAST]


def prepared(
    times: np.ndarray, curve: np.ndarray, direction: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bins and variances that ours has, of the logarithm, with rises for steps."""
    places, values, variances = binned(np.asarray(times, float), np.log(curve))
    return places, values if direction == "up" else -values, variances + FINEST**2


def toy_curves() -> Iterator[tuple[list[Passage], list[bool], np.ndarray, np.ndarray]]:
    """Passages, which of them show in the loss, times and losses of every flow."""
    run = runs.open_toy(ROOT / "results" / "toy-paper")
    network = predict.diagonal_head(dimension=8, tokens=10, samples=200, seed=0)
    u0, v0 = predict.random_start(16, seed=0)
    small = predict.greedy(network, network.size, until=2.5)
    for alpha in run.settings.alphas:
        flow = predict.gradient_flow(network, u0, v0, log10_alpha=float(np.log10(float(alpha))), until=2.5)
        for stages, one in ((small, flow), (run.stages(0), run.flow(0, alpha))):
            end = float(one.times[-1])
            times = np.linspace(0, end, 4001)[1:]
            reached = [stage for stage in stages if stage.time <= end]
            points = torch.stack([torch.zeros_like(reached[0].point), *(stage.point for stage in reached)])
            levels = np.log([stages.initial_loss, *(stage.loss for stage in reached)])
            ways = passages(points.numpy(), times, one.at(torch.from_numpy(times)).numpy())
            shows = [bool(levels[way.first - 1] - levels[way.last] >= LEAST) for way in ways]
            losses = np.exp(np.interp(times, one.times.numpy(), one.losses.log().numpy()))
            yield ways, shows, times, losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", type=int, default=300, help="curves without stages")
    curves = parser.parse_args().curves
    finders: dict[str, Finder] = {
        "ours": ours,
        "PELT, mean shifts": mean_shifts,
    }
    toys = list(toy_curves())
    for name, finder in finders.items():
        alarms = 0
        for number in range(curves):
            _, steps, values, direction = smooth_curve(HELD_OUT + number)
            alarms += bool(finder(steps, values, direction))
        print(f"{name}: {alarms} of {curves} smooth curves alarm ({alarms / curves:.1%})", flush=True)
        for noise in (0.0, 0.02, 0.1):
            counts = []
            for ways, shows, times, losses in toys:
                noisy = losses * np.exp(noise * np.random.default_rng(0).standard_normal(len(times)))
                counts.append(agreement(ways, finder(times, noisy, "down"), shows))
            matched, missed, false = (
                sum(getattr(c, part) for c in counts) for part in ("matched", "missed", "false")
            )
            print(
                f"    toy losses, noise {noise:g}: {matched} matched, {missed} missed, {false} false",
                flush=True,
            )


if __name__ == "__main__":
    main()
