"""Small runs that tests of several packages read, made once for all workers."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tracked_runs import train

from rankrise.runs import ToyRun, open_toy
from rankrise.toy import ToySettings, run_toy

# A head that has four stages by rescaled time 1.8, two of them in W_K W_Q^T.
TINY = ToySettings(
    dimension=4,
    tokens=4,
    samples=40,
    seeds=(6,),
    alphas=("1e-16", "1e-32"),
    until=1.8,
    step=0.1,
    other_steps=(0.05,),
    duration=60.0,
    full_until=2.0,
)

SETTINGS = ToySettings(
    dimension=3,
    tokens=4,
    samples=30,
    alphas=("1e-2", "1e-8"),
    until=8.0,
    step=0.2,
    other_steps=(0.1,),
    full_scale="1e-4",
    full_until=8.0,
    perturbed_times=2,
    duration=2.5,
)

TRACKED: dict[str, dict[str, Any]] = {
    "unit": {},
    "again": {"seed": 1},
    "small": {"scale": 0.1},
    "hard": {"data": "cifar100", "symbols": 16, "seed": 2},
    "wander": {"data": None, "wander": True},
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def run(shared: Path) -> ToyRun:
    """A whole run, five stages long; tests that change one take a copy."""
    folder = shared / "report-run"
    with FileLock(f"{folder}.lock"):
        return run_toy(folder, SETTINGS, command="rankrise toy report-run")


@pytest.fixture(scope="session")
def tracked(shared: Path) -> dict[str, Path]:
    """Trained networks by what is special about them; tests that change one take a copy."""
    folder = shared / "tracked"
    with FileLock(f"{folder}.lock"):
        for name, settings in TRACKED.items():
            if not (folder / name / "whole").is_file():
                train(folder / name, **settings)
                (folder / name / "whole").touch()
    return {name: folder / name for name in TRACKED}


@pytest.fixture
def copy_of(run: ToyRun, tmp_path: Path) -> Any:
    """copy_of(name): the run again, under another name."""

    def copy(name: str) -> ToyRun:
        return open_toy(shutil.copytree(run.folder, tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ToyRun:
    """A whole run of a head of dimension 4."""
    return run_toy(tmp_path_factory.mktemp("runs") / "tiny", TINY, command="rankrise toy tiny")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test makes a run of its own."""
    return tmp_path / "run"
