"""Predict: which coordinate of a diagonal network is learned when.

- `greedy` is the paper's Algorithm 1, the limit of a vanishing initialisation.
- `gradient_flow` is the flow itself, at any initialisation scale.
- `compare` holds one against the other (Theorem 4.5); `check_assumptions` tests what the theorem assumes;
  `perturb` shakes a flow and follows it on.
- `diagonal_head`, `diagonal_transformer` and `diagonal_linear` are losses to start with, and
  `random_initialisation` a place to start from. Any loss of `a = u * v` will do.
- Full weight matrices, beyond the paper: `greedy_matrices`, `matrix_flow`, `compare_matrices` and
  `check_matrix_assumptions`, with `full_head`, `matrix_sensing` and `linear_network` to start with, and
  `random_start`. Any loss of products will do.

`Stages` and `Flow` are what these pass on to each other; every other type is in
`rankrise.predict.types`.
"""

from typing import TYPE_CHECKING

from rankrise.foundations.deprecation import moved
from rankrise.predict import types
from rankrise.predict._assumptions import check_assumptions
from rankrise.predict._flow import Flow, gradient_flow
from rankrise.predict._greedy import greedy
from rankrise.predict._matrices.assumptions import check_matrix_assumptions
from rankrise.predict._matrices.compare import compare_matrices
from rankrise.predict._matrices.flow import MatrixFlow, matrix_flow, random_start
from rankrise.predict._matrices.greedy import MatrixStages, greedy_matrices
from rankrise.predict._matrices.networks.head import full_head
from rankrise.predict._matrices.networks.linear import linear_network
from rankrise.predict._matrices.networks.sensing import matrix_sensing
from rankrise.predict._networks.head import diagonal_head
from rankrise.predict._networks.linear import diagonal_linear
from rankrise.predict._networks.randomness import random_initialisation
from rankrise.predict._networks.transformer import diagonal_transformer
from rankrise.predict._perturbation import perturb
from rankrise.predict._stages import Stages
from rankrise.predict._theorem import compare

__all__ = [
    "Flow",
    # Full weight matrices.
    "MatrixFlow",
    "MatrixStages",
    "Stages",
    "check_assumptions",
    "check_matrix_assumptions",
    "compare",
    "compare_matrices",
    "diagonal_head",
    "diagonal_linear",
    "diagonal_transformer",
    "full_head",
    "gradient_flow",
    "greedy",
    "greedy_matrices",
    "linear_network",
    "matrix_flow",
    "matrix_sensing",
    "perturb",
    "random_initialisation",
    "random_start",
    "types",
]

if not TYPE_CHECKING:
    __getattr__ = moved(
        __name__,
        {
            "Assumption": "rankrise.predict.types:Assumption",
            "Assumptions": "rankrise.predict.types:Assumptions",
            "Comparison": "rankrise.predict.types:FlowComparison",
            "Crossing": "rankrise.predict.types:Crossing",
            "DiagonalHead": "rankrise.predict.types:DiagonalHead",
            "DiagonalLinear": "rankrise.predict.types:DiagonalLinear",
            "DiagonalTransformer": "rankrise.predict.types:DiagonalTransformer",
            "Perturbation": "rankrise.predict.types:Perturbation",
            "Place": "rankrise.predict.types:AttentionEntry",
            "Stage": "rankrise.predict.types:Stage",
            "StageComparison": "rankrise.predict.types:StageComparison",
            "Trend": "rankrise.predict.types:Convergence",
        },
    )
