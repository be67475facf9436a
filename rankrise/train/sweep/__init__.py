"""Sweep: one recipe at several values and seeds, or its choices, as runs in one folder."""

from rankrise.train.sweep.run import (
    PlannedRun,
    SweepPlan,
    SweepRun,
    plan,
    plan_choices,
    read_seeds,
    read_sets,
    run_sweep,
)  # fmt: skip
from rankrise.train.sweep.workers import Processes, dask_executor, slurm_executor

__all__ = [
    "PlannedRun", "Processes", "SweepPlan", "SweepRun", "dask_executor", "plan", "plan_choices", "read_seeds",
    "read_sets", "run_sweep", "slurm_executor",
]  # fmt: skip
