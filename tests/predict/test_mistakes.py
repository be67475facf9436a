"""Ordinary mistakes: each is refused in a sentence that names what was passed."""

import math

import pytest
import torch
from small_losses import double, quadratic

from rankrise import RankriseError, predict
from rankrise.predict.types import DiagonalHead

A, U = torch.ones(2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
GOOD = quadratic(double(3.0, 3.0))


def flow(u0=A, v0=A / 2, scale=-8, loss=GOOD, **options):
    return predict.gradient_flow(loss, u0, v0, scale, **options)


def matrices():
    network = predict.matrix_sensing(2, samples=10)
    return predict.gradient_flow(network, *predict.random_start(network), -8, 0.1)


MISTAKES = {
    "size is None": lambda: predict.greedy(GOOD),
    "size is 5": lambda: predict.greedy(predict.diagonal_head(2, 3, 4), 5),
    r"shapes is \[\(2, 3\)\]": lambda: predict.greedy(predict.matrix_sensing(2), shapes=[(2, 3)]),
    "columns is 0": lambda: predict.greedy(GOOD, shapes=[(2, 2)], columns=0),
    "until is 0": lambda: predict.greedy(GOOD, 2, until=0),
    "finite float64 scalar": lambda: predict.greedy(lambda a: a, 2),
    "loss returned nan": lambda: predict.greedy(lambda a: a.sum() * math.nan, 2),
    "loss returned 0.15": lambda: predict.greedy(lambda a: a.float().sum(), 2),
    "log10_alpha is 0": lambda: flow(scale=0.0),
    "until is 1e\\+300": lambda: flow(until=1e300),
    "tolerance is 0": lambda: flow(tolerance=0.0),
    r"shapes \(1,\) and \(2,\)": lambda: flow(A[:1]),
    "not finite": lambda: flow([1.0, math.nan]),
    "both zero": lambda: flow(0 * A, 0 * A),
    "has 1 matrices and v0 has 2": lambda: flow([U], [U, U]),
    r"shapes \(2, 2\) and \(2, 1\)": lambda: flow([U], [U[:, :1]]),
    "20000 coordinates": lambda: flow(*predict.random_start(20_000), loss=lambda a: (a - 3).square().sum()),
    "time is 0.2": lambda: matrices().at(0.2),
    "threshold is 0": lambda: flow().activation_times(0),
    "noise": lambda: predict.perturb(GOOD, flow(), 0.05, noise=0.0),
    "full matrices": lambda: predict.perturb(GOOD, matrices(), 0.05, noise=0.1),
    "same scale": lambda: predict.compare(predict.greedy(GOOD, 2), [flow(), flow()]),
    "empty list": lambda: predict.compare(predict.greedy(GOOD, 2), []),
    "pass one loss's": lambda: predict.compare(predict.greedy(GOOD, 2), matrices()),
    "empty, so": lambda: predict.check_assumptions(GOOD, predict.greedy(GOOD, 2, until=1e-6)),
    "dimension is 0": lambda: predict.diagonal_head(dimension=0),
    "GB": lambda: predict.diagonal_head(dimension=1_000_000),
    "objective is 'hinge'": lambda: predict.diagonal_head(objective="hinge"),
    "activation is 'relu'": lambda: predict.diagonal_transformer(activation="relu"),
    "teacher is 'some'": lambda: predict.full_head(teacher="some"),
    "samples is 7": lambda: predict.linear_network(8, samples=7, white=True),
    "rank is 5": lambda: predict.matrix_sensing(3, 4, rank=5),
    "coordinate 4": lambda: predict.diagonal_head(2, 2, 2).label(4),
    "product 2": lambda: predict.full_head(2, 2, 2).label(2),
    "inputs have shape": lambda: DiagonalHead(U, U[:1]),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words):
    with pytest.raises(RankriseError, match=words):
        MISTAKES[words]()
