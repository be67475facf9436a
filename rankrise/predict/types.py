"""The types behind the verbs of `rankrise.predict`: what they return, and what they may be given.

Nobody has to import one to use the library; they are here for annotations and for `isinstance`.
"""

from rankrise.predict._assumptions import Assumption, Assumptions
from rankrise.predict._coordinates import Coordinates
from rankrise.predict._flow import Crossing, Flow
from rankrise.predict._loss import LossFunction
from rankrise.predict._matrices import (
    FullHead,
    LinearNetwork,
    MatrixAssumptions,
    MatrixComparison,
    MatrixConvergence,
    MatrixFlow,
    MatrixSensing,
    MatrixStage,
    MatrixStageComparison,
    MatrixStages,
)
from rankrise.predict._networks import (
    Activation,
    AttentionEntry,
    DiagonalHead,
    DiagonalLinear,
    DiagonalTransformer,
    Objective,
)
from rankrise.predict._perturbation import Perturbation
from rankrise.predict._stages import Stage, Stages
from rankrise.predict._theorem import Convergence, FlowComparison, StageComparison

__all__ = [
    "Activation",
    "Assumption",
    "Assumptions",
    "AttentionEntry",
    "Convergence",
    "Coordinates",
    "Crossing",
    "DiagonalHead",
    "DiagonalLinear",
    "DiagonalTransformer",
    "Flow",
    "FlowComparison",
    "FullHead",
    "LinearNetwork",
    "LossFunction",
    "MatrixAssumptions",
    "MatrixComparison",
    "MatrixConvergence",
    "MatrixFlow",
    "MatrixSensing",
    "MatrixStage",
    "MatrixStageComparison",
    "MatrixStages",
    "Objective",
    "Perturbation",
    "Stage",
    "StageComparison",
    "Stages",
]
