"""Full weight matrices: their stages, their flow, and networks that have them."""

from rankrise.predict._matrices.assumptions import (
    MatrixAssumptions,
    check_matrix_assumptions,
)
from rankrise.predict._matrices.compare import (
    MatrixComparison,
    MatrixConvergence,
    MatrixStageComparison,
    compare_matrices,
)
from rankrise.predict._matrices.flow import MatrixFlow, matrix_flow, random_start
from rankrise.predict._matrices.greedy import MatrixStage, MatrixStages, greedy_matrices
from rankrise.predict._matrices.networks import (
    FullHead,
    LinearNetwork,
    MatrixSensing,
    full_head,
    linear_network,
    matrix_sensing,
)

__all__ = [
    "FullHead",
    "LinearNetwork",
    "MatrixAssumptions",
    "MatrixComparison",
    "MatrixConvergence",
    "MatrixFlow",
    "MatrixSensing",
    "MatrixStage",
    "MatrixStageComparison",
    "MatrixStages",
    "check_matrix_assumptions",
    "compare_matrices",
    "full_head",
    "greedy_matrices",
    "linear_network",
    "matrix_flow",
    "matrix_sensing",
    "random_start",
]
