"""Stages: where loss, ranks and singular values of a run step, and how certain that is."""

from rankrise.watch._stages.curves import Curve
from rankrise.watch._stages.find import FORMAT, Stage, StagesFound, find_stages
from rankrise.watch._stages.steps import Step, find_steps

__all__ = ["FORMAT", "Curve", "Stage", "StagesFound", "Step", "find_stages", "find_steps"]
