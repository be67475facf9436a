"""Ordinary mistakes: each is refused in a sentence that names what was passed."""

import math

import pytest
import torch

from rankrise import RankriseError, predict
from rankrise.predict.types import DiagonalHead

A, U = torch.ones(2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)


def good(a):
    return ((a - 3) ** 2).sum()


GREEDY = {
    "size is None": {"size": None},
    "size is 0": {"size": 0},
    "size is 5": {"loss": predict.diagonal_head(2, 3, 4), "size": 5},
    "shapes is": {"size": None, "shapes": [(2, 0)]},
    r"shapes is \[\(2, 3\)\]": {
        "loss": predict.matrix_sensing(2, samples=9),
        "size": None,
        "shapes": [(2, 3)],
    },
    "columns is 0": {"size": None, "shapes": [(2, 2)], "columns": 0},
    "until is 0": {"until": 0},
    "loss returned tensor": {"loss": lambda a: a},
    "loss returned 3.0": {"loss": lambda a: 3.0},
    "loss returned tensor.nan": {"loss": lambda a: a.sum() * math.nan},
    "finite float64 scalar": {"loss": lambda a: a.float().sum()},
    "does not depend": {"loss": lambda a: torch.ones((), dtype=torch.float64)},
    "loss failed": {"loss": lambda a: (a - torch.ones(7)).sum()},
}
FLOW = {
    "log10_alpha is 0": {"log10_alpha": 0.0},
    "log10_alpha is -inf": {"log10_alpha": -math.inf},
    "until is -1": {"until": -1.0},
    "until is 1e\\+300": {"until": 1e300},
    "tolerance is 0": {"tolerance": 0.0},
    "max_steps is 0": {"max_steps": 0},
    "shapes \\(1,\\) and \\(2,\\)": {"u0": A[:1]},
    "not finite": {"v0": [1.0, math.nan]},
    "both zero": {"u0": [0.0, 1.0], "v0": [0.0, 1.0]},
    r"shapes \(1, 2\)": {"u0": [[1.0, 2.0]]},
    "size is 2": {"loss": predict.diagonal_head(2, samples=5)},
    r"u0 has 1 matrices and v0 has 2": {"u0": [U], "v0": [U, U]},
    r"shapes \(2, 2\) and \(2, 1\)": {"u0": [U], "v0": [U[:, :1]]},
}
NETWORKS = {
    "dimension is 0": lambda: predict.diagonal_head(dimension=0),
    "objective is 'hinge'": lambda: predict.diagonal_head(objective="hinge"),
    "activation is 'relu'": lambda: predict.diagonal_transformer(activation="relu"),
    "teacher is 'some'": lambda: predict.full_head(teacher="some"),
    "samples is 7": lambda: predict.linear_network(8, samples=7, white=True),
    "rank is 5": lambda: predict.matrix_sensing(3, 4, rank=5),
    "coordinate 4": lambda: predict.diagonal_head(2, 2, 2).label(4),
    "product 2": lambda: predict.full_head(2, 2, 2).label(2),
    "inputs have shape": lambda: DiagonalHead(U, U),
}


@pytest.mark.parametrize("words", GREEDY)
def test_greedy(words):
    with pytest.raises(RankriseError, match=words):
        predict.greedy(**{"loss": good, "size": 2} | GREEDY[words])


@pytest.mark.parametrize("words", FLOW)
def test_gradient_flow(words):
    with pytest.raises(RankriseError, match=words):
        predict.gradient_flow(**{"loss": good, "u0": A, "v0": A / 2, "log10_alpha": -8} | FLOW[words])


@pytest.mark.parametrize("words", NETWORKS)
def test_networks(words):
    with pytest.raises(RankriseError, match=words):
        NETWORKS[words]()


def test_questions_about_a_flow():
    network = predict.matrix_sensing(2, samples=10)
    matrices = predict.gradient_flow(network, *predict.random_start(network), -8, 0.1)
    vector = predict.gradient_flow(good, A, A / 2, -8, 0.1)
    for words, ask in {
        "time is": lambda: matrices.at(0.2),
        "product is 1": lambda: matrices.singular_values(1),
        "threshold is 0": lambda: vector.activation_times(0),
        "diagonal": lambda: matrices.weights_at(0.0),
        "matrices": lambda: vector.drift,
        "noise": lambda: predict.perturb(good, vector, 0.05, noise=0.0),
        "perturb": lambda: predict.perturb(network, matrices, 0.05, noise=0.1),
    }.items():
        with pytest.raises(RankriseError, match=words):
            ask()
