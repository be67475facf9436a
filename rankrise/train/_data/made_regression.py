"""Regression problems that are made: a few points of a random affine function, and one more to be told."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

VALIDATION = 1024
"""Problems in the validation set."""


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems of one kind, each a row of tokens (x, y), of which the last asks for its y."""

    tokens: Tensor
    """float32 [n, pairs + 1, features + 1]; the last token's y is 0."""
    answers: Tensor
    """The y that is asked for, divided by its standard deviation. float32 [n]"""


def made_regression(problems: int, pairs: int, variances: Sequence[float]) -> tuple[Problems, Problems]:
    """A training and a validation set. Both are the same for every seed of a run.

    In each problem y = w·x + b, with w and b standard normal, and x normal with one of `variances` per
    feature.

    >>> train, validation = made_regression(problems=4000, pairs=16, variances=(1, 0.5))
    >>> tuple(train.tokens.shape), tuple(validation.answers.shape)
    ((4000, 17, 3), (1024,))
    >>> [round(part, 1) for part in train.tokens[..., :2].var((0, 1)).tolist()]
    [1.0, 0.5]
    """
    return _made(problems, pairs, variances, seed=1), _made(VALIDATION, pairs, variances, seed=2)


def _made(problems: int, pairs: int, variances: Sequence[float], seed: int) -> Problems:
    draw = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])).standard_normal
    slopes, intercepts = draw((problems, len(variances), 1)), draw((problems, 1, 1))
    features = draw((problems, pairs + 1, len(variances))) * numpy.sqrt(variances)
    targets = features @ slopes + intercepts
    answers = targets[:, -1, 0] / numpy.sqrt(1 + sum(variances))
    targets[:, -1] = 0
    tokens = numpy.concatenate([features, targets], axis=2)
    return Problems(torch.from_numpy(tokens).float(), torch.from_numpy(answers).float())
