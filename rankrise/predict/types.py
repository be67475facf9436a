"""The types behind the verbs of `rankrise.predict`, for annotations and for `isinstance`."""

from rankrise.predict._assumptions import Assumption as Assumption
from rankrise.predict._assumptions import Assumptions as Assumptions
from rankrise.predict._compare import Convergence as Convergence
from rankrise.predict._compare import FlowComparison as FlowComparison
from rankrise.predict._compare import StageComparison as StageComparison
from rankrise.predict._diagonal import Coordinates as Coordinates
from rankrise.predict._flow import Crossing as Crossing
from rankrise.predict._flow import Flow as Flow
from rankrise.predict._greedy import Stage as Stage
from rankrise.predict._greedy import Stages as Stages
from rankrise.predict._loss import LossFunction as LossFunction
from rankrise.predict._networks.attention import AttentionEntry as AttentionEntry
from rankrise.predict._networks.attention import DiagonalHead as DiagonalHead
from rankrise.predict._networks.attention import DiagonalTransformer as DiagonalTransformer
from rankrise.predict._networks.full_head import FullHead as FullHead
from rankrise.predict._networks.linear import DiagonalLinear as DiagonalLinear
from rankrise.predict._networks.linear import LinearNetwork as LinearNetwork
