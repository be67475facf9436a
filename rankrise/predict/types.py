"""The types behind the verbs of `rankrise.predict`: what they return, and what they may be given.

Nobody has to import one to use the library; they are here for annotations and for `isinstance`.
"""

from rankrise.foundations.objective import Objective
from rankrise.predict._assumptions import Assumption, Assumptions
from rankrise.predict._coordinates import Coordinates
from rankrise.predict._flow import Crossing, Flow
from rankrise.predict._loss import LossFunction
from rankrise.predict._matrices.assumptions import MatrixAssumptions
from rankrise.predict._matrices.compare import MatrixComparison, MatrixConvergence, MatrixStageComparison
from rankrise.predict._matrices.flow import MatrixFlow
from rankrise.predict._matrices.greedy import MatrixStage, MatrixStages
from rankrise.predict._matrices.networks.head import FullHead
from rankrise.predict._matrices.networks.linear import LinearNetwork
from rankrise.predict._matrices.networks.sensing import MatrixSensing
from rankrise.predict._networks.attention_entry import AttentionEntry
from rankrise.predict._networks.head import DiagonalHead
from rankrise.predict._networks.linear import DiagonalLinear
from rankrise.predict._networks.transformer import Activation, DiagonalTransformer
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
