"""Sweep: one recipe at several values and seeds, or its choices, as runs beside each other in one folder."""

from rankrise.train.sweep.clusters import dask_executor, slurm_executor
from rankrise.train.sweep.plan import PlannedRun, chosen, plan, plan_choices, read_seeds, read_sets
from rankrise.train.sweep.processes import Processes
from rankrise.train.sweep.record import SweepRun
from rankrise.train.sweep.run import run_choices, run_sweep

__all__ = [
    "PlannedRun",
    "Processes",
    "SweepRun",
    "chosen",
    "dask_executor",
    "plan",
    "plan_choices",
    "read_seeds",
    "read_sets",
    "run_choices",
    "run_sweep",
    "slurm_executor",
]
