"""The types behind the verbs of `rankrise.predict`, for annotations and for `isinstance`."""

from rankrise.predict._assumptions import Assumption, Assumptions
from rankrise.predict._compare import Convergence, FlowComparison, StageComparison
from rankrise.predict._diagonal import Coordinates
from rankrise.predict._flow import Crossing, Flow
from rankrise.predict._loss import LossFunction
from rankrise.predict._networks.full_head import FullHead
from rankrise.predict._networks.head import AttentionEntry, DiagonalHead
from rankrise.predict._networks.linear import DiagonalLinear, LinearNetwork
from rankrise.predict._networks.transformer import DiagonalTransformer
from rankrise.predict._stages import Stage, Stages

__all__ = [
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
    "Stage",
    "StageComparison",
    "Stages",
]
