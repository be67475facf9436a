"""Predict: what a network learns when, from a small initialisation.

- `greedy` is the paper's Algorithm 1, the limit of a vanishing initialisation.
- `gradient_flow` is the flow itself, at any initialisation scale, from a `random_start` or your own.
- `compare` holds one against the other (Theorem 4.5); `check_assumptions` tests what the theory assumes;
  `perturb` shakes a flow and follows it on.
- `diagonal_head`, `diagonal_transformer`, `linear_network`, `full_head` and `matrix_sensing` are networks to
  start with. Any loss of `a = u * v`, or of products of matrices, will do.

`Stages` and `Flow` are the results; every other type is in `rankrise.predict.types`.
"""

from rankrise.predict import types
from rankrise.predict._assumptions import check_assumptions, perturb
from rankrise.predict._compare import compare
from rankrise.predict._flow import Flow, gradient_flow, random_start
from rankrise.predict._greedy import Stages, greedy
from rankrise.predict._networks.attention import diagonal_head, diagonal_transformer
from rankrise.predict._networks.full_head import full_head
from rankrise.predict._networks.linear import linear_network, matrix_sensing

__all__ = [
    "Flow",
    "Stages",
    "check_assumptions",
    "compare",
    "diagonal_head",
    "diagonal_transformer",
    "full_head",
    "gradient_flow",
    "greedy",
    "linear_network",
    "matrix_sensing",
    "perturb",
    "random_start",
    "types",
]
