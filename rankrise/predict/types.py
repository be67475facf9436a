"""The types behind the verbs of `rankrise.predict`, for annotations and for `isinstance`."""

from rankrise.foundations.objective import Objective
from rankrise.predict._assumptions import Assumption, Assumptions, Perturbation
from rankrise.predict._compare import Convergence, FlowComparison, StageComparison
from rankrise.predict._diagonal import Coordinates, DiagonalPath
from rankrise.predict._flow import Flow
from rankrise.predict._loss import LossFunction
from rankrise.predict._matrices.follow import MatrixPath
from rankrise.predict._networks.full_head import FullHead
from rankrise.predict._networks.head import Activation, AttentionEntry, DiagonalHead, DiagonalTransformer
from rankrise.predict._networks.linear import DiagonalLinear, LinearNetwork, MatrixSensing
from rankrise.predict._paths import Crossing
from rankrise.predict._stages import Stage, Stages

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
    "DiagonalPath",
    "DiagonalTransformer",
    "Flow",
    "FlowComparison",
    "FullHead",
    "LinearNetwork",
    "LossFunction",
    "MatrixPath",
    "MatrixSensing",
    "Objective",
    "Perturbation",
    "Stage",
    "StageComparison",
    "Stages",
]
