"""The types behind the verbs of `rankrise.watch`: what they return, for annotations and `isinstance`."""

from rankrise.record.run import TrackedRun as TrackedRun
from rankrise.watch._change import Change as Change
from rankrise.watch._check import LayerCheck as LayerCheck
from rankrise.watch._check import LayoutCheck as LayoutCheck
from rankrise.watch._compare import HeadOverlap as HeadOverlap
from rankrise.watch._compare import MatrixChange as MatrixChange
from rankrise.watch._compare import ModelComparison as ModelComparison
from rankrise.watch._compare import ModelOverlap as ModelOverlap
from rankrise.watch._heads import Layer as Layer
from rankrise.watch._heads import Layers as Layers
from rankrise.watch._linear import Projection as Projection
from rankrise.watch._spectra import SingularVectors as SingularVectors
from rankrise.watch._stages import Curve as Curve
from rankrise.watch._stages import FoundStage as FoundStage
from rankrise.watch._stages import FoundStep as FoundStep
from rankrise.watch._stages import StagesFound as StagesFound
