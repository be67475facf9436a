"""Stages: where loss, ranks and singular values of a run step, and how certain that is."""

from rankrise.watch._stages.find import Curve, FoundStage, StagesFound, find_stages
from rankrise.watch._stages.steps import FoundStep, find_steps

__all__ = ["Curve", "FoundStage", "FoundStep", "StagesFound", "find_stages", "find_steps"]
