"""The types behind the verbs of `rankrise.watch`: what they return, and what they may be given.

Nobody has to import one to use the library; they are here for annotations and for `isinstance`.
"""

from rankrise.record.run import TrackedRun
from rankrise.watch._change import Change
from rankrise.watch._check import LayerCheck, LayoutCheck
from rankrise.watch._compare import HeadOverlap, MatrixChange, ModelComparison, ModelOverlap
from rankrise.watch._heads import Layer, Layers
from rankrise.watch._linear import Projection
from rankrise.watch._spectra import SingularVectors
from rankrise.watch._stages import Curve, FoundStage, StagesFound
from rankrise.watch._steps import FoundStep

__all__ = [
    "Change",
    "Curve",
    "FoundStage",
    "FoundStep",
    "HeadOverlap",
    "Layer",
    "LayerCheck",
    "Layers",
    "LayoutCheck",
    "MatrixChange",
    "ModelComparison",
    "ModelOverlap",
    "Projection",
    "SingularVectors",
    "StagesFound",
    "TrackedRun",
]
