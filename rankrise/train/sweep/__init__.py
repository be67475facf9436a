"""Sweep: one recipe at several values and seeds, or its choices, as runs in one folder."""

from rankrise.train.sweep.clusters import dask_executor, slurm_executor
from rankrise.train.sweep.plan import PlannedRun, SweepPlan, plan, plan_choices, read_seeds, read_sets
from rankrise.train.sweep.processes import Processes
from rankrise.train.sweep.run import SweepRun, run_sweep

__all__ = [
    "PlannedRun", "Processes", "SweepPlan", "SweepRun", "dask_executor", "plan", "plan_choices", "read_seeds",
    "read_sets", "run_sweep", "slurm_executor",
]  # fmt: skip
