"""The types that the functions of `rankrise.watch` return, for annotations."""

from rankrise.watch._change import Change
from rankrise.watch._check import LayerCheck, LayoutCheck
from rankrise.watch._compare import MatrixChange, ModelComparison
from rankrise.watch._heads import Layer, Layers
from rankrise.watch._overlap import HeadOverlap, ModelOverlap
from rankrise.watch._projection import Projection
from rankrise.watch._stages import FoundStage, FoundStep, StagesFound
from rankrise.watch._subspaces import SingularVectors
from rankrise.watch._track.load import TrackedRun

__all__ = [
    "Change",
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
