"""Predict: which coordinate of a diagonal network is learned when.

`greedy` is the paper's Algorithm 1, the limit of a vanishing initialisation; `gradient_flow` is the flow
itself at any initialisation scale; `compare` holds one against the other (Theorem 4.5); `check_assumptions`
tests what the theorem assumes.
"""

from rankrise.predict._assumptions import Assumption, Assumptions, check_assumptions
from rankrise.predict._flow import Crossing, Flow, gradient_flow
from rankrise.predict._greedy import greedy
from rankrise.predict._networks import (
    DiagonalHead,
    DiagonalLinear,
    DiagonalTransformer,
    Place,
    diagonal_head,
    diagonal_linear,
    diagonal_transformer,
    random_initialisation,
)
from rankrise.predict._perturbation import Perturbation, noise_robustness_experiment, strict_minima_experiment
from rankrise.predict._stages import Stage, Stages
from rankrise.predict._theorem import Comparison, StageComparison, Trend, compare

__all__ = [
    "Assumption",
    "Assumptions",
    "Comparison",
    "Crossing",
    "DiagonalHead",
    "DiagonalLinear",
    "DiagonalTransformer",
    "Flow",
    "Perturbation",
    "Place",
    "Stage",
    "StageComparison",
    "Stages",
    "Trend",
    "check_assumptions",
    "compare",
    "diagonal_head",
    "diagonal_linear",
    "diagonal_transformer",
    "gradient_flow",
    "greedy",
    "noise_robustness_experiment",
    "random_initialisation",
    "strict_minima_experiment",
]
