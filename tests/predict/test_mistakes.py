"""Ordinary mistakes: each is refused in a sentence that names what was passed."""

import math

import pytest
import torch
from small_losses import double, quadratic

from rankrise import RankriseError, predict

A, U = torch.ones(2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
GOOD = quadratic(double(3.0, 3.0))


def flow(u0=A, v0=A / 2, scale=-8, loss=GOOD, **options):
    return predict.gradient_flow(loss, u0, v0, scale, **options)


def matrices():
    network = predict.matrix_sensing(2, samples=10)
    return predict.gradient_flow(network, *predict.random_start(network), -8, 0.1)


MISTAKES = {
    "size is None": lambda: predict.greedy(GOOD),
    "finite float64 scalar": lambda: predict.greedy(lambda a: a, 2),
    "loss returned nan": lambda: predict.greedy(lambda a: a.sum() * math.nan, 2),
    "loss returned 0.15": lambda: predict.greedy(lambda a: a.float().sum(), 2),
    "log10_alpha is 0.0": lambda: flow(scale=0.0),
    "until 1e\\+300": lambda: flow(until=1e300),
    "tolerance 0": lambda: flow(tolerance=0.0),
    r"shapes \(1,\) and \(2,\)": lambda: flow(A[:1]),
    "not finite at the start": lambda: flow([1.0, math.nan]),
    r"shapes \(2, 2\) and \(2, 1\)": lambda: flow([U], [U[:, :1]]),
    "time is 0.2": lambda: matrices().at(0.2),
    "full matrices": lambda: predict.perturb(GOOD, matrices(), 0.05, noise=0.1),
    "pass one loss's": lambda: predict.compare(predict.greedy(GOOD, 2), matrices()),
    "empty, so": lambda: predict.check_assumptions(GOOD, predict.greedy(GOOD, 2, until=1e-6)),
    "objective is 'hinge'": lambda: predict.diagonal_head(objective="hinge"),
    r"at least 1: .* \(1000, 10, 0\)": lambda: predict.diagonal_head(dimension=0),
    r"at least 1: .* \(0, 4\)": lambda: predict.matrix_sensing(samples=0),
    "diagonal=True": lambda: predict.linear_network(objective="cross-entropy"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words):
    with pytest.raises(RankriseError, match=words):
        MISTAKES[words]()
