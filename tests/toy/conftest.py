"""Small runs that several tests read."""

from pathlib import Path

import pytest

from rankrise.runs import ToyRun
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


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ToyRun:
    """A whole run of a head of dimension 4."""
    return run_toy(tmp_path_factory.mktemp("runs") / "tiny", TINY, command="rankrise toy tiny")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test makes a run of its own."""
    return tmp_path / "run"
