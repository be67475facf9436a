"""Steps found in toy runs beside the stages of Algorithm 1."""

from pathlib import Path

import numpy as np
import pytest
import torch
from agreement import agreement, passages

from rankrise import predict, watch
from rankrise.watch._stages import Curve, find_steps

PAPER = Path(__file__).parents[3] / "results" / "toy-paper"


def plateaus(stages: predict.Stages, until: float) -> np.ndarray:
    points = [stage.point.numpy() for stage in stages if stage.time <= until]
    return np.stack([np.zeros_like(points[0]), *points])


def recorded(flow: predict.Flow, rows: int = 1000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, a = u*v and loss at evenly spaced steps of training."""
    times = np.linspace(0, float(flow.times[-1]), rows + 1)[1:]
    losses = np.exp(np.interp(times, flow.times.numpy(), flow.losses.log().numpy()))
    return times, flow.at(torch.from_numpy(times)).numpy(), losses


def in_loss(times: np.ndarray, losses: np.ndarray) -> list[float]:
    return [step.time for step in find_steps(times, losses)]


def in_values(times: np.ndarray, values: np.ndarray, dimension: int) -> list[float]:
    """Moments at which the singular values of the two products, or their stable ranks, step."""
    curves = []
    for name, product in (("KQ", values[:, :dimension]), ("VO", values[:, dimension:])):
        sizes = np.abs(product)
        rank = (sizes**2).sum(1) / np.maximum((sizes**2).max(1), 1e-300)
        curves += [
            Curve(f"{name} values", 1e6 * times, sizes.sum(1), scale="linear"),
            Curve(f"{name} stable rank", 1e6 * times, rank),
        ]
    return [stage.step / 1e6 for stage in watch.find_stages(curves)]


@pytest.mark.slow
@pytest.mark.parametrize(("log10_alpha", "resolved", "missed"), [(-4, 1, 0), (-32, 9, 1)])
def test_the_diagonal_toy(log10_alpha: float, resolved: int, missed: int) -> None:
    """A head with a dozen stages, some of them close to one another."""
    network = predict.diagonal_head(dimension=8, tokens=10, samples=200, seed=0)
    stages = predict.greedy(network, network.size, until=2.5)
    u0, v0 = predict.random_start(16, seed=0)
    flow = predict.gradient_flow(network, u0, v0, log10_alpha=log10_alpha, until=2.5)
    times, values, losses = recorded(flow)
    ways = passages(plateaus(stages, 2.5), times, values)
    assert sum(not way.open for way in ways) >= resolved
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(times)))
    for steps in (in_loss(times, losses), in_loss(times, losses * noise), in_values(times, values, 8)):
        counts = agreement(ways, steps)
        assert counts.missed <= missed
        assert counts.false == 0


def test_a_record_that_ends_in_nan_has_the_same_stages(tmp_path: Path) -> None:
    found = []
    for end in (0.0, torch.nan):
        torch.manual_seed(0)
        model = torch.nn.TransformerEncoderLayer(8, 2, 8)
        weight = model.self_attn.in_proj_weight
        start, direction = weight.detach().clone(), torch.randn_like(weight)
        with watch.RankTracker(model, tmp_path / str(end), schedule=watch.Schedule(1, 100)) as tracker:
            for step in range(1, 121):
                size = 0.01 + 1 / (1 + np.exp((60 - step) / 2))
                weight.data = start + size * direction + (end if step == 120 else 0.0)
                tracker.step(step)
                tracker.wait()  # none is left out
        found.append([stage.step for stage in watch.find_stages(watch.load(tmp_path / str(end)))])
    assert found[0]
    assert found[0] == found[1]
